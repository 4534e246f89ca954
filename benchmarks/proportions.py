"""Shares of repetitions: their bounds, and where a curve of them crosses a level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def binomial_upper_bound(successes: int, trials: int) -> float:
    """One-sided 95 % upper bound of a proportion (Clopper and Pearson)."""
    from scipy.special import betaincinv

    return 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 0.95))


def binomial_lower_bound(successes: int, trials: int) -> float:
    """One-sided 95 % lower bound of a proportion (Clopper and Pearson); 0 without a trial."""
    return 1.0 - binomial_upper_bound(trials - successes, trials) if trials else 0.0


def crossing(effects: Sequence[float], found: Sequence[float], *, level: float = 0.9) -> float | None:
    """Smallest effect found at `level`, by linear interpolation of the curve; None past its end."""
    for i, share in enumerate(found):
        if share >= level:
            if i == 0:
                return effects[0]
            return float(np.interp(level, [found[i - 1], share], [effects[i - 1], effects[i]]))
    return None
