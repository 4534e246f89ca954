"""Which effects there are: a sparse Bayesian regression over blocks of features, each in the model or out of it.

Spike and slab: a block has no effect, or coefficients drawn from a normal distribution, of which there is a narrow and
a wide one: most effects are of a few percent, and one of a third is not to be told as three that share it. All other
things being held, the odds of each block are known in closed form, so that a walk over which blocks are in takes the
next flip with the right chance at once (Zanella, "Informed proposals for local MCMC in discrete spaces", JASA 2020,
with Barker's balancing function) and stays in a state as long as it should. Coefficients are integrated out. Settings
that were always changed together are told apart by little, and a walk from one explanation does not reach another one
in time; so several walk, from different starts, and count by how likely what they found is on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.factors import Floats

BURN_IN, JUMPS = 8, 20
"""States of each walk that are forgotten, and that are kept."""

_LEAST = 1e-12  # so that a chain leaves even a state that is as good as sure

SIZES, SHARES = (1.0, 4.0), (0.75, 0.25)
"""Standard deviations of coefficients in the narrow and in the wide distribution, and how many are of each."""

MOST_BLOCKS = 60
"""Blocks that are in the model at once, at most."""


@dataclass(frozen=True, slots=True)
class State:
    """One state of the chain.

    Attributes:
        log_weight: Log of its posterior chance, up to a constant.
        chance: Chance of each block given which others are in, shape (blocks,).
        sizes: Blocks that are in, each with the index of its size.
        columns: Their features.
        mean: Mean of their coefficients.
        cov: Covariance of these.
        likelier: Index of the size that each block likelier has, were it in, shape (blocks,).
        mean_if: Mean of its coefficients then, shape (blocks, rank), 0 where it has fewer.
        precision_if: Precision of these, shape (blocks, rank, rank).
    """

    log_weight: float
    chance: Floats
    sizes: Mapping[int, int]
    columns: NDArray[np.int64]
    mean: Floats
    cov: Floats
    likelier: NDArray[np.int64]
    mean_if: Floats
    precision_if: Floats


class Chain:
    """The chain over which blocks are in.

    Args:
        features: Of each trial, over the standard error of its value, shape (trials, features); coefficients are in
            units of `SIZES`.
        values: What was measured, likewise over its standard error, shape (trials,).
        starts: Where each block's features begin, and where the last ends, shape (blocks + 1,).
        log_odds: Of each block to be in, before anything is measured, shape (blocks,).
    """

    def __init__(self, features: Floats, values: Floats, starts: NDArray[np.int64], log_odds: Floats) -> None:
        self._starts, self._log_odds = starts, log_odds
        sizes = np.diff(starts)
        rank, total = int(sizes.max(initial=1)), features.shape[1]
        # Every block has `rank` features: those that it lacks are one that is always zero.
        self._index = np.full((len(sizes), rank), total)
        for block, (start, size) in enumerate(zip(starts[:-1], sizes, strict=True)):
            self._index[block, :size] = np.arange(start, start + size)
        self._features = np.zeros((len(features), total + 1))
        self._features[:, :total] = features
        self._moment = values @ self._features
        self._padded_moment = self._moment[self._index]
        blocks = self._features.T[self._index]  # (blocks, rank, trials)
        self._own = blocks @ blocks.transpose(0, 2, 1)
        self._products: dict[int, Floats] = {}

    def _with(self, block: int) -> Floats:
        """All blocks' products with one, shape (blocks times rank, features of that one).

        They are taken when a state first holds it: few of many blocks are ever in, and all products of a space with
        hundreds of pairs would take seconds.
        """
        if (found := self._products.get(block)) is None:
            own = self._features[:, self._starts[block] : self._starts[block + 1]]
            found = self._products[block] = (self._features.T @ own)[self._index.ravel()]
        return found

    def run(self, rng: np.random.Generator, starts: Sequence[Mapping[int, int]]) -> tuple[list[State], Floats]:
        """States that walks go through, and their chances, which sum to 1.

        Args:
            rng: Draws the jumps.
            starts: Blocks that are in where each walk starts, with the index of their size.
        """
        states: list[State] = []
        weights: list[Floats] = []
        likely: list[float] = []
        for start in starts:
            walked, stayed = self._walk(rng, dict(start))
            states += walked
            weights.append(stayed / stayed.sum())
            likely.append(float(weights[-1] @ np.array([s.log_weight for s in walked])))
        shares = np.exp(np.array(likely) - max(likely))
        return states, np.concatenate([w * s for w, s in zip(weights, shares / shares.sum(), strict=True)])

    def _walk(self, rng: np.random.Generator, current: dict[int, int]) -> tuple[list[State], Floats]:
        """States of one walk, and how long it stays in each."""
        if not len(self._log_odds):
            return [self.look({})], np.ones(1)
        states, stayed = [], []
        for jump in range(BURN_IN + JUMPS):
            state, odds = self._look(current)
            rates = _sigmoid(odds) + _LEAST
            if len(current) >= MOST_BLOCKS:
                rates[:] = 0.0
            for block, size in current.items():  # it takes another size, or leaves
                leaves = 1.0 - _sigmoid(odds[size, block]) + _LEAST
                rates[:, block] = _sigmoid(odds[:, block] - odds[size, block])
                rates[size, block] = leaves
            total = float(rates.sum())
            if jump >= BURN_IN:
                states.append(state)
                stayed.append(1.0 / total)
            flip = min(int(np.searchsorted(np.cumsum(rates), rng.random() * total)), rates.size - 1)
            size, block = divmod(flip, rates.shape[1])
            if current.get(block) == size:
                del current[block]
            else:
                current[block] = size
        return states, np.array(stayed)

    def look(self, inside: Mapping[int, int]) -> State:
        """The state in which some blocks are in, each with the index of its size."""
        return self._look(inside)[0]

    def _look(self, inside: Mapping[int, int]) -> tuple[State, Floats]:
        """The state, and the log odds of each size of each block against being out, shape (sizes, blocks)."""
        spans = [(int(self._starts[b]), int(self._starts[b + 1])) for b in inside]
        columns = np.concatenate([np.arange(*span) for span in spans] or [np.zeros(0, dtype=np.int64)])
        widths = [
            SIZES[size] for size, (start, end) in zip(inside.values(), spans, strict=True) for _ in range(start, end)
        ]
        prior = np.array(widths) ** -2.0
        held = self._features[:, columns]
        cov = np.linalg.inv(np.diag(prior) + held.T @ held)
        mean = cov @ self._moment[columns]
        none = np.zeros((self._index.size, 0))
        cross = np.concatenate([none, *map(self._with, inside)], axis=1)  # (blocks times rank, columns)
        white = (cross @ np.linalg.cholesky(cov)).reshape(*self._index.shape, len(columns))
        told = self._own - white @ white.transpose(0, 2, 1)
        pull = self._padded_moment - (cross @ mean).reshape(self._index.shape)
        at = 0
        for block, (start, end) in zip(inside, spans, strict=True):
            # What the data say of a block that is in: its posterior without its prior.
            own = slice(at, at := at + end - start)
            precision = np.linalg.inv(cov[own, own])
            told[block, : end - start, : end - start] = precision - np.diag(prior[own])
            pull[block, : end - start] = precision @ mean[own]
        looks = [_alone(told, pull, size) for size in SIZES]
        odds = np.stack([found[0] for found in looks])
        odds += np.log(SHARES)[:, None] + self._log_odds[None, :]
        log_weight = 0.5 * float(self._moment[columns] @ mean + np.linalg.slogdet(cov)[1] + np.log(prior).sum())
        log_weight += sum(float(self._log_odds[b] + np.log(SHARES[size])) for b, size in inside.items())
        likelier = np.argmax(odds, axis=0)
        return State(
            log_weight,
            _sigmoid(np.logaddexp.reduce(odds, axis=0)),
            dict(inside),
            columns,
            mean,
            cov,
            likelier,
            np.where((likelier == 0)[:, None], looks[0][1], looks[1][1]),
            np.where((likelier == 0)[:, None, None], looks[0][2], looks[1][2]),
        ), odds


def _alone(told: Floats, pull: Floats, size: float) -> tuple[Floats, Floats, Floats]:
    """Log odds of blocks of one size by the data, and mean and precision of their coefficients, each were it in.

    Gauss's elimination goes over all blocks at once: there are hundreds of matrices of six rows, for each of which a
    call of LAPACK takes longer than the arithmetic does.
    """
    rank = pull.shape[1]
    precision = told + np.eye(rank) / size**2
    rows = np.concatenate([precision, pull[:, :, None]], axis=2)
    pivots = np.empty_like(pull)
    for k in range(rank):
        # No pivot is less than the least eigenvalue, which the prior bounds; rounding could make one so.
        pivots[:, k] = np.maximum(rows[:, k, k], 1 / size**2)
        over = rows[:, k + 1 :, k, None] / pivots[:, k, None, None]
        rows[:, k + 1 :, k + 1 :] -= over * rows[:, None, k, k + 1 :]
    odds = 0.5 * ((rows[:, :, -1] ** 2 / pivots) - np.log(pivots)).sum(axis=1)
    # Features that a block lacks have the prior's precision, and cancel.
    mean = np.empty_like(pull)
    for k in reversed(range(rank)):
        known = (rows[:, k, k + 1 : -1] * mean[:, k + 1 :]).sum(axis=1)
        mean[:, k] = (rows[:, k, -1] - known) / pivots[:, k]
    return odds - rank * np.log(size), mean, precision


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
