"""Step times of several sets over rounds: ratios to the default with simultaneous intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""Chance that any of a table's intervals misses."""

LEAST_DEGREES = 2
"""Of freedom, from which on the spread of a table's own processes is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A set's step time over the default's.

    Attributes:
        low: Lower end of its interval; NaN where the spread of processes is not known.
        high: Upper end, likewise.
        runs: Fresh processes that it rests on.
    """

    ratio: float
    low: float = math.nan
    high: float = math.nan
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """All sets against the first one.

    Attributes:
        ratios: By name; not of the default itself.
        process_sd: Standard deviation of the log of a process's step time that was used; NaN where
            not known.
        degrees: Of freedom of it.
    """

    ratios: dict[str, Ratio]
    process_sd: float
    degrees: int


def estimate_ratios(
    runs: Sequence[tuple[str, int, float]], *, default: str, spread: tuple[float, int] | None = None
) -> Estimates:
    """Least squares of log step time on set and round; all sets' processes spread alike.

    Rounds may be incomplete. Each interval is as wide as makes all of them hold together with 95 %
    (Bonferroni).

    Args:
        runs: Name of the set, number of the round, mean step in seconds: one for each fresh
            process.
        default: The set that the others are compared with.
        spread: Standard deviation of a process measured elsewhere on this machine, and its degrees
            of freedom: where these runs alone do not tell it.

    Raises:
        ValueError: If the default never ran.
    """
    names = list(dict.fromkeys(name for name, _, _ in runs))
    if default not in names:
        raise ValueError(f"the default must have run but only {names} did")
    others = [name for name in names if name != default]
    rounds = sorted({number for _, number, _ in runs})
    design = np.zeros((len(runs), len(others) + len(rounds)))
    for row, (name, number, _) in enumerate(runs):
        if name != default:
            design[row, others.index(name)] = 1.0
        design[row, len(others) + rounds.index(number)] = 1.0
    logs = np.log([seconds for _, _, seconds in runs])
    inverse = np.linalg.pinv(design.T @ design)
    found = inverse @ design.T @ logs
    degrees = len(runs) - int(np.linalg.matrix_rank(design))
    residual = logs - design @ found
    sd = math.sqrt(float(residual @ residual) / degrees) if degrees > 0 else math.nan
    if degrees < LEAST_DEGREES and spread is not None:
        sd, degrees = spread
    half = _quantile(degrees, len(others)) * sd
    counts = {name: sum(n == name for n, _, _ in runs) for name in names}
    ratios = {}
    for i, name in enumerate(others):
        error = half * math.sqrt(inverse[i, i])
        at = float(found[i])
        ratios[name] = Ratio(
            ratio=math.exp(at),
            low=math.exp(at - error),
            high=math.exp(at + error),
            runs=counts[name],
        )
    return Estimates(ratios=ratios, process_sd=sd, degrees=degrees)


def _quantile(degrees: int, count: int) -> float:
    """Of Student's distribution, for so many intervals at once."""
    if degrees < 1 or not count:
        return math.nan
    from scipy.stats import t

    return float(t.ppf(1.0 - LEVEL / (2 * count), degrees))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of independent values and the ends of its 95 % interval; NaN ends for fewer than two."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = _quantile(len(values) - 1, 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half
