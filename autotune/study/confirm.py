"""Decides which candidates are minimal, confirmed, proven and soaked.

The best of many noisy estimates is biased, so the search's own figures decide nothing here but which sets are proven,
and without which settings. A set is measured in fresh pairs of processes by a sequential test. Its plan, with the error
that all looks share, is recorded before the first pair and never changes, so a study that was stopped, or is given a
larger cap, goes on by its plan. The rule of one proof is `autotune.model.proofs.standing`.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Container, Sequence

from autotune.measure.runner import pays
from autotune.measure.tasks import AblationTask, PairTask, PendingTask, SoakTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import LossBasis
from autotune.model.proofs import Report, Standing, is_alone_due, report_of, standing
from autotune.model.records import (
    CONFIRM,
    ISOLATED,
    AaRecord,
    AblationResult,
    ConfirmRun,
    EffectsRecord,
    FinalistResult,
    LeftOut,
    ProofRecord,
    SoakRecord,
    TrialResult,
    TrialStatus,
    names_left_out,
)  # fmt: skip
from autotune.model.units import format_seconds
from autotune.results.format import format_soak
from autotune.rundir.store import Store
from autotune.stats.proof import ERROR, FIRST_LOOK, LEAST_PAIRS, ProofPlan, allot, alone_plan
from autotune.study.prefilter import is_same_program
from autotune.study.run import Candidate, SetState, StudyRun

LEAST_GROUP = 2
"""Fewest settings that are left out together rather than in turn."""


# ---------------------------------------------------------------------- candidates


def _choose_candidates(run: StudyRun, without: Container[int]) -> list[TrialResult]:
    results = [r for r in run.store.of(TrialResult) if r.number not in without]
    count, min_effect = run.spec.confirm.finalists, run.spec.measure.min_effect
    return worth_proving(results, count=count, min_effect=min_effect, effects=run.store.last(EffectsRecord))


def worth_proving(
    results: Sequence[TrialResult], *, count: int, min_effect: float, effects: EffectsRecord | None = None
) -> list[TrialResult]:
    """Returns the best `count` measured trials whose intervals allow a gain of `min_effect` (a share), best first.

    A trial is one pair of processes, and where processes differ by as much as a gain, one set in eight that gains 2 %
    does not look promising after it. So an interval that only allows a gain is enough.

    Args:
        effects: Estimates from all trials. With them, the best expected set comes first; of trials that differ only in
            settings of no expected use one is taken, and of trials of such settings alone those that were faster.
    """
    hopeful = [
        (r.comparison.estimate, r)
        for r in results
        if r.status is TrialStatus.MEASURED and r.comparison and r.comparison.estimate.low < 1.0 - min_effect
    ]
    ranked = [r for _, r in sorted(hopeful, key=lambda found: found[0].ratio)]
    if effects is None:
        return ranked[:count]
    ranked.sort(key=lambda r: r.settings != effects.best.settings)  # the others stay in their order
    different: dict[FlagSet, TrialResult] = {}
    for result in ranked:
        useful = effects.useful(result.settings, least=min_effect)
        if useful or (result.comparison is not None and result.comparison.estimate.ratio < 1.0 - min_effect):
            different.setdefault(useful, result)
    return list(different.values())[:count]


# ---------------------------------------------------------------------- minimal sets


def minimise(run: StudyRun) -> None:
    """Leaves out of each finalist the settings that do not pay."""
    run.candidates = _finalists(run, without=())


def _finalists(run: StudyRun, without: Container[int]) -> list[Candidate]:
    """Returns the best trials for whose proofs there is time, without the settings that do not pay."""
    chosen = _choose_candidates(run, without)
    allowed = run.time.allows_proofs([(f.settings, _pairs_done(run, f.number)) for f in chosen])
    if len(allowed) < len(chosen):
        run.view.note(f"of {len(chosen)} sets that may gain there is time for the proofs of {len(allowed)}")
    found: dict[FlagSet, Candidate] = {}
    for trial in chosen[: len(allowed)]:
        begun = _runs_of_trial(run, trial.number)  # a larger budget goes on with that set
        minimal = begun[0].settings if begun else _minimal(run, trial.settings)
        found.setdefault(minimal, Candidate(trial.number, minimal, SetState.MINIMAL))
    return list(found.values())


def _minimal(run: StudyRun, settings: FlagSet) -> FlagSet:
    if not run.spec.confirm.minimise or len(settings) < 2:
        return settings
    run.begin_stage("minimise", f"{len(settings)} settings, each left out once; no gain: dropped")
    return minimise_set(run, settings)


def _runs_of_trial(run: StudyRun, number: int) -> list[ConfirmRun]:
    return [r for r in run.store.of(ConfirmRun) if r.stage == CONFIRM and r.trial == number]


def _pairs_done(run: StudyRun, number: int) -> int:
    """Returns the pairs of processes of a trial's proof so far; all that a proof needs if it has ended."""
    runs, most, least = _runs_of_trial(run, number), most_pairs(run, CONFIRM), run.spec.measure.min_effect
    for plan in (p for p in run.store.of(ProofRecord) if runs and (p.stage, p.settings) == (CONFIRM, runs[0].settings)):
        if standing(plan, runs, trial=number, most=most, min_effect=least).is_over:
            return LEAST_PAIRS
    return len(runs)


