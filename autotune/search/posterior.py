"""A sparse Bayesian regression over blocks of features, each in the model or out of it (spike and slab).

Coefficients of a block that is in have a narrow or a wide normal prior: most effects are of a few percent, and one of a
third must not be split among three settings. Given all others, the odds of each block are known in closed form, so a
walk over which blocks are in takes the next flip with the right probability at once (Zanella, "Informed proposals for
local MCMC in discrete spaces", JASA 2020, with Barker's balancing function) and stays in a state as long as it should.
Coefficients are integrated out. A walk seldom gets from one explanation to another of settings that were always changed
together; so several walk, from different starts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.search.space import Floats

BURN_IN, JUMPS = 8, 20
"""States of each walk that are dropped, and that are kept."""

_LEAST = 1e-12  # so that a chain leaves even a state that is as good as sure

SIZES, SHARES = (1.0, 4.0), (0.75, 0.25)
"""Standard deviations of coefficients in the narrow and in the wide distribution, and how many are of each."""

MOST_BLOCKS = 60
"""Blocks that are in the model at once, at most."""

PRECISE = 1e5
"""Precision of one coefficient by the data, where the prior's is 1, above which no state is updated in place."""

_PRECISIONS = np.array(SIZES) ** -2.0


class State:
    """One state of the chain: which blocks are in, and the likelihood of each given the others.

    Args:
        sizes: Blocks that are in, each with the index of its size.
        columns: Their features.
        mean: Mean of their coefficients.
        cov: Covariance of these.
        log_weight: Log of the state's posterior chance, up to a constant.
        precision: Of each block's coefficients by the data alone, shape (blocks, rank, rank).
        pull: That times their mean by the data alone, shape (blocks, rank); 0 where a block has fewer.
        log_odds: Prior log odds of each block to be in, shape (blocks,).
    """

    def __init__(
        self,
        sizes: Mapping[int, int],
        columns: NDArray[np.int64],
        mean: Floats,
        cov: Floats,
        log_weight: float,
        *,
        precision: Floats,
        pull: Floats,
        log_odds: Floats,
    ) -> None:
        self.sizes, self.columns, self.mean, self.cov, self.log_weight = sizes, columns, mean, cov, log_weight
        self._precision, self._pull = precision, pull
        self.odds = _odds(precision, pull) + np.log(SHARES)[:, None] + log_odds[None, :]
        """Log odds of each size of each block against being out, shape (sizes, blocks)."""

    @functools.cached_property
    def chance(self) -> Floats:
        """Probability of each block given which others are in, shape (blocks,)."""
        return _sigmoid(np.logaddexp.reduce(self.odds, axis=0))

    @functools.cached_property
    def likelier(self) -> NDArray[np.int64]:
        """Index of the size that each block likelier has, were it in, shape (blocks,)."""
        return np.asarray(np.argmax(self.odds, axis=0))

    @functools.cached_property
    def precision_if(self) -> Floats:
        """Precision of each block's coefficients, were it in, shape (blocks, rank, rank)."""
        return self._precision + _PRECISIONS[self.likelier][:, None, None] * np.eye(self._precision.shape[1])

    @functools.cached_property
    def mean_if(self) -> Floats:
        """Mean of them then, shape (blocks, rank), 0 where a block has fewer."""
        return np.asarray(np.linalg.solve(self.precision_if, self._pull[:, :, None])[:, :, 0], dtype=np.float64)


