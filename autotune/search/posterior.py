"""Which effects there are: a sparse Bayesian regression over blocks of features, each in the model or out of it.

Spike and slab: a block has no effect, or coefficients drawn from a normal distribution. All other things being held,
the odds of each block are known in closed form, so that a walk over which blocks are in takes the next flip with the
right chance at once (Zanella, "Informed proposals for local MCMC in discrete spaces", JASA 2020, with Barker's
balancing function) and stays in a state as long as it should. Coefficients are integrated out. Settings that were
always changed together are told apart by little, and a walk from one explanation does not reach another one in time; so
several walk, from different starts, and count by how likely what they found is on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.factors import Floats

BURN_IN, JUMPS = 8, 20
"""States of each walk that are forgotten, and that are kept."""

_LEAST = 1e-12  # so that a chain leaves even a state that is as good as sure

MOST_BLOCKS = 60
"""Blocks that are in the model at once, at most."""


@dataclass(frozen=True, slots=True)
class State:
    """One state of the chain.

    Attributes:
        log_weight: Log of its posterior chance, up to a constant.
        chance: Chance of each block given which others are in, shape (blocks,).
        inside: Blocks that are in.
        columns: Their features.
        mean: Mean of their coefficients.
        cov: Covariance of these.
        mean_if: Mean of the coefficients of each block, were it in, shape (blocks, rank), 0 where it has fewer.
        precision_if: Precision of these, shape (blocks, rank, rank).
    """

    log_weight: float
    chance: Floats
    inside: tuple[int, ...]
    columns: NDArray[np.int64]
    mean: Floats
    cov: Floats
    mean_if: Floats
    precision_if: Floats


class Chain:
    """The chain over which blocks are in.

    Args:
        gram: Features' weighted products, shape (features, features); coefficients are standard normal.
        moment: Features' weighted products with what was measured, shape (features,).
        starts: Where each block's features begin, and where the last ends, shape (blocks + 1,).
        log_odds: Of each block to be in, before anything is measured, shape (blocks,).
    """

    def __init__(self, gram: Floats, moment: Floats, starts: NDArray[np.int64], log_odds: Floats) -> None:
        self._moment, self._starts, self._log_odds = moment, starts, log_odds
        sizes = np.diff(starts)
        rank, total = int(sizes.max(initial=1)), len(moment)
        # Every block has `rank` features: those that it lacks are one that is always zero.
        self._index = np.full((len(sizes), rank), total)
        for block, (start, size) in enumerate(zip(starts[:-1], sizes, strict=True)):
            self._index[block, :size] = np.arange(start, start + size)
        self._gram = np.zeros((total + 1, total + 1))
        self._gram[:total, :total] = gram
        self._padded_moment = np.append(moment, 0.0)[self._index]
        self._own = self._gram[self._index[:, :, None], self._index[:, None, :]] + np.eye(rank)

    def run(self, rng: np.random.Generator, starts: Sequence[Sequence[int]]) -> tuple[list[State], Floats]:
        """States that walks go through, and their chances, which sum to 1.

        Args:
            rng: Draws the jumps.
            starts: Blocks that are in where each walk starts.
        """
        states: list[State] = []
        weights: list[Floats] = []
        likely: list[float] = []
        for start in starts:
            walked, stayed = self._walk(rng, list(start))
            states += walked
            weights.append(stayed / stayed.sum())
            likely.append(float(weights[-1] @ np.array([s.log_weight for s in walked])))
        shares = np.exp(np.array(likely) - max(likely))
        return states, np.concatenate([w * s for w, s in zip(weights, shares / shares.sum(), strict=True)])

    def _walk(self, rng: np.random.Generator, current: list[int]) -> tuple[list[State], Floats]:
        """States of one walk, and how long it stays in each."""
        states, stayed = [], []
        for jump in range(BURN_IN + JUMPS):
            state = self.look(current)
            inside = np.zeros(len(state.chance), dtype=bool)
            inside[current] = True
            rates = np.where(inside, 1 - state.chance, state.chance) + _LEAST
            if len(current) >= MOST_BLOCKS:
                rates[~inside] = 0.0
            total = float(rates.sum())
            if jump >= BURN_IN:
                states.append(state)
                stayed.append(1.0 / total)
            flip = min(int(np.searchsorted(np.cumsum(rates), rng.random() * total)), len(rates) - 1)
            if inside[flip]:
                current.remove(flip)
            else:
                current.append(flip)
        return states, np.array(stayed)

    def look(self, inside: Sequence[int]) -> State:
        """The state in which those blocks are in."""
        columns = np.concatenate(
            [np.arange(self._starts[b], self._starts[b + 1]) for b in inside] or [np.zeros(0, dtype=np.int64)]
        )
        cov = np.linalg.inv(np.eye(len(columns)) + self._gram[np.ix_(columns, columns)])
        mean = cov @ self._moment[columns]
        cross = self._gram[:, columns][self._index]  # (blocks, rank, columns)
        precision = self._own - (cross @ cov) @ cross.transpose(0, 2, 1)
        pull = self._padded_moment - cross @ mean
        lower = np.linalg.cholesky(precision)
        white = np.linalg.solve(lower, pull[:, :, None])
        odds = 0.5 * (white[:, :, 0] ** 2).sum(axis=1) - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        mean_if = np.linalg.solve(lower.transpose(0, 2, 1), white)[:, :, 0]
        at = 0
        for block in inside:  # Savage and Dickey's ratio: how much less likely no effect became
            own = slice(at, at := at + int(self._starts[block + 1] - self._starts[block]))
            away = mean[own] @ np.linalg.solve(cov[own, own], mean[own])
            odds[block] = 0.5 * float(np.linalg.slogdet(cov[own, own])[1] + away)
        log_weight = 0.5 * float(self._moment[columns] @ mean + np.linalg.slogdet(cov)[1])
        log_weight += float(self._log_odds[list(inside)].sum())
        chance = _sigmoid(odds + self._log_odds)
        return State(log_weight, chance, tuple(inside), columns, mean, cov, mean_if, precision)


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
