"""The failure model: the probability of each value, or pair of values, to make a set fail.

A successful trial clears all its values and pairs. A failed one holds a cause: a value or a pair. Their probabilities
follow by belief propagation, as in decoding of group tests (Sejdinovic and Johnson, "Note on noisy group testing:
asymptotic bounds and belief propagation reconstruction", 2010), without noise: a cause that several failures share
explains away those that only one of them holds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from autotune.search.space import Codes, Design, Floats

SINGLE, PAIR = 0.02, 0.0005
"""Prior probability that a value, or a pair of values of one group, makes a set fail."""

ACROSS = 0.00002
"""The same for pairs across groups; small, because there are many of them."""

SURE = 0.999
"""Probability of known failures."""

_ROUNDS = 30
_TINY = 1e-12


class FailureModel:
    """Probabilities of values, and of pairs of values, to make a set fail.

    Args:
        ran: Shape (sets, factors).
        failed: Likewise.
        known: Combinations of (factor, code) that are known to fail; those of more than two may hold a smaller cause.
    """

    def __init__(self, design: Design, ran: Codes, failed: Codes, known: Iterable[Sequence[tuple[int, int]]]) -> None:
        self.design = design
        every = np.concatenate([ran, failed])
        self.trials = len(every)
        """Number of tried sets."""
        self.tried = [np.bincount(every[:, i], minlength=size + 1) for i, size in enumerate(design.sizes)]
        """Number of trials of each value of each setting, shape (values + 1,) each."""
        self._known = [tuple(sorted(k)) for k in known]
        self._single = [np.full(size + 1, SINGLE) for size in design.sizes]
        for i, chances in enumerate(self._single):
            chances[design.neutral[i]] = chances[design.sizes[i]] = 0.0
            chances[np.unique(ran[:, i])] = 0.0
        self._pairs: dict[tuple[int, int], Floats] = {}
        for i, j in design.pairs:
            chances = np.full((design.sizes[i] + 1, design.sizes[j] + 1), PAIR)
            for k, axis in ((i, 0), (j, 1)):
                np.moveaxis(chances, axis, 0)[[design.neutral[k], design.sizes[k]]] = 0.0
            chances[ran[:, i], ran[:, j]] = 0.0
            self._pairs[i, j] = chances
        for cause in self._known:
            if len(cause) == 1:
                self._single[cause[0][0]][cause[0][1]] = SURE
            elif len(cause) == 2 and (found := self._pairs.get((cause[0][0], cause[1][0]))) is not None:
                found[cause[0][1], cause[1][1]] = SURE
        rows = [row for row in failed if self.known_cause(row) is None]
        # A known combination of more than two values counts as a failure with fewer suspects.
        narrowed = [c for c in self._known if len(c) > 2 and not any(set(k) < set(c) for k in self._known)]
        self._infer_causes([*rows, *map(self._alone, narrowed)], ran)

    def _alone(self, cause: tuple[tuple[int, int], ...]) -> Codes:
        row = self.design.neutral.copy()
        for i, code in cause:
            row[i] = code
        return row

    def known_cause(self, row: Codes) -> tuple[tuple[int, int], ...] | None:
        """The first known failing combination in a set."""
        return next((cause for cause in self._known if all(row[i] == code for i, code in cause)), None)

    def _infer_causes(self, failed: Sequence[Codes], ran: Codes) -> None:
        """Passes messages between failed sets and their possible causes."""
        held = [self._suspects(row) for row in failed]
        across = [self._across(row, ran) for row in failed]
        often = Counter(pair for pairs in across for pair in pairs)
        for suspects, pairs in zip(held, across, strict=True):
            # Pairs of a single failure count only if nothing else explains it: there are hundreds of them.
            suspects += [pair for pair in pairs if often[pair] > 1 or not suspects]
        causes = {cause: at for at, cause in enumerate(dict.fromkeys(c for h in held for c in h))}
        if not causes:
            return
        incidence = np.zeros((len(held), len(causes)), dtype=bool)
        for at, suspects in enumerate(held):
            incidence[at, [causes[c] for c in suspects]] = True
        incidence = incidence[incidence.any(axis=1)]
        prior = np.array([self._chance(c) for c in causes])
        base = np.log(prior / (1 - prior))
        messages = np.zeros(incidence.shape)  # of each failure to each cause, in log odds
        for _ in range(_ROUNDS):
            belief = base + messages.sum(axis=0) - messages
            innocent = np.where(incidence, -np.logaddexp(0.0, belief), 0.0)  # log probability of being no cause
            others = innocent.sum(axis=1, keepdims=True) - innocent
            fresh = np.where(incidence, -np.log(np.maximum(-np.expm1(np.minimum(others, -_TINY)), _TINY)), 0.0)
            messages = 0.5 * (messages + fresh)
        chances = 1 / (1 + np.exp(-(base + messages.sum(axis=0))))
        for cause, at in causes.items():
            self._set(cause, float(chances[at]))

    def _suspects(self, row: Codes) -> list[tuple[int, ...]]:
        """Possible causes: values as (factor, code), pairs as (factor, code, factor, code)."""
        singles = [(i, int(c)) for i, c in enumerate(row) if self._single[i][c] > 0]
        pairs = [(i, int(row[i]), j, int(row[j])) for (i, j), t in self._pairs.items() if t[row[i], row[j]] > 0]
        return [*singles, *pairs]

    def _across(self, row: Codes, ran: Codes) -> list[tuple[int, ...]]:
        """Pairs of values of two groups that a failed set changed, and that never ran together."""
        neutral, sizes = self.design.neutral, np.array(self.design.sizes)
        changed = np.flatnonzero((row != neutral) & (row != sizes)).tolist()
        together = {i: (ran[ran[:, i] == row[i]] == row).any(axis=0) for i in changed}
        return [
            (i, int(row[i]), j, int(row[j]))
            for i, j in itertools.combinations(changed, 2)
            if (i, j) not in self._pairs and not together[i][j]
        ]

    def _chance(self, cause: tuple[int, ...]) -> float:
        if len(cause) == 2:
            return float(self._single[cause[0]][cause[1]])
        table = self._pairs.get((cause[0], cause[2]))
        return ACROSS if table is None else float(table[cause[1], cause[3]])

    def _set(self, cause: tuple[int, ...], chance: float) -> None:
        if len(cause) == 2:
            self._single[cause[0]][cause[1]] = chance
            return
        pair, sizes = (cause[0], cause[2]), self.design.sizes
        if pair not in self._pairs:
            if chance <= PAIR:
                return
            self._pairs[pair] = np.zeros((sizes[pair[0]] + 1, sizes[pair[1]] + 1))
        self._pairs[pair][cause[1], cause[3]] = chance

    def single(self, factor: int) -> Floats:
        """Probability of each value of a setting to make any set fail, shape (values + 1,)."""
        return self._single[factor]

    def pair(self, one: int, other: int) -> Floats:
        """Probability of each pair of values to fail beyond `single`, shape (values + 1, values + 1)."""
        return self._pairs[one, other]

    @property
    def suspected(self) -> list[tuple[int, int]]:
        """Pairs of settings with values that are suspected to fail together."""
        return [pair for pair, chances in self._pairs.items() if chances.max() > 2 * PAIR]

    def log_survival(self, row: Codes) -> float:
        """Log of the probability that a set runs."""
        return float(self.log_survivals(row[None])[0])

    def log_survivals(self, rows: Codes) -> Floats:
        """The same for sets of shape (sets, factors)."""
        risks = [chances[c] for chances, c in zip(self._single, rows.T, strict=True)]
        risks += [chances[rows[:, i], rows[:, j]] for (i, j), chances in self._pairs.items()]
        found = np.log1p(-np.minimum(np.array(risks), SURE)).sum(axis=0)
        found[[self.known_cause(row) is not None for row in rows]] = np.log1p(-SURE)
        return np.asarray(found)