class Chain:
    """The chain over which blocks are in.

    Args:
        features: Of each trial, over the standard error of its value, shape (trials, features); coefficients are in
            units of `SIZES`.
        values: What was measured, likewise over its standard error, shape (trials,).
        starts: Where each block's features begin, and where the last ends, shape (blocks + 1,).
        log_odds: Prior log odds of each block to be in, shape (blocks,).
    """

    def __init__(self, features: Floats, values: Floats, starts: NDArray[np.int64], log_odds: Floats) -> None:
        self.starts, self.log_odds = starts, log_odds
        sizes = np.diff(starts)
        rank, total = int(sizes.max(initial=1)), features.shape[1]
        # Every block has `rank` features: those that it lacks are one that is always zero.
        offsets = np.arange(rank)[None, :]
        self.index = np.where(offsets < sizes[:, None], starts[:-1, None] + offsets, total)
        """Features of each block, shape (blocks, rank)."""
        # By feature, so that those of one block lie together.
        self._features = np.zeros((total + 1, len(features)))
        self._features[:total] = features.T
        self.moment = self._features @ values
        self.own = np.zeros((len(sizes), rank, rank))
        """Products of each block's features, shape (blocks, rank, rank)."""
        for block, size in enumerate(sizes.tolist()):
            mine = self._features[starts[block] : starts[block + 1]]
            self.own[block, :size, :size] = mine @ mine.T
        self.is_precise = float(self.own.max(initial=0.0)) > PRECISE
        self._products: dict[int, Floats] = {}

    def products(self, block: int) -> Floats:
        """Returns all features' products with those of one block, shape (features + 1, features of that one).

        Cached by block: few of many blocks are ever in, and all products of hundreds of pairs would take seconds.
        """
        if (found := self._products.get(block)) is None:
            own = self._features[self.starts[block] : self.starts[block + 1]]
            found = self._products[block] = self._features @ own.T
        return found

    def run(self, rng: np.random.Generator, starts: Sequence[Mapping[int, int]]) -> tuple[list[State], Floats]:
        """Walks from each start; returns the states and their probabilities, which sum to 1.

        Args:
            rng: Of the jumps.
            starts: Blocks that are in where each walk starts, with the index of their size.
        """
        states: list[State] = []
        weights: list[Floats] = []
        likely: list[float] = []
        for start in starts:
            walked, stayed = self._walk(rng, start)
            states += walked
            weights.append(stayed / stayed.sum())
            likely.append(float(weights[-1] @ np.array([s.log_weight for s in walked])))
        shares = np.exp(np.array(likely) - max(likely))
        return states, np.concatenate([w * s for w, s in zip(weights, shares / shares.sum(), strict=True)])

    def _walk(self, rng: np.random.Generator, start: Mapping[int, int]) -> tuple[list[State], Floats]:
        """Returns the states of one walk, and how long it stays in each."""
        place = Place(self, start)
        if not len(self.log_odds):
            return [place.state()], np.ones(1)
        states, stayed = [], []
        for jump in range(BURN_IN + JUMPS):
            state = place.state()
            odds = state.odds
            rates = _sigmoid(odds) + _LEAST
            if len(place.sizes) >= MOST_BLOCKS:
                rates[:] = 0.0
            if place.sizes:  # what is in takes another size, or leaves
                inside, now = list(place.sizes), list(place.sizes.values())
                own = odds[now, inside]
                rates[:, inside] = _sigmoid(odds[:, inside] - own)
                rates[now, inside] = 1.0 - _sigmoid(own) + _LEAST
            total = float(rates.sum())
            if jump >= BURN_IN:
                states.append(state)
                stayed.append(1.0 / total)
            flip = min(int(np.searchsorted(np.cumsum(rates), rng.random() * total)), rates.size - 1)
            size, block = divmod(flip, rates.shape[1])
            if (before := place.sizes.get(block)) is not None:
                place.remove(block)
            if before != size:
                place.add(block, size)
        return states, np.array(stayed)

    def look(self, inside: Mapping[int, int]) -> State:
        """Returns the state in which some blocks are in, each with the index of its size."""
        return Place(self, inside).state()


