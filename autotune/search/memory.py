"""The memory model: the log of a set's peak memory is a sum over its settings.

Bayesian linear regression with normal priors around zero, wide for options, narrow for flags: of
1,076 compiled values four in five change the peak by less than 2 %. The prior of a setting that
moves more widens (MacKay, "Bayesian interpolation", 1992: automatic relevance determination). A set
that ran out of memory is a censored observation: its peak is the expected one above the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.search.additive import Tables
from autotune.search.failures import Risks
from autotune.search.space import Codes, Design, Floats, Rng

OPTION = 0.7  # prior sd of an option's coefficients on the log of the peak
FLAG = 0.06  # likewise of a flag's
SPREAD = 0.05  # standard deviation of the log of a peak beyond the model
OVER = 0.5  # log of the least peak over the limit of a set that ran out of memory
# Costs of the log of the peak, as log step times, which are tried one by one until a set fits.
PRICES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)

_ROUNDS = 4

Peak = tuple[Codes, float, bool]  # ratio to the default's; is it a lower bound?


class MemoryModel:
    """Probabilities of sets to fit; 1 if no peak or no `limit` (over the default's) is known."""

    def __init__(self, design: Design, peaks: Sequence[Peak], limit: float | None) -> None:
        self.design = design
        self.is_known = False
        if limit is None or not peaks:
            return
        self.is_known = True
        self._limit = np.log(limit)
        # The peaks may tell a larger variance of a block than its usual one.
        deviations = [OPTION if f.flag.moves_memory else FLAG for f in design.factors]
        usual = np.array(deviations) ** 2
        count = len(usual)
        codes, ratios, is_least = (np.array(column) for column in zip(*peaks, strict=True))
        features = design.features(codes)
        ranks = np.diff(design.starts)
        blocks = np.repeat(np.arange(count), ranks)  # of each feature
        bounds = np.where(is_least, self._limit + OVER, -np.inf)
        values = np.maximum(np.log(ratios), bounds)
        variances = usual
        for _ in range(_ROUNDS):
            priors = np.diag(1 / variances[blocks])
            self._cov = np.linalg.inv(features.T @ features / SPREAD**2 + priors)
            self._mean = self._cov @ (features.T @ values) / SPREAD**2
            values = np.where(is_least, np.maximum(features @ self._mean, bounds), values)
            squares = np.bincount(blocks, self._mean**2 + np.diag(self._cov), count)
            variances = np.maximum(usual, np.minimum(squares / np.maximum(ranks, 1), OPTION**2))

    def log_chances(self, codes: Codes) -> Floats:
        """Log of the probability that each set fits; sets have shape (sets, factors)."""
        if not self.is_known:
            return np.zeros(len(codes))
        from scipy.special import log_ndtr  # takes 0.2 s to import

        features = self.design.features(codes)
        variances = ((features @ self._cov) * features).sum(axis=1) + SPREAD**2
        return np.asarray(log_ndtr((self._limit - features @ self._mean) / np.sqrt(variances)))

    def candidates(
        self, tables: Tables, risks: Risks, unit: float, rng: Rng | None = None
    ) -> list[Codes]:
        """Returns the set of `Tables.smallest`, then ones of less and less memory until one fits.

        `rng` draws the effects on memory, so that sets which may fit are tried; None takes means.
        """
        sets = [tables.smallest(risks, unit)]
        if not self.is_known:
            return sets
        coefs = self._mean
        if rng is not None:
            coefs = coefs + np.linalg.cholesky(self._cov) @ rng.standard_normal(len(coefs))
        for price in PRICES:
            if (self.design.features(sets[-1][None]) @ coefs)[0] <= self._limit:
                break
            costs = np.split(price * coefs, self.design.starts[1:-1])
            blocks = zip(tables.main, self.design.blocks, costs, strict=True)
            main = [effects + block.table @ cost for effects, block, cost in blocks]
            sets.append(tables._replace(main=main).smallest(risks, unit))
        return sets
