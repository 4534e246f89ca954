"""Which effects there are: a sparse Bayesian regression over blocks of features, each in the model or out of it.

Spike and slab: a block has no effect, or coefficients drawn from a normal distribution. All other things being held,
the odds of each block are known in closed form, so that the chain over which blocks are in takes the next flip with the
right chance at once and stays in a state as long as it should (a Zanella process: Zanella, "Informed proposals for
local MCMC in discrete spaces", JASA 2020, with Barker's balancing function). Coefficients are integrated out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.factors import Floats

BURN_IN, JUMPS = 12, 28
"""States of the chain that are forgotten, and that are kept."""

MOST_BLOCKS = 60
"""Blocks that are in the model at once, at most."""

SLOWEST = 1e-12
"""Least rate at which a block enters or leaves the model."""


@dataclass(frozen=True, slots=True)
class State:
    """One state of the chain.

    Attributes:
        weight: How long the chain stays in it.
        chance: Chance of each block given which others are in, shape (blocks,).
        inside: Blocks that are in.
        columns: Their features.
        mean: Mean of their coefficients.
        cov: Covariance of these.
        mean_if: Mean of the coefficients of each block, were it in, shape (blocks, rank), 0 where it has fewer.
        precision_if: Precision of these, shape (blocks, rank, rank).
    """

    weight: float
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

    def run(self, rng: np.random.Generator, inside: Sequence[int] = ()) -> list[State]:
        """States that the chain goes through.

        Args:
            rng: Draws the jumps.
            inside: Blocks that are in at the start.
        """
        states: list[State] = []
        current = list(inside)
        for jump in range(BURN_IN + JUMPS):
            odds, state = self._look(current)
            leaving = np.zeros(len(odds), dtype=bool)
            leaving[current] = True
            # Where the data leave no doubt every rate underflows: the chain then stays almost for ever, not for ever.
            rates = np.maximum(_sigmoid(np.where(leaving, -odds, odds)), SLOWEST)
            if len(current) >= MOST_BLOCKS:
                rates[~leaving] = 0.0
            total = float(rates.sum())
            if jump >= BURN_IN:
                states.append(_weighted(state, 1.0 / total))
            flip = min(int(np.searchsorted(np.cumsum(rates), rng.random() * total)), len(rates) - 1)
            if flip in current:
                current.remove(flip)
            else:
                current.append(flip)
        return states

    def look(self, inside: Sequence[int]) -> State:
        """The state in which those blocks are in."""
        return self._look(inside)[1]

    def _look(self, inside: Sequence[int]) -> tuple[Floats, State]:
        """The log odds of each block given which others are in, and the state."""
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
        odds = odds + self._log_odds
        state = State(0.0, _sigmoid(odds), tuple(inside), columns, mean, cov, mean_if, precision)
        return odds, state


def _weighted(state: State, weight: float) -> State:
    return State(
        weight, state.chance, state.inside, state.columns, state.mean, state.cov, state.mean_if, state.precision_if
    )


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
