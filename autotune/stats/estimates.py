"""Ratio, interval, sequential stop and verdict from paired measurements: numbers in, numbers out.

Everything rests on one fact that the driver makes true: within each pair of blocks the order (reference
first or candidate first) is a fresh fair coin. Under a constant ratio the signs of the centred pair
differences are then independent and fair whatever drift, bursts or autocorrelation the machine has, so
inverting the signed-rank test gives an exact interval without assuming independent or Gaussian noise.

Ratios are candidate / reference step time everywhere: below 1 the candidate is faster.

References:
    Zou, Donner, Statist. Med. 27 (2008) (difference of two estimates from their intervals).
    `autotune.stats.estimates.intervals` for the intervals themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from autotune.stats.intervals import Floats, hodges_lehmann, pocock_critical_value, student_quantile

DEFAULT_LEVEL = 0.95
DEFAULT_MIN_EFFECT = 0.005
"""Smallest effect of interest, as a share of the reference step time."""

_NORMAL = NormalDist()

NARROWEST = 1.05
"""A trial ends when its interval is wider by no more than this factor than what its processes alone make it."""


class Verdict(StrEnum):
    """What an interval over fresh processes says about a candidate: the words of proofs, and of nothing else."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    UNRESOLVED = "unresolved"


class Outlook(StrEnum):
    """What a trial says about a candidate: its interval is about two processes, so it proves nothing."""

    PROMISING = "promising"
    NOT_PROMISING = "not promising"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of step times with its interval.

    Attributes:
        ratio: Candidate / reference step time; below 1 is a gain.
        low: Lower end of the interval, 0 when the data are too few for the level.
        high: Upper end of the interval, infinite when the data are too few for the level.
        level: Coverage the interval claims; over all looks together for a sequential estimate.
        pair_count: How many independent units made it: pairs of blocks, process pairs or sandwiches.
    """

    ratio: float
    low: float
    high: float
    level: float
    pair_count: int

    def __post_init__(self) -> None:
        """Refuses figures that no measurement gives; those of a record may have been edited.

        Raises:
            ValueError: If there is one.
        """
        if not (0.0 < self.ratio < math.inf and 0.0 <= self.low < math.inf and self.high >= 0.0):
            raise ValueError(
                f"an estimate must have a ratio above 0 and an interval from 0 on but got {self.ratio:g} "
                f"[{self.low:g}, {self.high:g}]"
            )
        if not (0.0 <= self.level <= 1.0 and 0 <= self.pair_count <= 2**53):
            raise ValueError(
                f"an estimate must have a level up to 1 and a count of pairs but got {self.level:g} and "
                f"{self.pair_count:g}"
            )


REFERENCE = Estimate(ratio=1.0, low=1.0, high=1.0, level=1.0, pair_count=0)
"""The reference against itself: what a first candidate has to beat."""


def standard_error(estimate: Estimate) -> float:
    """Standard error of the log ratio that an interval tells; infinite where it has no end."""
    if estimate.low <= 0.0 or math.isinf(estimate.high) or not 0.0 < estimate.level < 1.0:
        return math.inf
    return math.log(estimate.high / estimate.low) / (2.0 * NormalDist().inv_cdf(0.5 + estimate.level / 2.0))


def judge(estimate: Estimate, *, min_effect: float = DEFAULT_MIN_EFFECT) -> Verdict:
    """Verdict of an interval against the band of +-`min_effect` around 1."""
    if estimate.high < 1.0 - min_effect:
        return Verdict.FASTER
    if estimate.low > 1.0 + min_effect:
        return Verdict.SLOWER
    if estimate.low > 1.0 - min_effect and estimate.high < 1.0 + min_effect:
        return Verdict.NO_DIFFERENCE
    return Verdict.UNRESOLVED


def outlook_of(estimate: Estimate, *, min_effect: float) -> Outlook:
    """Whether a trial is worth a proof: its ratio is below 1, and its interval leaves room for an effect."""
    is_promising = estimate.ratio < 1.0 and estimate.low < 1.0 - min_effect
    return Outlook.PROMISING if is_promising else Outlook.NOT_PROMISING


# --- one process pair -----------------------------------------------------------------------------------


def estimate_pairs(log_ratios: Sequence[float] | Floats, *, level: float = DEFAULT_LEVEL) -> Estimate:
    """Hodges-Lehmann ratio of one process pair with the exact signed-rank interval.

    Args:
        log_ratios: log(candidate block step time / reference block step time) of each pair, at least one.
        level: Coverage of the interval.

    Returns:
        The estimate; its interval is (0, inf) when there are too few pairs for the level (under 6 for 0.95).
    """
    values = finite(log_ratios, least=1)
    ratio, low, high = np.exp(hodges_lehmann(values, level=level))
    return Estimate(ratio=float(ratio), low=float(low), high=float(high), level=level, pair_count=len(values))


def widen(estimate: Estimate, spread: float) -> Estimate:
    """The same ratio with an interval that also holds what one pair of equal processes may differ by.

    Args:
        estimate: Of one pair of processes.
        spread: Half width of that in log, at the level of the estimate; 0 leaves the interval as it is.
    """
    if spread <= 0.0 or estimate.low <= 0.0 or math.isinf(estimate.high):
        return estimate
    below, above = math.log(estimate.ratio / estimate.low), math.log(estimate.high / estimate.ratio)
    low = estimate.ratio * math.exp(-math.hypot(below, spread))
    return replace(estimate, low=low, high=estimate.ratio * math.exp(math.hypot(above, spread)))


# --- looking often --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SequentialPlan:
    """At which pair counts a trial may stop, and how wide its interval must be there.

    Every look uses the same nominal level (Pocock's boundary), chosen by numerical integration of the random
    walk of the looks such that the intervals of all looks together hold the true ratio with probability
    `level`. `benchmarks/truth.py` shows what is reached on simulated machines.

    Attributes:
        cap: Pairs after which a trial ends in any case.
        level: Simultaneous coverage over all looks.
        first_look: Pairs before the first look (at most `cap`).
        growth: Ratio of successive looks.
        looks: The pair counts at which to decide; the last one is `cap`.
        critical_value: Normal quantile that a single look's interval uses.
    """

    cap: int = 40
    level: float = DEFAULT_LEVEL
    first_look: int = 8
    growth: float = 1.5
    looks: tuple[int, ...] = field(init=False)
    critical_value: float = field(init=False)

    def __post_init__(self) -> None:
        if not (self.cap >= 1 and self.first_look >= 1 and self.growth > 1.0 and 0.0 < self.level < 1.0):
            raise ValueError(
                "a sequential plan needs cap >= 1, first_look >= 1, growth > 1 and 0 < level < 1 "
                f"but got {self.cap}, {self.first_look}, {self.growth} and {self.level}"
            )
        looks = [min(self.first_look, self.cap)]
        while (following := max(looks[-1] + 1, round(looks[-1] * self.growth))) < self.cap:
            looks.append(following)
        # A last look just before the cap would cost level and save nothing.
        if len(looks) > 1 and looks[-1] * (1.0 + self.growth) / 2.0 > self.cap:
            looks.pop()
        if looks[-1] < self.cap:
            looks.append(self.cap)
        object.__setattr__(self, "looks", tuple(looks))
        object.__setattr__(self, "critical_value", pocock_critical_value(tuple(looks), self.level))

    @property
    def nominal_level(self) -> float:
        """Level of the single interval of each look."""
        return 2.0 * _NORMAL.cdf(self.critical_value) - 1.0

    def estimate(self, log_ratios: Sequence[float] | Floats) -> Estimate:
        """Estimate whose interval stays honest although it is looked at at every look."""
        single = estimate_pairs(log_ratios, level=self.nominal_level)
        return Estimate(
            ratio=single.ratio,
            low=single.low,
            high=single.high,
            level=self.level,
            pair_count=single.pair_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a trial goes on, why, and what is known now.

    Attributes:
        stop: True when no further pair should be measured.
        reason: The rule that spoke, in plain words.
        estimate: Ratio with the interval that is honest over all looks.
        verdict: Verdict of that interval.
    """

    stop: bool
    reason: str
    estimate: Estimate
    verdict: Verdict


def decide(
    log_ratios: Sequence[float] | Floats,
    plan: SequentialPlan,
    *,
    min_effect: float = DEFAULT_MIN_EFFECT,
    incumbent: Estimate | None = None,
    spread: float = 0.0,
) -> Decision:
    """Decides after a look whether a trial goes on.

    Args:
        log_ratios: All pairs of the trial so far; their count should be one of `plan.looks`.
        plan: The looks and their levels.
        min_effect: Smallest effect of interest.
        incumbent: What the candidate must beat to matter: the best candidate so far, or `REFERENCE` while
            there is none. None when the candidate's verdict is wanted whatever it is.
        spread: What one pair of equal processes may differ by, in log (see `NoiseFloor.spread`): it is in the interval,
            and no further pair of blocks takes it out.
    """
    estimate = widen(plan.estimate(log_ratios), spread)
    verdict = judge(estimate, min_effect=min_effect)

    def decision(stop: bool, reason: str) -> Decision:
        return Decision(stop=stop, reason=reason, estimate=estimate, verdict=verdict)

    if estimate.pair_count not in plan.looks and estimate.pair_count < plan.cap:
        return decision(False, "between two looks")
    if verdict is not Verdict.UNRESOLVED:
        return decision(True, "its interval is narrow enough")
    if incumbent is not None:
        # Both estimates are uncertain, so the interval of their quotient decides: to hold the candidate
        # against the incumbent's estimate alone would favour whoever was lucky first.
        for name, other in (("the reference", REFERENCE), ("the best so far", incumbent)):
            if least_ratio(estimate, other) > 1.0 - min_effect:
                return decision(True, f"surely no gain of {min_effect:.1%} or more over {name}")
    if estimate.pair_count >= plan.cap:
        return decision(True, f"cap of {plan.cap} pairs reached")
    if spread > 0.0 and estimate.low > 0.0 and math.log(estimate.high / estimate.low) <= 2.0 * NARROWEST * spread:
        return decision(True, f"more pairs cannot narrow it: equal processes differ by up to {spread:.1%}")
    return decision(False, "not decided yet")


def least_ratio(candidate: Estimate, other: Estimate) -> float:
    """Lower end of the interval of candidate / other, for two independent estimates (Zou and Donner)."""
    if candidate.low <= 0.0 or math.isinf(other.high):
        return 0.0
    below = math.log(candidate.ratio / candidate.low)
    above = math.log(other.high / other.ratio)
    return candidate.ratio / other.ratio * math.exp(-math.hypot(below, above))


# --- several processes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What fresh processes say about one finalist.

    Attributes:
        ordinary: Ratio with its interval at the level asked for.
        corrected: The same ratio with the interval widened for the number of finalists; this one decides.
        family: How many finalists were confirmed together.
        process_sd: Standard deviation of the log ratio from one process pair to the next.
    """

    ordinary: Estimate
    corrected: Estimate
    family: int
    process_sd: float


def confirm(
    process_log_ratios: Sequence[float] | Floats, *, family: int = 1, level: float = DEFAULT_LEVEL
) -> Confirmation:
    """Interval over fresh process pairs, ordinary and corrected for the number of finalists.

    Args:
        process_log_ratios: log of each process pair's own estimate, at least two.
        family: Finalists confirmed together (Bonferroni, so that all intervals hold together).
        level: Coverage of the ordinary interval, and of all `family` corrected ones together.
    """
    if family < 1:
        raise ValueError(f"`family` must be at least 1 but got {family}")
    values = finite(process_log_ratios, least=2)
    return Confirmation(
        ordinary=_student(values, level=level),
        corrected=_student(values, level=level, family=family),
        family=family,
        process_sd=float(np.std(values, ddof=1)),
    )


def _student(values: Floats, *, level: float, family: int = 1) -> Estimate:
    n = len(values)
    centre = float(np.mean(values))
    half = student_quantile((1.0 - level) / family, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return _around(centre, half, level=level, count=n)


def _around(centre: float, half: float, *, level: float, count: int) -> Estimate:
    low, high = math.exp(centre - half), math.exp(centre + half)
    return Estimate(ratio=math.exp(centre), low=low, high=high, level=level, pair_count=count)


def finite(values: Sequence[float] | Floats, *, least: int) -> Floats:
    """Values as an array.

    Raises:
        ValueError: If there are fewer than `least`, or one is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < least or not np.all(np.isfinite(array)):
        raise ValueError(
            f"log ratios must be a list of at least {least} finite numbers but got {array.tolist()!r:.200}; "
            "a block or process without a time must not reach the statistics"
        )
    return array


# --- when turns are not possible ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandwich:
    """One reference, candidate, reference sequence; each number is a step time in seconds."""

    before_s: float
    candidate_s: float
    after_s: float


def estimate_sandwiches(sandwiches: Sequence[Sandwich], *, level: float = DEFAULT_LEVEL) -> Estimate:
    """Ratio against the mean of both references, with the drift between them in the interval.

    With noise variance v per run the ratio has variance 1.5 v and the drift 2 v, so three quarters of the
    mean squared drift is a second measure of the first. The interval takes the larger of that and the
    scatter between sandwiches: a machine that drifts cannot look quiet because few sandwiches agree.

    Args:
        sandwiches: At least one; a single one gives a very wide interval (one degree of freedom).
        level: Coverage of the interval.
    """
    runs = np.asarray([(s.before_s, s.candidate_s, s.after_s) for s in sandwiches], dtype=np.float64)
    if runs.size == 0 or not np.all(runs > 0.0) or not np.all(np.isfinite(runs)):
        raise ValueError(f"sandwiches must hold positive step times but got {runs.tolist()!r:.200}")
    before, candidate, after = np.log(runs).T
    values = candidate - (before + after) / 2.0
    n = len(values)
    variance = 0.75 * float(np.mean((after - before) ** 2))
    if n > 1:
        variance = max(variance, float(np.var(values, ddof=1)))
    half = student_quantile(1.0 - level, max(1, n - 1)) * math.sqrt(variance / n)
    return _around(float(np.mean(values)), half, level=level, count=n)
