"""Decides which candidates are confirmed, minimal, proven and soaked.

The best of many noisy estimates is biased, so the search's own figures decide nothing here. A set is measured in fresh
pairs of processes by a sequential test. Its plan, with the error that all looks share, is recorded before the first
pair and never changes, so a study that was stopped, or is given a larger cap, goes on by its plan. The rule of one
proof is `autotune.model.proofs.standing`. A figure that stops a test early is lucky more often than not, so the
reported gain comes from a fixed number of pairs run after it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autotune.measure.runner import pays
from autotune.measure.tasks import AblationTask, PairTask, PendingTask, SoakTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import INTERLEAVED, LossBasis
from autotune.model.proofs import (
    ALONE,
    GAIN,
    Reestimate,
    Standing,
    alone_of,
    gain_of,
    ratios_of,
    reestimate,
    runs_after,
    runs_of,
    standing,
)
from autotune.model.records import (
    AblationResult,
    ConfirmRun,
    EffectsRecord,
    FinalistResult,
    FloorResult,
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
from autotune.stats.estimates import Verdict
from autotune.stats.proof import (
    ALONE_PAIRS,
    CLAIM,
    FIRST_LOOK,
    HURDLE,
    ProofPlan,
    allot,
    candidate_weights,
    chance_to_prove,
    gain_pairs,
    look_alone,
)  # fmt: skip
from autotune.study.prefilter import is_same_program
from autotune.study.run import Candidate, SetState, StudyRun

FAMILIES = {"full": "final"}
"""Stages whose proofs share the error of another stage."""

LIKELY = 0.5
"""Chance of settling a proof at which a larger cap is suggested."""

HIGHEST = 200
"""Largest cap that is suggested."""

LEAST_GROUP = 2
"""Fewest settings that are left out together rather than in turn."""


# ---------------------------------------------------------------------- candidates


def choose_candidates(run: StudyRun, without: Container[FlagSet]) -> list[TrialResult]:
    """Returns the best trials that are worth a proof, except sets in `without`."""
    spec, results = run.spec, [r for r in run.store.of(TrialResult) if r.settings not in without]
    count, min_effect = spec.confirm.finalists, spec.measure.min_effect
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


def confirm(run: StudyRun) -> None:
    """Measures the best trials in fresh processes; if none holds and a budget has time left, the search goes on."""
    refuted: set[FlagSet] = set()
    while chosen := _affordable(run, refuted):
        detail = f"{len(chosen)} finalists, each in up to {most_processes(run)} fresh pairs of processes"
        run.begin_stage("confirm", detail)
        sets = [(f.number, f.settings) for f in chosen]
        run.candidates = [
            Candidate("confirm", f.trial, f.settings, SetState.CONFIRMED if f.is_passed else SetState.REFUTED, proof=f)
            for f in prove(run, sets, stage="confirm")
        ]
        if run.time.takes is None or any(c.state is SetState.CONFIRMED for c in run.candidates):
            return
        refuted |= {f.settings for f in chosen}
        begun = (pairs_run(run, "confirm", f.settings) for f in choose_candidates(run, refuted))
        if not run.search_more() and not any(begun):
            return  # no time for more, and no earlier session has proven more


def _affordable(run: StudyRun, refuted: Container[FlagSet]) -> list[TrialResult]:
    chosen = choose_candidates(run, refuted)
    begun = [(f.settings, pairs_run(run, "confirm", f.settings)) for f in chosen]
    allowed = run.time.allows_proofs("confirm", begun)
    if len(allowed) < len(chosen):
        run.view.note(f"of {len(chosen)} sets that may gain there is time for the proofs of {len(allowed)}")
    return [f for f in chosen if f.settings in allowed]


# ---------------------------------------------------------------------- minimal sets


def minimise(run: StudyRun) -> None:
    """Leaves out of the best confirmed set the settings that do not pay."""
    confirmed = [c for c in run.candidates if c.state is SetState.CONFIRMED]
    best = min(confirmed, key=_corrected_ratio, default=None)
    run.candidates = []
    if best is None:
        return
    minimal = best.settings
    if run.spec.confirm.minimise and len(best.settings) > 1:
        run.begin_stage("minimise", f"{len(best.settings)} settings, each left out once; no gain: dropped")
        minimal = minimise_set(run, best.settings)
    run.candidates = [Candidate("final", best.trial, minimal, SetState.MINIMAL)]
    if minimal != best.settings:
        run.candidates.append(Candidate("full", best.trial, best.settings, SetState.CONFIRMED))


def _corrected_ratio(confirmed: Candidate) -> float:
    proof = confirmed.proof
    return proof.corrected.ratio if proof is not None and proof.corrected else 1.0


def minimise_set(run: StudyRun, winner: FlagSet) -> FlagSet:
    """Leaves out of a set the settings that do not pay; measures and records each step.

    Settings of no expected use are left out first, together, by one measurement. If they pay after all, or nothing is
    expected, each setting in turn is measured against the set without it. A setting stays if leaving it out is
    measurably slower or, where that is not resolved, if by the estimate it costs more than the smallest effect of
    interest. The proof that follows detects a setting dropped by mistake.
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
            continue  # the set without it breaks a rule
        found = _left_out(run, current, name, share=1.0 / (len(names) - at))
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


