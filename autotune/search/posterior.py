"""Sparse Bayesian regression over blocks of features, each in or out of the model (spike and slab).

Coefficients of a block in the model have a narrow or a wide normal prior: most effects are a few
percent, and a large one must not be split among several settings. They are integrated out, so each
jump of the walk flips a block with the right probability and has the right holding time (Zanella,
"Informed proposals for local MCMC in discrete spaces", JASA 2020, with Barker's balancing
function). A short walk rarely moves an effect between settings that were always changed together.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.search.space import Codes, Floats, Rng

BURN_IN = 8  # dropped states of each walk
_LEAST = 1e-12  # so that a chain leaves even an almost certain state
SIZES = (1.0, 4.0)  # standard deviations of coefficients: narrow and wide prior
SHARES = (0.75, 0.25)  # prior shares of blocks of each size
MOST_BLOCKS = 60  # limit of blocks in the model
_PRECISIONS = np.array(SIZES) ** -2.0


@dataclass(frozen=True, eq=False)
class State:
    """One state of the chain: the blocks in the model, and the odds of each block given the others.

    `precision` and `pull` are those of each block's coefficients by the data alone.
    """

    places: Mapping[int, slice]  # of each block in the model in `mean` and `cov`
    columns: Codes  # features of these blocks
    mean: Floats
    cov: Floats
    precision: Floats  # shape (blocks, rank, rank)
    pull: Floats  # `precision` times the mean, shape (blocks, rank), zero-padded
    log_odds: Floats  # prior, shape (blocks,)

    @functools.cached_property
    def odds(self) -> Floats:
        """Log odds of each size of each block against absence, shape (sizes, blocks)."""
        values, vectors = np.linalg.eigh(self.precision)
        along = np.einsum("bij,bi->bj", vectors, self.pull)
        # No precision is below the prior's; rounding could violate that.
        growth = 1.0 + np.maximum(values, 0.0) / _PRECISIONS[:, None, None]
        gains = along**2 / (growth * _PRECISIONS[:, None, None]) - np.log(growth)
        return np.asarray(0.5 * gains.sum(axis=2) + np.log(SHARES)[:, None] + self.log_odds)

    @functools.cached_property
    def chance(self) -> Floats:
        """Probability of each block given the other blocks of the state, shape (blocks,)."""
        return _sigmoid(np.logaddexp.reduce(self.odds, axis=0))

    @functools.cached_property
    def likelier(self) -> Codes:
        """Index of the likelier size of each block if present, shape (blocks,)."""
        return np.asarray(np.argmax(self.odds, axis=0))

    @functools.cached_property
    def precision_if(self) -> Floats:
        """Precision of each block's coefficients if present, shape (blocks, rank, rank)."""
        priors = _PRECISIONS[self.likelier][:, None, None]
        return self.precision + priors * np.eye(self.precision.shape[1])

    @functools.cached_property
    def mean_if(self) -> Floats:
        """Mean of each block's coefficients if present, shape (blocks, rank), zero-padded."""
        return np.asarray(
            np.linalg.solve(self.precision_if, self.pull[:, :, None])[:, :, 0], dtype=np.float64
        )


class Chain:
    """The Markov chain over sets of blocks.

    Features, shape (trials, features), and values are over the standard errors of the values;
    `starts` has the start of each block's features, and the end of the last.
    """

    def __init__(self, features: Floats, values: Floats, starts: Codes, log_odds: Floats) -> None:
        self.starts = starts
        self.log_odds = log_odds
        sizes = np.diff(starts)
        total = features.shape[1]
        # Features of each block, shape (blocks, rank); missing ones point to one that is always 0.
        offsets = np.arange(int(sizes.max(initial=1)))
        self.index = np.where(offsets < sizes[:, None], starts[:-1, None] + offsets, total)
        # Transposed, so that the features of a block are contiguous.
        self._features = np.zeros((total + 1, len(features)))
        self._features[:total] = features.T
        self.moment = self._features @ values
        padded = self._features[self.index]
        self.squares = padded @ padded.transpose(0, 2, 1)  # shape (blocks, rank, rank)
        self._products: dict[int, Floats] = {}

    def products(self, block: int) -> Floats:
        """Returns products of all features with a block's; cached, for all would take seconds."""
        if block not in self._products:
            features = self._features[self.starts[block] : self.starts[block + 1]]
            self._products[block] = self._features @ features.T
        return self._products[block]

    def run(self, rng: Rng, start: Mapping[int, int], jumps: int) -> tuple[list[State], Floats]:
        """Walks from blocks with the indices of their sizes; returns states and probabilities."""
        sizes = dict(start)
        if not len(self.log_odds):
            return [self.look(sizes)], np.ones(1)
        states = []
        stayed = []
        for jump in range(BURN_IN + jumps):
            state = self.look(sizes)
            odds = state.odds
            rates = _sigmoid(odds) + _LEAST
            if len(sizes) >= MOST_BLOCKS:
                rates[:] = 0.0
            # Blocks in the model change size or leave.
            inside = list(sizes)
            indices = list(sizes.values())
            inside_odds = odds[indices, inside]
            rates[:, inside] = _sigmoid(odds[:, inside] - inside_odds)
            rates[indices, inside] = 1.0 - _sigmoid(inside_odds) + _LEAST
            total = float(rates.sum())
            if jump >= BURN_IN:
                states.append(state)
                stayed.append(1.0 / total)
            flip = min(int(np.searchsorted(np.cumsum(rates), rng.random() * total)), rates.size - 1)
            size, block = divmod(flip, rates.shape[1])
            if sizes.pop(block, None) != size:
                sizes[block] = size
        return states, np.array(stayed) / sum(stayed)

    def look(self, inside: Mapping[int, int]) -> State:
        """Returns the state of some blocks, each with the index of its size.

        Cholesky's factor gives `X' M X` and `X' M y` of each block, with `M` the inverse covariance
        of the values given these blocks: products with an inverse lose twice the digits.
        """
        columns = self.index[list(inside)]
        columns = columns[columns < len(self._features) - 1]
        cross = np.zeros((len(self._features), len(columns)))
        prior = np.zeros(len(columns))
        places = {}
        end = 0
        for block, size in inside.items():
            products = self.products(block)
            place = slice(end, end + products.shape[1])
            end = place.stop
            places[block] = place
            cross[:, place] = products
            prior[place] = _PRECISIONS[size]
        precision: Any = cross[columns] + np.diag(prior)
        cov = np.linalg.inv(precision)
        mean = np.linalg.solve(precision, self.moment[columns])
        white = np.linalg.solve(np.linalg.cholesky(precision), cross.T).T[self.index]
        fisher = self.squares - white @ white.transpose(0, 2, 1)
        pull = (self.moment - cross @ mean)[self.index]
        for block, place in places.items():  # by the data without the block's own prior
            count = place.stop - place.start
            fisher[block, :count, :count] = np.linalg.inv(cov[place, place]) - np.diag(prior[place])
            pull[block, :count] = np.linalg.solve(cov[place, place], mean[place])
        return State(places, columns, mean, cov, fisher, pull, self.log_odds)


def _sigmoid(x: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * x))