def minimise_set(run: StudyRun, winner: FlagSet) -> FlagSet:
    """Leaves out of a set the settings that do not pay; measures and records each step.

    Settings of no expected use are left out first, together, by one measurement. If they pay after all, or nothing is
    expected, each setting in turn is measured against the set without it. A setting stays if leaving it out is
    measurably slower or, where that is not resolved, slower by the estimate: what is dropped by mistake is lost.
    """
    current = winner
    if len(group := _of_no_use(run, winner)) >= LEAST_GROUP:
        found = _ablation(run, current, group, share=1.0 / (1 + len(winner) - len(group)))
        if found is None:
            return current
        if not found.kept:
            current = current.without(*group)
    names = tuple(current)
    for at, name in enumerate(names):
        if len(current) == 1:
            break
        if run.spec.broken_rule(current.without(name), run.setup.rule_defaults) is not None:
            continue  # the set without it breaks a rule
        found = _ablation(run, current, name, share=1.0 / (len(names) - at))
        if found is None:
            break
        if not found.kept:
            current = current.without(name)
    return current


def _of_no_use(run: StudyRun, winner: FlagSet) -> tuple[str, ...]:
    """Returns the settings of no expected use; if all are such, without the one that is likeliest to act."""
    effects = run.store.last(EffectsRecord)
    if effects is None:
        return ()
    useful = effects.useful(winner, least=run.spec.measure.min_effect)
    likeliest = next((s.name for s in effects.settings if s.name in winner), None)
    group = tuple(n for n in winner if n not in useful and (useful or n != likeliest))
    is_allowed = run.spec.broken_rule(winner.without(*group), run.setup.rule_defaults) is None
    return group if is_allowed and len(group) < len(winner) else ()


def _ablation(run: StudyRun, settings: FlagSet, left_out: LeftOut, *, share: float) -> AblationResult | None:
    """Returns what leaving settings out does, recorded or measured in a share of the time left; None without time."""
    known = (a for a in run.store.of(AblationResult) if (a.settings, a.left_out) == (settings, left_out))
    if (found := next(known, None)) is None:
        names = names_left_out(left_out)
        if is_same_program(run, settings, settings.without(*names)):
            kept, reason = pays(None, run.spec.measure.min_effect)
            run.store.append(AblationResult(settings=settings, left_out=left_out, kept=kept, reason=reason))
        elif not run.time.allows(lambda takes: takes.ablation_s):
            run.view.note("not minimised further: what is left of the budget is kept for the proof")
            return None
        else:
            what = (
                names[0].lower() if isinstance(left_out, str) else f"{len(names)}-of-{settings.without(*names).digest}"
            )
            label = f"{settings.digest}-without-{what}"[:120]
            most = run.time.pairs_for(run.time.kept_after("minimise"), starts=2, share=share)
            unit = AblationTask(settings=settings, left_out=left_out, most=most)
            run.lanes.do(PendingTask(unit, ("minimise", label), label, run.store.append))
        found = run.store.of(AblationResult)[-1]
    run.view.ablation(found)
    return found


# ---------------------------------------------------------------------- confirmed, proven and soaked


def confirm(run: StudyRun) -> None:
    """Proves the finalists in fresh pairs of processes; if none holds and a budget has time left, searches on.

    Finalists that there was no time for are proven with what the proofs and the search left.
    """
    while True:
        if run.waiting:
            _prove_finalists(run, run.waiting)
            name_winner(run)
        if run.winner is not None or run.time.takes is None:
            return
        tried = {c.trial for c in run.candidates}
        chosen = _choose_candidates(run, tried)
        is_due = any(_runs_of_trial(run, t.number) or t.settings in run.time.unproven for t in chosen)
        has_more_trials = run.search_more()
        found = _finalists(run, tried) if has_more_trials or is_due else []
        if not has_more_trials and not found:
            return
        run.candidates += found


