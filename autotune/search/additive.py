"""The posterior of all effects given the trials, and the best set under a draw."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotune.search.failures import Pairs, Risks
from autotune.search.posterior import Chain, State
from autotune.search.space import Bools, Codes, Design, Floats, Pair, Rng

EXPECTED = 4.0  # prior expected number of active settings
EXPECTED_PAIRS = 1.0  # likewise of active pairs
MOST_LIKELY = 0.3  # upper limit of the prior probability that a setting acts
MOST_LIKELY_PAIR = 0.05  # likewise of a pair
SMALLEST_SCALE = 0.03  # least sd of an effect (log ratio); published ones are 1 to 9 %
SPREAD = 0.005  # prior sd of trials beyond their standard errors, as a log ratio
LEAST_SPREAD = 1e-3  # share of the typical effect, for the precision of floats
GREEDY = 12  # limit of effects that enter before the spread is estimated
JUMPS = 20  # states of each walk from which proposals are drawn
Inside = dict[int, int]  # index of the size of each block in the model
_SPREADS = 8  # limit of rounds that estimate the spread
_FALLS = 0.9  # ratio of spreads from which these rounds end
_ENOUGH = 8  # trials that determine a spread
_SWEEPS = 8  # limit of sweeps of the descent over the settings of pairs


class Observations(NamedTuple):
    """Measured sets, shape (trials, factors): logs of step times over the reference's."""

    codes: Codes
    values: Floats
    sds: Floats
    duplicates: Sequence[Pair] = ()  # rows (copy, original) of one program


class Tables(NamedTuple):
    """All effects on the log step time, by a draw or their mean; those of `inert` if they acted."""

    design: Design
    main: list[Floats]
    pairs: dict[Pair, Floats]
    inert: frozenset[int]

    def total(self, codes: Codes) -> float:
        """Change of the log step time by a set."""
        singles = sum(float(table[c]) for table, c in zip(self.main, codes, strict=True))
        pairs = sum(float(table[codes[i], codes[j]]) for (i, j), table in self.pairs.items())
        return singles + pairs

    def smallest(self, risks: Risks, unit: float) -> Codes:
        """Finds the settled set with the least sum of effects and risks, at `unit` (a log ratio).

        A suspected pair of values counts from the sweep after a set that holds both.
        """
        design = self.design
        singles = zip(self.main, risks.single, strict=True)
        # The last code means "not set" and is no choice.
        costs = [effects[:-1] + unit * risk[: len(effects) - 1] for effects, risk in singles]
        descent = _Descent(costs)
        for (i, j), table in self.pairs.items():
            descent.add(i, j, table[:-1, :-1])
        suspects = risks.pairs
        for _ in range(_SWEEPS):
            before = descent.codes.copy()
            held = suspects.held(np.array([before]))[0]
            for (i, j), codes, risk in zip(*(column[held] for column in suspects), strict=True):
                table = np.zeros((len(costs[i]), len(costs[j])))
                table[tuple(codes)] = unit * risk
                descent.add(i, j, table)
            suspects = Pairs(*(column[~held] for column in suspects))
            descent.sweep()
            if descent.codes == before:
                break

        def cost(codes: Codes) -> float:
            return self.total(codes) + unit * risks.of(codes)

        best = design.settle(np.array(descent.codes, dtype=np.int64))
        for i in design.conditional:
            raised = design.raised(best, i, int(np.argmin(costs[i])), costs)
            best = min(best, design.settle(raised), key=cost)
        return best


