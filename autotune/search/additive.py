"""The posterior of all effects given the trials, and the best set under a draw."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

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

EMPTY: Mapping[tuple[int, int], Floats] = MappingProxyType({})

_SPREADS, _FALLS = 8, 0.9  # limit of rounds that estimate the spread; ratio of spreads from which they end
_ENOUGH = 8  # trials that determine a spread
_RIVALS, _ROUNDS = 8, 4  # blocks tried beside, or instead of, one in the model; states around which they are tried
_SWEEPS = 4  # limit of sweeps of the descent over the settings of pairs


@dataclass(frozen=True, slots=True)
class Observations:
    """Measured sets.

    Attributes:
        codes: Shape (trials, factors).
        values: Log of step time over the reference's, shape (trials,).
        sds: Standard errors, shape (trials,).
        duplicates: Pairs of rows (copy, original) with one program, of which only the original was measured.
    """

    codes: Codes
    values: Floats
    sds: Floats
    duplicates: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw of all effects from the posterior, or their mean.

    Attributes:
        main: Change of the log step time at each value of each setting.
        pairs: The same for active pairs.
        inert: Settings that do not act in this draw; `main` holds their effects if they did.
    """

    main: tuple[Floats, ...]
    pairs: dict[tuple[int, int], Floats]
    inert: frozenset[int]

    def times(self, factor: float) -> Draw:
        """Scales all effects."""
        return Draw(tuple(factor * t for t in self.main), {k: factor * t for k, t in self.pairs.items()}, self.inert)

    def total(self, codes: Codes) -> float:
        """Change of the log step time by a set."""
        own = sum(float(table[c]) for table, c in zip(self.main, codes, strict=True))
        return own + sum(float(table[codes[i], codes[j]]) for (i, j), table in self.pairs.items())


class Samples:
    """Many draws from the posterior, for comparing sets.

    Args:
        coefs: Coefficients of all features, 0 where a block does not act, shape (draws, features).
    """

    def __init__(self, design: Design, coefs: Floats) -> None:
        self._design, self._coefs = design, coefs
        self._used = np.flatnonzero(coefs.any(axis=0))

    def totals(self, codes: Codes) -> Floats:
        """Change of the log step time by sets of shape (sets, factors) in each draw, shape (draws, sets)."""
        return np.asarray(self._coefs[:, self._used] @ self._design.features(codes)[:, self._used].T)


def smallest(
    draw: Draw, penalties: Sequence[Floats] = (), pair_penalties: Mapping[tuple[int, int], Floats] = EMPTY
) -> Codes:
    """Finds the set with the least sum of effects and penalties by coordinate descent; not settled."""
    main = [own + more for own, more in zip(draw.main, penalties, strict=True)] if penalties else list(draw.main)
    pairs = dict(draw.pairs)
    for pair, table in pair_penalties.items():
        pairs[pair] = pairs[pair] + table if pair in pairs else table
    neighbours: dict[int, list[tuple[int, Floats]]] = {}
    for (i, j), table in pairs.items():
        neighbours.setdefault(i, []).append((j, table))
        neighbours.setdefault(j, []).append((i, table.T))
    # The last code means "not set" and is no choice.
    codes = np.array([int(np.argmin(own[:-1])) for own in main], dtype=np.int64)

    def cost(i: int, without: int = -1) -> Floats:
        tables = (table[:, codes[other]] for other, table in neighbours[i] if other != without)
        return (main[i] + sum(tables))[:-1]

    for _ in range(_SWEEPS):
        before = codes.copy()
        for i in neighbours:
            codes[i] = int(np.argmin(cost(i)))
        for (i, j), table in pairs.items():
            both = cost(i, j)[:, None] + cost(j, i)[None, :] + table[:-1, :-1]
            codes[i], codes[j] = np.unravel_index(int(np.argmin(both)), both.shape)
        if (codes == before).all():
            break
    return codes


