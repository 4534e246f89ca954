"""Ratios of step times with intervals, verdicts, and the sequential stop of a trial.

A fresh fair coin orders each pair of blocks. So the signs of the centred differences are
independent and fair whatever drift or bursts the machine has, and the inverted signed-rank test
gives an exact interval. Ratios are candidate / reference: below 1 the candidate is faster.

References: Hollander, Wolfe, Chicken, *Nonparametric Statistical Methods*, 3rd ed., 3.2 and 3.3
    (Hodges-Lehmann estimate and interval). Armitage, McPherson, Rowe, JRSS A 132 (1969) (repeated
    looks). Pocock, Biometrika 64 (1977) (equal levels). Zou, Donner, Statist. Med. 27 (2008)
    (difference of two estimates from their intervals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from autotune.stats.numbers import Chance, Count, NotNegative

Floats = npt.NDArray[np.float64]
Numbers = Sequence[float] | Floats

LEVEL = 0.95  # Coverage of intervals, over all looks together where there are several
DEFAULT_MIN_EFFECT = 0.005  # Smallest effect of interest, as a share of the reference step time
NORMAL = NormalDist()
# Pairs before the first look at a trial where the noise of a pair is not known.
TRIAL_FIRST_LOOK = 8
TRIAL_GROWTH = 1.5  # Ratio of successive looks at a trial
# A trial ends when its interval is at most so many times as wide as its processes make it.
NARROWEST = 1.05


class Verdict(StrEnum):
    """Result of a proof over fresh processes."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    UNRESOLVED = "unresolved"


class TrialFinding(StrEnum):
    """Result of a trial: its interval is about two processes, so it proves nothing."""

    # Its gain is one that a proof finds 9 times in 10.
    PROMISING = "promising"
    # A gain is not ruled out, but its own figure shows none, or a smaller one than that.
    OPEN = "open"
    # No gain that matters: it gets no proof.
    NOT_PROMISING = "not promising"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of step times; its interval is (0, inf) when the data are too few for the level."""

    ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    low: NotNegative
    high: Annotated[float, Field(ge=0)]
    # Coverage the interval claims; over all looks together for a sequential estimate.
    level: Chance
    pair_count: Count  # Independent units: pairs of blocks, process pairs or ABA runs

    @property
    def logs(self) -> tuple[float, float, float]:
        """Logs of the ratio and of both ends of the interval."""
        low = math.log(self.low) if self.low > 0.0 else -math.inf
        return math.log(self.ratio), low, math.log(self.high) if self.high > 0.0 else -math.inf


def from_logs(
    centre: float, low: float, high: float, *, level: float = LEVEL, count: int
) -> Estimate:
    """The estimate of a log ratio and the ends of its interval, from so many independent units."""
    return Estimate(
        ratio=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        level=level,
        pair_count=count,
    )


def from_half(centre: float, half: float, *, count: int) -> Estimate:
    """The estimate of a log ratio whose interval reaches as far on either side."""
    return from_logs(centre, centre - half, centre + half, count=count)


# The reference against itself: what a first candidate has to beat.
REFERENCE = Estimate(ratio=1.0, low=1.0, high=1.0, level=1.0, pair_count=0)


def geometric_mean(estimates: Sequence[Estimate]) -> Estimate:
    """Geometric mean of the ratios of workloads; its interval holds wherever all of theirs do."""
    logs = np.mean([e.logs for e in estimates], axis=0).tolist()
    level = max(0.0, 1.0 - sum(1.0 - e.level for e in estimates))
    return from_logs(*logs, level=level, count=min(e.pair_count for e in estimates))


def standard_error(estimate: Estimate) -> float:
    """Standard error of the log ratio, from the interval; infinite where it has no end."""
    if not 0.0 < estimate.level < 1.0:
        return math.inf
    _, low, high = estimate.logs
    return (high - low) / (2.0 * NORMAL.inv_cdf(0.5 + estimate.level / 2.0))


def judge(estimate: Estimate, *, min_effect: float = DEFAULT_MIN_EFFECT) -> Verdict:
    """Verdict of an interval against the band of +-`min_effect` around 1."""
    if estimate.high < 1.0 - min_effect:
        return Verdict.FASTER
    if estimate.low > 1.0 + min_effect:
        return Verdict.SLOWER
    if estimate.low > 1.0 - min_effect and estimate.high < 1.0 + min_effect:
        return Verdict.NO_DIFFERENCE
    return Verdict.UNRESOLVED


def finding_of(estimate: Estimate, *, min_effect: float, provable: float | None) -> TrialFinding:
    """What a trial says of a set, given the smallest gain that a proof finds 9 times in 10."""
    if estimate.low >= 1.0 - min_effect:
        return TrialFinding.NOT_PROMISING
    if estimate.ratio < 1.0 and estimate.ratio <= 1.0 - (provable or 0.0):
        return TrialFinding.PROMISING
    return TrialFinding.OPEN


def student_quantile(alpha: float, degrees: float) -> float:
    """Two-sided critical value of Student's t."""
    from scipy.special import stdtrit  # scipy takes 0.2 s to import, so not before it is needed

    return float(-stdtrit(degrees, alpha / 2.0))


