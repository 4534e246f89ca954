"""Sets prove themselves in fresh processes: the best of many noisy estimates is too good to be true.

So the search's own figures decide nothing here: a set is measured in fresh pairs of processes, one after the other,
and looked at after each. What all those looks may err together is written down before the first pair of a proof, and
never changes: a study that was stopped, or is given a larger cap, goes on by the plan that it began with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autotune.model import ConfirmRun, FinalistResult, FlagSet, ProofRecord, Standing, runs_of, standing
from autotune.rundir import Store
from autotune.stats import CLAIM, FIRST_LOOK, HURDLE, ProofPlan, Verdict, allot, chance_to_prove
from autotune.study.run import StudyRun
from autotune.study.units import Job, PairUnit

FAMILIES = {"full": "final"}
"""Stages whose proofs share the error of another stage."""

LIKELY = 0.5
"""Chance of settling a proof that makes a larger cap worth saying."""

HIGHEST = 200
"""Largest cap that is worth saying."""

Set = tuple[int, FlagSet]


def prove(run: StudyRun, sets: Sequence[Set], *, stage: str, against: FlagSet | None = None) -> list[FinalistResult]:
    """Measures some sets against the baseline, each in fresh pairs of processes, until each proof is settled.

    The sets take turns, so that a slow hour of the machine is shared by all. Pairs already recorded are not run again.

    Args:
        run: The study.
        sets: Trial number and settings of each.
        stage: Under which name the runs are recorded; runs of another stage are never used.
        against: What to compare with instead of the baseline alone.
    """
    plan_proofs(run, [(stage, settings) for _, settings in sets])
    store, most = run.store, most_processes(run)
    planned = [(t, proof_of(store, stage, s)) for t, s in sets]
    proofs = [_Open(run, trial, proof) for trial, proof in planned if proof is not None]

    def next_pair() -> PairUnit | None:
        waiting = [(at, p) for p in proofs if (at := p.next_pair()) is not None]
        if not waiting:
            return None
        at, proof = min(waiting, key=lambda w: w[0])  # of equals the first: the sets are in order
        has_passed = any(standing.is_over and standing.result.is_passed for standing in (p.standing() for p in proofs))
        if not run.time.allows_pair(stage, at + 1, is_needed=not has_passed):
            run.time.leave(proof.plan.settings)
            return None
        return PairUnit(
            stage=stage, settings=proof.plan.settings, trial=proof.trial, repeat=proof.take(at), against=against
        )

    run_pairs(run, [r for p in proofs for r in p.runs()], next_pair, asked=most)
    for proof in proofs:
        result = proof.standing().result
        store.append_news(result)
        run.view.finalist(result)
    return [[f for f in store.of(FinalistResult) if (f.stage, f.settings) == (stage, s)][-1] for _, s in sets]


class _Open:
    """One proof that is under way."""

    def __init__(self, run: StudyRun, trial: int, plan: ProofRecord) -> None:
        self._run = run
        self.trial = trial
        self.plan = plan
        self._taken: set[int] = set()
        self._known: tuple[int, Standing] | None = None

    def runs(self) -> list[ConfirmRun]:
        return _runs(self._run.store, self.plan.stage, self.plan.settings)

    def standing(self) -> Standing:
        """How it stands; worked out again only where a pair has come."""
        runs, spec = self.runs(), self._run.spec
        if self._known is None or self._known[0] != len(runs):
            found = standing(
                self.plan, runs, trial=self.trial, most=most_processes(self._run),
                min_effect=spec.measure.min_effect,
            )  # fmt: skip
            self._known = (len(runs), found)
        return self._known[1]

    def next_pair(self) -> int | None:
        """Which of its pairs is to be run next, counted from 0; None if none is."""
        if self.standing().is_over:
            return None
        done = {r.repeat for r in self.runs()} | self._taken
        at = next(n for n in itertools.count() if self.plan.first + n not in done)
        return at if at < most_processes(self._run) else None

    def take(self, at: int) -> int:
        """The number of a pair that is run now."""
        self._taken.add(self.plan.first + at)
        return self.plan.first + at


def run_pairs(
    run: StudyRun, known: Sequence[ConfirmRun], next_pair: Callable[[], PairUnit | None], *, asked: int
) -> None:
    """Has fresh pairs of processes run and recorded until there is none to run.

    Args:
        run: The study.
        known: Those that earlier sessions recorded, to be shown.
        next_pair: Gives the next one.
        asked: How many there may be of each set.
    """

    def record(found: ConfirmRun) -> None:
        run.store.append(found)
        run.view.proof(found, asked)

    def next_job() -> Job | None:
        if (unit := next_pair()) is None:
            return None
        name = f"{unit.stage}-{unit.settings.digest}-{unit.repeat:02d}"
        return Job(unit, ("confirm", name), name, record)

    for found in known:
        run.view.proof(found, asked)
    run.lanes.work(next_job)


def most_processes(run: StudyRun) -> int:
    """Pairs of processes after which a proof of this study ends in any case."""
    return max(FIRST_LOOK, run.spec.confirm.processes)


def plan_proofs(run: StudyRun, proofs: Sequence[tuple[str, FlagSet]], weights: Sequence[float] | None = None) -> None:
    """Writes down what each proof may err, unless that is written down.

    Args:
        run: The study.
        proofs: Stage and settings of each, all of one family.
        weights: How they share what the stage has left; default: alike.
    """
    store = run.store
    todo = [
        (proof, weight)
        for proof, weight in zip(proofs, weights or [1.0] * len(proofs), strict=True)
        if proof_of(store, *proof) is None
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


def proof_of(store: Store, stage: str, settings: FlagSet) -> ProofRecord | None:
    """The plan of a proof; None where there is none, or none yet."""
    return next((p for p in store.of(ProofRecord) if p.stage == stage and p.settings == settings), None)


def pairs_run(run: StudyRun, stage: str, settings: FlagSet) -> int:
    """Pairs of processes that a proof has run, in all sessions; one that failed ended it, as if it had all."""
    runs = _runs(run.store, stage, settings)
    return most_processes(run) if any(r.failure is not None for r in runs) else len(runs)


def _family(stage: str) -> str:
    return FAMILIES.get(stage, stage)


def _runs(store: Store, stage: str, settings: FlagSet) -> list[ConfirmRun]:
    return [r for r in store.of(ConfirmRun) if r.stage == stage and r.settings == settings]


# ---------------------------------------------------------------------- what is left open


class Unsettled(NamedTuple):
    """A proof that ended without a word for or against its set.

    Attributes:
        gain: The largest gain that it does not rule out, as a share of the default's step time.
        processes: Cap with which it would be settled, more likely than not; None where that is more than is worth it.
    """

    result: FinalistResult
    gain: float
    processes: int | None


def unsettled(store: Store) -> Unsettled | None:
    """What a study that proved nothing leaves open: of the proofs without a verdict, that which needs least."""
    min_effect = store.spec.measure.min_effect
    found = []
    for result in {(f.stage, f.settings): f for f in store.of(FinalistResult)}.values():
        plan = proof_of(store, result.stage, result.settings)
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
        if chance_to_prove(ratios, plan, most=most, min_effect=min_effect, optimism=0.5) >= LIKELY:
            return most
    return None
