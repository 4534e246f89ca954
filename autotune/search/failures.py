"""The failure model: probabilities that values, and suspected pairs of values, make a set fail.

A successful trial clears all its values and pairs. A failed one holds a cause: a value or a pair.
Their probabilities follow by belief propagation without noise (Sejdinovic and Johnson, "Note on
noisy group testing: asymptotic bounds and belief propagation reconstruction", 2010): a cause that
several failures share explains away others. The share of failing values is learned, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autotune.search.space import Bools, Codes, Design, Floats, Pair

SINGLE = 0.02  # prior share of values that make a set fail
WEIGHT = 25.0  # number of tried values that this prior counts for
PAIR = 0.0001  # prior probability that a pair of values makes a set fail
SURE = 0.999  # probability of known failures
FORBIDDEN = 1e3  # risk of known failures: no effect outweighs it
_ROUNDS = 30
_TINY = 1e-12

Cause = tuple[Pair, ...]  # combination of (factor, code)


class Pairs(NamedTuple):
    """Pairs of values, each with a number: their settings and their codes, shape (pairs, 2)."""

    factors: Codes
    codes: Codes
    numbers: Floats

    def held(self, rows: Codes) -> Bools:
        """Returns whether sets hold both values of pairs, shape (sets, pairs)."""
        return np.asarray((rows[:, self.factors] == self.codes).all(axis=2))


class Risks(NamedTuple):
    """Negative logs of the probability to run, of each value and of some pairs of values."""

    single: Floats
    pairs: Pairs

    def of(self, codes: Codes) -> float:
        """Returns the risk of a set."""
        singles = sum(float(risks[code]) for risks, code in zip(self.single, codes, strict=True))
        return singles + float((self.pairs.held(codes[None]) @ self.pairs.numbers)[0])


class FailureModel:
    """Probabilities that values and pairs of values fail; sets have shape (sets, factors).

    Combinations that are `known` to fail may, if of more than two values, hold a smaller cause.
    """

    def __init__(self, design: Design, ran: Codes, failed: Codes, known: Iterable[Cause]) -> None:
        self._neutral = design.neutral
        self._sizes = np.array(design.sizes, dtype=np.int64)
        self._known = [tuple(sorted(cause)) for cause in known]
        # A known combination of more than two values counts as a failure with fewer suspects.
        suspected = [
            c for c in self._known if len(c) > 2 and not any(set(k) < set(c) for k in self._known)
        ]
        unexplained = [self._changed(row) for row in failed if not self.is_known_failing(row)]
        width = int(self._sizes.max(initial=0)) + 1
        causes, failures, blamed = _suspects([*unexplained, *suspected], ran, width)
        columns = zip(ran.T, self._neutral, strict=True)
        ran_values = sum(len(np.unique(column[column != default])) for column, default in columns)
        chances, self.share = _infer(causes[:, 0] == causes[:, 1], failures, blamed, ran_values)
        short = [(cause[0], cause[-1]) for cause in dict.fromkeys(self._known) if len(cause) <= 2]
        factors, codes = np.array(short, dtype=np.int64).reshape(-1, 2, 2).transpose(2, 0, 1)
        causes = np.concatenate([causes, factors * width + codes])
        chances = np.append(chances, np.full(len(short), SURE))
        is_single = causes[:, 0] == causes[:, 1]
        # Probability of each value to make any set fail, shape (factors, most values + 1).
        self.single = np.full((len(self._sizes), width), self.share)
        cleared = np.vstack([self._neutral, self._sizes, ran])
        self.single[np.arange(len(self._sizes)), cleared] = 0.0
        self.single.flat[causes[is_single, 0]] = chances[is_single]
        likely = ~is_single & (chances > 2 * PAIR)
        factors, codes = np.divmod(causes[likely], width)
        self.pairs = Pairs(factors, codes, chances[likely])  # beyond `single`

    def _changed(self, row: Codes) -> Cause:
        changed = np.flatnonzero((row != self._neutral) & (row != self._sizes))
        return tuple(zip(changed.tolist(), row[changed].tolist(), strict=True))

    def is_known_failing(self, row: Codes) -> bool:
        """Returns whether a set holds a known failing combination."""
        return any(all(row[i] == code for i, code in cause) for cause in self._known)

    @functools.cached_property
    def risks(self) -> Risks:
        """Risks of all values and suspected pairs."""
        return Risks(_risk(self.single), self.pairs._replace(numbers=_risk(self.pairs.numbers)))

    def log_survivals(self, rows: Codes) -> Floats:
        """Log of the probability that each set runs."""
        singles = _log_survival(self.single[np.arange(rows.shape[1]), rows])
        pairs = self.pairs.held(rows) @ _log_survival(self.pairs.numbers)
        survivals: Floats = singles.sum(axis=1) + pairs
        survivals[[self.is_known_failing(row) for row in rows]] = np.log1p(-SURE)
        return survivals


def _log_survival(chances: Floats) -> Floats:
    """Log of the probability to run in spite of causes; that of known ones is a little below 1."""
    return np.log1p(-np.minimum(chances, SURE))


def _risk(chances: Floats) -> Floats:
    return np.where(chances >= SURE, FORBIDDEN, -_log_survival(chances))


def _suspects(failed: Sequence[Cause], ran: Codes, width: int) -> tuple[Codes, Codes, Codes]:
    """Finds the values that never ran, and pairs that never ran together, of each failure.

    Returns causes as two values, equal for a single one, shape (causes, 2), and of each suspicion
    the indices of its failure and its cause. A value is its setting times `width` plus its code.
    """
    suspicions = [np.zeros((3, 0), dtype=np.int64)]
    for at, row in enumerate(failed):
        factors, codes = np.array(row, dtype=np.int64).reshape(-1, 2).T
        held = (ran[:, factors] == codes).astype(np.float32)
        # Whether no run had both; on the diagonal, the value.
        lower, upper = np.nonzero(np.triu(held.T @ held == 0))
        values = factors * width + codes
        suspicions.append(np.stack([np.full(len(lower), at), values[lower], values[upper]]))
    failures, lower, upper = np.concatenate(suspicions, axis=1)
    is_single = lower == upper
    has_single = np.bincount(failures, is_single, len(failed)) > 0
    count = ran.shape[1] * width
    keys = lower * count + upper
    _, blamed, often = np.unique(keys, return_inverse=True, return_counts=True)
    # Pairs of a single failure count only if nothing else explains it: there are hundreds of them.
    counts = is_single | (often[blamed] > 1) | ~has_single[failures]
    keys, blamed = np.unique(keys[counts], return_inverse=True)
    return np.stack(np.divmod(keys, count), axis=1), failures[counts], blamed


def _infer(
    is_single: Bools, failures: Codes, blamed: Codes, ran_values: int
) -> tuple[Floats, float]:
    """Returns the probability of each cause, and the share of failing values."""
    count = len(is_single)
    tried = ran_values + int(is_single.sum())
    messages = np.zeros(len(blamed))  # of each suspicion to its cause, in log odds
    share = SINGLE
    for _ in range(_ROUNDS):
        prior = np.where(is_single, share, PAIR)
        base = np.log(prior / (1 - prior))
        belief = (base + np.bincount(blamed, messages, count))[blamed] - messages
        innocent = -np.logaddexp(0.0, belief)  # log probability of being no cause
        others = np.bincount(failures, innocent)[failures] - innocent
        messages = 0.5 * (messages - np.log(np.maximum(-np.expm1(others), _TINY)))
        chances = 1 / (1 + np.exp(-(base + np.bincount(blamed, messages, count))))
        share = (SINGLE * WEIGHT + chances[is_single].sum()) / (WEIGHT + tried)
    return chances, share
