"""The noise of a machine, from the reference measured against itself: what can be resolved here, and how honestly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from autotune.stats.estimates import DEFAULT_SESOI, Estimate, SequentialPlan, estimate_pairs, finite
from autotune.stats.intervals import Floats

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """What the reference measured against itself says about this machine.

    Attributes:
        estimate: A/A ratio with its ordinary interval.
        is_honest: True when that interval holds 1 and pairs have no memory: equal processes look equal here,
            and one process pair says how far off it may be. False calls for more processes, not more pairs.
        pair_sd: Robust standard deviation of one pair's log ratio.
        autocorrelation: Lag-1 rank correlation of the pair log ratios (0 for pairs without memory).
        order_effect: Second / first block of a pair, with its interval: what going second costs.
        half_width: Half the interval, as a share, that a trial reaches at the cap of pairs.
        detectable: Smallest true speed-up that ends `faster` 9 times in 10 at the cap of pairs.
        pairs_for_sesoi: Pairs until half the interval is no wider than the smallest effect of interest.
    """

    estimate: Estimate
    is_honest: bool
    pair_sd: float
    autocorrelation: float
    order_effect: Estimate
    half_width: float
    detectable: float
    pairs_for_sesoi: int


def read_noise_floor(
    log_ratios: Sequence[float] | Floats,
    candidate_first: Sequence[bool],
    *,
    plan: SequentialPlan,
    sesoi: float = DEFAULT_SESOI,
) -> NoiseFloor:
    """Reads the noise of this machine from A/A pairs.

    Args:
        log_ratios: log(second reference worker / first one) of each pair, at least 8.
        candidate_first: For each pair, whether the second worker's block came first.
        plan: The plan trials will follow.
        sesoi: Smallest effect of interest.
    """
    values = finite(log_ratios, least=8)
    estimate = estimate_pairs(values)
    # The interval measures the estimate's spread with the data's own tails; 1.96 turns it into one sigma.
    sigma = math.log(estimate.high / estimate.low) / (2.0 * _NORMAL.inv_cdf(0.975)) * math.sqrt(len(values))
    n, memory, critical = len(values), _lag_rank_correlation(values), plan.critical_value
    at_cap = sigma / math.sqrt(plan.cap)
    second_over_first = np.where(np.asarray(candidate_first, dtype=bool), -values, values)
    deviations = np.abs(values - np.median(values))
    return NoiseFloor(
        estimate=estimate,
        is_honest=estimate.low <= 1.0 <= estimate.high and memory < _NORMAL.inv_cdf(0.99) / math.sqrt(n),
        pair_sd=float(np.median(deviations)) * 1.4826,
        autocorrelation=memory,
        order_effect=estimate_pairs(second_over_first),
        half_width=critical * at_cap,
        detectable=sesoi + (critical + _NORMAL.inv_cdf(0.9)) * at_cap,
        pairs_for_sesoi=math.ceil((critical * sigma / sesoi) ** 2),
    )


def _lag_rank_correlation(values: Floats) -> float:
    """Spearman correlation of each value with the next one; ranks, because one outlier must not decide."""
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    first, second = ranks[:-1] - ranks[:-1].mean(), ranks[1:] - ranks[1:].mean()
    return float((first @ second) / math.sqrt((first @ first) * (second @ second)))
