"""Spaces with declared conditions: some gains lie behind a setting to be changed first.

Two families, of 10 to 30 settings in groups of 3 to 6. A third of the settings act only while one
or, one in five, two earlier settings have certain values; a condition may stand behind another one.
Common to both: 2 to 5 settings have a value that is 1 to 9 % faster, one of them at least under a
condition; half of the settings that such a value waits for cost 0 to 3 % themselves; 1 to 3
settings harm by 2 to 20 %. Published sets are as in `families`.

* `conditions and hazards`: 2 to 5 values, or pairs of values of one group, make a set fail.
* `conditions and gates`: the good effects act only while another setting of their group is on,
  three in five of them, without its being declared; 0 to 2 values, or pairs, make a set fail.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from autotune.settings.space import Parameter, SearchSpace
from benchmarks.search.families import effect_of, gate_of, hazards_of, recipes_of, simple, threshold
from benchmarks.search.problems import Joint, Problem

CONDITIONED = ("conditions and hazards", "conditions and gates")

SETTINGS, GROUP = (10, 30), (3, 6)
CONDITIONAL_SHARE, TWO_SHARE, THRESHOLD_SHARE = 1 / 3, 0.2, 0.2
GOOD, HARMFUL = (2, 5), (1, 3)
EFFECT, HARM, COST = (0.01, 0.09), (0.02, 0.2), (0.0, 0.03)
GATED_SHARE = 0.6
LEAST_GAIN = 0.01
"""Least gain, as a log ratio, of the good settings under a condition in the best set."""

MOST_COMBINATIONS = 200_000
"""Limit of combinations of settings that hang together."""

Rng = np.random.Generator


def draw_conditioned(family: str, seed: int, settings: int | None = None) -> Problem:
    """A space whose optimum can be enumerated and has a value under a condition, by seed.

    Args:
        family: One of `CONDITIONED`.
        seed: Of all draws.
        settings: How many; None for 10 to 30.
    """
    rng = np.random.default_rng([103, CONDITIONED.index(family), seed])
    while True:
        problem = _draw(rng, f"{family} {seed}", settings, is_gated=family == CONDITIONED[1])
        if problem.combinations <= MOST_COMBINATIONS and _gains_by_conditions(problem):
            return problem


def _gains_by_conditions(problem: Problem) -> bool:
    """Whether the best set loses what pays when all that stands under a condition is reset."""
    without = problem.best.copy()
    for i, needs in enumerate(problem.needs):
        if needs:
            without[i] = problem.defaults[i]
    kept, best = problem.effects(np.array([without, problem.best]))
    return bool(best <= kept - LEAST_GAIN)


def _draw(rng: Rng, name: str, settings: int | None, *, is_gated: bool) -> Problem:
    space = _space(rng, settings)
    bare = Problem(name, space, tuple(np.zeros(len(p.choices)) for p in space.parameters))
    count = len(space.parameters)
    conditional = [i for i in range(count) if bare.needs[i]]
    first = int(rng.choice(conditional))
    others = [int(i) for i in rng.permutation(count) if i != first]
    good_count = int(rng.integers(GOOD[0], GOOD[1] + 1))
    good = [first, *others[: good_count - 1]]
    harmful = others[good_count - 1 :][: int(rng.integers(HARMFUL[0], HARMFUL[1] + 1))]
    mains, joints = list(bare.mains), list[Joint]()
    for i in (*good, *harmful):
        is_good = i in good
        table = effect_of(
            rng, bare, i, size=float(rng.uniform(*(EFFECT if is_good else HARM))), is_good=is_good
        )
        gate = (
            gate_of(rng, bare, i, harmful)
            if is_gated and is_good and rng.random() < GATED_SHARE
            else None
        )
        if gate is not None:
            joints.append(Joint(i, gate[0], np.outer(table, gate[1])))
        else:
            mains[i] = mains[i] + table
    parents = {parent for i in good for parent in bare.needs[i]}
    for i in sorted(parents - {*good, *harmful}):
        if rng.random() < 0.5:
            mains[i] = mains[i] + effect_of(
                rng, bare, i, size=float(rng.uniform(*COST)), is_good=False
            )
    hazards = hazards_of(rng, bare, (0, 2) if is_gated else (2, 5))
    free = Problem(name, space, tuple(mains), tuple(joints))
    recipes = recipes_of(rng, free, good)
    return dataclasses.replace(free, hazards=hazards, recipes=recipes, good=tuple(good))


def _space(rng: Rng, settings: int | None) -> SearchSpace:
    count = settings if settings is not None else int(rng.integers(SETTINGS[0], SETTINGS[1] + 1))
    largest = int(rng.integers(GROUP[0], GROUP[1] + 1))
    conditional = {
        int(i) for i in 1 + rng.permutation(count - 1)[: max(1, round(CONDITIONAL_SHARE * count))]
    }
    parameters: list[Parameter] = []
    for i in range(count):
        make = threshold if rng.random() < THRESHOLD_SHARE else simple
        own = make(rng, f"xla_made_up_{i:02d}", f"group {i // largest}")
        if i in conditional:
            own = dataclasses.replace(own, condition=_condition(rng, parameters))
        parameters.append(own)
    return SearchSpace(tuple(parameters))


def _condition(rng: Rng, earlier: list[Parameter]) -> dict[str, tuple[str, ...]]:
    """One or two earlier settings nearby, with one or two values each, not their defaults."""
    near = earlier[-GROUP[1] :]
    wanted = 2 if len(near) > 1 and rng.random() < TWO_SHARE else 1
    condition = {}
    for at in rng.choice(len(near), wanted, replace=False).tolist():
        others = [v for v in near[at].choices if v != near[at].default_choice]
        kept = rng.permutation(len(others))[: int(rng.integers(1, 3))]
        condition[near[at].name] = tuple(others[k] for k in sorted(kept.tolist()))
    return condition
