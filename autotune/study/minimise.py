"""Leaves out one setting of a winner after the other, and keeps what pays for itself."""

from __future__ import annotations

import time

from autotune.model import AblationResult, Comparison, FlagSet, WorkerReport
from autotune.rundir import attempts
from autotune.stats import Verdict
from autotune.study.comparer import sequential
from autotune.study.run import StudyRun
from autotune.workers import WorkerFailed


def minimise_set(run: StudyRun, winner: FlagSet) -> FlagSet:
    """What is left of a set when one setting after the other is measured against what is left; records each finding.

    A setting stays if leaving it out is measurably slower, or, where that is not resolved, if the estimate says that
    it costs more than the smallest effect of interest. What is dropped by mistake is found by the proof that follows.
    """
    current = winner
    for name in list(winner):
        if len(current) == 1:
            break
        found = _ablation(run, current, name)
        run.view.ablation(found)
        if not found.kept:
            current = current.without(name)
    return current


def _ablation(run: StudyRun, settings: FlagSet, name: str) -> AblationResult:
    """What leaving one setting out does: as recorded, or measured now, by this worker or another."""

    def recorded() -> AblationResult | None:
        found = (a for a in run.store.of(AblationResult) if a.settings == settings and a.left_out == name)
        return next(found, None)

    label = f"{settings.digest}-without-{name.lower()}"[:120]
    key = f"minimise-{settings.digest}-{name.lower()}"[:120]
    return run.once(key, recorded, lambda attempt: _ablate(run, settings, name, attempts(label, attempt)))


def _ablate(run: StudyRun, settings: FlagSet, name: str, label: str) -> AblationResult:
    """Measures a set without one setting against the whole set."""
    started = time.monotonic()
    bench, less = run.bench, settings.without(name)
    folder = run.store.folder("minimise", label)
    update: dict[str, object]

    def is_one_program(whole: WorkerReport, without: WorkerReport) -> bool | None:
        return bench.program_key(settings, whole) == bench.program_key(less, without) or None

    rule = sequential(run.plan, sesoi=run.spec.measure.smallest_effect, incumbent=None)
    try:
        comparison: Comparison | None = None
        if not run.evaluator.is_same_program(settings, less):
            found = run.comparer.compare(less, folder, name=label, rule=rule, against=settings, inspect=is_one_program)
            comparison = found.comparison
    except WorkerFailed as error:
        update = {"failure": error.failure, "kept": True, "reason": "the rest does not run without it"}
    else:
        kept, reason = _pays(comparison, run.spec.measure.smallest_effect)
        update = {"comparison": comparison, "kept": kept, "reason": reason}
    return AblationResult(
        settings=settings,
        left_out=name,
        directory=run.store.relative(folder),
        duration_s=round(time.monotonic() - started, 3),
        **update,
    )


def _pays(comparison: Comparison | None, sesoi: float) -> tuple[bool, str]:
    """Whether a setting stays, from what leaving it out does (None: nothing, the program is the same), and why."""
    if comparison is None:
        return False, "the program is the same without it"
    if comparison.verdict is Verdict.SLOWER:
        return True, "slower without it"
    if comparison.verdict is Verdict.UNRESOLVED and comparison.estimate.ratio > 1 + sesoi:
        return True, "not resolved, but the estimate is slower without it"
    return False, "no slower without it"
