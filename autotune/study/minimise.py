"""Leaves out of a winner what does not pay: first what the trials taught to be of no use, then one by one."""

from __future__ import annotations

from autotune.model import AblationResult, EffectsRecord, FlagSet, LeftOut, artefacts_of, names_left_out
from autotune.study.measured import is_same_program
from autotune.study.run import StudyRun
from autotune.study.runner import pays
from autotune.study.units import AblationUnit, Job

LEAST_GROUP = 2
"""Settings that are left out together rather than in turn, at least."""


def minimise_set(run: StudyRun, winner: FlagSet) -> FlagSet:
    """What is left of a set when what does not pay is left out; each step is measured and recorded.

    What the trials taught to be of no use goes first, together, by one measurement. Where that finds that it pays after
    all, or where nothing is known, one setting after the other is measured against what is left.

    A setting stays if leaving it out is measurably slower, or, where that is not resolved, if the estimate says that
    it costs more than the smallest effect of interest. What is dropped by mistake is found by the proof that follows.
    """
    current = winner
    if len(group := _of_no_use(run, winner)) >= LEAST_GROUP:
        found = _left_out(run, current, group, share=1.0 / (1 + len(winner) - len(group)))
        if found is None:
            return current
        if not found.kept:
            current = current.without(*group)
    names = tuple(current)
    for at, name in enumerate(names):
        if len(current) == 1:
            break
        if run.spec.broken_rule(current.without(name), run.setup.rule_defaults) is not None:
            continue  # without it the set would be none that may be tried
        found = _left_out(run, current, name, share=1.0 / (len(names) - at))
        if found is None:
            break
        if not found.kept:
            current = current.without(name)
    return current


def _of_no_use(run: StudyRun, winner: FlagSet) -> tuple[str, ...]:
    """What the trials taught to be of no use in a set; of nothing but such settings the likeliest one stays."""
    taught = run.store.last(EffectsRecord)
    if taught is None:
        return ()
    useful = taught.useful(winner, least=run.spec.measure.min_effect)
    likeliest = next((s.name for s in taught.settings if s.name in winner), None)
    group = tuple(n for n in winner if n not in useful and (useful or n != likeliest))
    is_allowed = run.spec.broken_rule(winner.without(*group), run.setup.rule_defaults) is None
    return group if is_allowed and len(group) < len(winner) else ()


def _left_out(run: StudyRun, settings: FlagSet, left_out: LeftOut, *, share: float) -> AblationResult | None:
    """What leaving settings out does, told to the user; None, and that told, if there is no time to find it."""
    if known_ablation(run, settings, left_out) is None and not run.time.allows(lambda takes: takes.ablation_s):
        run.view.note("not minimised further: what is left of the budget is kept for the final proof")
        return None
    found = _ablation(run, settings, left_out, share=share)
    run.view.ablation(found)
    return found


def pays_for_itself(run: StudyRun, settings: FlagSet, name: str) -> bool:
    """Whether one setting of a set is worth a proof: measured against the set without it, unless that is recorded."""
    found = _ablation(run, settings, name)
    run.view.ablation(found)
    return found.kept and found.failure is None


def known_ablation(run: StudyRun, settings: FlagSet, left_out: LeftOut) -> AblationResult | None:
    """What is recorded of leaving settings out."""
    found = (a for a in run.store.of(AblationResult) if (a.settings, a.left_out) == (settings, left_out))
    return next(found, None)


def _ablation(run: StudyRun, settings: FlagSet, left_out: LeftOut, *, share: float = 1.0) -> AblationResult:
    """What leaving settings out does: as recorded, or measured now, in so large a share of the time there is."""
    if (known := known_ablation(run, settings, left_out)) is not None:
        return known
    names = names_left_out(left_out)
    # A compiler that is given a set without its artefacts goes on without them: what it says is of another program.
    if not artefacts_of(settings) and is_same_program(run, settings, settings.without(*names)):
        kept, reason = pays(None, run.spec.measure.min_effect)
        run.store.append(AblationResult(settings=settings, left_out=left_out, kept=kept, reason=reason))
    else:
        what = names[0].lower() if isinstance(left_out, str) else f"{len(names)}-of-{settings.without(*names).digest}"
        label = f"{settings.digest}-without-{what}"[:120]
        most = run.time.pairs_for(run.time.kept_after("confirm"), starts=2, share=share)
        unit = AblationUnit(settings=settings, left_out=left_out, most=most)
        run.lanes.do(Job(unit, ("minimise", label), label, run.store.append))
    return run.store.of(AblationResult)[-1]
