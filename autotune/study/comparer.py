"""Comparing two sets: the one thing that noise floor, trial, proof and ablation have in common.

There are two ways. In turns (`autotune.study.turns`): both processes live side by side and run blocks in pairs. One at
a time (`autotune.study.alone`): where two do not fit into the device's memory, or the program cannot wait for its turn.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from autotune.machine import NO_METER, NOT_LOOKED, EnergyMeter, Looked
from autotune.model import TURNS, Comparison, FlagSet, Pair, WorkerReport, WorkPerStep
from autotune.stats import (
    Decision,
    Estimate,
    NoiseFloor,
    SequentialPlan,
    decide,
    estimate_pairs,
    judge,
    largest_drift,
    widen,
)
from autotune.study.bench import Bench, ReferenceFailed
from autotune.workers import WorkerFailed

S = TypeVar("S")
R = TypeVar("R")

CANDIDATE_RETRIES = 2
"""How often a candidate that something outside seems to have ended (SIGTERM, a port in use) is measured once more."""

Inspect = Callable[[WorkerReport, WorkerReport], S | None]
"""Called with the reports of reference and candidate before anything is measured; what it gives settles the matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Generic[S]):
    """What a comparison gave.

    Attributes:
        settled: What the inspection of the reports said; nothing was measured then.
        pairs: Raw pairs of blocks, in order.
        comparison: Their figures; None if the matter was settled before.
    """

    reference: WorkerReport
    candidate: WorkerReport
    settled: S | None = None
    pairs: Sequence[Pair] = ()
    comparison: Comparison | None = None

    @property
    def drift(self) -> float:
        """Largest relative difference of the two traces of loss and gradient norm, as far as both go."""
        first, second = self.reference, self.candidate
        losses = min(len(first.losses), len(second.losses))  # what is read from an output may end anywhere
        norms = min(len(first.grad_norms), len(second.grad_norms))
        return max(
            largest_drift(first.losses[:losses], second.losses[:losses]),
            largest_drift(first.grad_norms[:norms], second.grad_norms[:norms]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFloor:
    """The reference against other processes of itself.

    Attributes:
        reference: The living one.
        seconds: The others, in order.
        pairs: Raw pairs of blocks with all of them, in order.
        comparison: All pairs together.
        noise: What they say about this machine.
        log_times: Of the living one, which is the measure, and of the others their typical step, as logarithms; None
            where that is not known.
    """

    reference: WorkerReport
    seconds: Sequence[WorkerReport]
    pairs: Sequence[Pair]
    comparison: Comparison
    noise: NoiseFloor
    log_times: Sequence[float] | None = None

    @property
    def drift(self) -> float:
        """Largest relative difference of the traces of loss and gradient norm of any of them to the living one's."""
        return max(Compared(reference=self.reference, candidate=second).drift for second in self.seconds)


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When a comparison in turns ends, and the estimate that is honest under that rule.

    Attributes:
        stop: Given the log ratios so far, whether to stop and why; None between looks.
        estimate: From all log ratios to the estimate.
    """

    stop: Callable[[list[float]], Decision | None]
    estimate: Callable[[list[float]], Estimate]


def sequential(
    plan: SequentialPlan,
    *,
    min_effect: float,
    incumbent: Estimate | None,
    spread: float = 0.0,
    most: int | None = None,
) -> StoppingRule:
    """The rule of a trial: looks at the plan's pair counts, at an error level that holds over all looks.

    Args:
        plan: The looks.
        min_effect: Smallest effect of interest.
        incumbent: See `autotune.stats.decide`.
        spread: What one pair of equal processes may differ by, in log; it is in the estimate's interval.
        most: Pairs for which there is time: it ends at the last look within them, but never before the first one.
    """
    last = max((n for n in plan.looks if most is None or n <= most), default=plan.looks[0])

    def stop(ratios: list[float]) -> Decision | None:
        if len(ratios) not in plan.looks and len(ratios) < plan.cap:
            return None
        found = decide(ratios, plan, min_effect=min_effect, incumbent=incumbent, spread=spread)
        if len(ratios) >= last and not found.stop:
            return replace(found, stop=True, reason="no time for more pairs")
        return found

    return StoppingRule(stop, lambda ratios: widen(plan.estimate(ratios), spread))


def fixed(count: int, *, min_effect: float) -> StoppingRule:
    """The rule of a proof, and of each process of a noise floor: a number of pairs settled beforehand."""

    def stop(ratios: list[float]) -> Decision | None:
        if len(ratios) < count:
            return None
        estimate = estimate_pairs(ratios)
        return Decision(
            stop=True,
            reason=f"all {count} pairs run",
            estimate=estimate,
            verdict=judge(estimate, min_effect=min_effect),
        )

    return StoppingRule(stop, estimate_pairs)


class Comparer(ABC):
    """Compares two sets on a bench.

    Attributes:
        mode: ``turns`` or ``sandwich``, as it is kept in records.
    """

    mode: str

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def compare(
        self,
        candidate: FlagSet,
        folder: Path,
        *,
        name: str,
        rule: StoppingRule,
        against: FlagSet | None = None,
        inspect: Inspect[S] | None = None,
    ) -> Compared[S]:
        """Measures a set until its interval is as good as it gets.

        Args:
            candidate: The set.
            folder: Where raw samples and logs go.
            name: Seeds the order of blocks.
            rule: When to stop, where blocks are in pairs.
            against: What to compare with, in a fresh process; default: the study's reference.
            inspect: See `Inspect`.

        Raises:
            WorkerFailed: If the candidate failed, or `against` did; `ReferenceFailed` if no reference outlived it.
            LaunchError: If the reference cannot be started.
        """

        def once(comparer: Comparer) -> Compared[S]:
            return comparer._compare(candidate, folder, name=name, rule=rule, against=against, inspect=inspect)

        return self._until_reference_holds(once, candidate, against or FlagSet(), is_reference_ours=against is None)

    def fresh_pair(
        self,
        candidate: FlagSet,
        folder: Path,
        *,
        name: str,
        pairs: int,
        against: FlagSet | None = None,
        inspect: Inspect[S] | None = None,
    ) -> Compared[S]:
        """Measures a set in one fresh pair of processes, with so many pairs of blocks; see `compare`."""
        other = against if against is not None else FlagSet()

        def once(comparer: Comparer) -> Compared[S]:
            return comparer._fresh_pair(candidate, folder, name=name, pairs=pairs, against=other, inspect=inspect)

        return self._until_reference_holds(once, candidate, other, is_reference_ours=True)

    def floor(self, folder: Path, *, plan: SequentialPlan) -> MeasuredFloor:
        """Measures the reference against other processes of itself; see `compare`.

        Args:
            folder: Where raw samples and logs go.
            plan: Of the trials, of which the noise floor tells what they can find.
        """
        return self._until_reference_holds(
            lambda comparer: comparer._floor(folder, plan), FlagSet(), FlagSet(), is_reference_ours=True
        )

    def _until_reference_holds(
        self, once: Callable[[Comparer], R], candidate: FlagSet, other: FlagSet, *, is_reference_ours: bool
    ) -> R:
        """Tries again what was not the candidate's fault, a few times; whose it was, its process tells."""
        comparer, retries = self.for_sets(candidate, other), 0
        while True:
            self.bench.gpus.take()  # what was seen of a try that failed is not of this one
            try:
                return once(comparer)
            except WorkerFailed as error:
                if (way := comparer.instead(error, candidate)) is not None:
                    comparer = way
                elif is_reference_ours and isinstance(error, ReferenceFailed):
                    self.bench.lose_reference(error)
                elif error.infrastructure and error.failure.phase == "step" and retries < CANDIDATE_RETRIES:
                    retries += 1
                    self.bench.desk.incident(f"measured once more after: {error}")
                else:
                    raise

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """The way to compare some sets, from what earlier pairs have shown of them."""
        return self

    def instead(self, error: WorkerFailed, candidate: FlagSet) -> Comparer | None:
        """The way to compare when this one failed because it is this one; None if that is not the cause."""
        return None

    @abstractmethod
    def _compare(
        self,
        candidate: FlagSet,
        folder: Path,
        *,
        name: str,
        rule: StoppingRule,
        against: FlagSet | None,
        inspect: Inspect[S] | None,
    ) -> Compared[S]:
        """One try of `compare`; raises `ReferenceFailed` where it was not the candidate."""

    @abstractmethod
    def _fresh_pair(
        self, candidate: FlagSet, folder: Path, *, name: str, pairs: int, against: FlagSet, inspect: Inspect[S] | None
    ) -> Compared[S]:
        """One try of `fresh_pair`."""

    @abstractmethod
    def _floor(self, folder: Path, plan: SequentialPlan) -> MeasuredFloor:
        """One try of `floor`."""


def make_comparison(
    pairs: Sequence[Pair],
    estimate: Estimate,
    *,
    stopped: str,
    mode: str = TURNS,
    looked: Looked = NOT_LOOKED,
    meter: EnergyMeter = NO_METER,
    work: WorkPerStep | None = None,
) -> Comparison:
    """Puts a comparison's figures together.

    Args:
        pairs: Raw.
        estimate: Of their ratios; per unit of work where that differs.
        stopped: Why no more were measured, in words.
        mode: How they were measured.
        looked: What was seen of the GPUs meanwhile.
        meter: Counted the energy of the pairs.
        work: What a step of each arm does, where it differs.
    """
    return Comparison(
        estimate=estimate,
        reference_step_s=statistics.median(t for p in pairs for t in p.reference_s),
        candidate_step_s=statistics.median(t for p in pairs for t in p.candidate_s),
        pair_count=len(pairs),
        mode=mode,
        stopped=stopped,
        warnings=looked.warnings,
        energy=meter.use_of(pairs, sandwiches=mode != TURNS and len(pairs) > 1, work=work),
        energy_problem=meter.problem_of(pairs),
        during=looked.during,
        work=work,
    )
