"""The noise of a machine, from the reference measured against itself: what can be resolved here, and how honestly.

Two things make equal processes look different. Within a pair of processes every pair of blocks has noise, which more
pairs average out. Between processes each has a constant deviation of its own (how its memory lies, which cores it got),
which only more processes average out. So the reference is started several times beside one living process of itself:
with that one's deviation as the zero, the centres of the others are so many more draws of the same spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from autotune.stats.estimates import DEFAULT_LEVEL, DEFAULT_MIN_EFFECT, Estimate, SequentialPlan, finite, widen
from autotune.stats.intervals import Floats, hodges_lehmann, student_quantile

_NORMAL = NormalDist()

CAUTION = 0.9
"""Confidence of the upper limit from which it is announced what can be proven. Spreads from few processes are often
too small; with this limit the announced power of 90 % is held on average (tests/study/test_promise.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """What the reference measured against itself says about this machine.

    Attributes:
        estimate: A/A ratio; its interval holds what one pair of equal processes may differ by.
        is_honest: True when equal processes differ by no more than their pairs of blocks tell, and pairs have no
            memory. False: only the spread between processes, which a trial's interval has in it, makes it honest.
        pair_sd: Robust standard deviation of one pair's log ratio.
        detectable: Smallest true speed-up that one trial shows 9 times in 10 at the cap of pairs.
        process_sd: Standard deviation of the constant deviation of one process, in log; None in older runs.
        within_sd: Standard deviation of one pair's log ratio about the centre of its two processes, as far as it
            matters to that centre (a few outliers do not); 0 where a whole run is one figure.
        degrees: Degrees of freedom of `process_sd`.
        spread: By how much the log ratio of one pair of equal processes may be off (95 %); 0 in older runs.
        start_s: Seconds until a process is ready; 0 where that is not known.
        pair_s: Seconds of one pair of blocks, or of the measured steps of two runs; 0 where that is not known.
    """

    __pydantic_config__ = {"extra": "ignore", "ser_json_inf_nan": "strings"}  # noqa: RUF012  # records of earlier versions hold more figures

    estimate: Estimate
    is_honest: bool
    pair_sd: float
    detectable: float
    process_sd: float | None = None
    within_sd: float | None = None
    degrees: int = 0
    spread: float = 0.0
    start_s: float = 0.0
    pair_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuses figures that no measurement gives.

        Raises:
            ValueError: If there is one.
        """
        figures = (self.pair_sd, self.detectable, self.process_sd or 0.0, self.within_sd or 0.0, self.spread)
        if not all(figure >= 0.0 for figure in (*figures, self.start_s, self.pair_s, self.degrees)):
            raise ValueError(
                f"a noise floor must be 0 or more but got {self.pair_sd:g} and {self.detectable:g} (processes: "
                f"{self.process_sd}, pairs: {self.within_sd}, {self.degrees} degrees of freedom, {self.start_s:g} s "
                f"and {self.pair_s:g} s)"
            )

    def cautious_process_sd(self, level: float = CAUTION) -> float:
        """Upper confidence limit of `process_sd`: few processes often agree by luck.

        Args:
            level: Of the one-sided limit.

        Raises:
            ValueError: If the spread between processes was not measured (older runs).
        """
        from scipy.special import chdtri  # 0.2 s to import, so not before it is needed

        if self.process_sd is None or not self.degrees:
            raise ValueError("a cautious spread needs one that was measured, but this noise floor is of an older run")
        noise = _noise_of_centres(self.within_sd or 0.0, self.estimate.pair_count, self.degrees)
        most = (self.process_sd**2 + noise) * self.degrees / float(chdtri(self.degrees, level))
        return math.sqrt(max(0.0, most - noise))


def spread_of(variance: float, degrees: int, *, noise: float = 0.0) -> float:
    """By how much the log ratio of one pair of equal processes may be off (95 %): each has a deviation of its own.

    The variance of few centres may be small by luck, therefore Student's quantile; the noise in it is known better, and
    is taken off as a normal quantile makes it, that of 90 % to be cautious. Taken off in full it would leave nothing in
    half of the cases in which processes and blocks make equal noise, and the interval would hold in 0.87 of trials.

    Args:
        variance: Of the centres of equal processes.
        degrees: Its degrees of freedom.
        noise: What pairs of blocks have added to it.
    """
    student, normal = student_quantile(1.0 - DEFAULT_LEVEL, degrees), _NORMAL.inv_cdf(0.95)
    return math.sqrt(2.0 * max(0.0, student**2 * variance - normal**2 * noise))


def read_noise_floor(
    processes: Sequence[Sequence[float] | Floats],
    *,
    plan: SequentialPlan,
    min_effect: float = DEFAULT_MIN_EFFECT,
    start_s: float = 0.0,
    pair_s: float = 0.0,
    least: int = 8,
) -> NoiseFloor:
    """Reads the noise of this machine from A/A pairs of several processes, each against the same living one.

    Args:
        processes: log(second process / living one) of each pair of blocks, of each second process.
        plan: The plan trials will follow.
        min_effect: Smallest effect of interest.
        start_s: Seconds until a process is ready.
        pair_s: Seconds of one pair of blocks.
        least: Fewest pairs of blocks that each of them may have: 4 are enough where each averages seconds.

    Raises:
        ValueError: If there is no process, one has fewer than `least` pairs, or a figure is not finite.
    """
    if not processes:
        raise ValueError("a noise floor needs at least one second process but got none")
    groups = [finite(p, least=least) for p in processes]
    centres = np.asarray([float(hodges_lehmann(g, level=DEFAULT_LEVEL)[0]) for g in groups])
    residuals = [g - c for g, c in zip(groups, centres, strict=True)]
    within_sd, degrees, count = _within_sd(residuals), len(groups), sum(map(len, groups))
    noise = _noise_of_centres(within_sd, count, degrees)
    # The living process is one draw more, at 0: its deviation is what all centres have in common.
    variance = float(np.var([0.0, *centres], ddof=1))
    process_sd, spread = math.sqrt(max(0.0, variance - noise)), spread_of(variance, degrees, noise=noise)
    capped_sd = within_sd / math.sqrt(plan.cap)
    everything, ratio = np.concatenate(groups), math.exp(float(np.mean(centres)))
    half = _NORMAL.inv_cdf((1.0 + DEFAULT_LEVEL) / 2.0) * within_sd / math.sqrt(count)
    estimate = Estimate(
        ratio=ratio, low=ratio * math.exp(-half), high=ratio * math.exp(half), level=DEFAULT_LEVEL, pair_count=count
    )
    return NoiseFloor(
        estimate=widen(estimate, spread),
        is_honest=_is_noise_of_pairs(centres, within_sd, count) and not _has_memory(residuals),
        pair_sd=float(np.median(np.abs(everything - np.median(everything)))) * 1.4826,
        detectable=min_effect
        + math.hypot(plan.critical_value * capped_sd, spread)
        + _NORMAL.inv_cdf(0.9) * math.hypot(capped_sd, math.sqrt(2.0) * process_sd),
        process_sd=process_sd,
        within_sd=within_sd,
        degrees=degrees,
        spread=spread,
        start_s=start_s,
        pair_s=pair_s,
    )


def _within_sd(residuals: Sequence[Floats]) -> float:
    """Standard deviation of a pair about its processes' centre, from the width of the interval of such a centre."""
    values = np.concatenate(residuals)
    _, low, high = hodges_lehmann(values, level=DEFAULT_LEVEL)
    # The interval has the data's own tails in it; twice 1.96 sigma turns it into one. Each centre took one degree.
    sigma = float(high - low) / (2.0 * _NORMAL.inv_cdf((1.0 + DEFAULT_LEVEL) / 2.0)) * math.sqrt(len(values))
    return sigma * math.sqrt(len(values) / (len(values) - len(residuals)))


def _noise_of_centres(within_sd: float, count: int, degrees: int) -> float:
    """What pairs of blocks add to the variance of the centres and the zero among them (which has none)."""
    return within_sd**2 * degrees / count * degrees / (degrees + 1) if count else 0.0


def _is_noise_of_pairs(centres: Floats, within_sd: float, count: int) -> bool:
    """Whether pairs of blocks alone explain how far the centres are from 0 (a chi-squared test at 5 %)."""
    from scipy.special import chdtri

    each = within_sd**2 * len(centres) / count
    return float(centres @ centres) <= each * float(chdtri(len(centres), 1.0 - DEFAULT_LEVEL))


def _has_memory(residuals: Sequence[Floats]) -> bool:
    """Whether a pair tells of the next one, by Spearman's correlation; ranks, because one outlier must not decide."""
    ranks = np.argsort(np.argsort(np.concatenate(residuals))).astype(np.float64)
    each = np.split(ranks, np.cumsum([len(r) for r in residuals])[:-1])
    first, second = np.concatenate([r[:-1] for r in each]), np.concatenate([r[1:] for r in each])
    first, second = first - first.mean(), second - second.mean()
    correlation = float((first @ second) / math.sqrt((first @ first) * (second @ second)))
    return correlation >= _NORMAL.inv_cdf(0.99) / math.sqrt(len(first))