def error_of_mean(values: Numbers) -> float:
    """Standard error of the mean of at least two values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def half_width(values: Numbers, *, alpha: float = 1.0 - LEVEL) -> float:
    """How far Student's interval of the mean, missed by a share `alpha`, reaches on either side."""
    return student_quantile(alpha, len(values) - 1) * error_of_mean(values)


def is_surely_positive(values: Numbers, *, alpha: float) -> bool:
    """Returns whether the mean of values is above 0 with a one-sided error of at most `alpha`."""
    return float(np.mean(values)) > half_width(values, alpha=2 * alpha)


LEAST_TIMED = 20  # Steps whose times tell whether a clock is coarse


def clock_resolution(step_times_s: Numbers) -> float:
    """Share of a step that a clock can tell, if too coarse for noise to average it out; else 0.

    Where all times are one value, a tick may be as long as a step, and steps that differ by a half
    may look equal.
    """
    times = np.asarray(step_times_s)
    values = np.unique(np.round(times, 9))
    if len(times) < LEAST_TIMED:
        return 0.0
    if len(values) == 1:
        return 0.5
    tick = float(np.min(np.diff(values)))
    if times.std() >= tick / 2.0:
        return 0.0
    return tick / float(np.median(times))


def estimate_pairs(log_ratios: Numbers, *, level: float = LEVEL) -> Estimate:
    """Hodges-Lehmann ratio of one process pair with the exact signed-rank interval."""
    centre_and_ends = hodges_lehmann(np.asarray(log_ratios), level=level)
    return from_logs(*centre_and_ends, level=level, count=len(log_ratios))


