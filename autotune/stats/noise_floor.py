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
        detectable: Smallest true speed-up that ends `faster` 9 times in 10 at the cap of pairs.
    """

    __pydantic_config__ = {"extra": "ignore", "ser_json_inf_nan": "strings"}  # noqa: RUF012  # records of earlier versions hold more figures

    estimate: Estimate
    is_honest: bool
    pair_sd: float
    detectable: float

    def __post_init__(self) -> None:
        """Refuses figures that no measurement gives.

        Raises:
            ValueError: If there is one.
        """
        if not (self.pair_sd >= 0.0 and self.detectable >= 0.0):
            raise ValueError(f"a noise floor must be 0 or more but got {self.pair_sd:g} and {self.detectable:g}")


def read_noise_floor(
    log_ratios: Sequence[float] | Floats, *, plan: SequentialPlan, sesoi: float = DEFAULT_SESOI
) -> NoiseFloor:
    """Reads the noise of this machine from A/A pairs.

    Args:
        log_ratios: log(second reference worker / first one) of each pair, at least 8.
        plan: The plan trials will follow.
        sesoi: Smallest effect of interest.
    """
    values = finite(log_ratios, least=8)
    estimate = estimate_pairs(values)
    # The interval measures the estimate's spread with the data's own tails; 1.96 turns it into one sigma.
    sigma = math.log(estimate.high / estimate.low) / (2.0 * _NORMAL.inv_cdf(0.975)) * math.sqrt(len(values))
    memory_limit = _NORMAL.inv_cdf(0.99) / math.sqrt(len(values))
    deviations = np.abs(values - np.median(values))
    return NoiseFloor(
        estimate=estimate,
        is_honest=estimate.low <= 1.0 <= estimate.high and _lag_rank_correlation(values) < memory_limit,
        pair_sd=float(np.median(deviations)) * 1.4826,
        detectable=sesoi + (plan.critical_value + _NORMAL.inv_cdf(0.9)) * sigma / math.sqrt(plan.cap),
    )


def _lag_rank_correlation(values: Floats) -> float:
    """Spearman correlation of each value with the next one; ranks, because one outlier must not decide."""
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    first, second = ranks[:-1] - ranks[:-1].mean(), ranks[1:] - ranks[1:].mean()
    return float((first @ second) / math.sqrt((first @ first) * (second @ second)))
