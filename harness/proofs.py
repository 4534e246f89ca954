"""Many simulated proofs at once, by the rules of `autotune.stats.proof`."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autotune.stats.estimates import DEFAULT_MIN_EFFECT, Floats
from autotune.stats.proof import (
    ERROR,
    FIRST_LOOK,
    LEAST_PAIRS,
    ProofPlan,
    allot,
    alone_plan,
    is_hopeless,
)

SIMULATED = 2000
"""Proofs from which a chance is told, the same ones every time."""


def looks_of(
    log_ratios: Floats, plan: ProofPlan, *, min_effect: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """`look` for many proofs of equal length, `[repeats, most]`: which hold, and their ends."""
    most = log_ratios.shape[-1]
    counts = np.arange(FIRST_LOOK, most + 1)
    centred = (
        log_ratios - log_ratios.mean()
    )  # sums of squares lose nothing to what all have in common
    sums, squares = (np.cumsum(x, axis=-1)[:, FIRST_LOOK - 1 :] for x in (centred, centred**2))
    sd = np.sqrt(np.maximum(squares - sums**2 / counts, 0.0) / (counts - 1))
    mean, error = sums / counts + log_ratios.mean(), sd / np.sqrt(counts)
    won = mean + plan.upper(counts.tolist()) * error < math.log1p(-min_effect)
    won &= counts >= min(plan.least, most)
    stop = won | (mean - plan.lower(counts.tolist()) * error > math.log1p(-min_effect))
    stop[:, :-1] |= is_hopeless(
        counts[:-1], mean[:, :-1], sd[:, :-1], plan, most=most, min_effect=min_effect
    )
    stop[:, -1] = True
    first = stop.argmax(axis=-1)
    holds, ended = won[np.arange(len(won)), first], counts[first]
    return holds, ended


@lru_cache(maxsize=4096)
def study_power(
    effect: float,
    pair_sd: float,
    *,
    most: int,
    finalists: int = 3,
    isolated: int = 0,
    min_effect: float = DEFAULT_MIN_EFFECT,
) -> float:
    """Chance that a finalist that is faster is proven in a study.

    By simulation of the shipped rule with the same draws every time; sizes are of step times.
    Isolated runs are taken to spread as pairs do.

    Args:
        effect: True gain, as a share of the default's step time (0.02 is 2 %).
        isolated: Most isolated runs of each arm; 0 where there are none.
    """
    gain = math.log1p(-effect)
    plan = ProofPlan(base=most, error=allot(ERROR, 0.0, finalists), least=LEAST_PAIRS)

    def draws(most: int, stream: int) -> Floats:
        rng = np.random.default_rng([stream, 20261122])
        return gain + pair_sd * rng.standard_normal((SIMULATED, most))

    found = looks_of(draws(most, 0), plan, min_effect=min_effect)[0]
    if isolated:
        found &= looks_of(draws(isolated, finalists), alone_plan(isolated), min_effect=0.0)[0]
    return float(np.mean(found))
