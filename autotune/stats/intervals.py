"""Exact and sequential intervals: the numerical core of the statistics.

References:
    Hollander, Wolfe, Chicken, *Nonparametric Statistical Methods*, 3rd ed., 3.2 and 3.3 (Hodges-Lehmann
    estimate and interval). Armitage, McPherson, Rowe, JRSS A 132 (1969) (repeated looks). Pocock,
    Biometrika 64 (1977) (equal levels).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def hodges_lehmann(log_ratios: Floats, *, level: float) -> Floats:
    """Estimate and both ends of the signed-rank interval, on the log scale, for many samples at once.

    Args:
        log_ratios: Pair differences, `[..., n]`.
        level: Coverage of the interval.

    Returns:
        Centre, low and high as `[3, ...]`; the ends are infinite when n is too small for the level.
    """
    n = log_ratios.shape[-1]
    i, j = _triangle(n)
    averages = np.sort((log_ratios[..., i] + log_ratios[..., j]) / 2.0, axis=-1)
    cut = _walsh_cut(n, level)
    centre = (averages[..., (i.size - 1) // 2] + averages[..., i.size // 2]) / 2.0
    low = averages[..., cut - 1] if cut else np.full_like(centre, -np.inf)
    high = averages[..., -cut] if cut else np.full_like(centre, np.inf)
    return np.stack([centre, low, high])


@lru_cache(maxsize=64)
def _triangle(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(n)


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


@lru_cache(maxsize=256)
def _walsh_cut(n: int, level: float) -> int:
    """The largest k such that the k-th smallest and k-th largest Walsh average cover at `level`, or 0."""
    return int(np.searchsorted(_signed_rank_cdf(n), (1.0 - level) / 2.0, side="right"))


@lru_cache(maxsize=64)
def pocock_critical_value(looks: tuple[int, ...], level: float) -> float:
    """Value that the standardised statistic exceeds at any of the looks with probability 1 - level."""
    low, high = 1.0, 8.0
    while high - low > 1e-7:
        middle = (low + high) / 2.0
        if _stay_probability(looks, middle) < level:
            low = middle
        else:
            high = middle
    return high


def _stay_probability(looks: tuple[int, ...], critical: float, nodes: int = 64) -> float:
    """Probability that a standard random walk stays inside +-critical * sqrt(n) at every look."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    walk, density, previous = np.zeros(1), np.ones(1), 0
    for n in looks:
        bound, step_sd = critical * math.sqrt(n), math.sqrt(n - previous)
        ahead = bound * x
        kernel = np.exp(-0.5 * ((ahead[:, None] - walk) / step_sd) ** 2) / (step_sd * math.sqrt(2.0 * math.pi))
        # `density` carries the quadrature weights, so its sum is the probability of having stayed inside.
        density = (kernel @ density) * w * bound
        walk, previous = ahead, n
    return float(density.sum())


def student_quantile(alpha: float, degrees: float) -> float:
    """Two-sided critical value of Student's t."""
    from scipy.special import stdtrit  # 0.2 s to import, so not before it is needed

    return float(-stdtrit(degrees, alpha / 2.0))