def _left_out(run: StudyRun, settings: FlagSet, left_out: LeftOut, *, share: float) -> AblationResult | None:
    """Measures the effect of leaving settings out; returns None, with a note, if there is no time for it."""
    is_known = _known_ablation(run, settings, left_out) is not None
    if not is_known and not run.time.allows(lambda takes: takes.ablation_s):
        run.view.note("not minimised further: what is left of the budget is kept for the final proof")
        return None
    return _ablation(run, settings, left_out, share=share)


def _known_ablation(run: StudyRun, settings: FlagSet, left_out: LeftOut) -> AblationResult | None:
    found = (a for a in run.store.of(AblationResult) if (a.settings, a.left_out) == (settings, left_out))
    return next(found, None)


def _ablation(run: StudyRun, settings: FlagSet, left_out: LeftOut, *, share: float = 1.0) -> AblationResult:
    """Returns the effect of leaving settings out, as recorded or measured now in a share of the time left."""
    if (found := _known_ablation(run, settings, left_out)) is None:
        names = names_left_out(left_out)
        if is_same_program(run, settings, settings.without(*names)):
            kept, reason = pays(None, run.spec.measure.min_effect)
            run.store.append(AblationResult(settings=settings, left_out=left_out, kept=kept, reason=reason))
        else:
            what = (
                names[0].lower() if isinstance(left_out, str) else f"{len(names)}-of-{settings.without(*names).digest}"
            )
            label = f"{settings.digest}-without-{what}"[:120]
            most = run.time.pairs_for(run.time.kept_after("confirm"), starts=2, share=share)
            unit = AblationTask(settings=settings, left_out=left_out, most=most)
            run.lanes.do(PendingTask(unit, ("minimise", label), label, run.store.append))
        found = run.store.of(AblationResult)[-1]
    run.view.ablation(found)
    return found


# ---------------------------------------------------------------------- proven and soaked


def final_proof(run: StudyRun) -> None:
    """Proves the first candidate that holds in new processes, whose figures took no part in its selection."""
    if not run.waiting or not run.time.allows_proofs("final", _first_waiting(run)):
        return
    plan_proofs(run, [(c.stage, c.settings) for c in run.waiting], candidate_weights(len(run.waiting)))
    while run.waiting and run.winner is None and run.time.allows_proofs("final", _first_waiting(run)):
        candidate = run.waiting[0]
        is_first = candidate.stage == "final"
        what = "the minimal set" if is_first else "the whole set, because the minimal one did not pass"
        detail = f"{what}, proven once more in up to {most_processes(run)} fresh pairs of processes"
        run.begin_stage("final proof", detail)
        candidate.proof = prove(run, [(candidate.trial, candidate.settings)], stage=candidate.stage)[0]
        candidate.state = SetState.REFUTED
        if candidate.proof.verdict is Verdict.FASTER:
            candidate.after = measure_again(run, candidate.proof)
            if candidate.after.objection is None:
                candidate.state = SetState.PROVEN


