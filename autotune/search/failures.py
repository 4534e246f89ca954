"""The failure model: the probability of each value, and of pairs that evidence points to, to make a
set fail.

A successful trial clears all its values and pairs. A failed one holds a cause: a value or a pair.
Their probabilities follow by belief propagation, as in decoding of group tests (Sejdinovic and
Johnson, "Note on noisy group testing: asymptotic bounds and belief propagation reconstruction",
2010), without noise: a cause that several failures share explains away those that only one of them
holds. The share of failing values is learned from the same trials.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.search.space import Codes, Design, Floats

SINGLE, WEIGHT = 0.02, 25.0
"""Prior share of values that make a set fail, and the number of tried values that this counts
for.
"""

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


class Pairs(NamedTuple):
    """Pairs of values, each with a number: their settings and their codes, shape (pairs, 2)."""

    factors: Codes
    codes: Codes
    numbers: Floats

    def held(self, rows: Codes) -> NDArray[np.bool_]:
        """Returns which sets, of shape (sets, factors), hold both values of which pairs, shape
        (sets, pairs).
        """
        return np.asarray((rows[:, self.factors] == self.codes).all(axis=2))


class Risks(NamedTuple):
    """Negative log of the probability to run, of each value of each setting and of some pairs of
    values.
    """

    single: list[Floats]
    pairs: Pairs

    def of(self, codes: Codes) -> float:
        """Returns the risk of a set."""
        singles = sum(float(risks[code]) for risks, code in zip(self.single, codes, strict=True))
        return singles + float((self.pairs.held(codes[None]) @ self.pairs.numbers)[0])


class FailureModel:
    """Probabilities of values, and of pairs of values, to make a set fail; sets have shape (sets,
    factors).

    Combinations that are `known` to fail may, if of more than two values, hold a smaller cause.
    """

    def __init__(self, design: Design, ran: Codes, failed: Codes, known: Iterable[Cause]) -> None:
        self._neutral = design.neutral
        self._sizes = np.array(design.sizes)
        self._known = [tuple(sorted(k)) for k in known]
        # A known combination of more than two values counts as a failure with fewer suspects.
        narrowed = [
            c for c in self._known if len(c) > 2 and not any(set(k) < set(c) for k in self._known)
        ]
        rows = [self._changed(row) for row in failed if self.known_cause(row) is None]
        width = int(self._sizes.max(initial=0)) + 1
        causes, failures, of = _suspects([*rows, *narrowed], ran, width)
        ran_values = sum(
            len(np.unique(column[column != n]))
            for column, n in zip(ran.T, design.neutral, strict=True)
        )
        chances, self.share = _infer(causes[:, 0] == causes[:, 1], failures, of, ran_values)
        """Share of values that make a set fail, as far as it is known."""
        short = [(cause[0], cause[-1]) for cause in dict.fromkeys(self._known) if len(cause) <= 2]
        sure = np.array(
            [[i * width + code for i, code in cause] for cause in short], dtype=np.int64
        ).reshape(-1, 2)
        causes = np.concatenate([causes, sure])
        chances = np.append(chances, np.full(len(sure), SURE))
        is_single = causes[:, 0] == causes[:, 1]
        self.single = np.full((len(design.sizes), width), self.share)
        """Probability of each value of each setting to make any set fail, shape (factors, most
        values + 1).
        """
        for i, own in enumerate(self.single):
            own[[design.neutral[i], design.sizes[i], *np.unique(ran[:, i])]] = 0.0
        self.single.flat[causes[is_single, 0]] = chances[is_single]
        likely = ~is_single & (chances > 2 * PAIR)
        factors, codes = np.divmod(causes[likely], width)
        self.pairs = Pairs(factors, codes, chances[likely])
        """Probability of suspected pairs of values to fail beyond `single`."""

    def _changed(self, row: Codes) -> Cause:
        changed = np.flatnonzero((row != self._neutral) & (row != self._sizes))
        return tuple(zip(changed.tolist(), row[changed].tolist(), strict=True))

    def known_cause(self, row: Codes) -> Cause | None:
        """The first known failing combination in a set."""
        return next(
            (cause for cause in self._known if all(row[i] == code for i, code in cause)), None
        )

    @functools.cached_property
    def risks(self) -> Risks:
        """Risks of all values and suspected pairs."""

        def risk(chances: Floats) -> Floats:
            return np.where(chances >= SURE, FORBIDDEN, -_log_survival(chances))

        single = [risk(own[: size + 1]) for own, size in zip(self.single, self._sizes, strict=True)]
        return Risks(single, self.pairs._replace(numbers=risk(self.pairs.numbers)))

    def log_survivals(self, rows: Codes) -> Floats:
        """Log of the probability that each set runs, of sets of shape (sets, factors)."""
        chances = self.single[np.arange(rows.shape[1]), rows]
        survivals = _log_survival(chances).sum(axis=1) + self.pairs.held(rows) @ _log_survival(
            self.pairs.numbers
        )
        survivals[[self.known_cause(row) is not None for row in rows]] = np.log1p(-SURE)
        return np.asarray(survivals)


def _log_survival(chances: Floats) -> Floats:
    """Log of the probability to run in spite of causes of some probability; that of known ones is a
    little below 1.
    """
    return np.log1p(-np.minimum(chances, SURE))


def _suspects(failed: Sequence[Cause], ran: Codes, width: int) -> tuple[Codes, Codes, Codes]:
    """Finds what may have caused each failure: values that never ran, and pairs of values that
    never ran together.

    Returns all causes as two values, the same one twice for a single value, shape (causes, 2); and
    of each suspicion the indices of its failure and of its cause. A value is a number: its setting
    times `width`, plus its code.
    """
    found = [np.zeros((3, 0), dtype=np.int64)]
    for at, row in enumerate(failed):
        factors, codes = np.array(row, dtype=np.int64).reshape(-1, 2).T
        held = (ran[:, factors] == codes).astype(np.float32)
        one, other = np.nonzero(
            np.triu(held.T @ held == 0)
        )  # whether no run had both; on the diagonal, the value
        values = factors * width + codes
        found.append(np.stack([np.full(len(one), at), values[one], values[other]]))
    failures, ones, others = np.concatenate(found, axis=1)
    is_single = ones == others
    has_single = np.bincount(failures, is_single, len(failed)) > 0
    most = ran.shape[1] * width
    keys = ones * most + others
    _, of, often = np.unique(keys, return_inverse=True, return_counts=True)
    # Pairs of a single failure count only if nothing else explains it: there are hundreds of them.
    kept = is_single | (often[of] > 1) | ~has_single[failures]
    keys, of = np.unique(keys[kept], return_inverse=True)
    return np.stack(np.divmod(keys, most), axis=1), failures[kept], of


def _infer(
    is_single: NDArray[np.bool_], failures: Codes, of: Codes, ran_values: int
) -> tuple[Floats, float]:
    """Passes messages between failures and their possible causes, where so many values ran.

    Returns the probability of each cause, and the share of failing values.
    """
    messages = np.zeros(len(of))  # of each suspicion to its cause, in log odds
    share = SINGLE
    chances = np.zeros(len(is_single))
    for _ in range(_ROUNDS):
        prior = np.where(is_single, share, PAIR)
        base = np.log(prior / (1 - prior))
        belief = (base + np.bincount(of, messages, len(is_single)))[of] - messages
        innocent = -np.logaddexp(0.0, belief)  # log probability of being no cause
        others = np.bincount(failures, innocent)[failures] - innocent
        messages = 0.5 * (
            messages - np.log(np.maximum(-np.expm1(np.minimum(others, -_TINY)), _TINY))
        )
        chances = 1 / (1 + np.exp(-(base + np.bincount(of, messages, len(is_single)))))
        failing = float(chances[is_single].sum())
        tried = ran_values + int(is_single.sum())
        share = (SINGLE * WEIGHT + failing) / (WEIGHT + tried)
    return chances, share
