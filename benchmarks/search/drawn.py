"""Spaces that no search was made with: all that a family fixes is drawn per seed, from wide ranges.

A space has 10 to 80 settings in groups of 1 to 12, in any mix of switches, names, whole numbers and
thresholds.

* **Effects**: 0 to 6 settings have a value that is 0.5 to 12 % faster, 0 to 6 harm by 1 to 40 %.
  Any share of the good ones acts only while another setting, of any group, has a certain value. Up
  to two pairs act jointly over all their values, as batch size and rematerialisation do.
* **Failures**: 0 to 10 % of all values fail, and 0 to 6 pairs of values, of any groups.
* **Memory**: in half of the spaces 2 to 8 settings cost or save memory; a set above the budget
  fails.
* **Trials**: 0.3 to 3 % of noise. 0 to 5 recipes, which hold each good value with a chance of 0 to
  0.5.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from autotune.settings.space import SearchSpace
from benchmarks.search.families import effect_of, other_code, simple, threshold
from benchmarks.search.problems import Cause, Codes, Floats, Joint, Problem

DRAWN = "drawn"

MOST_COMBINATIONS = 100_000
"""Limit of combinations of settings that hang together."""

Rng = np.random.Generator


def draw(seed: int, settings: int | None = None) -> Problem:
    """One space whose optimum can be enumerated; equal seeds give equal spaces.

    Args:
        settings: How many; None for 10 to 80.
    """
    rng = np.random.default_rng([101, seed])
    while (problem := _draw(rng, seed, settings)).combinations > MOST_COMBINATIONS:
        pass
    return dataclasses.replace(problem, recipes=_recipes(rng, problem))


def _draw(rng: Rng, seed: int, settings: int | None) -> Problem:
    space = _space(rng, settings)
    bare = Problem(
        f"drawn {seed}", space, tuple(np.zeros(len(p.choices)) for p in space.parameters)
    )
    count = len(space.parameters)
    good_count, bad_count = int(rng.integers(0, 7)), int(rng.integers(0, 7))
    acting = [int(i) for i in rng.permutation(count)[: good_count + bad_count]]
    good, harmful = acting[:good_count], acting[good_count:]
    mains, joints = list(bare.mains), list[Joint]()
    gated_share = float(rng.random())
    for i in acting:
        size = _log_uniform(rng, 0.005, 0.12) if i in good else _log_uniform(rng, 0.01, 0.4)
        table = effect_of(rng, bare, i, size=size, is_good=i in good)
        others = [j for j in range(count) if j != i and j not in harmful]
        if i in good and others and rng.random() < gated_share:
            gate = int(rng.choice(others))
            is_on = np.arange(bare.sizes[gate]) == other_code(rng, bare, gate)
            joints.append(Joint(i, gate, np.outer(table, is_on)))
        else:
            mains[i] = mains[i] + table
    joints += [_joint(rng, bare) for _ in range(int(rng.integers(0, 3)))]
    return dataclasses.replace(
        bare,
        mains=tuple(mains),
        joints=tuple(joints),
        good=tuple(good),
        noise=_log_uniform(rng, 0.003, 0.03),
        hazards=_hazards(rng, bare),
        memory=_memory(rng, bare) if rng.random() < 0.5 else (),
    )


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _space(rng: Rng, settings: int | None) -> SearchSpace:
    count, largest = settings or round(_log_uniform(rng, 10, 80)), int(rng.integers(1, 13))
    shares = rng.dirichlet([1.0, 1.0])
    parameters, group = [], 0
    for i in range(count):
        group += rng.random() < 1 / largest
        make = (simple, threshold)[int(rng.choice(2, p=shares))]
        parameters.append(make(rng, f"xla_made_up_{i:02d}", f"group {group}"))
    return SearchSpace(tuple(parameters))


def _joint(rng: Rng, problem: Problem) -> Joint:
    """Two settings whose values act jointly: a smooth table, 0 at the default of either."""
    one, other = (int(i) for i in rng.choice(len(problem.sizes), 2, replace=False))
    size = _log_uniform(rng, 0.01, 0.15)
    tables = [effect_of(rng, problem, i, size=1.0, is_good=True) for i in (one, other)]
    sign = -1.0 if rng.random() < 0.5 else 1.0
    return Joint(one, other, sign * size * np.outer(*tables))


def _hazards(rng: Rng, problem: Problem) -> tuple[Cause, ...]:
    share = float(rng.uniform(0.0, 0.1))
    values = [
        (i, v)
        for i, size in enumerate(problem.sizes)
        for v in range(size)
        if v != problem.defaults[i]
    ]
    causes: list[Cause] = [(value,) for value in values if rng.random() < share]
    for _ in range(int(rng.integers(0, 7))):
        pair = sorted(int(i) for i in rng.choice(len(problem.sizes), 2, replace=False))
        causes.append(tuple((i, other_code(rng, problem, i)) for i in pair))
    return tuple(dict.fromkeys(causes))


def _memory(rng: Rng, problem: Problem) -> tuple[Floats, ...]:
    """Memory of each value, in units of the room that the default leaves."""
    found = [np.zeros(size) for size in problem.sizes]
    count = int(rng.integers(2, 9))
    largest = _log_uniform(rng, 0.2, 3.0)
    for i in rng.permutation(len(found))[:count]:
        found[i] = rng.uniform(-0.5, 1.0) * largest * rng.random(problem.sizes[i])
        found[i][problem.defaults[i]] = 0.0
    return tuple(found)


def _recipes(rng: Rng, problem: Problem) -> tuple[Codes, ...]:
    chance, held = float(rng.uniform(0.0, 0.5)), int(rng.integers(2, 10))
    free = dataclasses.replace(problem, hazards=(), memory=())
    found = []
    for _ in range(int(rng.integers(0, 6))):
        codes = problem.defaults.copy()
        for i in problem.good:
            if rng.random() < chance:
                for k in (i, *(j.other for j in problem.joints if j.one == i)):
                    codes[k] = free.best[k]
        for i in rng.permutation(len(codes))[:held]:
            if codes[i] == problem.defaults[i] and i not in problem.good:
                codes[i] = other_code(rng, problem, int(i))
        found.append(codes)
    return tuple(found)
