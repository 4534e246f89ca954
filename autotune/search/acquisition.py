"""The acquisition: proposes the set of the largest expected improvement among the best sets of
several draws.

Settings that act in a draw from the posterior get their best value. Inert ones get one too, as if
they acted: early trials change many settings at once and inform about all of them. The expected
improvement (Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box
Functions", 1998) counts times the probability to run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.search.additive import Tables
from autotune.search.models import Models
from autotune.search.space import Codes, Design

IMPROVING_SHARE = 2 / 3
"""Share of proposals by expected improvement; the others are the best set of one draw."""

DRAWN, SAMPLES = 8, 96
"""Draws whose best sets are candidates, and draws that compare the candidates."""

LOOKS = 200
"""Draws that tell whether another set may gain."""

LEAST_GAIN = 0.003
"""Expected improvement, in typical effects, below which the best set of one draw is more
informative.
"""

FAIR_CHANCE = 0.6
"""Least probability to run of a set that changes settings only to explore them."""

FAILURE_COST = 0.5
"""Cost of a failed trial, in typical effects."""

LAST_TRIES = 200
"""Random neighbours of the last candidate that are looked at when no candidate is open."""


def propose(
    models: Models,
    rng: np.random.Generator,
    is_open: Callable[[Codes], bool] = lambda codes: True,
    *,
    tried: Codes,
) -> Codes:
    """Proposes the next set; one that is not open only if no open one is found.

    Args:
        is_open: Whether a set is allowed, unknown, not being tried and without a known failing
            combination.
        tried: Sets that ran or are being tried, shape (sets, factors); an improvement is faster
            than all of them.
    """
    model = models.effects
    draws = model.draws(rng, SAMPLES)
    minimal = []
    explored = []
    for at in range(DRAWN):
        tables = model.mean if at == 0 else draws.tables(at)
        best = _cheapest(models, tables, rng)
        explored.append(_within_risk(models, rng, best[-1], tables))
        minimal += [_minimal(model.design, codes, tables) for codes in best]
    candidates = {c.tobytes(): c for c in (*minimal, *explored) if is_open(c)}
    if not candidates:
        return _near(models, rng, is_open, explored[-1])
    if rng.random() < IMPROVING_SHARE:
        table = np.array(list(candidates.values()))
        least = draws.totals(tried).min(axis=1, keepdims=True, initial=np.inf)
        least = np.where(np.isfinite(least), least, 0.0)
        gains = np.maximum(least - draws.totals(table), 0.0).mean(axis=0) * np.exp(
            models.log_chances(table)
        )
        if gains.max() >= LEAST_GAIN * model.scale:
            return np.asarray(table[int(np.argmax(gains))])
    return next(
        (c for c in reversed(explored) if c.tobytes() in candidates),
        next(iter(candidates.values())),
    )


def chance_of_gain(
    models: Models, rng: np.random.Generator, *, tried: Codes, least: float
) -> float:
    """Returns the probability that a set gains at least `least` (a log ratio), and as much over all
    sets `tried`.

    A tried set that gains less counts as the default, for its gain could not be proven.
    """
    draws = models.effects.draws(rng, LOOKS)
    best = [_cheapest(models, draws.tables(at), rng)[-1] for at in range(LOOKS)]
    reached = draws.totals(tried).min(axis=1)
    proven = np.where(reached > -least, 0.0, reached)
    return float((proven - np.diagonal(draws.totals(np.array(best))) >= least).mean())


def _cheapest(models: Models, tables: Tables, rng: np.random.Generator) -> list[Codes]:
    """Returns the best set under a draw, and sets of less memory; see `MemoryModel.candidates`."""
    return models.memory.candidates(
        tables, models.failures.risks, FAILURE_COST * models.effects.scale, rng
    )


def _minimal(design: Design, codes: Codes, tables: Tables) -> Codes:
    """Resets all settings that are inert, but for those that others need."""
    return design.reset(codes, _useless(design, codes, tables))


def _useless(design: Design, codes: Codes, tables: Tables) -> list[int]:
    """Inert settings that a set changes, and that no change which acts needs."""
    is_changed = codes != design.neutral
    needed = set[int]()
    for i in reversed(range(len(codes))):
        if is_changed[i] and (i in needed or i not in tables.inert):
            needed.update(design.factors[i].needs)
    return [
        i
        for i in sorted(tables.inert - needed)
        if is_changed[i] and design.factors[i].default is not None
    ]


def _within_risk(models: Models, rng: np.random.Generator, codes: Codes, tables: Tables) -> Codes:
    """Resets inert settings of a set, the riskiest first, until it has a fair chance to run."""
    design = models.effects.design
    changed = _useless(design, codes, tables)
    rng.shuffle(changed)
    changed.sort(key=lambda i: float(models.failures.risks.single[i][codes[i]]))
    rows = [codes]
    for i in reversed(changed):
        rows.append(design.reset(rows[-1], i))
    is_fair = models.log_chances(np.array(rows)) >= np.log(FAIR_CHANCE)
    return rows[int(np.argmax(is_fair)) if is_fair.any() else -1]


def _near(
    models: Models, rng: np.random.Generator, is_open: Callable[[Codes], bool], best: Codes
) -> Codes:
    """Finds an open set by random changes of more and more settings; else returns the set
    itself.
    """
    design = models.effects.design
    for attempt in range(LAST_TRIES):
        other = best.copy()
        for i in rng.integers(len(best), size=1 + attempt // 10):
            other = design.raised(
                other, i, int(rng.integers(design.sizes[i])), models.failures.risks.single
            )
        other = design.settle(other)
        if models.memory.log_chances(other[None])[0] >= np.log(FAIR_CHANCE) and is_open(other):
            return other
    return best
