"""What may be true of effects: draws from the posterior, and the set that is fastest if one is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from autotune.search.factors import Codes, Design, Floats

EMPTY: Mapping[tuple[int, int], Floats] = MappingProxyType({})

_SWEEPS = 4  # of descent over the settings of pairs, at most


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of all effects from the posterior, or their mean.

    Attributes:
        main: Change of the log step time at each value of each setting.
        pairs: The same for pairs that act.
        inert: Settings that do not act in this draw; `main` says what they would do if they did.
    """

    main: tuple[Floats, ...]
    pairs: dict[tuple[int, int], Floats]
    inert: frozenset[int]

    def times(self, factor: float) -> Draw:
        """All effects, in another unit."""
        return Draw(tuple(factor * t for t in self.main), {k: factor * t for k, t in self.pairs.items()}, self.inert)

    def plus(self, other: Draw) -> Draw:
        """The sum of two draws' effects."""
        pairs = dict(self.pairs)
        for key, table in other.pairs.items():
            pairs[key] = pairs[key] + table if key in pairs else table
        main = tuple(a + b for a, b in zip(self.main, other.main, strict=True))
        return Draw(main, pairs, self.inert & other.inert)

    def total(self, codes: Codes) -> float:
        """Change of the log step time by a set."""
        own = sum(float(table[c]) for table, c in zip(self.main, codes, strict=True))
        return own + sum(float(table[codes[i], codes[j]]) for (i, j), table in self.pairs.items())


class Beliefs:
    """Draws from the posterior of what acts, and how.

    Args:
        design: The space.
        coefs: Coefficients of all features, 0 where a block does not act, shape (draws, features).
        acting: Which blocks act, shape (draws, blocks).
    """

    def __init__(self, design: Design, coefs: Floats, acting: NDArray[np.bool_]) -> None:
        self._design, self._coefs, self._acting = design, coefs, acting
        self._used = np.flatnonzero(coefs.any(axis=0))

    def totals(self, codes: Codes) -> Floats:
        """Change of the log step time by sets, of codes of shape (sets, factors), in each draw: (draws, sets)."""
        return np.asarray(self._coefs[:, self._used] @ self._design.features(codes)[:, self._used].T)

    def __iter__(self) -> Iterator[Draw]:
        """The draws as tables of effects."""
        design, starts = self._design, self._design.starts.tolist()
        none = [np.zeros(size + 1) for size in design.sizes]
        for coefs, acting in zip(self._coefs, self._acting, strict=True):
            main, pairs, factors = list(none), dict[tuple[int, int], Floats](), set[int]()
            for b in np.flatnonzero(acting).tolist():
                block = design.blocks[b]
                table = block.table @ coefs[starts[b] : starts[b + 1]]
                factors.update(block.factors)
                if len(block.factors) == 1:
                    main[b] = table
                else:
                    i, j = block.factors
                    pairs[i, j] = table.reshape(design.sizes[i] + 1, design.sizes[j] + 1)
            yield Draw(tuple(main), pairs, frozenset(range(len(none))) - factors)


def smallest(
    draw: Draw, penalties: Sequence[Floats] = (), pair_penalties: Mapping[tuple[int, int], Floats] = EMPTY
) -> Codes:
    """The set with the least sum of effects, by descent over settings and pairs that act; not yet settled.

    Args:
        draw: Effects.
        penalties: Added to each value's effect.
        pair_penalties: Added to each combination's.
    """
    inert: frozenset[int] = frozenset()
    zero = Draw(tuple(penalties) or tuple(np.zeros_like(t) for t in draw.main), dict(pair_penalties), inert)
    costs = draw.plus(zero)
    neighbours: dict[int, list[tuple[int, Floats]]] = {}
    for (i, j), table in costs.pairs.items():
        neighbours.setdefault(i, []).append((j, table))
        neighbours.setdefault(j, []).append((i, table.T))
    # A value for each setting: the last code, for those that are not set, is no choice.
    codes = np.array([int(np.argmin(own[:-1])) for own in costs.main], dtype=np.int64)

    def cost(i: int, without: int = -1) -> Floats:
        tables = (table[:, codes[other]] for other, table in neighbours[i] if other != without)
        return (costs.main[i] + sum(tables))[:-1]

    for _ in range(_SWEEPS):
        before = codes.copy()
        for i in neighbours:
            codes[i] = int(np.argmin(cost(i)))
        for (i, j), table in costs.pairs.items():
            both = cost(i, j)[:, None] + cost(j, i)[None, :] + table[:-1, :-1]
            codes[i], codes[j] = np.unravel_index(int(np.argmin(both)), both.shape)
        if (codes == before).all():
            break
    return codes
