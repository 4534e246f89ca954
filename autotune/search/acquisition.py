"""The acquisition: the set of largest expected improvement among the best ones of several draws.

Inert settings get their best value too, as if they acted: early trials inform about all settings.
The expected improvement (Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive
Black-Box Functions", 1998) counts times the probability to run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autotune.search.additive import Tables
from autotune.search.models import Models
from autotune.search.space import Codes, Design, Rng

IsOpen = Callable[[Codes], bool]  # allowed, unknown, not being tried, not known to fail
IMPROVING_SHARE = 2 / 3  # of proposals by expected improvement; others: best of a draw
DRAWN = 8  # draws whose best sets are candidates
SAMPLES = 96  # draws that compare the candidates
LOOKS = 200  # draws that tell whether another set may gain
LEAST_GAIN = 0.003  # in typical effects; below it the best set of a draw informs more
FAIR_CHANCE = 0.6  # least probability to run of a set that only explores
FAILURE_COST = 0.5  # of a failed trial, in typical effects
LAST_TRIES = 200  # random neighbours looked at when no candidate is open


def propose(
    models: Models, rng: Rng, is_open: IsOpen = lambda codes: True, *, tried: Codes
) -> Codes:
    """Proposes the next set; one that is not open only if no open one is found.

    An improvement is faster than all sets `tried`, shape (sets, factors), which ran or are running.
    """
    model = models.effects
    draws = model.draws(rng, SAMPLES)
    minimal = []
    explored = []
    for tables in [model.mean, *map(draws.tables, range(1, DRAWN))]:
        best = _cheapest(models, tables, rng)
        explored.append(_within_risk(models, rng, best[-1], tables))
        for codes in best:
            useless = _useless(model.design, codes, tables)
            minimal.append(model.design.reset(codes, useless))
    candidates = {c.tobytes(): c for c in (*minimal, *explored) if is_open(c)}
    if not candidates:
        return _near(models, rng, is_open, explored[-1])
    table = np.array(list(candidates.values()))
    if rng.random() < IMPROVING_SHARE:
        fastest = draws.totals(tried).min(axis=1, keepdims=True, initial=np.inf)
        fastest = np.where(np.isfinite(fastest), fastest, 0.0)
        expected = np.maximum(fastest - draws.totals(table), 0.0).mean(axis=0)
        gains = expected * np.exp(models.log_chances(table))
        if gains.max() >= LEAST_GAIN * model.scale:
            return np.asarray(table[np.argmax(gains)])
    return next((c for c in reversed(explored) if c.tobytes() in candidates), table[0])


def chance_of_gain(models: Models, rng: Rng, least: float) -> float:
    """Returns the probability that a set gains `least` (a log ratio), also over those that ran.

    A set that ran and gains less counts as the default, for its gain could not be proven.
    """
    coded = models.coded
    tried = coded.table([*coded.ran.codes, coded.design.neutral])
    draws = models.effects.draws(rng, LOOKS)
    best = [_cheapest(models, draws.tables(at), rng)[-1] for at in range(LOOKS)]
    reached = draws.totals(tried).min(axis=1)
    proven = np.where(reached > -least, 0.0, reached)
    return float((proven - np.diagonal(draws.totals(np.array(best))) >= least).mean())


def _cheapest(models: Models, tables: Tables, rng: Rng) -> list[Codes]:
    """Returns the best set under a draw, and sets of less memory; see `MemoryModel.candidates`."""
    cost = FAILURE_COST * models.effects.scale
    return models.memory.candidates(tables, models.failures.risks, cost, rng)


def _useless(design: Design, codes: Codes, tables: Tables) -> list[int]:
    """Returns inert settings that a set changes, and that no change which acts needs."""
    is_changed = codes != design.neutral
    needed = set[int]()
    useless = []
    for i in reversed(np.flatnonzero(is_changed).tolist()):
        factor = design.factors[i]
        if i in needed or i not in tables.inert:
            needed.update(factor.needs)
        elif factor.default is not None:
            useless.append(i)
    return useless[::-1]


def _within_risk(models: Models, rng: Rng, codes: Codes, tables: Tables) -> Codes:
    """Resets inert settings of a set, the riskiest first, until it has a fair chance to run."""
    design = models.effects.design
    changed = _useless(design, codes, tables)
    rng.shuffle(changed)
    changed.sort(key=lambda i: models.failures.risks.single[i][codes[i]])
    rows = [codes]
    for i in reversed(changed):
        rows.append(design.reset(rows[-1], i))
    is_fair = models.log_chances(np.array(rows)) >= np.log(FAIR_CHANCE)
    return rows[np.argmax(is_fair) if is_fair.any() else -1]


def _near(models: Models, rng: Rng, is_open: IsOpen, best: Codes) -> Codes:
    """Finds an open set by random changes of more and more settings; else returns the set."""
    design = models.effects.design
    for attempt in range(LAST_TRIES):
        codes = best
        for i in rng.integers(len(best), size=1 + attempt // 10):
            code = int(rng.integers(design.sizes[i]))
            codes = design.raised(codes, i, code, models.failures.risks.single)
        codes = design.settle(codes)
        chance = models.memory.log_chances(codes[None])[0]
        if chance >= np.log(FAIR_CHANCE) and is_open(codes):
            return codes
    return best