class Place:
    """The current state of a walk, updated while blocks come in and leave.

    With `M` the inverse of the values' covariance given what is in, `_fisher` is each block's `X' M X` and `_pull` its
    `X' M y`. A block that comes in or leaves is a low-rank update of `M`. Where the data are precise all is computed
    anew: the rounding of updates would add up to more than the prior.
    """

    def __init__(self, chain: Chain, inside: Mapping[int, int]) -> None:
        self._chain = chain
        self._become(inside)

    def _become(self, inside: Mapping[int, int]) -> None:
        """Computes all anew, by Cholesky's factor: products with an inverse lose twice the digits."""
        chain = self._chain
        self.sizes = dict(inside)
        """Blocks that are in, each with the index of its size."""
        self._settle()
        white = np.linalg.solve(np.linalg.cholesky(self._precision), self._cross.T).T[chain.index]
        self._fisher = chain.own - white @ white.transpose(0, 2, 1)
        self._pull = (chain.moment - self._cross @ self._mean)[chain.index]

    def _settle(self) -> None:
        chain, at = self._chain, 0
        self._spans: dict[int, slice] = {}
        for block in self.sizes:
            self._spans[block] = slice(at, at := at + int(chain.starts[block + 1] - chain.starts[block]))
        none = np.zeros((len(chain.moment), 0))
        self._cross = np.concatenate([none, *map(chain.products, self.sizes)], axis=1)  # (features + 1, columns)
        ranges = [np.arange(chain.starts[b], chain.starts[b + 1]) for b in self.sizes]
        self._columns = np.concatenate([np.zeros(0, dtype=np.int64), *ranges])
        self._prior = np.zeros(at)
        for block, size in self.sizes.items():
            self._prior[self._spans[block]] = _PRECISIONS[size]
        self._precision = self._cross[self._columns] + np.diag(self._prior)
        self._cov = np.linalg.inv(self._precision)
        self._mean = np.linalg.solve(self._precision, chain.moment[self._columns])

    def add(self, block: int, size: int) -> None:
        """Adds a block."""
        if self._chain.is_precise:
            self._become({**self.sizes, block: size})
            return
        chain, mine = self._chain, self._chain.index[block]
        columns = chain.products(block)
        count = columns.shape[1]
        change = columns - self._cross @ (self._cov @ self._cross[mine[:count]].T)
        joint = np.linalg.inv(self._fisher[block, :count, :count] + np.eye(count) * SIZES[size] ** -2.0)
        self._move(change, -joint, self._pull[block, :count])
        self.sizes[block] = size
        self._settle()

    def remove(self, block: int) -> None:
        """Removes a block."""
        if self._chain.is_precise:
            self._become({b: size for b, size in self.sizes.items() if b != block})
            return
        span = self._spans[block]
        joint = np.linalg.inv(self._cov[span, span])
        self._move(self._cross @ self._cov[:, span], joint, self._mean[span])
        del self.sizes[block]
        self._settle()

    def _move(self, change: Floats, joint: Floats, pull: Floats) -> None:
        index = self._chain.index
        weighted = (change @ joint)[index]
        self._fisher = self._fisher + weighted @ change[index].transpose(0, 2, 1)
        self._pull = self._pull + weighted @ pull

    def state(self) -> State:
        """Returns the state."""
        chain, mean, cov = self._chain, self._mean, self._cov
        fisher, pull = self._fisher.copy(), self._pull.copy()
        # What the data say of blocks that are in: their posterior without their prior.
        inside = list(self.sizes)
        rank = chain.index.shape[1]
        places = np.full((len(inside), rank), len(mean))
        for row, span in zip(places, self._spans.values(), strict=True):
            row[: span.stop - span.start] = range(span.start, span.stop)
        is_there = places < len(mean)
        wide = np.zeros((len(mean) + 1, len(mean) + 1))
        wide[:-1, :-1] = cov
        own = wide[places[:, :, None], places[:, None, :]] + np.eye(rank) * ~is_there[:, None, :]
        precision = np.linalg.inv(own) - np.eye(rank) * ~is_there[:, None, :]
        fisher[inside] = precision - np.eye(rank) * np.append(self._prior, 0.0)[places][:, None, :]
        pull[inside] = (precision @ np.append(mean, 0.0)[places][:, :, None])[:, :, 0]
        log_weight = 0.5 * float(
            chain.moment[self._columns] @ mean - np.linalg.slogdet(self._precision)[1] + np.log(self._prior).sum()
        )
        log_weight += sum(float(chain.log_odds[b] + np.log(SHARES[size])) for b, size in self.sizes.items())
        return State(
            dict(self.sizes), self._columns, mean, cov, log_weight, precision=fisher, pull=pull, log_odds=chain.log_odds
        )


def _odds(fisher: Floats, pull: Floats) -> Floats:
    """Returns log odds of blocks of each size by the data, shape (sizes, blocks).

    Gaussian elimination over all blocks and sizes at once: of hundreds of matrices of six rows a call of LAPACK for
    each takes longer than the arithmetic.
    """
    blocks, rank = pull.shape
    rows = np.empty((len(SIZES), blocks, rank, rank + 1))
    rows[:, :, :, :rank] = fisher + _PRECISIONS[:, None, None, None] * np.eye(rank)
    rows[:, :, :, rank] = pull
    # No pivot is less than the least eigenvalue, which the prior bounds; rounding could make one so.
    least = _PRECISIONS[:, None]
    odds = np.zeros((len(SIZES), blocks))
    for _ in range(rank):
        pivots = np.maximum(rows[:, :, 0, 0], least)
        odds += rows[:, :, 0, -1] ** 2 / pivots - np.log(pivots / least)
        over = rows[:, :, 1:, 0] / pivots[:, :, None]
        rows = rows[:, :, 1:, 1:] - over[:, :, :, None] * rows[:, :, None, 0, 1:]
    return 0.5 * odds


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
