"""Estimates from all trials of a search: effects with intervals, and the best expected set."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from autotune.search.models import Models
from autotune.search.space import Codes, Floats, Pair

LEVEL = 0.95  # coverage of intervals
SURELY_ACTS = 1 - (1 - LEVEL) / 2  # below it the interval holds "no change"
FAILURE_COST = 1.0  # log ratio: what may fail is recommended for a large gain only
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)  # quantiles at which intervals end
DRAWS = 400  # of all effects, to compare sets


class Change(NamedTuple):
    """A change of the log step time with its interval."""

    mean: float
    low: float
    high: float


class Effects:
    """Estimates by fitted models of the same trials."""

    def __init__(self, models: Models, *, seed: int) -> None:
        self._models = models
        self.model = models.effects
        self.design = self.model.design
        self._draws = self.model.draws(np.random.default_rng(seed), DRAWS)
        self.p_active = self.model.p_active()

    def of(self, factor: int) -> list[Change]:
        """Returns the effect of each value of a setting, by code, with the others at defaults.

        The interval holds "no change" unless the setting surely acts.
        """
        means = self.model.mean.main[factor]
        low, high = np.quantile(self._draws.main(factor), ENDS, axis=0)
        if self.model.chances[factor] < SURELY_ACTS:
            low = np.minimum(low, 0.0)
            high = np.maximum(high, 0.0)
        rows = np.stack([means, np.minimum(low, means), np.maximum(high, means)], axis=1)
        return [Change(*row) for row in rows.tolist()]

    def pairs(self) -> Iterator[tuple[Pair, float]]:
        """Returns pairs of settings with the probability of an interaction."""
        chances = self.model.chances[len(self.design.factors) :]  # after settings
        return zip(self.design.pairs, chances.tolist(), strict=True)

    def best(self, ran: Sequence[Codes], *, least: float = 0.0) -> Codes:
        """Returns the set of least expected time, without settings that are likely useless.

        If it does not fit into memory, the best of those that `ran` counts. `least` is the smallest
        gain of interest, as a log ratio.
        """
        mean = self.model.mean
        best = self._models.memory.candidates(mean, self._models.failures.risks, FAILURE_COST)[-1]
        if not self._models.fits(best):
            best = min((self.design.neutral, *ran), key=mean.total)
        return self._pruned(best, least)

    def _pruned(self, codes: Codes, least: float) -> Codes:
        """Removes settings that are more likely than not useless in a set, least useful first."""
        while True:
            totals = self.totals(codes)
            options = []
            for i in np.flatnonzero(codes != self.design.neutral).tolist():
                if self.design.factors[i].default is None:
                    continue  # one of its values must be chosen
                reduced = self.design.reset(codes, i)
                chance = (totals < self.totals(reduced) - least).mean()
                if chance <= 0.5 and self._models.fits(reduced):
                    options.append((chance, reduced))
            if not options:
                return codes
            _, codes = min(options, key=operator.itemgetter(0))

    def totals(self, codes: Codes) -> Floats:
        """Change of the log step time by a set in each draw, shape (draws,)."""
        return self._draws.totals(codes[None])[:, 0]

    def forecast(self, codes: Codes) -> Change:
        """Expected change by a set; the interval includes the spread beyond the model."""
        if (codes == self.design.neutral).all():
            return Change(0.0, 0.0, 0.0)
        beyond = self.model.spread * np.random.default_rng(DRAWS).standard_normal(DRAWS)
        low, high = np.quantile(self.totals(codes) + beyond, ENDS)
        mean = self.model.mean.total(codes)
        return Change(mean, min(float(low), mean), max(float(high), mean))


def as_ratio(change: float) -> float:
    """Converts a change of the log step time to a ratio with five decimals."""
    return round(math.exp(change), 5)
