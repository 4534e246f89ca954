"""What a study's proofs may err together, what they can find, and what they cost: the design, made beforehand.

A winner takes two hurdles, each over fresh pairs of processes of its own. First the finalists: those that hold at the
error of `HURDLE`, together, go on. Then what the best of them was minimised to, at the error of `CLAIM`: that alone
makes a winner. Where nothing is faster than the default by more than the smallest effect of interest, a study names
one in at most `HURDLE * CLAIM` = 0.5 % of cases; where a set holds and what it is minimised to does not, in `CLAIM`.
What is said of finalists in words rests on intervals at the error of `CLAIM` likewise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autotune.stats.estimates import DEFAULT_MIN_EFFECT
from autotune.stats.proof_plan import FIRST_LOOK, ProofPlan, simulate_looks

CLAIM = 0.025
"""One-sided error of all that one stage says together: its 95 % intervals hold together."""

HURDLE = 0.2
"""One-sided error at which finalists together go on to the final proof."""

FIRST_SHARE = 0.9
"""Share of a stage's error for the sets that it proves first; sets of later sessions get half of what is left."""

FIRST_CANDIDATE = 0.75
"""Share of the final proof's error for its first candidate; the others are second chances."""

GAIN_PAIRS = (6, 10)
"""Fewest and most fresh pairs of processes that measure a winner's gain and decide nothing."""

ALONE_PAIRS = 4
"""Runs of each arm alone before the first look at them."""


def allot(total: float, used: float, weights: Sequence[float]) -> list[float]:
    """Shares of a stage's error for some more proofs; however often it is asked, the sum stays below the total.

    Args:
        total: Error of the stage.
        used: What earlier proofs of it were given.
        weights: Of the proofs to come.
    """
    left = total * FIRST_SHARE if used == 0.0 else max(0.0, total - used) / 2.0
    return [left * w / sum(weights) for w in weights]


def candidate_weights(count: int) -> list[float]:
    """How the final proof's error is divided among its candidates, best first."""
    if count < 2:
        return [1.0] * count
    return [FIRST_CANDIDATE] + [(1.0 - FIRST_CANDIDATE) / (count - 1)] * (count - 1)


def proof_pairs(finalists: int, *, most: int) -> int:
    """Fresh pairs of processes that the proofs of a study take where a gain is clear: twice the first look in each."""
    return (finalists + 1) * min(2 * FIRST_LOOK, most) + GAIN_PAIRS[0] + ALONE_PAIRS


def gain_pairs(used: int) -> int:
    """Fresh pairs that measure the gain of a set whose proof took so many."""
    return min(max(used, GAIN_PAIRS[0]), GAIN_PAIRS[1])


IN_TIME = 0.97
"""Share of studies whose proofs take no longer than is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPower:
    """What a study finds, and what its proofs cost.

    Attributes:
        most: Cap of pairs of processes of each proof.
        found: Chance that a set with the effect, among finalists without any, is proven.
        found_in_time: Likewise, within `pairs`.
        pairs: Fresh pairs of processes that all its proofs take, runs alone and gain included, in `IN_TIME` of studies.
        mean_pairs: Likewise, on average.
    """

    most: int
    found: float
    found_in_time: float
    pairs: float
    mean_pairs: float


@lru_cache(maxsize=4096)
def study_power(
    effect: float, pair_sd: float, *, most: int, finalists: int = 3, min_effect: float = DEFAULT_MIN_EFFECT
) -> StudyPower:
    """Power and cost of the proofs of a study in which one finalist is faster and the others equal the default.

    By simulation of the shipped rule with the same draws every time; sizes are of step times.

    Args:
        effect: True gain, as a share of the default's step time (0.02 is 2 %).
        pair_sd: Standard deviation of the log ratio from one fresh pair of processes to the next.
        most: Cap of each proof.
        finalists: Sets that are proven together.
        min_effect: Smallest effect of interest.
    """
    hurdle = ProofPlan(base=most, error=allot(HURDLE, 0.0, [1.0] * finalists)[0])
    claim = ProofPlan(base=most, error=allot(CLAIM, 0.0, candidate_weights(2))[0])
    gain = math.log1p(-effect)

    def looks(plan: ProofPlan, truth: float, stream: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        return simulate_looks(plan, effect=truth, pair_sd=pair_sd, most=most, min_effect=min_effect, stream=stream)

    goes_on, pairs = looks(hurdle, gain, 0)
    holds, ended = looks(claim, gain, 1)
    for other in range(1, finalists):
        pairs = pairs + looks(hurdle, 0.0, 1 + other)[1]
    after = np.where(holds, np.clip(ended, *GAIN_PAIRS) + ALONE_PAIRS, 0)
    pairs = pairs + np.where(goes_on, ended + after, 0)
    limit = float(np.quantile(pairs, IN_TIME, method="higher"))
    found = goes_on & holds
    return StudyPower(
        most=most,
        found=float(np.mean(found)),
        found_in_time=float(np.mean(found & (pairs <= limit))),
        pairs=limit,
        mean_pairs=float(np.mean(pairs)),
    )


def pairs_to_find(
    effect: float,
    pair_sd: float,
    *,
    finalists: int = 3,
    min_effect: float = DEFAULT_MIN_EFFECT,
    power: float = 0.9,
    highest: int = 100,
) -> StudyPower | None:
    """The least cap at which a gain is found in time with some chance, and its cost; None if above `highest`."""
    low, high = FIRST_LOOK, highest
    found = study_power(effect, pair_sd, most=high, finalists=finalists, min_effect=min_effect)
    if effect <= min_effect or found.found_in_time < power:
        return None
    while low < high:
        middle = (low + high) // 2
        tried = study_power(effect, pair_sd, most=middle, finalists=finalists, min_effect=min_effect)
        if tried.found_in_time >= power:
            high, found = middle, tried
        else:
            low = middle + 1
    return found


def smallest_gain(
    pair_sd: float, *, most: int, finalists: int = 3, min_effect: float = DEFAULT_MIN_EFFECT, power: float = 0.9
) -> float | None:
    """The smallest gain found in time with some chance within a cap, to a tenth of a per cent; None above 50 %."""
    low, high = int(min_effect * 1000), 500
    if study_power(high / 1000, pair_sd, most=most, finalists=finalists, min_effect=min_effect).found_in_time < power:
        return None
    while low + 1 < high:
        middle = (low + high) // 2
        is_found = (
            study_power(middle / 1000, pair_sd, most=most, finalists=finalists, min_effect=min_effect).found_in_time
            >= power
        )
        low, high = (low, middle) if is_found else (middle, high)
    return high / 1000