def _prove_finalists(run: StudyRun, finalists: Sequence[Candidate]) -> None:
    detail = f"{len(finalists)} finalists, each in up to {most_pairs(run, CONFIRM)} fresh pairs of processes"
    run.begin_stage("confirm", detail)
    proofs = prove(run, [(c.trial, c.settings) for c in finalists], stage=CONFIRM)
    for candidate, proof in zip(finalists, proofs, strict=True):
        candidate.proof = proof
        candidate.state = SetState.CONFIRMED if proof.is_passed else SetState.REFUTED


def name_winner(run: StudyRun) -> None:
    """Compares the best confirmed set with isolated runs; if they do not agree, the next one."""
    lost = {c.settings for c in run.candidates if c.report.objection is not None}
    waiting = [c for c in run.candidates if c.state is SetState.CONFIRMED and c.settings not in lost]
    confirmed = [(c, c.proof) for c in waiting if c.proof is not None]
    confirmed.sort(key=lambda pair: pair[1].corrected.ratio if pair[1].corrected else 1.0)
    for candidate, proof in confirmed:
        candidate.report = report(run, proof)
        candidate.state = SetState.PROVEN if candidate.report.objection is None else SetState.REFUTED
        if run.winner is not None:
            return


def report(run: StudyRun, proven: FinalistResult) -> Report:
    """Runs each arm in isolation, unless the proof did or none are asked for, and says what is to be reported."""
    store, isolated = run.store, None
    if is_alone_due(proven, store.last(AaRecord), store.of(ConfirmRun), asked=run.spec.confirm.isolated):
        run.begin_stage("confirm", "isolated runs of each arm, compared with the interleaved pairs")
        isolated = prove(run, [(proven.trial, proven.settings)], stage=ISOLATED)[0]
    return report_of(proven, isolated, store.of(ConfirmRun))


def soak(run: StudyRun) -> None:
    """Runs the proven set for long; if it fails, the next confirmed one is compared with isolated runs and soaked."""
    while (winner := run.winner) is not None and winner.proof is not None and (least_s := run.spec.confirm.soak):
        run.begin_stage(
            "soak",
            f"the winner in isolation for {format_seconds(least_s)} of steps, then the default: looks for hangs, "
            "divergence, stalls, slower steps and leaks",
        )
        record = _soaked(run, winner.proof, least_s)
        run.view.note(format_soak(record))
        if record.failure is None:
            winner.state = SetState.SOAKED
            return
        winner.state = SetState.REFUTED
        name_winner(run)


def _soaked(run: StudyRun, proven: FinalistResult, least_s: float) -> SoakRecord:
    """Returns the soak of a set, as recorded if it was at least as long, or run now."""
    settings, of_proof = proven.settings, (proven.stage, proven.settings)
    ratios = [r.log_ratio for r in run.store.of(ConfirmRun) if (r.stage, r.settings) == of_proof and r.log_ratio]
    least_steps = run.spec.soak_steps(settings)
    for record in run.store.of(SoakRecord):
        enough = record.steps_s >= least_s and record.step_count >= least_steps
        if record.settings == settings and (enough or record.failure is not None):
            return record
    name = f"soak-{settings.digest}-{least_s:.0f}-{least_steps}"
    judged = [r.loss.basis for r in run.store.of(ConfirmRun) if r.settings == settings and r.loss is not None]
    unit = SoakTask(
        settings=settings, least_s=least_s, least_steps=least_steps, basis=judged[-1] if judged else LossBasis.STEPS,
        typical=math.log(proven.estimate.ratio) if proven.estimate is not None else None,
        process_sd=statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
    )  # fmt: skip
    run.lanes.do(PendingTask(unit, ("soak", name), name, run.store.append))
    return run.store.of(SoakRecord)[-1]


# ---------------------------------------------------------------------- one proof


