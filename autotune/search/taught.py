"""What the model tells when a search has ended: effects with intervals, the best set, and what is left to gain."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.additive import AdditiveModel
from autotune.search.draws import Beliefs, smallest
from autotune.search.factors import Codes, Floats
from autotune.search.hazards import Hazards

LEVEL = 0.95
"""Of all intervals, and of the bound of what is left to gain."""

SURELY_ACTS = 1 - (1 - LEVEL) / 2
"""Chance to act below which an interval holds "no change": by then the chance of none is more than one tail's."""

SUSPECT = 0.1
"""Chance to make a set fail from which a value or a pair is told, and is in no set that is recommended."""

DRAWS = 400
"""Draws of all effects by which sets are compared."""

FORBIDDEN = 1e3
"""Cost of what is suspected to fail, as a log ratio: no effect outweighs it."""

LEVELS = 4
"""Ordered values beside the default that may be kinds rather than sizes: levels of optimisation, modes."""

_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the log step time with its interval."""

    mean: float
    low: float
    high: float


class Taught:
    """Answers from a model.

    Args:
        model: What was measured taught; it is made to weigh rivals.
        hazards: What failed taught.
        seed: Of the draws by which sets are compared.
    """

    def __init__(self, model: AdditiveModel, hazards: Hazards, *, seed: int) -> None:
        model.weigh_rivals()
        self.model, self.hazards, self.design = model, hazards, model.design
        self._rng = np.random.default_rng(seed)
        has_choice = [model.design.blocks[i].table.shape[1] > 0 for i in range(len(model.design.factors))]
        self.acts = np.where(has_choice, model.acts(), 0.0)
        """Chance of each setting to act, alone or in a pair, shape (factors,)."""

    @functools.cached_property
    def _beliefs(self) -> Beliefs:
        return self.model.beliefs(self._rng, DRAWS)

    # ------------------------------------------------------------------ effects

    def effect(self, factor: int) -> list[Change]:
        """What each value of a setting does beside the defaults of the others, by code."""
        return self._changes(factor, self.model.mean.main[factor])

    def pair_effect(self, block: int) -> tuple[float, Callable[[int, int], Change]]:
        """What two settings do together beyond what each does: the chance that they do, and each combination of codes.

        Args:
            block: The pair's place among the design's blocks.
        """
        i, j = self.design.blocks[block].factors
        changes = self._changes(block, self.model.mean.pairs[i, j].ravel())
        width = self.design.sizes[j] + 1
        return float(self.model.chances[block]), lambda a, b: changes[a * width + b]

    def pairs(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Pairs that may act: place of the block, and the two settings."""
        for block in range(len(self.design.factors), len(self.design.blocks)):
            i, j = self.design.blocks[block].factors
            yield block, (i, j)

    def _changes(self, block: int, means: Floats) -> list[Change]:
        """Mean of each row of a block's table, with the interval of what it does if it acts.

        That holds "no change", too, unless the block surely acts: of what is most likely inert it says how much could
        be overlooked, which an interval of nothing but zero would not.
        """
        low, high = _mixture_interval(*self.model.marginal(block))
        if self.model.chances[block] < SURELY_ACTS:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        ends = zip(means.tolist(), np.minimum(low, means).tolist(), np.maximum(high, means).tolist(), strict=True)
        return [Change(*row) for row in ends]

    # ------------------------------------------------------------------ failures

    def suspects(self) -> list[tuple[tuple[tuple[int, int], ...], float]]:
        """What is suspected to make a set fail: one or two of (factor, code), and the chance, likeliest first."""
        found: list[tuple[tuple[tuple[int, int], ...], float]] = []
        for i, size in enumerate(self.design.sizes):
            chances = self.hazards.single(i)
            found += [(((i, c),), float(chances[c])) for c in range(size) if chances[c] > SUSPECT]
        for i, j in self.hazards.suspected:
            table = self.hazards.pair(i, j)
            cells = np.argwhere(table[:-1, :-1] > SUSPECT)
            found += [(((i, int(a)), (j, int(b))), float(table[a, b])) for a, b in cells]
        return sorted(found, key=lambda f: (-f[1], f[0]))

    @functools.cached_property
    def _risks(self) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
        """What is suspected to fail, as a cost."""

        def cost(chances: Floats) -> Floats:
            return np.where(chances > SUSPECT, FORBIDDEN, 0.0)

        single = [cost(self.hazards.single(i)) for i in range(len(self.design.factors))]
        return single, {pair: cost(self.hazards.pair(*pair)) for pair in self.hazards.suspected}

    # ------------------------------------------------------------------ sets

    def best(
        self, ran: Sequence[Codes], *, least: float = 0.0, is_allowed: Callable[[Codes], bool] = lambda codes: True
    ) -> Codes:
        """The set that is expected to be fastest, without what is more likely not to better it.

        Args:
            ran: Sets that ran; the best of them is taken where the best of all is not allowed.
            least: Smallest gain of interest, as a log ratio.
            is_allowed: Whether a set may be tried.
        """
        mean = self.model.mean
        best = self._opened(self.design.settle(smallest(mean, *self._risks)))
        if not is_allowed(best):
            rest = [codes for codes in (self.design.neutral, *ran) if is_allowed(codes)]
            best = min(rest, key=mean.total, default=self.design.neutral)
        return self._pruned(best, least, is_allowed)

    def _opened(self, codes: Codes) -> Codes:
        """The set, with settings opened that another one switches off, where that is expected to pay."""
        mean, (single, _) = self.model.mean, self._risks
        for i, factor in enumerate(self.design.factors):
            if not factor.needs:
                continue
            tried = codes.copy()
            tried[i] = int(np.argmin((mean.main[i] + single[i])[:-1]))
            for other, values in factor.needs.items():
                if tried[other] not in values and values:
                    tried[other] = min(values, key=lambda v: float(mean.main[other][v] + single[other][v]))
            tried = self.design.settle(tried)
            if mean.total(tried) < mean.total(codes):
                codes = tried
        return codes

    def _pruned(self, codes: Codes, least: float, is_allowed: Callable[[Codes], bool]) -> Codes:
        """The set without settings that are more likely than not of no use in it, least useful first."""
        while True:
            whole, found = self.totals(codes), list[tuple[float, int, Codes]]()
            for i in np.flatnonzero(codes != self.design.neutral).tolist():
                if self.design.factors[i].default is None:
                    continue  # one of its values must be chosen
                less = codes.copy()
                less[i] = self.design.neutral[i]
                less = self.design.settle(less)
                chance = float((whole < self.totals(less) - least).mean())
                if chance <= 0.5:
                    found.append((chance, i, less))
            found.sort(key=lambda f: f[:2])
            better = next((less for _, _, less in found if is_allowed(less)), None)
            if better is None:
                return codes
            codes = better

    def totals(self, codes: Codes) -> Floats:
        """Change of the log step time by a set in each draw, shape (draws,)."""
        return np.asarray(self._beliefs.totals(codes[None])[:, 0])

    def forecast(self, codes: Codes) -> Change:
        """What is expected of a set, whether or not it was tried; what sets do beyond the model is in the interval."""
        if (codes == self.design.neutral).all():
            return Change(0.0, 0.0, 0.0)
        drawn = self.totals(codes)
        mean = self.model.mean.total(codes)
        rng = np.random.default_rng(len(drawn))
        drawn = drawn + self.model.spread * rng.standard_normal(len(drawn))
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
        return Change(mean, min(float(low), mean), max(float(high), mean))

    def left(self, codes: Codes) -> float:
        """How much faster than a set the fastest of the space is at most, as a log ratio of at most 0.

        The bound holds in `LEVEL` of what the trials leave possible. What is suspected to fail is no set.
        """
        return float(np.quantile(self.gains(codes), 1 - LEVEL))

    def gains(self, codes: Codes) -> Floats:
        """How much faster than a set the fastest of the space is in each draw, as log ratios of at most 0."""
        single, pairs = self._risks
        best = [d.total(self.design.settle(smallest(d, single, pairs))) for d in self._beliefs]
        return np.minimum(np.array(best) - self.totals(codes), 0.0)


def _mixture_interval(weights: Floats, means: Floats, sds: Floats) -> tuple[Floats, Floats]:
    """Both ends of the interval of each column of a mixture of normal distributions.

    Args:
        weights: Of the parts, shape (parts,).
        means: Shape (parts, columns).
        sds: Likewise; 0 where a part knows.
    """
    sds = np.maximum(sds, 1e-12)
    low, high = (_mixture_quantile(weights, means, sds, tail) for tail in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return low, high


def _mixture_quantile(weights: Floats, means: Floats, sds: Floats, share: float) -> Floats:
    from scipy.special import ndtr  # 0.2 s to import, so not before it is needed

    reach = 9 * sds.max(axis=0)
    low, high = means.min(axis=0) - reach, means.max(axis=0) + reach
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = weights @ ndtr((middle - means) / sds) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
        if float((high - low).max(initial=0.0)) < 1e-7:
            break
    return np.asarray((low + high) / 2)


def as_ratio(change: float) -> float:
    """A change of the log step time as a ratio, to the fifth decimal: more would be the machine's own rounding."""
    return round(math.exp(change), 5)
