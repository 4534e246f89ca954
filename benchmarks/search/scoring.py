"""Scores of searches by Willemsen et al. (2024): 0 is random search, 1 the optimum.

"A methodology for comparing optimization algorithms for auto-tuning", Future Generation Computer
Systems, doi 10.1016/j.future.2024.05.021. A search's score at a moment is
`(F - B) / (optimum - B)`: F is the best that it has tried by then, B what random search has by then
on average. Its score on a space is the mean over the moments up to a cutoff; here time is counted
in trials.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from benchmarks.search.problems import Floats, Problem

RANDOM_SETS = 20_000
"""Random sets from which the expectation of random search is told."""

CUTOFF = 0.95
"""How far from the median to the optimum random search is at the cutoff of a recorded table."""

RESAMPLES = 2000
LEVEL = 0.95


def random_search(
    problem: Problem, trials: int, *, seed: int = 0, sets: int = RANDOM_SETS
) -> Floats:
    """Expected best gain of random search after 1, 2, ... trials, shape (trials,), in log ratios.

    The expectation is exact for sets drawn with replacement from a large sample of the space. The
    default is had for free: what fails or is slower counts as no gain.

    Args:
        problem: The space.
        trials: How many.
        seed: Of the sample.
        sets: How many sets it has.
    """
    gains = np.sort(problem.gains(problem.random(np.random.default_rng(seed), sets)))
    worse = 1.0 - np.arange(len(gains) + 1) / len(gains)  # chance that a set is no better than each
    chances = worse[None, :] ** np.arange(1, trials + 1)[:, None]
    return np.asarray((chances[:, :-1] - chances[:, 1:]) @ gains)


def score(best: Floats, baseline: Floats, optimum: float) -> float:
    """Mean over moments of how far a search is from random search (0) to the optimum (1).

    Args:
        best: The best value tried by each moment, shape (moments,); less is better.
        baseline: That of random search.
        optimum: The least value there is.
    """
    left = baseline - optimum
    return float(
        np.mean(np.where(left > 0, (baseline - best) / np.where(left > 0, left, 1.0), 1.0))
    )


# ------------------------------------------------------------------ recorded tables


def cutoff(values: Floats, share: float = CUTOFF) -> int:
    """Evaluations after which random search is a given share from the median to the optimum.

    Args:
        values: All valid values of the table; less is better.
        share: How far.
    """
    ordered = np.sort(values)[::-1]
    aim = ordered[-1] + (float(np.median(ordered)) - ordered[-1]) * (1 - share)
    first = int(np.argmax(ordered <= aim))
    return math.ceil(first / (len(ordered) + 1 - first))


@functools.lru_cache(maxsize=8)
def table_baseline(values: tuple[float, ...], evaluations: int) -> Floats:
    """Expected best of random search without replacement, shape (evaluations,).

    The expectation itself; the paper takes the value of the expected rank and smooths it, by which
    random search scored from -0.7 to 0.2 on the six recorded tables.

    Args:
        values: All values of the table, that of a set which fails the worst; less is better.
        evaluations: How many.
    """
    ordered = np.sort(np.asarray(values))
    count = len(ordered)
    log_factorial = gammaln(np.arange(count + 2) + 1.0)
    left = count - np.arange(count + 1)  # sets that are no better than each

    def none_better(draws: int) -> Floats:
        inside = left >= draws
        logs = log_factorial[left] - log_factorial[np.maximum(left - draws, 0)]
        logs -= log_factorial[count] - log_factorial[count - draws]
        return np.where(inside, np.exp(logs), 0.0)

    found = []
    for draws in range(1, evaluations + 1):
        chances = none_better(draws)
        found.append(float((chances[:-1] - chances[1:]) @ ordered))
    return np.array(found)


# ------------------------------------------------------------------ intervals


def interval(groups: Sequence[Sequence[float]], *, seed: int = 0) -> tuple[float, float, float]:
    """Mean of the groups' means with its 95 % bootstrap interval over what each holds.

    Args:
        groups: Scores of each family, over its seeds; groups weigh alike. None may be empty.
        seed: Of the resampling.
    """
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(g, dtype=float) for g in groups]
    means = [a[rng.integers(0, len(a), (RESAMPLES, len(a)))].mean(axis=1) for a in arrays]
    low, high = np.quantile(np.mean(means, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.mean([a.mean() for a in arrays])), float(low), float(high)
