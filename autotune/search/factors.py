"""What a search changes, as numbers: each setting a factor, each set a row of codes, each effect a block of features.

A block is one setting's effect on the log of the step time, or what two settings do together beyond that. Its features
are scaled so that coefficients that are drawn from a standard normal distribution give effects of size one: ordered
values (combine thresholds, thread counts) have effects that change the less the closer two values are on their scale,
for the exponential kernel, whose draws may jump as a threshold does; others have effects of their own with a part in
common. The effect of the default is zero.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

GRID = 16
"""Places of a long range between which effects are interpolated."""

MAIN_RANK, PAIR_RANK = 6, 4
"""Most features of a setting, and of a pair."""

REACH = 0.5
"""Distance, as a share of a scale's length, over which effects of ordered values lose correlation to 1/e."""

COMMON = 0.3
"""Correlation between effects of two values of a setting that has no order."""

_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A setting that is searched.

    Attributes:
        name: Of the setting.
        size: How many values it has.
        default: Code of the value in force where nothing is set; None if none of its values is.
        scale: Place of each value where they are ordered, in the unit in which effects are smooth (log bytes for
            thresholds); None where they are not. The default's may be unknown (nan).
        group: Name of its group; pairs of one group may act together. Empty: of none.
        needs: Code of another factor to the codes of its values under which this one acts.
        act: Chance that it acts, before anything is measured; None for that of any.
        lean: Expected change of the log step time at each value, before anything is measured; None for 0.
    """

    name: str
    size: int
    default: int | None = 0
    scale: tuple[float, ...] | None = None
    group: str = ""
    needs: Mapping[int, frozenset[int]] = field(default_factory=dict)
    act: float | None = None
    lean: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Features of one effect.

    Attributes:
        factors: The one setting, or the two that act together.
        table: Features of each value; for a pair of each combination, the second setting's values in turn.
    """

    factors: tuple[int, ...]
    table: Floats

    def features(self, codes: Codes, sizes: Sequence[int]) -> Floats:
        """Features of sets, shape (sets, features)."""
        first = codes[:, self.factors[0]]
        rows = first if len(self.factors) == 1 else first * (sizes[self.factors[1]] + 1) + codes[:, self.factors[1]]
        found: Floats = self.table[rows]
        return found


class Design:
    """All blocks of a space.

    A set is a row of codes, one for each factor; the code after the last value means: not set, for it cannot act here
    or is left alone.

    Args:
        factors: What is searched; each after those that it needs.
        pairs: Which pairs may act together; None for those of one group, or all where there are no groups.
    """

    def __init__(self, factors: Sequence[Factor], pairs: Sequence[tuple[int, int]] | None = None) -> None:
        self.factors = tuple(factors)
        self.sizes = [f.size for f in factors]
        mains = [_main_table(f.size, f.default, f.scale) for f in factors]
        self.pairs = list(pairs) if pairs is not None else likely_pairs(self.factors)
        self.blocks = [Block((i,), table) for i, table in enumerate(mains)]
        self.blocks += [Block(pair, _pair_table(mains[pair[0]], mains[pair[1]])) for pair in self.pairs]
        self.rank = max((b.table.shape[1] for b in self.blocks), default=1)
        """Features of the block that has the most."""
        self.starts = np.concatenate([[0], np.cumsum([b.table.shape[1] for b in self.blocks])]).astype(np.int64)
        """Where the features of each block begin."""
        self._conditional = [i for i, f in enumerate(factors) if f.needs]
        self.neutral = np.array([f.size if f.default is None else f.default for f in factors], dtype=np.int64)
        """The codes of the default."""

    def features(self, codes: Codes) -> Floats:
        """All features of sets, shape (sets, features); zero for the default."""
        if not self.blocks:
            return np.zeros((len(codes), 0))
        return np.concatenate([b.features(codes, self.sizes) for b in self.blocks], axis=1)

    def settle(self, codes: Codes) -> Codes:
        """A set as it acts: what another setting switches off is left alone."""
        settled = codes.copy()
        for i in self._conditional:
            if any(settled[other] not in values for other, values in self.factors[i].needs.items()):
                settled[i] = self.neutral[i]
        return settled


def likely_pairs(factors: Sequence[Factor]) -> list[tuple[int, int]]:
    """Pairs of one group; all pairs where no setting has a group."""
    every = itertools.combinations(range(len(factors)), 2)
    if not any(f.group for f in factors):
        return list(every)
    return [(i, j) for i, j in every if factors[i].group and factors[i].group == factors[j].group]


@functools.lru_cache(maxsize=1024)
def _main_table(size: int, default: int | None, scale: tuple[float, ...] | None) -> Floats:
    """Features of each value, and of being left alone, shape (values + 1, features); see `Factor`."""
    kept = [v for v in range(size) if v != default]
    if not kept:
        return np.zeros((size + 1, 0))
    if scale is None:
        table = np.zeros((size + 1, len(kept)))
        kernel = np.full((len(kept), len(kept)), COMMON) + (1 - COMMON) * np.eye(len(kept))
        table[kept] = np.linalg.cholesky(kernel)
        return table
    places = np.array(scale)
    grid = places[kept]
    length = max(float(np.nanmax(places) - np.nanmin(places)), _TINY) * REACH
    if len(grid) > GRID:
        grid = np.quantile(grid, np.linspace(0, 1, GRID))
    zero = None if default is None or np.isnan(places[default]) else places[default]

    def kernel_of(a: Floats, b: Floats) -> Floats:
        near: Floats = np.exp(-np.abs(a[:, None] - b[None, :]) / length)
        if zero is not None:  # given that the default's effect is zero
            near -= np.exp(-np.abs(a - zero) / length)[:, None] * np.exp(-np.abs(b - zero) / length)[None, :]
        return near

    values, vectors = np.linalg.eigh(kernel_of(grid, grid))
    best = np.argsort(values)[::-1][: min(len(grid), MAIN_RANK)]
    best = best[values[best] > 1e-6]
    found = kernel_of(places[kept], grid) @ vectors[:, best] / np.sqrt(values[best])
    found /= max(float(np.sqrt((found**2).sum(axis=1).mean())), _TINY)
    table = np.zeros((size + 1, found.shape[1]))
    table[kept] = found
    return table


def _pair_table(one: Floats, other: Floats) -> Floats:
    """Features of each combination: the products of both settings' features that matter most."""
    products: Floats = (one[:, None, :, None] * other[None, :, None, :]).reshape(
        len(one) * len(other), one.shape[1] * other.shape[1]
    )
    size = (products**2).sum(axis=0)
    best = np.sort(np.argsort(-size, kind="stable")[:PAIR_RANK])
    return np.ascontiguousarray(products[:, best])
