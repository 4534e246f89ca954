"""The posterior of all effects given the trials, and the best set under a draw."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.search.failures import Risks
from autotune.search.posterior import Chain, State
from autotune.search.space import Codes, Design, Floats

EXPECTED, EXPECTED_PAIRS = 4.0, 1.0
"""Prior expected numbers of active settings and of active pairs."""

MOST_LIKELY, MOST_LIKELY_PAIR = 0.3, 0.05
"""Upper limits of the prior probability that a setting, or a pair, acts."""

SMALLEST_SCALE = 0.03
"""Least standard deviation of an effect, as a log ratio; published effects are 1 to 9 %."""

SPREAD = 0.005
"""Prior standard deviation of trials beyond their own standard errors, as a log ratio."""

LEAST_SPREAD = 1e-3
"""Least spread as a share of the typical effect, for the precision of floats."""

GREEDY = 12
"""Limit of effects that enter before the spread is estimated from the residuals."""

JUMPS = 20
"""States of each walk from which proposals are drawn."""

_SPREADS, _FALLS = (
    8,
    0.9,
)  # limit of rounds that estimate the spread; ratio of spreads from which they end
_ENOUGH = 8  # trials that determine a spread
_SWEEPS = 8  # limit of sweeps of the descent over the settings of pairs

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Observations:
    """Measured sets, shape (trials, factors): logs of their step times over the reference's, with
    standard errors.
    """

    codes: Codes
    values: Floats
    sds: Floats
    duplicates: tuple[tuple[int, int], ...] = ()
    """Rows (copy, original) with one program, of which only the original was measured."""


@dataclass(frozen=True, slots=True)
class Tables:
    """All effects, as a draw or their mean has them: changes of the log step time, of inert
    settings if they acted.
    """

    design: Design
    main: list[Floats]
    pairs: dict[Pair, Floats]
    inert: frozenset[int]

    def total(self, codes: Codes) -> float:
        """Change of the log step time by a set."""
        own = sum(float(table[c]) for table, c in zip(self.main, codes, strict=True))
        return own + sum(float(table[codes[i], codes[j]]) for (i, j), table in self.pairs.items())

    def smallest(self, risks: Risks, unit: float) -> Codes:
        """Finds the settled set with the least sum of effects and risks, which cost `unit` (a log
        ratio).

        A suspected pair of values counts from the sweep on that follows a set which holds both. A
        setting is changed together with those that it needs.
        """
        # The last code means "not set" and is no choice.
        costs = [
            (own + unit * risk)[:-1] for own, risk in zip(self.main, risks.single, strict=True)
        ]
        descent = _Descent(costs)
        for (i, j), table in self.pairs.items():
            descent.add(i, j, table[:-1, :-1])
        waits = np.ones(len(risks.pairs.numbers), dtype=bool)
        for _ in range(_SWEEPS):
            before = descent.codes.copy()
            held = np.flatnonzero(waits & risks.pairs.held(np.array([before]))[0]).tolist()
            for at in held:
                (i, j), (one, other) = (
                    risks.pairs.factors[at].tolist(),
                    risks.pairs.codes[at].tolist(),
                )
                table = np.zeros((len(self.main[i]) - 1, len(self.main[j]) - 1))
                table[one, other] = unit * risks.pairs.numbers[at]
                descent.add(i, j, table)
            waits[held] = False
            descent.sweep()
            if descent.codes == before:
                break

        def cost(codes: Codes) -> float:
            return self.total(codes) + unit * risks.of(codes)

        best = self.design.settle(np.array(descent.codes, dtype=np.int64))
        for i in self.design.conditional:
            raised = self.design.settle(
                self.design.raised(best, i, int(np.argmin(costs[i])), costs)
            )
            best = min(best, raised, key=cost)
        return best


class _Descent:
    """Minimises the sum of a cost of each code of each setting and of tables of pairs of settings,
    pair by pair.
    """

    def __init__(self, costs: list[Floats]) -> None:
        self.codes = [int(np.argmin(own)) for own in costs]
        self._costs = (
            costs.copy()
        )  # of each code of a setting, with those of the others as they are
        self._pairs: dict[Pair, Floats] = {}
        self._neighbours: list[list[tuple[int, Floats]]] = [[] for _ in costs]

    def add(self, i: int, j: int, table: Floats) -> None:
        """Adds to the table of a pair, shape (values, values)."""
        self._pairs[i, j] = self._pairs.get((i, j), 0.0) + table
        for one, other, own in ((i, j, table), (j, i, table.T)):
            self._neighbours[one].append((other, own))
            self._costs[one] = self._costs[one] + own[:, self.codes[other]]

    def sweep(self) -> None:
        """Chooses the best two codes of each pair in turn."""
        for (i, j), table in self._pairs.items():
            one = self._costs[i] - table[:, self.codes[j]]
            other = self._costs[j] - table[self.codes[i]]
            best = divmod(int(np.argmin(one[:, None] + other + table)), len(other))
            self._choose(i, best[0])
            self._choose(j, best[1])

    def _choose(self, i: int, code: int) -> None:
        before = self.codes[i]
        if code != before:
            self.codes[i] = code
            for other, table in self._neighbours[i]:
                self._costs[other] = self._costs[other] + table[code] - table[before]


class Draws:
    """Draws of whether each block acts, shape (draws, blocks), and of its coefficients then, shape
    (..., rank).
    """

    def __init__(
        self, design: Design, index: NDArray[np.int64], coefs: Floats, acts: NDArray[np.bool_]
    ) -> None:
        self._design = design
        self._coefs = coefs
        self._acts = acts
        flat = np.zeros(
            (len(coefs), int(design.starts[-1]) + 1)
        )  # the last is a dummy for blocks of fewer features
        flat[:, index] = coefs * acts[:, :, None]
        self._used = np.flatnonzero(flat[:, :-1].any(axis=0))
        self._flat = flat[:, self._used]

    def totals(self, codes: Codes) -> Floats:
        """Change of the log step time by sets of shape (sets, factors) in each draw, shape (draws,
        sets).
        """
        return np.asarray(self._flat @ self._design.features(codes)[:, self._used].T)

    def main(self, factor: int) -> Floats:
        """Change by each value of a setting in each draw, were it to act, shape (draws, values +
        1).
        """
        table = self._design.blocks[factor].table
        return np.asarray(self._coefs[:, factor, : table.shape[1]] @ table.T)

    def tables(self, draw: int) -> Tables:
        """One draw."""
        return _tables(self._design, self._coefs[draw], self._acts[draw])


def _tables(design: Design, coefs: Floats, acts: NDArray[np.bool_]) -> Tables:
    main: list[Floats] = []
    pairs: dict[Pair, Floats] = {}
    acting: set[int] = set()
    for block, own, is_acting in zip(design.blocks, coefs, acts, strict=True):
        if is_acting:
            acting.update(block.factors)
        if len(block.factors) == 1:
            main.append(block.table @ own[: block.table.shape[1]])
        elif is_acting:
            i, j = block.factors
            table = block.table @ own[: block.table.shape[1]]
            pairs[i, j] = table.reshape(design.sizes[i] + 1, design.sizes[j] + 1)
    return Tables(design, main, pairs, frozenset(range(len(design.sizes))) - acting)


class AdditiveModel:
    """The posterior of effects; the default's value is estimated unless that is 0, as for ratios
    (`has_origin`).
    """

    def __init__(
        self,
        design: Design,
        seen: Observations,
        *,
        seed: int,
        has_origin: bool = True,
        jumps: int = JUMPS,
    ) -> None:
        self.design = design
        self._has_origin = has_origin
        self._rows = _as_rows(design, seen)
        values = self._rows.values
        self.scale = SMALLEST_SCALE
        if len(values):
            self.scale = max(
                SMALLEST_SCALE, 0.75 * float(np.median(np.abs(values - np.median(values))))
            )
        self._least_spread = max(0.2 * SPREAD, LEAST_SPREAD * self.scale)
        self.spread = max(SPREAD, self._least_spread)
        inside: dict[int, int] = {}
        if len(values) >= _ENOUGH:
            inside = self._greedy()
        self.chain = self._chain()
        self._states, self._weights = self.chain.run(np.random.default_rng(seed), inside, jumps)

    def _chain(self) -> Chain:
        rows, values, variances = self._rows
        weights = 1.0 / (variances + self.spread**2)
        if not self._has_origin and len(values):
            rows = rows - weights @ rows / weights.sum()
            values = values - float(weights @ values / weights.sum())
        by = np.sqrt(weights)
        p_active = prior_of(self.design)
        log_odds = np.log(p_active / (1 - p_active))
        return Chain(rows * (self.scale * by)[:, None], values * by, self.design.starts, log_odds)

    def _greedy(self) -> dict[int, int]:
        """Adds the likeliest effects one by one, and sets the spread from their residuals.

        This repeats until the spread no longer falls: effects of a few percent become visible only
        once settings that double the step time, or several harmful ones, are accounted for.
        """
        inside: dict[int, int] = {}
        most = min(GREEDY, len(self._rows.values) // 2)
        for at in range(_SPREADS):
            chain = self._chain()
            if at >= 2:  # the first spread was a guess: its effects must enter again
                chance = chain.look(inside).chance
                inside = {b: size for b, size in inside.items() if chance[b] >= 0.5}
            else:
                inside = {}
            while len(inside) < most:
                state = chain.look(inside)
                chance = state.chance.copy()
                chance[list(inside)] = 0.0
                best = int(np.argmax(chance))
                if chance[best] < 0.5:
                    break
                inside[best] = int(state.likelier[best])
            before = self.spread
            self.spread = self._left_over(chain.look(inside))
            if at > 0 and self.spread > _FALLS * before:
                break
        return inside

    def _left_over(self, state: State) -> float:
        """Estimates the spread of the residuals of a state beyond the standard errors."""
        rows, values, variances = self._rows
        columns = state.columns
        left = values - rows[:, columns] @ state.mean * self.scale
        if not self._has_origin:
            left = left - left.mean()
        variance = float((left**2).sum()) / max(len(values) - len(columns), len(values) / 3)
        excess = variance - float(np.median(variances))
        # The prior counts as `_ENOUGH` trials.
        share = len(values) / (len(values) + _ENOUGH)
        return float(np.sqrt(max(share * excess + (1 - share) * SPREAD**2, self._least_spread**2)))

    # ------------------------------------------------------------------ draws

    def draws(self, rng: np.random.Generator, count: int) -> Draws:
        """Draws all effects."""
        blocks, rank = self.chain.index.shape
        coefs = np.zeros((count, blocks, rank))
        acts = np.zeros((count, blocks), dtype=bool)
        chosen = rng.choice(len(self._states), size=count, p=self._weights)
        for at in np.unique(chosen).tolist():
            state = self._states[at]
            rows = np.flatnonzero(chosen == at)
            noise = rng.standard_normal((len(rows), blocks, rank)).transpose(1, 2, 0)
            lower = np.linalg.cholesky(state.precision_if).transpose(0, 2, 1)
            coefs[rows] = state.mean_if + np.linalg.solve(lower, noise).transpose(2, 0, 1)
            # Each block outside of the state may act with its own probability.
            acts[rows] = rng.random((len(rows), blocks)) < state.chance
            together = (
                rng.standard_normal((len(rows), len(state.mean))) @ np.linalg.cholesky(state.cov).T
            )
            for block, own in state.places.items():
                coefs[rows, block] = 0.0
                coefs[rows, block, : own.stop - own.start] = state.mean[own] + together[:, own]
                acts[rows, block] = True
        acts &= np.diff(self.design.starts) > 0  # others have only the default
        return Draws(self.design, self.chain.index, self.scale * coefs, acts)

    @functools.cached_property
    def mean(self) -> Tables:
        """The mean of all effects."""
        total = np.zeros(self.chain.index.shape)
        for weight, state in zip(self._weights, self._states, strict=True):
            coefs = state.mean_if * state.chance[:, None]
            for block, own in state.places.items():
                coefs[block] = 0.0
                coefs[block, : own.stop - own.start] = state.mean[own]
            total += weight * coefs
        return _tables(self.design, self.scale * total, np.ones(len(total), dtype=bool))

    @functools.cached_property
    def chances(self) -> Floats:
        """Posterior probability of each block to act, shape (blocks,)."""
        chances = np.stack([s.chance for s in self._states], axis=1)
        return np.asarray(chances @ self._weights)

    def p_active(self) -> Floats:
        """Posterior probability of each setting to act, alone or in a pair, shape (factors,)."""
        inert = np.ones(len(self.design.factors))
        for block, chance in zip(self.design.blocks, self.chances, strict=True):
            inert[list(block.factors)] *= 1 - chance
        has_choice = np.diff(self.design.starts)[: len(inert)] > 0
        return np.where(has_choice, 1 - inert, 0.0)


class _Rows(NamedTuple):
    features: Floats
    values: Floats
    variances: Floats


def _as_rows(design: Design, seen: Observations) -> _Rows:
    """Features, values and variances; a duplicate is a zero for its difference from the
    original.
    """
    features = design.features(seen.codes)
    values = seen.values.copy()
    variances = seen.sds**2
    for duplicate, original in seen.duplicates:
        features[duplicate] -= features[original]
        values[duplicate], variances[duplicate] = 0.0, 0.0
    return _Rows(features, values, variances)


def prior_of(design: Design) -> Floats:
    """Prior probability of each block to act, shape (blocks,)."""
    mains = len(design.factors)
    pairs = len(design.pairs)
    usual = min(MOST_LIKELY, EXPECTED / max(mains, 1))
    pair = min(MOST_LIKELY_PAIR, EXPECTED_PAIRS / max(pairs, 1))
    chances = [usual if f.p_active is None else f.p_active for f in design.factors] + [pair] * pairs
    clipped: Floats = np.clip(np.array(chances), 1e-12, 1 - 1e-6)
    return clipped