class AdditiveModel:
    """The posterior of effects.

    Args:
        has_origin: Whether the default's value is 0, as for ratios to the reference; else it is estimated.
        walks: Whether to explore other explanations than the greedy one, for half of the time.
    """

    def __init__(
        self, design: Design, seen: Observations, *, seed: int, has_origin: bool = True, walks: bool = True
    ) -> None:
        self.design = design
        self._has_origin = has_origin
        rows, values, variances = _as_rows(design, seen)
        self.scale = SMALLEST_SCALE
        if len(values):
            self.scale = max(SMALLEST_SCALE, 0.75 * float(np.median(np.abs(values - np.median(values)))))
        p_active = prior_of(design)
        log_odds = np.log(p_active / (1 - p_active))
        self._least_spread = max(0.2 * SPREAD, LEAST_SPREAD * self.scale)
        self.spread = max(SPREAD, self._least_spread)
        inside: dict[int, int] = {}
        if len(values) >= _ENOUGH:
            inside = self._greedy(rows, values, variances, log_odds)
        self._last_chain = self._chain(rows, values, variances, log_odds)
        if walks:
            self._states, self._weights = self._last_chain.run(np.random.default_rng(seed), [inside, {}])
        else:
            self._states, self._weights = [self._last_chain.look(inside)], np.ones(1)

    def _chain(self, rows: Floats, values: Floats, variances: Floats, log_odds: Floats) -> Chain:
        weights = 1.0 / (variances + self.spread**2)
        if not self._has_origin and len(values):
            rows, values = rows - weights @ rows / weights.sum(), values - float(weights @ values / weights.sum())
        by = np.sqrt(weights)
        return Chain(rows * (self.scale * by)[:, None], values * by, self.design.starts, log_odds)

    def _greedy(self, rows: Floats, values: Floats, variances: Floats, log_odds: Floats) -> dict[int, int]:
        """Adds the likeliest effects one by one, and sets the spread from their residuals.

        This repeats until the spread no longer falls: effects of a few percent become visible only once settings that
        double the step time, or several harmful ones, are accounted for.
        """
        inside: dict[int, int] = {}
        most = min(GREEDY, len(values) // 2)
        for at in range(_SPREADS):
            chain = self._chain(rows, values, variances, log_odds)
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
            before, self.spread = self.spread, self._left_over(chain.look(inside), rows, values, variances)
            if at > 0 and self.spread > _FALLS * before:
                break
        return inside

    def _left_over(self, state: State, rows: Floats, values: Floats, variances: Floats) -> float:
        """Estimates the spread of the residuals of a state beyond the standard errors."""
        columns = state.columns
        left = values - rows[:, columns] @ state.mean * self.scale
        if not self._has_origin:
            left = left - left.mean()
        variance = float((left**2).sum()) / max(len(values) - len(columns), len(values) / 3)
        excess = variance - float(np.median(variances))
        # The prior counts as `_ENOUGH` trials.
        share = len(values) / (len(values) + _ENOUGH)
        return float(np.sqrt(max(share * excess + (1 - share) * SPREAD**2, self._least_spread**2)))

    def weigh_rivals(self) -> None:
        """Adds states with one block replaced by another, and weighs all by their posterior probability.

        A walk rarely moves an effect between two settings that were always changed together. For a proposal either
        will do; the final estimates must name both.
        """
        known = {frozenset(s.sizes.items()): s for s in self._states}
        done: set[frozenset[tuple[int, int]]] = set()
        for _ in range(_ROUNDS):
            best = max(known.values(), key=lambda s: s.log_weight)
            if (of := frozenset(best.sizes.items())) in done:
                break
            done.add(of)
            for sizes in self._beside(best):
                if (inside := frozenset(sizes.items())) not in known:
                    known[inside] = self._last_chain.look(sizes)
        self._states = list(known.values())
        weights = np.array([s.log_weight for s in self._states])
        weights = np.exp(weights - weights.max())
        self._weights = weights / weights.sum()

    def _beside(self, state: State) -> Iterator[dict[int, int]]:
        """Yields the blocks of neighbouring states: one block added, removed or replaced."""
        yield from self._with_another(state)
        for block in state.sizes:
            rest = {b: size for b, size in state.sizes.items() if b != block}
            yield rest
            yield from self._with_another(self._last_chain.look(rest))

    def _with_another(self, state: State) -> Iterator[dict[int, int]]:
        for block in np.argsort(-np.where(_is_in(state), 0.0, state.chance), kind="stable")[:_RIVALS].tolist():
            yield {**state.sizes, block: int(state.likelier[block])}

    # ------------------------------------------------------------------ draws

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draws all effects; those of inert settings as if they acted."""
        state = self._states[int(rng.choice(len(self._states), p=self._weights))]
        coefs = state.mean_if.copy()
        noise = rng.standard_normal(coefs.shape)
        lower = np.linalg.cholesky(state.precision_if)
        coefs += np.linalg.solve(lower.transpose(0, 2, 1), noise[:, :, None])[:, :, 0]
        if state.columns.size:
            drawn = rng.multivariate_normal(state.mean, state.cov, method="cholesky")
            self._put(coefs, state, drawn)
        return self._as_draw(coefs, set(state.sizes))

    def samples(self, rng: np.random.Generator, count: int) -> Samples:
        """Draws all effects; unlike in `draw`, those of inert settings are 0."""
        design, index = self.design, self._last_chain.index
        coefs = np.zeros((count, int(design.starts[-1]) + 1))  # the last is a dummy for blocks of fewer features
        has_values = np.diff(design.starts) > 0  # others have only the default
        chosen = rng.choice(len(self._states), size=count, p=self._weights)
        for at in np.unique(chosen).tolist():
            state, rows = self._states[at], np.flatnonzero(chosen == at)
            if state.columns.size:
                drawn = rng.standard_normal((len(rows), len(state.mean))) @ np.linalg.cholesky(state.cov).T
                coefs[np.ix_(rows, state.columns)] = state.mean + drawn
            # Each block outside of the state may act with its own probability.
            is_in = _is_in(state)
            more = (rng.random((len(rows), len(is_in))) < state.chance) & ~is_in & has_values
            which, blocks = np.nonzero(more)
            lower = np.linalg.cholesky(state.precision_if[blocks])
            noise = rng.standard_normal((len(blocks), index.shape[1], 1))
            drawn = state.mean_if[blocks] + np.linalg.solve(lower.transpose(0, 2, 1), noise)[:, :, 0]
            coefs[rows[which][:, None], index[blocks]] = drawn
        return Samples(design, self.scale * coefs[:, :-1])

    def marginal(self, block: int) -> tuple[Floats, Floats, Floats]:
        """The effect of a block, if it acts, in each state of the chain.

        Returns:
            Weights of the states, shape (states,); means and standard deviations of the change of the log step time,
            shape (states, rows of the block's table).
        """
        table = self.scale * self.design.blocks[block].table
        size = table.shape[1]
        means, sds = [], []
        for state in self._states:
            own = dict(self._places(state)).get(block)
            if own is None:
                mean, cov = state.mean_if[block, :size], np.linalg.inv(state.precision_if[block, :size, :size])
            else:
                mean, cov = state.mean[own], state.cov[own, own]
            means.append(table @ mean)
            sds.append(np.sqrt(np.einsum("rf,fg,rg->r", table, cov, table)))
        return self._weights, np.array(means), np.array(sds)

    def _places(self, state: State) -> list[tuple[int, slice]]:
        at, found = 0, []
        for b in state.sizes:
            found.append((b, slice(at, at := at + self.design.blocks[b].table.shape[1])))
        return found

    @functools.cached_property
    def mean(self) -> Draw:
        """The mean of all effects."""
        total = np.zeros_like(self._states[0].mean_if)
        for weight, state in zip(self._weights, self._states, strict=True):
            coefs = state.mean_if * state.chance[:, None]
            self._put(coefs, state, state.mean)
            total += weight * coefs
        return self._as_draw(total, set(range(len(self.design.blocks))))

    @functools.cached_property
    def chances(self) -> Floats:
        """Posterior probability of each block to act, shape (blocks,)."""
        chances = np.stack([s.chance for s in self._states], axis=1)
        return np.asarray(chances @ self._weights)

    def p_active(self) -> Floats:
        """Posterior probability of each setting to act, alone or in a pair, shape (factors,)."""
        inert = np.ones(len(self.design.factors))
        for block, chance in zip(self.design.blocks, self.chances, strict=True):
            for i in block.factors:
                inert[i] *= 1 - chance
        return 1 - inert

    def _put(self, coefs: Floats, state: State, drawn: Floats) -> None:
        for b, own in self._places(state):
            coefs[b] = 0.0
            coefs[b, : own.stop - own.start] = drawn[own]

    def _as_draw(self, coefs: Floats, inside: set[int]) -> Draw:
        main: list[Floats] = []
        pairs: dict[tuple[int, int], Floats] = {}
        acting: set[int] = set()
        sizes = self.design.sizes
        for b, block in enumerate(self.design.blocks):
            if len(block.factors) == 1:
                main.append(self.scale * (block.table @ coefs[b, : block.table.shape[1]]))
            elif b in inside:
                i, j = block.factors
                table = self.scale * (block.table @ coefs[b, : block.table.shape[1]])
                pairs[i, j] = table.reshape(sizes[i] + 1, sizes[j] + 1)
            if b in inside:
                acting.update(block.factors)
        return Draw(tuple(main), pairs, frozenset(range(len(sizes))) - acting)


def _is_in(state: State) -> NDArray[np.bool_]:
    found = np.zeros(len(state.chance), dtype=bool)
    found[list(state.sizes)] = True
    return found


def _as_rows(design: Design, seen: Observations) -> tuple[Floats, Floats, Floats]:
    """Features, values and variances; a duplicate is a zero for its difference from the original."""
    features = design.features(seen.codes)
    values, variances = seen.values.copy(), seen.sds**2
    for duplicate, original in seen.duplicates:
        features[duplicate] -= features[original]
        values[duplicate], variances[duplicate] = 0.0, 0.0
    return features, values, variances


def prior_of(design: Design) -> Floats:
    """Prior probability of each block to act, shape (blocks,)."""
    mains, pairs = len(design.factors), len(design.pairs)
    usual = min(MOST_LIKELY, EXPECTED / max(mains, 1))
    pair = min(MOST_LIKELY_PAIR, EXPECTED_PAIRS / max(pairs, 1))
    chances = [usual if f.p_active is None else f.p_active for f in design.factors] + [pair] * pairs
    clipped: Floats = np.clip(np.array(chances), 1e-12, 1 - 1e-6)
    return clipped