def prove(run: StudyRun, sets: Sequence[tuple[int, FlagSet]], *, stage: str) -> list[FinalistResult]:
    """Measures sets against the baseline, each in fresh pairs of processes, until each proof is settled.

    The sets alternate, so that a slow hour of the machine affects all. Recorded pairs are not run again. Once a set is
    proven, only sets that look better than it go on.

    Args:
        sets: Trial number and settings of each.
        stage: Name of the runs in the records; runs of another stage are never used.
    """
    plans, most = _plans(run, stage, [settings for _, settings in sets]), most_pairs(run, stage)
    proofs = [_Open(run, trial, plans[settings], most) for trial, settings in sets]

    def next_task() -> PendingTask | None:
        passed = [p.ratio for p in proofs if p.standing().result.is_passed]
        waiting = [(at, p) for p in proofs if (at := p.next_pair()) is not None and p.ratio < min(passed, default=9e9)]
        if not waiting:
            return None
        at, proof = min(waiting, key=lambda w: w[0])  # of equals the first: the sets are in order
        if not run.time.allows_pair(stage, is_needed=not passed):
            run.time.leave(proof.plan.settings)
            return None
        settings, repeat = proof.plan.settings, proof.take(at)
        task = PairTask(stage=stage, settings=settings, trial=proof.trial, repeat=repeat, is_isolated=stage == ISOLATED)
        name = f"{stage}-{settings.digest}-{repeat:02d}"
        return PendingTask(task, ("confirm", name), name, record)

    def record(found: ConfirmRun) -> None:
        run.store.append(found)
        run.view.proof(found, most)

    for proof in proofs:
        for known in proof.runs():
            run.view.proof(known, most)
    run.lanes.work(next_task)
    return [_record(run, proof.standing().result) for proof in proofs]


class _Open:
    def __init__(self, run: StudyRun, trial: int, plan: ProofRecord, most: int) -> None:
        self._run = run
        self._most = most
        self.trial = trial
        self.plan = plan
        self._taken: set[int] = set()
        self._known: tuple[int, Standing] | None = None

    def runs(self) -> list[ConfirmRun]:
        return _runs(self._run.store, self.plan.stage, self.plan.settings)

    def standing(self) -> Standing:
        """Returns the proof's standing; recomputes it only after a new pair."""
        runs, min_effect = self.runs(), self._run.spec.measure.min_effect
        if self._known is None or self._known[0] != len(runs):
            found = standing(self.plan, runs, trial=self.trial, most=self._most, min_effect=min_effect)
            self._known = (len(runs), found)
        return self._known[1]

    @property
    def ratio(self) -> float:
        """The ratio so far, 1 of too few pairs."""
        estimate = self.standing().result.estimate
        return estimate.ratio if estimate is not None else 1.0

    def next_pair(self) -> int | None:
        """Returns the index of the next pair to run, from 0; None if there is none."""
        if self.standing().is_over:
            return None
        done = {r.repeat for r in self.runs()} | self._taken
        at = next(n for n in itertools.count() if self.plan.first + n not in done)
        return at if at < self._most else None

    def take(self, at: int) -> int:
        """Marks a pair as begun and returns its number in the records."""
        self._taken.add(self.plan.first + at)
        return self.plan.first + at


def _record(run: StudyRun, result: FinalistResult) -> FinalistResult:
    run.store.append_news(result)
    run.view.finalist(result)
    return result


def most_pairs(run: StudyRun, stage: str) -> int:
    """Returns the most pairs of processes of a proof of this study."""
    confirm = run.spec.confirm
    return max(FIRST_LOOK, confirm.isolated if stage == ISOLATED else confirm.processes)


def _plans(run: StudyRun, stage: str, sets: Sequence[FlagSet]) -> dict[FlagSet, ProofRecord]:
    """Returns the plan of each proof, recorded with its share of the study's error, now or in an earlier session."""
    store, most = run.store, most_pairs(run, stage)
    plans = {p.settings: p for p in store.of(ProofRecord) if p.stage == stage}
    new = [s for s in sets if s not in plans]
    plan = alone_plan(most)
    if stage != ISOLATED and new:
        used = sum(p.error for p in plans.values())
        plan = ProofPlan(base=most, error=allot(ERROR, used, len(new)), least=LEAST_PAIRS)
    for settings in new:
        first = max((r.repeat + 1 for r in _runs(store, stage, settings)), default=0)
        numbers = {"base": plan.base, "error": plan.error, "least": plan.least, "first": first}
        plans[settings] = ProofRecord.model_validate({"stage": stage, "settings": settings, **numbers})
        store.append(plans[settings])
    return plans


def _runs(store: Store, stage: str, settings: FlagSet) -> list[ConfirmRun]:
    return [r for r in store.of(ConfirmRun) if r.stage == stage and r.settings == settings]