def _first_waiting(run: StudyRun) -> list[tuple[FlagSet, int]]:
    return [(c.settings, pairs_run(run, c.stage, c.settings)) for c in run.waiting[:1]]


def soak(run: StudyRun) -> None:
    """Runs the proven set for long; if it fails, the next candidate is proven and soaked."""
    while (winner := run.winner) is not None and winner.proof is not None and (least_s := run.spec.confirm.soak):
        run.begin_stage(
            "soak",
            f"the winner in isolation for {format_seconds(least_s)} of steps, then the default: looks for hangs, "
            "divergence, stalls and leaks",
        )
        record = _soaked(run, winner.proof, least_s)
        run.view.note(format_soak(record))
        if record.failure is None:
            winner.state = SetState.SOAKED
            return
        winner.state = SetState.REFUTED
        final_proof(run)


def _soaked(run: StudyRun, proven: FinalistResult, least_s: float) -> SoakRecord:
    """Returns the soak of a set, as recorded if it was at least as long, or run now."""
    settings, of_proof = proven.settings, (proven.stage, proven.settings)
    ratios = [r.log_ratio for r in run.store.of(ConfirmRun) if (r.stage, r.settings) == of_proof and r.log_ratio]
    least_steps = run.spec.soak_steps
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

    The sets take turns, so that a slow hour of the machine affects all. Recorded pairs are not run again.

    Args:
        sets: Trial number and settings of each.
        stage: Name of the runs in the records; runs of another stage are never used.
    """
    plan_proofs(run, [(stage, settings) for _, settings in sets])
    store, most = run.store, most_processes(run)
    planned = [(t, _plan_of(store, stage, s)) for t, s in sets]
    proofs = [_Open(run, trial, proof) for trial, proof in planned if proof is not None]

    def next_pair() -> PairTask | None:
        waiting = [(at, p) for p in proofs if (at := p.next_pair()) is not None]
        if not waiting:
            return None
        at, proof = min(waiting, key=lambda w: w[0])  # of equals the first: the sets are in order
        has_passed = any(found.is_over and found.result.is_passed for found in (p.standing() for p in proofs))
        if not run.time.allows_pair(stage, at + 1, is_needed=not has_passed):
            run.time.leave(proof.plan.settings)
            return None
        return PairTask(stage=stage, settings=proof.plan.settings, trial=proof.trial, repeat=proof.take(at))

    _run_pairs(run, [r for p in proofs for r in p.runs()], next_pair, asked=most)
    for proof in proofs:
        _record(run, proof.standing().result)
    return [[f for f in store.of(FinalistResult) if (f.stage, f.settings) == (stage, s)][-1] for _, s in sets]


class _Open:
    def __init__(self, run: StudyRun, trial: int, plan: ProofRecord) -> None:
        self._run = run
        self.trial = trial
        self.plan = plan
        self._taken: set[int] = set()
        self._known: tuple[int, Standing] | None = None

    def runs(self) -> list[ConfirmRun]:
        return _runs(self._run.store, self.plan.stage, self.plan.settings)

    def standing(self) -> Standing:
        """Returns the proof's standing; recomputes it only after a new pair."""
        runs, spec = self.runs(), self._run.spec
        if self._known is None or self._known[0] != len(runs):
            found = standing(
                self.plan, runs, trial=self.trial, most=most_processes(self._run),
                min_effect=spec.measure.min_effect,
            )  # fmt: skip
            self._known = (len(runs), found)
        return self._known[1]

    def next_pair(self) -> int | None:
        """Returns the index of the next pair to run, from 0; None if there is none."""
        if self.standing().is_over:
            return None
        done = {r.repeat for r in self.runs()} | self._taken
        at = next(n for n in itertools.count() if self.plan.first + n not in done)
        return at if at < most_processes(self._run) else None

    def take(self, at: int) -> int:
        """Marks a pair as begun and returns its number in the records."""
        self._taken.add(self.plan.first + at)
        return self.plan.first + at


