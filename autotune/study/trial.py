"""One flag set in, one `TrialResult` out: is it known already, is its loss right, how fast is it.

A failing trial is data, never an exception; only a reference that cannot run is an error of the study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from autotune.machine import reproduction_environment
from autotune.model import (
    REFERENCE_NUMBER,
    Failed,
    Failure,
    FlagSet,
    Measured,
    TrialConfig,
    TrialOutcome,
    TrialResult,
    TrialStatus,
    Twin,
    WorkerReport,
)
from autotune.rundir import attempts
from autotune.stats import REFERENCE, Estimate
from autotune.study.alone import SANDWICH
from autotune.study.comparer import Compared, sequential
from autotune.study.run import StudyRun
from autotune.study.screen import Precheck
from autotune.workers import WorkerFailed


def measure_trial(
    run: StudyRun, config: TrialConfig, known: Sequence[TrialResult], precheck: Precheck, *, attempt: int
) -> TrialResult:
    """Measures one proposed set, unless its program turns out to be known.

    Args:
        run: The study.
        config: What.
        known: Results so far.
        precheck: What the screen says of the set.
        attempt: Number of the attempt; workers that died made those before it.

    Raises:
        LaunchError: If the reference cannot be kept alive.
        RunDirectoryError: If the run directory cannot be written.
    """
    bench = run.bench
    folder = run.store.folder("trials", attempts(f"{config.number:04d}", attempt))
    run.store.write_beside(folder, "request.json", lambda: _request(run, config))
    report: WorkerReport | None = None
    key: str | None = None

    def inspect(reference: WorkerReport, candidate: WorkerReport) -> TrialOutcome | None:
        nonlocal report, key
        report, key = candidate, bench.program_key(config.settings, candidate)
        if (wrong := bench.check_loss(reference, candidate)) is not None:
            return Failed(failure=wrong)
        return find_twin(key, bench.program_key(FlagSet(), reference), known, lambda earlier: earlier.program_key)

    # By step time alone a set that is surely not the best is given up; as one of a front it may still count.
    best = incumbent(known) if len(run.spec.search.objectives) == 1 else None
    rule = sequential(run.plan, sesoi=run.spec.measure.smallest_effect, incumbent=best)
    outcome: TrialOutcome
    try:
        found: Compared[TrialOutcome] = run.comparer.compare(
            config.settings, folder, name=f"trial-{config.number}", rule=rule, inspect=inspect
        )
    except WorkerFailed as error:
        outcome = Failed(failure=_relative(run, error.failure))
    else:
        if found.settled is not None:
            outcome = found.settled
        else:
            assert found.comparison is not None
            outcome = Measured(comparison=found.comparison)
    return TrialResult(
        **dict(config),
        outcome=outcome,
        worker=report,
        program_key=key,
        compiled_key=precheck.key,
        directory=run.store.relative(folder),
    )


def find_twin(
    key: str, reference_key: str | None, known: Sequence[TrialResult], key_of: Callable[[TrialResult], str | None]
) -> Twin | None:
    """The reference or the trial that stands for a program, if one does.

    Args:
        key: Names the program.
        reference_key: Names the reference's.
        known: Results so far.
        key_of: Gives a result's name of that kind.
    """
    if key == reference_key:
        return Twin(status=TrialStatus.SAME_PROGRAM, same_as=REFERENCE_NUMBER)
    for earlier in known:
        if key_of(earlier) == key and earlier.status in (TrialStatus.MEASURED, TrialStatus.PREDICTED):
            return _twin_of(earlier, TrialStatus.SAME_PROGRAM)
    return None


def same_set(settings: FlagSet, known: Sequence[TrialResult]) -> Twin | None:
    """The trial that had this very set, if one did."""
    for earlier in known:
        if earlier.settings == settings and earlier.status is not TrialStatus.SAME_SET:
            return _twin_of(earlier, TrialStatus.SAME_SET)
    return None


def _twin_of(earlier: TrialResult, status: Literal[TrialStatus.SAME_SET, TrialStatus.SAME_PROGRAM]) -> Twin:
    figures = {n: getattr(earlier, n) for n in ("comparison", "prediction", "failure")}
    return Twin(status=status, same_as=earlier.number, **figures)


def incumbent(results: Sequence[TrialResult]) -> Estimate:
    """The best estimate so far, the reference's own while nothing is better."""
    found = [r.outcome.comparison.estimate for r in results if isinstance(r.outcome, Measured)]
    best = min(found, key=lambda e: e.ratio, default=None)
    return best if best is not None and best.ratio < 1 else REFERENCE


def _relative(run: StudyRun, failure: Failure) -> Failure:
    """The failure with its log's path relative to the run directory."""
    if failure.log is None:
        return failure
    path = Path(failure.log)
    inside = path.is_relative_to(run.store.path)
    return failure.model_copy(update={"log": run.store.relative(path) if inside else path.name})


def _request(run: StudyRun, config: TrialConfig) -> str:
    """What a trial was asked to do: settings and the environment they make, allow-listed."""
    spec, device = run.spec, run.spec.device
    merged = run.bench.settings_of(config.settings, alone=run.comparer.mode == SANDWICH)
    body = {
        "trial": config.number,
        "origin": config.origin,
        "settings": dict(config.settings),
        "baseline": dict(spec.baseline),
        "frame": {n: v for n, v in merged.items() if n not in config.settings and n not in spec.baseline},
        "mode": run.comparer.mode,
        "environment": reproduction_environment(merged, platform_name=device.platform, virtual_devices=device.count),
        "workload": spec.workload.model_dump(),
    }
    return json.dumps(body, indent=1) + "\n"
