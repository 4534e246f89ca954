"""What was measured, as a regression: scale of effects, spread of trials, and where walks over models begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.search.factors import Codes, Design, Floats
from autotune.search.posterior import MANY_TRIALS, Chain, Place

SMALLEST_SCALE = 0.03
"""Least standard deviation of an effect, as a log ratio: published effects are of 1 to 9 %."""

SPREAD = 0.005
"""Spread of trials beyond their own intervals, as a log ratio, before there are enough to tell."""

LEAST_SPREAD = 1e-3
"""Least spread as a share of the usual effect: what is measured to more digits than that is known well enough, and
worlds of many orders of magnitude would need more digits than there are."""

GREEDY = 12
"""Effects that are taken, at most, before the spread is told from what is left."""

RESTARTS, FEW_RESTARTS = 2, 1
"""Walks that begin at what explains trials with other noise; and of many trials."""

_SPREADS, _FALLS = 8, 0.9  # rounds in which the spread is told, at most; the share of it that is no fall any more
_ENOUGH = 8  # trials that tell a spread


@dataclass(frozen=True, slots=True)
class Observations:
    """What was measured.

    Attributes:
        codes: Sets, shape (trials, factors).
        values: Log of step time over the reference's, shape (trials,).
        sds: Standard error of each by its own interval, shape (trials,).
        twins: Pairs of rows of which the first is known to run the second one's program: they are equally fast,
            and only the second was measured.
    """

    codes: Codes
    values: Floats
    sds: Floats
    twins: tuple[tuple[int, int], ...] = ()


class Evidence:
    """What was measured, as a regression on a design's features.

    Args:
        design: The space.
        seen: What was measured.
        log_odds: Of each block to be in, before anything is measured, shape (blocks,).
        has_origin: Whether the default's value is 0, as a ratio to the reference is; else it is told from the trials.

    Attributes:
        scale: Standard deviation of an effect, as a log ratio.
        spread: Of trials beyond their own intervals, likewise.
    """

    def __init__(self, design: Design, seen: Observations, log_odds: Floats, *, has_origin: bool) -> None:
        self._starts, self._log_odds, self._has_origin = design.starts, log_odds, has_origin
        self._rows, self._values, self._variances = _as_rows(design, seen)
        usual = float(np.median(np.abs(self._values - np.median(self._values)))) if len(self._values) else 0.0
        self.scale = max(SMALLEST_SCALE, 0.75 * usual)
        self._least_spread = max(0.2 * SPREAD, LEAST_SPREAD * self.scale)
        self.spread = max(SPREAD, self._least_spread)

    def starts(self, rng: np.random.Generator) -> list[dict[int, int]]:
        """Where walks begin, as blocks with the index of their size; the spread is told on the way.

        The first is what explains the trials best, taken one by one. Where several explanations are as good, a walk
        from there does not reach the others in time. So others begin at what explains best what might as well have been
        measured: the values with their own noise once more (as in Papandreou and Yuille, "Perturb-and-MAP random
        fields", ICCV 2011). They walk over what was measured, and count by how likely that is.
        """
        count = len(self._values)
        restarts = RESTARTS if count < MANY_TRIALS else FEW_RESTARTS
        if count < _ENOUGH:
            return [{} for _ in range(1 + restarts)]
        first, self.spread = self._explain(self._values)
        sds = np.sqrt(self._variances + self.spread**2)
        others = [self._explain(self._values + sds * rng.standard_normal(count))[0] for _ in range(restarts)]
        return [first, *others]

    def chain(self) -> Chain:
        """The chain over which blocks explain what was measured."""
        return self._chain(self._values, self.spread)

    def _chain(self, values: Floats, spread: float) -> Chain:
        rows, weights = self._rows, 1.0 / (self._variances + spread**2)
        if not self._has_origin and len(values):
            rows, values = rows - weights @ rows / weights.sum(), values - weights @ values / weights.sum()
        by = np.sqrt(weights)
        return Chain(rows * (self.scale * by)[:, None], values * by, self._starts, self._log_odds)

    def _explain(self, values: Floats) -> tuple[dict[int, int], float]:
        """The likeliest effects, taken one by one, and the spread that they leave.

        What hides below that spread is looked for again, until it no longer falls: beside a setting that takes twice
        the time, or several that harm a lot, effects of a few percent are seen only once those are accounted for.
        """
        inside: dict[int, int] = {}
        spread, most = self.spread, min(GREEDY, len(values) // 2)
        for at in range(_SPREADS):
            chain = self._chain(values, spread)
            if at >= 2:  # the first spread was a guess: what it let in must come in again
                chance = chain.look(inside).chance
                inside = {b: size for b, size in inside.items() if chance[b] >= 0.5}
            else:
                inside = {}
            place = Place(chain, inside)
            while len(place.sizes) < most:
                state = place.state()
                chance = state.chance.copy()
                chance[list(place.sizes)] = 0.0
                best = int(np.argmax(chance))
                if chance[best] < 0.5:
                    break
                place.add(best, int(state.likelier[best]))
            inside = dict(place.sizes)
            before, spread = spread, self._left_over(place, values)
            if at > 0 and spread > _FALLS * before:
                break
        return inside, spread

    def _left_over(self, place: Place, values: Floats) -> float:
        """The spread of trials beyond their own intervals that a state leaves."""
        state = place.state()
        left = values - self._rows[:, state.columns] @ state.mean * self.scale
        if not self._has_origin:
            left = left - left.mean()
        told = float((left**2).sum()) / max(len(values) - len(state.columns), len(values) / 3)
        excess = told - float(np.median(self._variances))
        # A few trials tell a spread badly: what was thought before counts for as many as are enough.
        share = len(values) / (len(values) + _ENOUGH)
        return float(np.sqrt(max(share * excess + (1 - share) * SPREAD**2, self._least_spread**2)))


def _as_rows(design: Design, seen: Observations) -> tuple[Floats, Floats, Floats]:
    """Features, values and variances of what was measured; a twin tells that what it differs by does nothing."""
    features = design.features(seen.codes)
    values, variances = seen.values.copy(), seen.sds**2
    for twin, original in seen.twins:
        features[twin] -= features[original]
        values[twin], variances[twin] = 0.0, 0.0
    return features, values, variances