def _run_pairs(
    run: StudyRun, known: Sequence[ConfirmRun], next_pair: Callable[[], PairTask | None], *, asked: int
) -> None:
    """Runs and records fresh pairs of processes until `next_pair` returns None.

    Args:
        known: Pairs that earlier sessions recorded, to be shown.
        asked: Most pairs of each set, to be shown.
    """

    def record(found: ConfirmRun) -> None:
        run.store.append(found)
        run.view.proof(found, asked)

    def next_job() -> PendingTask | None:
        if (unit := next_pair()) is None:
            return None
        name = f"{unit.stage}-{unit.settings.digest}-{unit.repeat:02d}"
        return PendingTask(unit, ("confirm", name), name, record)

    for found in known:
        run.view.proof(found, asked)
    run.lanes.work(next_job)


def _record(run: StudyRun, result: FinalistResult) -> FinalistResult:
    run.store.append_news(result)
    run.view.finalist(result)
    return result


def most_processes(run: StudyRun) -> int:
    """Returns the most pairs of processes of a proof of this study."""
    return max(FIRST_LOOK, run.spec.confirm.processes)


def plan_proofs(run: StudyRun, proofs: Sequence[tuple[str, FlagSet]], weights: Sequence[float] | None = None) -> None:
    """Records the plan of each proof, with its share of the error, unless it is recorded already.

    Args:
        proofs: Stage and settings of each, all of one family.
        weights: Shares of the error that the family has left; default: equal.
    """
    store = run.store
    todo = [
        (proof, weight)
        for proof, weight in zip(proofs, weights or [1.0] * len(proofs), strict=True)
        if _plan_of(store, *proof) is None
    ]
    if not todo:
        return
    family = _family(todo[0][0][0])
    known = [p for p in store.of(ProofRecord) if _family(p.stage) == family]
    shares = [weight for _, weight in todo]
    claims = allot(CLAIM, sum(p.claim for p in known), shares)
    hurdles = claims
    if family == "confirm":  # a final proof follows, of other pairs
        hurdles = allot(HURDLE, sum(p.hurdle for p in known), shares)
    for ((stage, settings), _), hurdle, claim in zip(todo, hurdles, claims, strict=True):
        first = max((r.repeat + 1 for r in _runs(store, stage, settings)), default=0)
        base = most_processes(run)
        store.append(ProofRecord(stage=stage, settings=settings, base=base, hurdle=hurdle, claim=claim, first=first))


def pairs_run(run: StudyRun, stage: str, settings: FlagSet) -> int:
    """Returns the number of pairs that a proof has run in all sessions; the most possible if a failure ended it."""
    runs = _runs(run.store, stage, settings)
    return most_processes(run) if any(r.failure is not None for r in runs) else len(runs)


def _plan_of(store: Store, stage: str, settings: FlagSet) -> ProofRecord | None:
    return next((p for p in store.of(ProofRecord) if p.stage == stage and p.settings == settings), None)


def _family(stage: str) -> str:
    return FAMILIES.get(stage, stage)


def _runs(store: Store, stage: str, settings: FlagSet) -> list[ConfirmRun]:
    return [r for r in store.of(ConfirmRun) if r.stage == stage and r.settings == settings]


# ---------------------------------------------------------------------- the gain of a proven set


def measure_again(run: StudyRun, proven: FinalistResult) -> Reestimate:
    """Measures the gain of a set that its proof calls faster, and looks for what speaks against it."""
    run.begin_stage("final proof", "gain: more fresh pairs of processes, for the reported figure only")
    count = gain_pairs(proven.process_count)
    _run_after(run, proven, GAIN, lambda done, begun: begun < count, asked=count)
    gain = _record(run, gain_of(proven, run.store.of(ConfirmRun), min_effect=run.spec.measure.min_effect))
    alone = None if gain.is_vetoed else _check_alone(run, proven)
    return reestimate(gain, alone, run.store.of(ConfirmRun))