class _Descent:
    """Minimises the sum of costs of the codes of settings and of pairs of them, pair by pair."""

    def __init__(self, costs: list[Floats]) -> None:
        self.codes = [int(np.argmin(cost)) for cost in costs]
        self._costs = costs.copy()  # of each code, the others as they are
        self._pairs: dict[Pair, Floats] = {}
        self._neighbours: list[list[tuple[int, Floats]]] = [[] for _ in costs]

    def add(self, i: int, j: int, table: Floats) -> None:
        """Adds to the table of a pair, shape (values, values)."""
        self._pairs[i, j] = self._pairs.get((i, j), 0.0) + table
        for setting, neighbour, costs in ((i, j, table), (j, i, table.T)):
            self._neighbours[setting].append((neighbour, costs))
            self._costs[setting] = self._costs[setting] + costs[:, self.codes[neighbour]]

    def sweep(self) -> None:
        """Chooses the best two codes of each pair in turn."""
        for (i, j), table in self._pairs.items():
            rows = self._costs[i] - table[:, self.codes[j]]
            columns = self._costs[j] - table[self.codes[i]]
            best = int(np.argmin(rows[:, None] + columns + table))
            self._choose(i, best // len(columns))
            self._choose(j, best % len(columns))

    def _choose(self, i: int, code: int) -> None:
        before = self.codes[i]
        if code != before:
            self.codes[i] = code
            for neighbour, table in self._neighbours[i]:
                self._costs[neighbour] = self._costs[neighbour] + table[code] - table[before]


class Draws:
    """Draws of whether blocks act, shape (draws, blocks), and of their coefficients if they do."""

    def __init__(self, design: Design, index: Codes, coefs: Floats, acts: Bools) -> None:
        self._design = design
        self._coefs = coefs
        self._acts = acts
        # The last feature is a dummy for blocks of fewer features.
        flat = np.zeros((len(coefs), int(design.starts[-1]) + 1))
        flat[:, index] = coefs * acts[:, :, None]
        self._used = np.flatnonzero(flat[:, :-1].any(axis=0))
        self._flat = flat[:, self._used]

    def totals(self, codes: Codes) -> Floats:
        """Changes of the log step time by sets, shape (sets, factors); shape (draws, sets)."""
        return self._flat @ self._design.features(codes)[:, self._used].T

    def main(self, factor: int) -> Floats:
        """Change by each value of a setting, were it to act, shape (draws, values + 1)."""
        table = self._design.blocks[factor].table
        return self._coefs[:, factor, : table.shape[1]] @ table.T

    def tables(self, draw: int) -> Tables:
        """One draw."""
        return _tables(self._design, self._coefs[draw], self._acts[draw])


def _tables(design: Design, coefs: Floats, acts: Bools) -> Tables:
    main = []
    pairs = {}
    inert = set(range(len(design.sizes)))
    for block, block_coefs, is_acting in zip(design.blocks, coefs, acts, strict=True):
        is_pair = len(block.factors) > 1
        if is_acting:
            inert.difference_update(block.factors)
        elif is_pair:
            continue
        table = block.table @ block_coefs[: block.table.shape[1]]
        if is_pair:
            i, j = block.factors
            pairs[i, j] = table.reshape(design.sizes[i] + 1, design.sizes[j] + 1)
        else:
            main.append(table)
    return Tables(design, main, pairs, frozenset(inert))


class AdditiveModel:
    """The posterior of effects; the default's value is estimated without `has_origin`, else 0."""

    def __init__(
        self,
        design: Design,
        observed: Observations,
        *,
        seed: int,
        has_origin: bool = True,
        jumps: int,
    ) -> None:
        self.design = design
        self._has_origin = has_origin
        self._features = design.features(observed.codes)
        self._values = values = observed.values.copy()
        self._variances = observed.sds**2
        # The difference of a duplicate from its original is zero.
        for duplicate, original in observed.duplicates:
            self._features[duplicate] -= self._features[original]
            values[duplicate] = 0.0
            self._variances[duplicate] = 0.0
        self.scale = SMALLEST_SCALE
        if len(values):
            deviation = float(np.median(np.abs(values - np.median(values))))
            self.scale = max(SMALLEST_SCALE, 0.75 * deviation)
        self._least_spread = max(0.2 * SPREAD, LEAST_SPREAD * self.scale)
        self.spread = max(SPREAD, self._least_spread)
        inside = {}
        if len(values) >= _ENOUGH:
            inside = self._greedy()
        self.chain = self._chain()
        self._states, self._weights = self.chain.run(np.random.default_rng(seed), inside, jumps)

    def _chain(self) -> Chain:
        features = self._features
        values = self._values
        weights = 1.0 / (self._variances + self.spread**2)
        if not self._has_origin and len(values):
            features = features - weights @ features / weights.sum()
            values = values - weights @ values / weights.sum()
        roots = np.sqrt(weights)
        scaled = features * (self.scale * roots)[:, None]
        return Chain(scaled, values * roots, self.design.starts, _prior_log_odds(self.design))

    def _greedy(self) -> Inside:
        """Adds the likeliest effects one by one, and sets the spread from their residuals.

        This repeats until the spread no longer falls: large effects hide those of a few percent.
        """
        inside: Inside = {}
        limit = min(GREEDY, len(self._values) // 2)
        for at in range(_SPREADS):
            chain = self._chain()
            if at < 2:  # the first spread was a guess: its effects must enter again
                inside.clear()
            chance = chain.look(inside).chance
            inside = {b: size for b, size in inside.items() if chance[b] >= 0.5}
            while len(inside) < limit:
                state = chain.look(inside)
                chance = state.chance.copy()
                chance[list(inside)] = 0.0
                best = int(np.argmax(chance))
                if chance[best] < 0.5:
                    break
                inside[best] = int(state.likelier[best])
            before = self.spread
            self.spread = self._residual_spread(chain.look(inside))
            if at > 0 and self.spread > _FALLS * before:
                break
        return inside

    def _residual_spread(self, state: State) -> float:
        """Estimates the spread of the residuals of a state beyond the standard errors."""
        count = len(self._values)
        effects = self._features[:, state.columns] @ state.mean * self.scale
        residuals = self._values - effects
        if not self._has_origin:
            residuals = residuals - residuals.mean()
        variance = (residuals**2).sum() / max(count - len(state.columns), count / 3)
        excess = variance - np.median(self._variances)
        # The prior counts as `_ENOUGH` trials.
        share = count / (count + _ENOUGH)
        return float(np.sqrt(max(share * excess + (1 - share) * SPREAD**2, self._least_spread**2)))

    def draws(self, rng: Rng, count: int) -> Draws:
        """Draws all effects."""
        blocks, rank = self.chain.index.shape
        coefs = np.zeros((count, blocks, rank))
        acts = np.zeros((count, blocks), dtype=bool)
        drawn = rng.choice(len(self._states), size=count, p=self._weights)
        for at in np.unique(drawn).tolist():
            state = self._states[at]
            rows = np.flatnonzero(drawn == at)
            noise = rng.standard_normal((len(rows), blocks, rank)).transpose(1, 2, 0)
            lower = np.linalg.cholesky(state.precision_if).transpose(0, 2, 1)
            coefs[rows] = state.mean_if + np.linalg.solve(lower, noise).transpose(2, 0, 1)
            # Each block outside of the state may act with its own probability.
            acts[rows] = rng.random((len(rows), blocks)) < state.chance
            noise = rng.standard_normal((len(rows), len(state.mean)))
            together = state.mean + noise @ np.linalg.cholesky(state.cov).T
            for block, place in state.places.items():
                coefs[rows, block] = 0.0
                coefs[rows, block, : place.stop - place.start] = together[:, place]
                acts[rows, block] = True
        acts &= np.diff(self.design.starts) > 0  # others have only the default
        return Draws(self.design, self.chain.index, self.scale * coefs, acts)

    @functools.cached_property
    def mean(self) -> Tables:
        """The mean of all effects."""
        total = np.zeros(self.chain.index.shape)
        for weight, state in zip(self._weights, self._states, strict=True):
            coefs = state.mean_if * state.chance[:, None]
            for block, place in state.places.items():
                coefs[block] = 0.0
                coefs[block, : place.stop - place.start] = state.mean[place]
            total += weight * coefs
        return _tables(self.design, self.scale * total, np.ones(len(total), dtype=bool))

    @functools.cached_property
    def chances(self) -> Floats:
        """Posterior probability of each block to act, shape (blocks,)."""
        return np.stack([s.chance for s in self._states], axis=1) @ self._weights

    def p_active(self) -> Floats:
        """Posterior probability of each setting to act, alone or in a pair, shape (factors,)."""
        inert = np.ones(len(self.design.factors))
        for block, chance in zip(self.design.blocks, self.chances, strict=True):
            inert[list(block.factors)] *= 1 - chance
        has_choice = np.diff(self.design.starts)[: len(inert)] > 0
        return np.where(has_choice, 1 - inert, 0.0)


def _prior_log_odds(design: Design) -> Floats:
    """Log odds of each block to act before any trial, shape (blocks,)."""
    usual = min(MOST_LIKELY, EXPECTED / max(len(design.factors), 1))
    pair = min(MOST_LIKELY_PAIR, EXPECTED_PAIRS / max(len(design.pairs), 1))
    chances = [usual if f.flag.p_active is None else f.flag.p_active for f in design.factors]
    chances += [pair] * len(design.pairs)
    clipped = np.clip(np.array(chances), 1e-12, 1 - 1e-6)
    return np.asarray(np.log(clipped / (1 - clipped)))
