"""Leaves out one setting of a winner after the other, and keeps what pays for itself."""

from __future__ import annotations

from autotune.model import AblationResult, FlagSet, artefacts_of
from autotune.study.run import StudyRun
from autotune.study.runner import pays
from autotune.study.units import AblationUnit, Job


def minimise_set(run: StudyRun, winner: FlagSet) -> FlagSet:
    """What is left of a set when one setting after the other is measured against what is left; records each finding.

    A setting stays if leaving it out is measurably slower, or, where that is not resolved, if the estimate says that
    it costs more than the smallest effect of interest. What is dropped by mistake is found by the proof that follows.
    """
    current = winner
    for at, name in enumerate(winner):
        if len(current) == 1:
            break
        if run.spec.broken_rule(current.without(name), run.setup.rule_defaults) is not None:
            continue  # without it the set would be none that may be tried
        if known_ablation(run, current, name) is None and not run.time.allows(lambda takes: takes.ablation_s):
            run.view.note("not minimised further: what is left of the budget is kept for the final proof")
            break
        found = _ablation(run, current, name, share=1.0 / (len(winner) - at))
        run.view.ablation(found)
        if not found.kept:
            current = current.without(name)
    return current


def pays_for_itself(run: StudyRun, settings: FlagSet, name: str) -> bool:
    """Whether one setting of a set is worth a proof: measured against the set without it, unless that is recorded."""
    found = _ablation(run, settings, name)
    run.view.ablation(found)
    return found.kept and found.failure is None


def known_ablation(run: StudyRun, settings: FlagSet, name: str) -> AblationResult | None:
    """What is recorded of leaving one setting out."""
    found = (a for a in run.store.of(AblationResult) if (a.settings, a.left_out) == (settings, name))
    return next(found, None)


def _ablation(run: StudyRun, settings: FlagSet, name: str, *, share: float = 1.0) -> AblationResult:
    """What leaving one setting out does: as recorded, or measured now, in so large a share of the time there is."""
    if (known := known_ablation(run, settings, name)) is not None:
        return known
    # A compiler that is given a set without its artefacts goes on without them: what it says is of another program.
    if not artefacts_of(settings) and run.evaluator.is_same_program(settings, settings.without(name)):
        kept, reason = pays(None, run.spec.measure.smallest_effect)
        run.store.append(AblationResult(settings=settings, left_out=name, kept=kept, reason=reason))
    else:
        label = f"{settings.digest}-without-{name.lower()}"[:120]
        most = run.time.pairs_for(run.time.kept_after("confirm"), starts=2, share=share)
        unit = AblationUnit(settings=settings, left_out=name, most=most)
        run.lanes.do(Job(unit, ("minimise", label), label, run.store.append))
    return run.store.of(AblationResult)[-1]
