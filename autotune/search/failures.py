"""The failure model: the probability of each value, and of pairs that evidence points to, to make a set fail.

A successful trial clears all its values and pairs. A failed one holds a cause: a value or a pair. Their probabilities
follow by belief propagation, as in decoding of group tests (Sejdinovic and Johnson, "Note on noisy group testing:
asymptotic bounds and belief propagation reconstruction", 2010), without noise: a cause that several failures share
explains away those that only one of them holds. The share of failing values is learned from the same trials.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autotune.search.space import Codes, Design, Floats

SINGLE, WEIGHT = 0.02, 25.0
"""Prior share of values that make a set fail, and the number of tried values that this counts for."""

PAIR = 0.0001
"""Prior probability that a pair of values makes a set fail."""

SURE = 0.999
"""Probability of known failures."""

FORBIDDEN = 1e3
"""Risk of known failures: no effect outweighs it."""

_ROUNDS = 30
_TINY = 1e-12

Cause = tuple[tuple[int, int], ...]
"""Combination of (factor, code)."""


class Risks(NamedTuple):
    """Negative log of the probability to run, of each value of each setting and of each combination of some pairs."""

    single: list[Floats]
    pairs: dict[tuple[int, int], Floats]


class FailureModel:
    """Probabilities of values, and of pairs of values, to make a set fail; sets have shape (sets, factors).

    Combinations that are `known` to fail may, if of more than two values, hold a smaller cause.
    """

    def __init__(self, design: Design, ran: Codes, failed: Codes, known: Iterable[Cause]) -> None:
        self._neutral, self._sizes = design.neutral, np.array(design.sizes)
        every = np.concatenate([ran, failed])
        self.trials = len(every)
        """Number of tried sets."""
        self.tried = [np.bincount(every[:, i], minlength=size + 1) for i, size in enumerate(design.sizes)]
        """Number of trials of each value of each setting, shape (values + 1,) each."""
        self._known = [tuple(sorted(k)) for k in known]
        # A known combination of more than two values counts as a failure with fewer suspects.
        narrowed = [c for c in self._known if len(c) > 2 and not any(set(k) < set(c) for k in self._known)]
        rows = [self._changed(row) for row in failed if self.known_cause(row) is None]
        held = _suspects([*rows, *narrowed], ran)
        ran_values = sum(len(np.unique(column[column != n])) for column, n in zip(ran.T, design.neutral, strict=True))
        chances, self.share = _infer(held, ran_values)
        """Share of values that make a set fail, as far as it is known."""
        chances.update((cause, SURE) for cause in self._known if len(cause) <= 2)
        self.single = [np.full(size + 1, self.share) for size in design.sizes]
        """Probability of each value of each setting to make any set fail, shape (values + 1,) each."""
        for i, own in enumerate(self.single):
            own[[design.neutral[i], design.sizes[i], *np.unique(ran[:, i])]] = 0.0
        self.pairs: dict[tuple[int, int], Floats] = {}
        """Probability of suspected pairs of values to fail beyond `single`, shape (values + 1, values + 1) each."""
        for cause, chance in chances.items():
            self._set(cause, chance)

    def _set(self, cause: Cause, chance: float) -> None:
        if len(cause) == 1:
            ((i, code),) = cause
            self.single[i][code] = chance
        elif chance > 2 * PAIR:
            (i, one), (j, other) = cause
            shape = self._sizes[i] + 1, self._sizes[j] + 1
            self.pairs.setdefault((i, j), np.zeros(shape))[one, other] = chance

    def _changed(self, row: Codes) -> Cause:
        changed = np.flatnonzero((row != self._neutral) & (row != self._sizes))
        return tuple((int(i), int(row[i])) for i in changed)

    def known_cause(self, row: Codes) -> Cause | None:
        """The first known failing combination in a set."""
        return next((cause for cause in self._known if all(row[i] == code for i, code in cause)), None)

    @functools.cached_property
    def risks(self) -> Risks:
        """Risks of all values and suspected pairs."""

        def risk(chances: Floats) -> Floats:
            return np.where(chances >= SURE, FORBIDDEN, -np.log1p(-np.minimum(chances, SURE)))

        return Risks([risk(own) for own in self.single], {pair: risk(own) for pair, own in self.pairs.items()})

    def log_survivals(self, rows: Codes) -> Floats:
        """Log of the probability that each set runs, of sets of shape (sets, factors)."""
        risks = [chances[c] for chances, c in zip(self.single, rows.T, strict=True)]
        risks += [chances[rows[:, i], rows[:, j]] for (i, j), chances in self.pairs.items()]
        found = np.log1p(-np.minimum(np.array(risks), SURE)).sum(axis=0)
        found[[self.known_cause(row) is not None for row in rows]] = np.log1p(-SURE)
        return np.asarray(found)


def _suspects(failed: Sequence[Cause], ran: Codes) -> list[list[Cause]]:
    """Possible causes of each failure: values that never ran, and pairs of values that never ran together."""
    singles: list[list[Cause]] = []
    pairs: list[list[Cause]] = []
    for row in failed:
        held = ran[:, [i for i, _ in row]] == [code for _, code in row]
        together = held.T @ held  # whether any run had both; on the diagonal, the value
        singles.append([(value,) for at, value in enumerate(row) if not together[at, at]])
        both = np.argwhere(np.triu(~together, 1)).tolist()
        pairs.append([(row[one], row[other]) for one, other in both])
    often = Counter(pair for found in pairs for pair in found)
    # Pairs of a single failure count only if nothing else explains it: there are hundreds of them.
    return [
        [*own, *(pair for pair in more if often[pair] > 1 or not own)] for own, more in zip(singles, pairs, strict=True)
    ]


def _infer(held: Sequence[Sequence[Cause]], ran_values: int) -> tuple[dict[Cause, float], float]:
    """Passes messages between failures and their possible causes (`held`), where so many values ran.

    Returns the probability of each cause, and the share of failing values.
    """
    causes = {cause: at for at, cause in enumerate(dict.fromkeys(c for h in held for c in h))}
    is_single = np.array([len(cause) == 1 for cause in causes], dtype=bool)
    incidence = np.array([[cause in suspects for cause in causes] for suspects in map(set, held) if suspects])
    if not causes:
        return {}, SINGLE * WEIGHT / (WEIGHT + ran_values)
    messages = np.zeros(incidence.shape)  # of each failure to each cause, in log odds
    share, chances = SINGLE, np.zeros(len(causes))
    for _ in range(_ROUNDS):
        prior = np.where(is_single, share, PAIR)
        base = np.log(prior / (1 - prior))
        belief = base + messages.sum(axis=0) - messages
        innocent = np.where(incidence, -np.logaddexp(0.0, belief), 0.0)  # log probability of being no cause
        others = innocent.sum(axis=1, keepdims=True) - innocent
        fresh = np.where(incidence, -np.log(np.maximum(-np.expm1(np.minimum(others, -_TINY)), _TINY)), 0.0)
        messages = 0.5 * (messages + fresh)
        chances = 1 / (1 + np.exp(-(base + messages.sum(axis=0))))
        failing, tried = float(chances[is_single].sum()), ran_values + int(is_single.sum())
        share = (SINGLE * WEIGHT + failing) / (WEIGHT + tried)
    return dict(zip(causes, map(float, chances), strict=True)), share
