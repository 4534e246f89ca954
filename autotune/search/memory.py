"""The memory model: the log of a set's peak memory is a sum over its settings.

Bayesian linear regression with normal priors around zero, wide for options such as batch size and
recomputation, narrow for flags: of 1,076 compiled values four in five change the peak by less than
2 %. Where a setting moves more, its prior widens (MacKay, "Bayesian interpolation", 1992: automatic
relevance determination). A set that ran out of memory is a censored observation: its peak is the
expected one, but above the limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.search.additive import Tables
from autotune.search.failures import Risks
from autotune.search.space import Codes, Design, Floats

OPTION, FLAG = 0.7, 0.06
"""Prior standard deviations of coefficients on the log of the peak."""

SPREAD = 0.05
"""Standard deviation of the log of a peak beyond the model."""

OVER = 0.5
"""Log of the least peak over the limit that is assumed of a set that ran out of memory."""

PRICES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Costs of the log of the peak, as log step times, which are tried one by one until a set fits."""

_ROUNDS = 4


class Peaks(NamedTuple):
    """Peak memory of sets over the default's; of those that ran out of it (`is_least`) a lower
    bound.
    """

    codes: Codes
    ratios: Floats
    is_least: NDArray[np.bool_]


class MemoryModel:
    """Probabilities of sets to fit; all fit where no `limit` (over the default's peak) or no peak
    is known.
    """

    def __init__(self, design: Design, peaks: Peaks, limit: float | None) -> None:
        self.design = Design(design.factors, [])
        self._limit = float(np.log(limit)) if limit is not None and len(peaks.ratios) else np.inf
        self.is_known = self._limit < np.inf
        """Whether sets may not fit."""
        if self.is_known:
            self._fit(
                peaks, np.array([OPTION if f.moves_memory else FLAG for f in design.factors]) ** 2
            )

    def _fit(self, peaks: Peaks, usual: Floats) -> None:
        """Fits coefficients; a block has at least its usual variance, and a larger one where the
        peaks say so.
        """
        features = self.design.features(peaks.codes)
        of = np.repeat(
            np.arange(len(usual)), np.diff(self.design.starts)
        )  # the block of each feature
        least = np.where(peaks.is_least, self._limit + OVER, -np.inf)
        values = np.maximum(np.log(peaks.ratios), least)
        variances = usual
        for _ in range(_ROUNDS):
            self._cov = np.linalg.inv(
                features.T @ features / SPREAD**2 + np.diag(1 / variances[of])
            )
            self._mean = self._cov @ (features.T @ values) / SPREAD**2
            values = np.where(peaks.is_least, np.maximum(features @ self._mean, least), values)
            squares = np.bincount(of, self._mean**2 + np.diag(self._cov), len(usual))
            learned = squares / np.maximum(np.bincount(of, minlength=len(usual)), 1)
            variances = np.maximum(usual, np.minimum(learned, OPTION**2))

    def log_chances(self, codes: Codes) -> Floats:
        """Log of the probability that each set fits, of sets of shape (sets, factors)."""
        if not self.is_known:
            return np.zeros(len(codes))
        from scipy.special import log_ndtr  # 0.2 s to import, so not before it is needed

        features = self.design.features(codes)
        variances = ((features @ self._cov) * features).sum(axis=1) + SPREAD**2
        return np.asarray(log_ndtr((self._limit - features @ self._mean) / np.sqrt(variances)))

    def candidates(
        self, tables: Tables, risks: Risks, unit: float, rng: np.random.Generator | None = None
    ) -> list[Codes]:
        """The set of `Tables.smallest`, then ones of less and less memory until one fits.

        Args:
            rng: Draws the effects on memory, so that sets which may fit are tried; None for their
                means.
        """
        sets = [tables.smallest(risks, unit)]
        if not self.is_known:
            return sets
        coefs = self._mean
        if rng is not None:
            coefs = coefs + np.linalg.cholesky(self._cov) @ rng.standard_normal(len(coefs))
        for price in PRICES:
            if float((self.design.features(sets[-1][None]) @ coefs)[0]) <= self._limit:
                break
            sets.append(self._priced(tables, price * coefs).smallest(risks, unit))
        return sets

    def _priced(self, tables: Tables, coefs: Floats) -> Tables:
        """Adds the cost of memory to effects."""
        costs = np.split(coefs, self.design.starts[1:-1])
        blocks = zip(tables.main, self.design.blocks, costs, strict=True)
        main = [own + block.table @ cost for own, block, cost in blocks]
        return replace(tables, main=main)
