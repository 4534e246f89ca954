"""The interval of a framework that was not compared, from those that were."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from scipy.stats import t


def interval(of_frameworks: Iterable[Iterable[float]]) -> tuple[float, float]:
    """95 % interval of measured over predicted step time of one more framework.

    Args:
        of_frameworks: Ratios of predicted over published step time of each framework, whose means
            are taken for draws of a normal distribution of logs (Student's t, as few frameworks as
            there are).
    """
    means = [statistics.fmean(math.log(r) for r in found) for found in of_frameworks]
    mean, spread = statistics.fmean(means), statistics.stdev(means)
    half = float(t.ppf(0.975, len(means) - 1)) * spread * math.sqrt(1 + 1 / len(means))
    return math.exp(-mean - half), math.exp(-mean + half)