def _check_alone(run: StudyRun, proven: FinalistResult) -> FinalistResult | None:
    """Compares with isolated runs of each arm; None without interleaved pairs, or if none are requested."""
    floor, asked = run.store.last(FloorResult), run.spec.confirm.alone
    if floor is None or floor.comparison.mode != INTERLEAVED or asked == 0:
        return None
    run.begin_stage("final proof", "isolated runs of each arm, compared with the interleaved pairs")
    most, turns = max(asked, FIRST_LOOK), ratios_of(runs_after(proven, run.store.of(ConfirmRun), GAIN))

    def goes_on(done: list[ConfirmRun], begun: int) -> bool:
        if len(done) >= ALONE_PAIRS and not run.time.allows(lambda takes: takes.alone_s / ALONE_PAIRS, "alone"):
            return False
        return begun == len(done) and not look_alone(ratios_of(done), turns, most=most).stop

    _run_after(run, proven, ALONE, goes_on, asked=most)
    every, min_effect = run.store.of(ConfirmRun), run.spec.measure.min_effect
    return _record(run, alone_of(proven, every, most=asked, min_effect=min_effect))


def _run_after(
    run: StudyRun,
    proven: FinalistResult,
    stage: str,
    goes_on: Callable[[list[ConfirmRun], int], bool],
    *,
    asked: int,
) -> None:
    """Runs pairs until one fails or `goes_on`, given the finished ones and the number begun, is False."""

    def done() -> list[ConfirmRun]:
        return runs_after(proven, run.store.of(ConfirmRun), stage)

    taken: set[int] = set()
    before = len(done())

    def next_pair() -> PairTask | None:
        runs = done()
        if any(r.failure is not None for r in runs) or not goes_on(runs, before + len(taken)):
            return None
        free = next(n for n in itertools.count() if n not in {r.repeat for r in runs} | taken)
        taken.add(free)
        return PairTask(stage=stage, settings=proven.settings, trial=proven.trial, repeat=free, is_alone=stage == ALONE)

    _run_pairs(run, done(), next_pair, asked=asked)


# ---------------------------------------------------------------------- what is left open


class Unsettled(NamedTuple):
    """A proof that ended without a verdict.

    Attributes:
        gain: The largest gain that it does not rule out, as a share of the default's step time.
        processes: Cap that would more likely than not settle it; None if that is above `HIGHEST`.
    """

    result: FinalistResult
    gain: float
    processes: int | None


def unsettled(store: Store) -> Unsettled | None:
    """Returns the proof without a verdict that needs the smallest cap to be settled."""
    min_effect = store.spec.measure.min_effect
    found = []
    for result in {(f.stage, f.settings): f for f in store.of(FinalistResult)}.values():
        plan = _plan_of(store, result.stage, result.settings)
        if plan is None or result.corrected is None or result.verdict is not Verdict.UNRESOLVED or result.is_vetoed:
            continue
        if (gain := 1.0 - result.corrected.low) > min_effect:
            runs = runs_of(plan, _runs(store, result.stage, result.settings))[: result.process_count]
            ratios = np.asarray([r.log_ratio for r in runs], dtype=np.float64)
            needed = _settling_cap(ratios, ProofPlan(base=plan.base, error=plan.hurdle), min_effect=min_effect)
            found.append(Unsettled(result, gain, needed))
    return min(found, key=lambda u: (u.processes or HIGHEST + 1, -u.gain), default=None)


def _settling_cap(ratios: npt.NDArray[np.float64], plan: ProofPlan, *, min_effect: float) -> int | None:
    for most in range(len(ratios) + 1, HIGHEST + 1):
        if chance_to_prove(ratios, plan, most=most, min_effect=min_effect) >= LIKELY:
            return most
    return None
