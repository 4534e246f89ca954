"""What trials taught: effects of settings and of pairs, how likely each acts, and the set that promises most."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.draws import Beliefs, Draw
from autotune.search.factors import Codes, Design, Floats
from autotune.search.posterior import Chain, State

EXPECTED, EXPECTED_PAIRS = 4.0, 1.0
"""Settings that are thought to act, and pairs that act beyond that, before anything is measured."""

MOST_LIKELY, MOST_LIKELY_PAIR = 0.3, 0.05
"""Most chance of one setting, or one pair, to act, from these."""

SMALLEST_SCALE = 0.03
"""Least standard deviation of an effect, as a log ratio: published effects are of 1 to 9 %."""

SPREAD = 0.005
"""Spread of trials beyond their own intervals, as a log ratio, before there are enough to tell."""

LEAST_SPREAD = 1e-3
"""Least spread as a share of the usual effect: what is measured to more digits than that is known well enough, and
worlds of many orders of magnitude would need more digits than there are."""

GREEDY = 12
"""Effects that are taken, at most, before the spread is told from what is left."""

_SPREADS, _FALLS = 8, 0.9  # rounds in which the spread is told, at most; the share of it that is no fall any more
_ENOUGH = 8  # trials that tell a spread
_RIVALS, _ROUNDS = 8, 4  # blocks that are tried beside, or in the place of one that is in; bests around which they are


@dataclass(frozen=True, slots=True)
class Observations:
    """What was measured.

    Attributes:
        codes: Sets, shape (trials, factors).
        values: Log of step time over the reference's, shape (trials,).
        sds: Standard error of each by its own interval, shape (trials,).
        duplicates: Pairs of rows of which the first is known to run the second one's program: they are equally fast,
            and only the second was measured.
    """

    codes: Codes
    values: Floats
    sds: Floats
    duplicates: tuple[tuple[int, int], ...] = ()


class AdditiveModel:
    """The posterior of effects given what was measured.

    Args:
        design: The space.
        seen: What was measured.
        seed: Of the draws.
        has_origin: Whether the default's value is 0, as a ratio to the reference is; else it is told from the trials.
        walks: Whether other explanations are looked for than the first that is found, which takes half of the time.
    """

    def __init__(
        self, design: Design, seen: Observations, *, seed: int, has_origin: bool = True, walks: bool = True
    ) -> None:
        self.design = design
        self._rng = np.random.default_rng(seed)
        rows, values, variances = _as_rows(design, seen)
        self.scale = (
            max(SMALLEST_SCALE, 0.75 * float(np.median(np.abs(values - np.median(values)))))
            if len(values)
            else SMALLEST_SCALE
        )
        self.origin = 0.0
        before = chances_before(design)
        log_odds = np.log(before / (1 - before))
        self._least_spread = max(0.2 * SPREAD, LEAST_SPREAD * self.scale)
        self.spread = max(SPREAD, self._least_spread)
        inside: dict[int, int] = {}
        if len(values) >= _ENOUGH:
            inside = self._greedy(rows, values, variances, log_odds, has_origin=has_origin)
        self._last_chain = self._chain(rows, values, variances, log_odds, has_origin=has_origin)
        if walks:
            self._states, self._weights = self._last_chain.run(self._rng, [inside, {}])
        else:
            self._states, self._weights = [self._last_chain.look(inside)], np.ones(1)

    def _chain(self, rows: Floats, values: Floats, variances: Floats, log_odds: Floats, *, has_origin: bool) -> Chain:
        weights = 1.0 / (variances + self.spread**2)
        if not has_origin and len(values):
            centre = weights @ rows / weights.sum()
            self.origin = float(weights @ values / weights.sum())
            rows, values = rows - centre, values - self.origin
            self.origin_at = centre
        by = np.sqrt(weights)
        return Chain(rows * (self.scale * by)[:, None], values * by, self.design.starts, log_odds)

    def _greedy(
        self, rows: Floats, values: Floats, variances: Floats, log_odds: Floats, *, has_origin: bool
    ) -> dict[int, int]:
        """Takes the likeliest effects one by one; sets the spread to what they leave.

        What hides below that spread is looked for again, until it no longer falls: beside a setting that takes twice
        the time, or several that harm a lot, effects of a few percent are seen only once those are accounted for.
        """
        inside: dict[int, int] = {}
        most = min(GREEDY, len(values) // 2)
        for at in range(_SPREADS):
            chain = self._chain(rows, values, variances, log_odds, has_origin=has_origin)
            if at >= 2:  # the first spread was a guess: what it let in must come in again
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
            before, self.spread = self.spread, self._left_over(chain.look(inside), rows, values, variances, has_origin)
            if at > 0 and self.spread > _FALLS * before:
                break
        return inside

    def _left_over(self, state: State, rows: Floats, values: Floats, variances: Floats, has_origin: bool) -> float:
        """The spread of trials beyond their own intervals that a state leaves."""
        columns = state.columns
        left = values - rows[:, columns] @ state.mean * self.scale
        if not has_origin:
            left = left - left.mean()
        told = float((left**2).sum()) / max(len(values) - len(columns), len(values) / 3)
        excess = told - float(np.median(variances))
        # A few trials tell a spread badly: what was thought before counts for as many as are enough.
        share = len(values) / (len(values) + _ENOUGH)
        return float(np.sqrt(max(share * excess + (1 - share) * SPREAD**2, self._least_spread**2)))

    def weigh_rivals(self) -> None:
        """Looks at states in which another block stands for one that is in, and weighs all by their posterior chance.

        A walk that has explained an effect by one of two settings that were always on together seldom tries the other
        one. For a proposal either will do, and tries them apart; what is told of them in the end must name both.
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
        """Which blocks are in, in states near one: with another, with one less, and with another instead of one."""
        yield from self._with_another(state)
        for block in state.sizes:
            rest = {b: size for b, size in state.sizes.items() if b != block}
            yield rest
            yield from self._with_another(self._last_chain.look(rest))

    def _with_another(self, state: State) -> Iterator[dict[int, int]]:
        """A state's blocks with each of the likeliest that are not in."""
        for block in np.argsort(-np.where(_is_in(state), 0.0, state.chance), kind="stable")[:_RIVALS].tolist():
            yield {**state.sizes, block: int(state.likelier[block])}

    @property
    def likeliest(self) -> State:
        """The likeliest state."""
        return max(self._states, key=lambda s: s.log_weight)

    # ------------------------------------------------------------------ draws

    def draw(self, rng: np.random.Generator) -> Draw:
        """One draw of all effects; of settings that do not act, what they would do if they did."""
        state = self._states[int(rng.choice(len(self._states), p=self._weights))]
        coefs = state.mean_if.copy()
        noise = rng.standard_normal(coefs.shape)
        lower = np.linalg.cholesky(state.precision_if)
        coefs += np.linalg.solve(lower.transpose(0, 2, 1), noise[:, :, None])[:, :, 0]
        if state.columns.size:
            drawn = rng.multivariate_normal(state.mean, state.cov, method="cholesky")
            self._put(coefs, state, drawn)
        return self._as_draw(coefs, set(state.sizes))

    def beliefs(self, rng: np.random.Generator, count: int) -> Beliefs:
        """Draws of what acts and how: unlike those of `draw` they leave out what does not act in them.

        Args:
            rng: Of the draws.
            count: How many.
        """
        design, index = self.design, self._last_chain.index
        coefs = np.zeros((count, int(design.starts[-1]) + 1))  # the last is of what blocks of fewer features lack
        acting = np.zeros((count, len(design.blocks)), dtype=bool)
        has_values = np.diff(design.starts) > 0  # others have no value but the default
        chosen = rng.choice(len(self._states), size=count, p=self._weights)
        for at in np.unique(chosen).tolist():
            state, rows = self._states[at], np.flatnonzero(chosen == at)
            if state.columns.size:
                drawn = rng.standard_normal((len(rows), len(state.mean))) @ np.linalg.cholesky(state.cov).T
                coefs[np.ix_(rows, state.columns)] = state.mean + drawn
            # What is not in may act all the same, each by its chance: seldom one, but there are many.
            is_in = _is_in(state)
            more = (rng.random((len(rows), len(is_in))) < state.chance) & ~is_in & has_values
            acting[rows] = more | is_in
            which, blocks = np.nonzero(more)
            lower = np.linalg.cholesky(state.precision_if[blocks])
            noise = rng.standard_normal((len(blocks), index.shape[1], 1))
            drawn = state.mean_if[blocks] + np.linalg.solve(lower.transpose(0, 2, 1), noise)[:, :, 0]
            coefs[rows[which][:, None], index[blocks]] = drawn
        return Beliefs(design, self.scale * coefs[:, :-1], acting)

    def marginal(self, block: int) -> tuple[Floats, Floats, Floats]:
        """What a block does, or would do if it acted, for each state of the chain.

        Args:
            block: Its place among the design's.

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
        """Blocks that are in, each with where its coefficients are among those of the state."""
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
        """Chance of each block to act, shape (blocks,)."""
        chances = np.stack([s.chance for s in self._states], axis=1)
        return np.asarray(chances @ self._weights)

    def acts(self) -> Floats:
        """Chance of each setting to act, alone or in a pair, shape (factors,)."""
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
    """Of each block whether it is in, shape (blocks,)."""
    found = np.zeros(len(state.chance), dtype=bool)
    found[list(state.sizes)] = True
    return found


def _as_rows(design: Design, seen: Observations) -> tuple[Floats, Floats, Floats]:
    """Features, values and variances of what was measured; a duplicate tells that what it differs by does nothing."""
    features = design.features(seen.codes)
    values, variances = seen.values.copy(), seen.sds**2
    for duplicate, original in seen.duplicates:
        features[duplicate] -= features[original]
        values[duplicate], variances[duplicate] = 0.0, 0.0
    return features, values, variances


def chances_before(design: Design) -> Floats:
    """Chance of each block to act before anything is measured."""
    mains, pairs = len(design.factors), len(design.pairs)
    usual = min(MOST_LIKELY, EXPECTED / max(mains, 1))
    pair = min(MOST_LIKELY_PAIR, EXPECTED_PAIRS / max(pairs, 1))
    chances = [usual if f.act is None else f.act for f in design.factors] + [pair] * pairs
    clipped: Floats = np.clip(np.array(chances), 1e-12, 1 - 1e-6)
    return clipped
