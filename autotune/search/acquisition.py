"""The acquisition: proposes the next set by Thompson sampling or expected improvement.

Settings that act in a draw from the posterior get their best value. Inert ones get a rarely tried value: early trials
change many settings at once and inform about all of them. Two proposals in three compare the proposals of several
draws, and take the set with the largest expected improvement (Jones, Schonlau and Welch, "Efficient Global
Optimization of Expensive Black-Box Functions", 1998) times its probability to run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.search.additive import AdditiveModel, Draw, smallest
from autotune.search.failures import SURE, FailureModel
from autotune.search.space import Codes, Floats

IMPROVING_SHARE, IMPROVING_FROM = 2 / 3, 4
"""Share of proposals by expected improvement, and the number of trials that it needs."""

DRAWN, SAMPLES = 8, 96
"""Draws whose best sets are candidates, and draws that compare the candidates."""

LEAST_GAIN = 0.003
"""Expected improvement, in typical effects, below which a Thompson sample is more informative."""

FAIR_CHANCE = 0.6
"""Least probability to run of a set that changes settings only to explore them."""

FEW_TRIALS, MOST_TRIALS = 6, 0.7
"""Number of trials, and the share of them with one value, from which a setting counts as stuck."""

EXPLORE = 0.5
"""Probability that a stuck setting that is inert in a draw gets a rarely tried value."""

FAILURE_COST = 0.5
"""Cost of a failed trial, in typical effects."""

REDRAWS, LAST_TRIES = 20, 200
"""Draws in search of an open set (the later ones with a random change), then random neighbours of the last one."""


def propose(
    model: AdditiveModel,
    failures: FailureModel,
    rng: np.random.Generator,
    is_open: Callable[[Codes], bool] = lambda codes: True,
    *,
    tried: Codes,
    improving_share: float = IMPROVING_SHARE,
) -> Codes:
    """Proposes the next set; one that is not open only if no open one is found.

    Args:
        is_open: Whether a set is allowed, unknown and not being tried.
        tried: Sets that ran or are being tried, shape (sets, factors); an improvement is faster than all of them.
        improving_share: Probability to propose by expected improvement.
    """
    return _Proposal(model, failures, rng, is_open).next_set(tried, improving_share)


class _Proposal:
    def __init__(
        self,
        model: AdditiveModel,
        failures: FailureModel,
        rng: np.random.Generator,
        is_open: Callable[[Codes], bool],
    ) -> None:
        self._model, self._failures, self._rng, self._is_open = model, failures, rng, is_open
        self._design = model.design
        self._unit = 1.0 / model.scale  # effects in units of a typical one
        self._penalties = penalties_of(failures)

    def next_set(self, tried: Codes, improving_share: float) -> Codes:
        if self._failures.trials >= IMPROVING_FROM and self._rng.random() < improving_share:
            best = self._improving(tried)
            if best is not None:
                return best
        for attempt in range(REDRAWS):
            draw = self._model.draw(self._rng).times(self._unit)
            codes = self._within_risk(self._explored(smallest(draw, *self._penalties), draw), draw)
            if attempt >= REDRAWS // 2:
                i = int(self._rng.integers(len(codes)))
                codes[i] = int(self._rng.integers(self._design.sizes[i]))
                codes = self._without_known_causes(self._design.settle(codes), draw)
            if self._is_open(codes):
                return codes
        return self._far_from(codes, draw)

    def _improving(self, known: Codes) -> Codes | None:
        """Finds the set of the largest expected improvement among candidates from several draws.

        Each draw gives two: one with only its active settings, and one that explores. None below `LEAST_GAIN`.
        """
        found: dict[bytes, Codes] = {}
        for attempt in range(DRAWN):
            draw = (self._model.mean if attempt == 0 else self._model.draw(self._rng)).times(self._unit)
            codes = smallest(draw, *self._penalties)
            minimal = codes.copy()
            for i in draw.inert:
                if self._design.factors[i].default is not None:
                    minimal[i] = self._design.neutral[i]
            for drawn in (minimal, codes if attempt == 0 else self._explored(codes, draw)):
                settled = self._within_risk(drawn, draw)
                if self._is_open(settled):
                    found[settled.tobytes()] = settled
        if not found:
            return None
        table = np.array(list(found.values()))
        samples = self._model.samples(self._rng, SAMPLES)

        def totals(codes: Codes) -> Floats:
            return np.asarray(self._unit * samples.totals(codes))

        least = totals(known).min(axis=1, keepdims=True) if len(known) else np.zeros((SAMPLES, 1))
        gains = np.maximum(least - totals(table), 0.0).mean(axis=0) * np.exp(self._failures.log_survivals(table))
        best = int(np.argmax(gains))
        return table[best] if gains[best] >= LEAST_GAIN else None

    def _far_from(self, codes: Codes, draw: Draw) -> Codes:
        """Finds an open set by random changes of more and more settings; else returns the set itself."""
        for attempt in range(LAST_TRIES):
            other = codes.copy()
            for i in self._rng.integers(len(codes), size=1 + attempt // 10):
                other[i] = int(self._rng.integers(self._design.sizes[i]))
            other = self._without_known_causes(self._design.settle(other), draw)
            if self._is_open(other):
                return other
        return codes

    def _explored(self, codes: Codes, draw: Draw) -> Codes:
        """Gives some stuck settings that are inert in the draw another value."""
        trials, tried = self._failures.trials, self._failures.tried
        for i in sorted(draw.inert):
            is_stuck = trials >= FEW_TRIALS and tried[i][codes[i]] > MOST_TRIALS * trials
            if is_stuck and self._rng.random() < EXPLORE:
                codes[i] = self._rarely_tried(i)
        return codes

    def _rarely_tried(self, i: int) -> int:
        """Draws a value with preference for those tried rarely and unlikely to fail."""
        weights = (1 - self._failures.single(i)[:-1]) / (1.0 + self._failures.tried[i][:-1]) ** 2
        return int(self._rng.choice(len(weights), p=weights / weights.sum()))

    def _within_risk(self, codes: Codes, draw: Draw) -> Codes:
        """Settles a set, and resets inert settings of the draw until it has a fair chance to run."""
        codes = self._design.settle(codes)
        neutral, least = self._design.neutral, float(np.log(FAIR_CHANCE))
        factors = self._design.factors
        changed = [i for i in draw.inert if codes[i] != neutral[i] and factors[i].default is not None]
        self._rng.shuffle(changed)
        while changed and self._failures.log_survival(codes) < least:
            riskiest = max(range(len(changed)), key=lambda k: self._failures.single(changed[k])[codes[changed[k]]])
            i = changed.pop(riskiest)
            codes[i] = neutral[i]
            codes = self._design.settle(codes)
        return self._without_known_causes(codes, draw)

    def _without_known_causes(self, codes: Codes, draw: Draw) -> Codes:
        """Resets the cheapest setting of each combination that is known to fail."""
        for _ in range(len(codes)):
            if (cause := self._failures.known_cause(codes)) is None:
                break
            resets = []
            for i, _ in cause:
                reset = codes.copy()
                reset[i] = self._design.neutral[i]
                resets.append(self._design.settle(reset))
            codes = min(resets, key=draw.total)
        return codes


def penalties_of(failures: FailureModel) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    """Cost of the risk of each value, and of each suspected pair, in typical effects."""
    single = [_cost(failures.single(i)) for i in range(len(failures.design.factors))]
    return single, {pair: _cost(failures.pair(*pair)) for pair in failures.suspected}


def _cost(chances: Floats) -> Floats:
    return -FAILURE_COST * np.log1p(-np.minimum(chances, SURE))