def hodges_lehmann(log_ratios: Floats, *, level: float) -> Floats:
    """Centre and ends of the signed-rank interval, `[3, ...]`, for many samples `[..., n]` at once.

    The ends are infinite when n is too small for the level (under 6 for 0.95).
    """
    n = log_ratios.shape[-1]
    i, j = np.triu_indices(n)
    averages = np.sort((log_ratios[..., i] + log_ratios[..., j]) / 2.0, axis=-1)
    # The largest k such that the k-th smallest and k-th largest average cover at the level, or 0.
    cut = int(np.searchsorted(_signed_rank_cdf(n), (1.0 - level) / 2.0, side="right"))
    centre = (averages[..., (i.size - 1) // 2] + averages[..., i.size // 2]) / 2.0
    low = averages[..., cut - 1] if cut else np.full_like(centre, -np.inf)
    high = averages[..., -cut] if cut else np.full_like(centre, np.inf)
    return np.stack([centre, low, high])


@lru_cache(maxsize=64)
def _signed_rank_cdf(n: int) -> Floats:
    """P(W+ <= w) for w = 0 .. n(n+1)/2 under fair independent signs, without ties."""
    mass = np.zeros(n * (n + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(mass)
        shifted[rank:] = mass[:-rank]
        mass = (mass + shifted) / 2.0
    return np.cumsum(mass)


def widen(estimate: Estimate, spread: float) -> Estimate:
    """Widens an interval by what one pair of equal processes may differ by, in log."""
    if spread <= 0.0:
        return estimate
    centre, low, high = estimate.logs
    return replace(
        estimate,
        low=math.exp(centre - math.hypot(centre - low, spread)),
        high=math.exp(centre + math.hypot(high - centre, spread)),
    )


@dataclass(frozen=True, kw_only=True)
class SequentialPlan:
    """At which pair counts a trial may stop, and how wide its interval must be there.

    Every look uses the same nominal level (Pocock's boundary), such that the intervals of all looks
    together hold the true ratio with probability `LEVEL` (`benchmarks/truth.py` measures it). The
    noise of the A/A run takes the place of ranks where there are too few pairs for them.
    """

    cap: int = 40
    first_look: int = TRIAL_FIRST_LOOK
    pair_sd: float | None = None
    # Standard deviation of one log ratio in the A/A run, if known, and its degrees of freedom.
    degrees: int = 0

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """The pair counts at which to decide; the last one is `cap`."""
        looks = [min(self.first_look, self.cap)]
        while looks[-1] < self.cap:
            looks.append(min(self.cap, max(looks[-1] + 1, round(looks[-1] * TRIAL_GROWTH))))
        # A last look just before the cap would cost level and save nothing.
        if len(looks) > 2 and looks[-2] * (1.0 + TRIAL_GROWTH) / 2.0 > self.cap:
            del looks[-2]
        return tuple(looks)

    @property
    def nominal_level(self) -> float:
        """Level of the single interval of each look."""
        return 2.0 * NORMAL.cdf(pocock_critical_value(self.looks, LEVEL)) - 1.0

    def estimate(self, log_ratios: Numbers) -> Estimate:
        """Estimate whose interval stays honest although it is looked at at every look."""
        estimate = replace(estimate_pairs(log_ratios, level=self.nominal_level), level=LEVEL)
        if self.pair_sd is None or estimate.low > 0.0:
            return estimate
        # The A/A run's noise and that of these pairs, pooled.
        count = len(log_ratios)
        degrees = self.degrees + count - 1
        squares = self.degrees * self.pair_sd**2 + count * float(np.var(log_ratios))
        error = math.sqrt(squares / degrees / count)
        half = student_quantile(1.0 - self.nominal_level, degrees) * error
        return from_half(math.log(estimate.ratio), half, count=count)


@lru_cache(maxsize=64)
def pocock_critical_value(looks: tuple[int, ...], level: float) -> float:
    """Value that the statistic exceeds at any of the looks with probability 1 - level."""
    from scipy.optimize import brentq

    def excess(critical: float) -> float:
        walk = Walk()
        for n in looks:
            walk = walk.go_on(n, -critical, critical, nodes=64)
        return float(walk.weights.sum()) - level

    return float(brentq(excess, 1.0, 8.0, xtol=1e-7))


class Walk(NamedTuple):
    """A random walk that has stayed within bounds so far: where it may be, and how probably."""

    points: Floats = np.zeros(1)
    weights: Floats = np.ones(1)
    age: int = 0  # Steps of variance 1 that it has made

    def go_on(self, age: int, low: float, high: float, *, nodes: int) -> Walk:
        """Goes on to an age, between bounds in standard deviations, by Gauss-Legendre's rule."""
        x, w = _legendre(nodes)
        step_sd = math.sqrt(age - self.age)
        begin = low * math.sqrt(age)
        reach = (high * math.sqrt(age) - begin) / 2.0
        points = begin + reach * (1.0 + x)
        kernel = np.exp(-0.5 * ((points[:, None] - self.points) / step_sd) ** 2) / (
            step_sd * math.sqrt(2.0 * math.pi)
        )
        return Walk(points, kernel @ self.weights * w * reach, age)


_legendre = lru_cache(maxsize=4)(np.polynomial.legendre.leggauss)


def reason_to_stop(
    estimate: Estimate,
    plan: SequentialPlan,
    *,
    min_effect: float,
    incumbent: Estimate | None,
    spread: float = 0.0,
) -> str | None:
    """Why a trial ends at a look; None where it goes on.

    Args:
        incumbent: The best so far, `REFERENCE` while there is none; None to go on to a verdict.
        spread: See `AaNoise.spread`; it is in the interval, and no pair of blocks takes it out.
    """
    if judge(estimate, min_effect=min_effect) is not Verdict.UNRESOLVED:
        return "its interval is narrow enough"
    if incumbent is not None:
        # The interval of their quotient decides: the incumbent's estimate alone would favour
        # whoever was lucky first.
        for name, rival in (("the reference", REFERENCE), ("the best so far", incumbent)):
            if least_ratio(estimate, rival) > 1.0 - min_effect:
                return f"surely no gain of {min_effect:.1%} or more over {name}"
    if estimate.pair_count >= plan.cap:
        return f"cap of {plan.cap} pairs reached"
    _, low, high = estimate.logs
    if spread > 0.0 and high - low <= 2.0 * NARROWEST * spread:
        return f"more pairs cannot narrow it: equal processes differ by up to {spread:.1%}"
    return None


def least_ratio(candidate: Estimate, rival: Estimate) -> float:
    """Lower end of the interval of candidate / rival, independent estimates (Zou and Donner)."""
    centre, low, _ = candidate.logs
    rival_centre, _, rival_high = rival.logs
    return math.exp(centre - rival_centre - math.hypot(centre - low, rival_high - rival_centre))


def estimate_processes(process_log_ratios: Numbers) -> Estimate:
    """Mean ratio with Student's interval over fresh process pairs, from the log ratio of each."""
    centre = float(np.mean(process_log_ratios))
    return from_half(centre, half_width(process_log_ratios), count=len(process_log_ratios))


def estimate_aba(log_ratios: Numbers) -> Estimate:
    """Ratio against the mean of both references, with the drift between them in the interval.

    With noise variance v per run the ratio has variance 1.5 v and the drift 2 v, so three quarters
    of the mean squared drift is a second measure of the first. The interval takes the larger of
    that and the scatter between runs: a machine that drifts cannot look quiet by a few that agree.
    """
    values, drifts = aba_runs(log_ratios)
    n = len(values)
    variance = 0.75 * np.mean(drifts**2)
    if n > 1:
        variance = max(variance, values.var(ddof=1))
    half = student_quantile(1.0 - LEVEL, max(1, n - 1)) * math.sqrt(variance / n)
    return from_half(values.mean(), half, count=n)


def aba_runs(log_ratios: Numbers) -> tuple[Floats, Floats]:
    """Log ratio of each ABA run against the mean of its references, and the drift between these."""
    before, after = np.reshape(log_ratios, (-1, 2)).T
    return (before + after) / 2.0, before - after
