"""The noise floor: the reference against itself tells what can be resolved on this machine."""

from __future__ import annotations

from autotune.machine import describe_machine, measured_versions
from autotune.model import FlagSet, FloorResult, LaunchError
from autotune.rundir import refuse_strangers, refuse_upgraded
from autotune.study.alone import SANDWICH, OneAtATime
from autotune.study.comparer import Compared, fixed
from autotune.study.run import StudyRun
from autotune.workers import WorkerFailed

FLOOR_PAIRS_LEAST = 16


def measured_floor(run: StudyRun) -> FloorResult:
    """The reference against a second process of itself, unless that was measured in an earlier session.

    Raises:
        LaunchError: If the reference does not run, or what it runs on is not what the study began with.
    """
    mine = [f for f in run.store.of(FloorResult) if f.by == run.store.claims.worker]
    if mine:
        floor = mine[-1]
        if run.spec.replay is None:
            refuse_upgraded(floor, measured_versions())
        _go_on_in(floor.comparison.mode, run)
    else:
        run.view.stage("noise floor", "the reference is measured against itself: what can be resolved on this machine?")
        floor = _measure(run)
        refuse_strangers(floor, run.store.of(FloorResult))
        run.store.append(floor)
    run.bench.loss_tolerance = floor.loss_tolerance
    run.view.floor(floor)
    if not mine:
        for warning in (*floor.reference.warnings, *floor.comparison.warnings):
            run.view.note(warning)
    return floor


def _measure(run: StudyRun) -> FloorResult:
    folder = run.store.folder(*run.bench.own_floor)
    rule = fixed(max(FLOOR_PAIRS_LEAST, run.plan.cap // 2), sesoi=run.spec.measure.smallest_effect)
    found: Compared[None] | None = None
    while found is None:
        try:
            found = run.comparer.compare(FlagSet(), folder, name="floor", rule=rule)
        except WorkerFailed as error:
            if error.failure.phase != "step":
                raise LaunchError(
                    f"a second reference must run beside the first but did not: {error}; its log is "
                    f"{error.failure.log}. If both do not fit in memory together, make the workload smaller"
                ) from error
            run.bench.lose_reference(str(error))
    assert found.comparison is not None
    _go_on_in(found.comparison.mode, run)
    return FloorResult(
        floor=run.comparer.noise_floor(found.pairs, plan=run.plan),
        reference=found.reference,
        comparison=found.comparison,
        provenance=describe_machine(),
        loss_tolerance=found.drift,
        directory=run.store.relative(folder),
    )


def _go_on_in(mode: str, run: StudyRun) -> None:
    """Compares as the noise floor turned out to be measured: two processes may not have fitted together."""
    if mode == SANDWICH and run.comparer.mode != SANDWICH:
        run.view.note("two processes do not fit into the device's memory: they run one at a time, in sandwiches")
        run.comparer = OneAtATime(run.bench)
