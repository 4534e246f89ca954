"""One set against the reference, on a lane: is its program known already, is its loss right, how fast is it."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.machine import reproduction_environment
from autotune.model import (
    REFERENCE_NUMBER,
    Failure,
    FlagSet,
    LossCheck,
    TrialOutcome,
    TrialResult,
    TrialStatus,
    WorkerReport,
)
from autotune.stats import SequentialPlan
from autotune.study.alone import SANDWICH
from autotune.study.bench import Bench, ReferenceFailed
from autotune.study.comparer import Compared, Comparer, sequential
from autotune.study.loss_gate import with_blocks
from autotune.study.units import TrialUnit
from autotune.workers import WorkerFailed


def measure_trial(
    bench: Bench, comparer: Comparer, plan: SequentialPlan, unit: TrialUnit, folder: Path, *, name: str
) -> TrialResult:
    """Measures one proposed set, unless its program is known already; then the driver adds the duplicate's figures.

    Args:
        bench: Where.
        comparer: How.
        plan: When to stop.
        unit: What.
        folder: Where logs and the request go.
        name: Seeds the order of blocks.

    Raises:
        ReferenceFailed: If no reference stayed alive beside it.
        LaunchError: If the reference cannot be started.
        RunDirectoryError: If the folder cannot be written.
    """
    config = unit.config
    bench.folders.write_beside(folder, "request.json", lambda: _request(bench, comparer, unit))
    report: WorkerReport | None = None
    key: str | None = None
    loss: LossCheck | None = None

    def inspect(reference: WorkerReport, candidate: WorkerReport) -> TrialOutcome | None:
        nonlocal report, key, loss
        report, key = candidate, bench.program_key(config.settings, candidate)
        checked = bench.check_loss(config.settings, reference, candidate)
        if isinstance(checked, Failure):
            return TrialOutcome(status=TrialStatus.FAILED, failure=checked)
        loss = checked
        programs = {**bench.programs, bench.program_key(FlagSet(), reference): REFERENCE_NUMBER}
        if key not in programs:
            return None
        return TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=programs[key])

    rule = sequential(
        plan, min_effect=bench.spec.measure.min_effect, incumbent=unit.incumbent, spread=bench.spread, most=unit.most
    )
    outcome: TrialOutcome
    try:
        found: Compared[TrialOutcome] = comparer.compare(config.settings, folder, name=name, rule=rule, inspect=inspect)
    except ReferenceFailed:
        raise
    except WorkerFailed as error:
        outcome = TrialOutcome(status=TrialStatus.FAILED, failure=_relative(bench, error.failure))
    else:
        if found.settled is not None:
            outcome = found.settled
        else:
            assert found.comparison is not None
            loss = with_blocks(loss, found.pairs, found.reference, bench.loss_spread)
            outcome = TrialOutcome(status=TrialStatus.MEASURED, comparison=found.comparison)
            if key is not None and bench.program_key(config.settings, found.candidate) != key:
                report, key = found.candidate, None  # it compiles more as it runs, or another program each time
    return TrialResult(
        **dict(config), **dict(outcome), worker=report, program_key=key, compiled_key=unit.compiled_key, loss=loss
    )


def _relative(bench: Bench, failure: Failure) -> Failure:
    """The failure with its log's path relative to the run directory."""
    if failure.log is None:
        return failure
    path = Path(failure.log)
    inside = path.is_relative_to(bench.folders.path)
    return failure.model_copy(update={"log": bench.folders.relative(path) if inside else path.name})


def _request(bench: Bench, comparer: Comparer, unit: TrialUnit) -> str:
    """What a trial was asked to do: settings and the environment they make, allow-listed."""
    spec, config = bench.spec, unit.config
    merged = bench.share.settings_of(config.settings, alone=comparer.mode == SANDWICH)
    body = {
        "trial": config.number,
        "origin": config.origin,
        "settings": dict(config.settings),
        "baseline": dict(spec.baseline),
        "frame": {n: v for n, v in merged.items() if n not in config.settings and n not in spec.baseline},
        "mode": comparer.mode,
        "environment": reproduction_environment(
            merged, platform_name=spec.device.platform, virtual_devices=spec.device.count
        ),
        "workload": spec.workload.model_dump(),
    }
    return json.dumps(body, indent=1) + "\n"
