"""The noise floor: the reference against itself tells what can be resolved on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from autotune import environment, measure, sandwich
from autotune.errors import LaunchError
from autotune.evaluate import Bench, reference_failed
from autotune.flags import FlagSet
from autotune.launch.base import WorkerFailed
from autotune.nodes import refuse_strangers, refuse_upgraded
from autotune.noise import noise_floor
from autotune.records import (
    FloorResult,
    WorkerReport,
)
from autotune.stats import SequentialPlan, estimate_pairs
from autotune.store import Store
from autotune.told import View
from autotune.traces import largest_drift

FLOOR_PAIRS_LEAST = 16


def measure_floor(store: Store, bench: Bench, plan: SequentialPlan, view: View) -> FloorResult:
    """The reference against a second process of itself, unless that was measured in an earlier session."""
    mine = [f for f in store.of(FloorResult) if f.by == store.claims.worker]
    if mine:
        known = mine[-1]
        if store.spec.replay is None:
            refuse_upgraded(known, environment.provenance()["versions"])
        bench.mode = known.comparison.mode
        view.floor(known)
        return known
    view.stage("floor", "the reference is measured against itself: what can be resolved on this machine?")
    if bench.mode == sandwich.MODE:
        return _floor_alone(store, bench, view)
    for _ in range(3):
        reference = bench.reference()
        folder = store.folder(*bench.own_floor)
        try:
            second = bench.start(FlagSet(), folder)
        except WorkerFailed as error:
            if bench.must_run_alone(error.failure):
                view.note("two processes do not fit into the device's memory: they run one at a time, in sandwiches")
                bench.release_reference()
                bench.mode = sandwich.MODE
                return _floor_alone(store, bench, view)
            raise LaunchError(
                f"a second reference must run beside the first but did not: {error}; its log is {error.failure.log}. "
                "If both do not fit in memory together, make the workload smaller"
            ) from error
        try:
            count = max(FLOOR_PAIRS_LEAST, plan.cap // 2)
            sesoi = store.spec.measure.smallest_effect
            pairs, stopped = bench.run_turns(
                reference, second, folder, name="floor", stop=measure.fixed(count, sesoi=sesoi)
            )
        except WorkerFailed as error:
            bench.lose_reference(str(error))
            continue
        finally:
            second.close()
        ratios = [measure.log_ratio(p) for p in pairs]
        result = FloorResult(
            floor=noise_floor(ratios, [p.first == "candidate" for p in pairs], plan=plan, sesoi=sesoi),
            reference=reference.report,
            comparison=measure.compare(
                pairs,
                estimate_pairs(ratios),
                sesoi=sesoi,
                stopped=stopped,
                warnings=bench.gpus.warnings(),
                meter=bench.meter,
            ),
            provenance=environment.provenance(),
            loss_tolerance=max(
                largest_drift(reference.report.losses, second.report.losses),
                largest_drift(reference.report.grad_norms, second.report.grad_norms),
            ),
            directory=store.relative(folder),
        )
        _keep_floor(store, result, view)
        return result
    raise LaunchError("two references must run in turns but failed three times; see floor/ in the run directory")


def _floor_alone(store: Store, bench: Bench, view: View) -> FloorResult:
    """The reference against itself in fresh runs, one process at a time."""
    folder = store.folder(*bench.own_floor)
    reports: list[WorkerReport] = []
    while True:
        try:
            pairs = sandwich.run_sandwiches(
                bench, FlagSet(), FlagSet(), folder, inspect=lambda first, second: reports.extend((first, second))
            )
            break
        except (sandwich.ReferenceFailed, WorkerFailed) as error:
            failed = error.error if isinstance(error, sandwich.ReferenceFailed) else error
            if not failed.infrastructure and not reports:
                raise LaunchError(reference_failed(bench.spec.baseline, failed)) from error
            bench.lose_reference(str(failed))
    sesoi = store.spec.measure.smallest_effect
    first, second = reports[-2:]
    result = FloorResult(
        floor=sandwich.noise_floor(pairs, sesoi=sesoi),
        reference=first,
        comparison=sandwich.compare(bench, pairs),
        provenance=environment.provenance(),
        loss_tolerance=max(
            largest_drift(*_alike(first.losses, second.losses)),
            largest_drift(*_alike(first.grad_norms, second.grad_norms)),
        ),
        directory=store.relative(folder),
    )
    _keep_floor(store, result, view)
    return result


def _keep_floor(store: Store, result: FloorResult, view: View) -> None:
    """Records a floor and shows it.

    Raises:
        LaunchError: If another worker of the study has another kind of device or other versions.
    """
    refuse_strangers(result, store.of(FloorResult))
    store.append(result)
    view.floor(result)
    for warning in (*result.reference.warnings, *result.comparison.warnings):
        view.note(warning)


def _alike(first: Sequence[float], second: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Two traces cut to one length: what is read from a program's output may end anywhere."""
    count = min(len(first), len(second))
    return first[:count], second[:count]
