"""Seeded spaces like those of flags: many settings, few of which act, in groups.

Common to all: two to five settings have a value that is 1 to 9 % faster, one to three harm by 2 to
20 %, and there are about ten times as many, 20 to 60, in groups of 3 to 8: nine in ten do nothing.
Spaces in which nothing pays 1 %, or in which 60 random sets bring four fifths of what there is to
gain, are drawn anew. Recipes are 3 to 5 sets of about six settings that hold each good value with
chance 0.3.

* `sparse`: switches (every other one), lists of 3 to 6 names and small whole numbers; each acts
  alone.
* `gated`: likewise, but good effects act only while another setting of their group is on, three in
  five of them and at least one.
* `hazards`: as `sparse`, and two to five values, or pairs of values of one group, make a set fail.
* `numeric`: three in five settings are thresholds in powers of two, 5 to 11 of them; those act, by
  a step or by a smooth bump over log bytes. The default of one in three is none of its values.
* `catalogue`: the catalogue's own settings, values, groups and conditions for one of several
  programs; any of them acts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autotune.model.flags import DEFAULT
from autotune.settings.space import Parameter, SearchSpace
from benchmarks.search.catalogue import catalogue_space
from benchmarks.search.problems import Cause, Codes, Floats, Joint, Problem
from benchmarks.search.scoring import random_search

SETTINGS = (20, 60)
GROUP = (3, 8)
GOOD = (2, 5)
EFFECT = (0.01, 0.09)
HARM = (0.02, 0.2)
GATED_SHARE, NUMERIC_SHARE = 0.6, 0.6
HAZARDS = (2, 5)
PAIR_SHARE = 0.4
"""Share of hazards that are pairs."""

RECIPE_SETTINGS = 6
RECIPE_CHANCE = 0.3
TRIALS = 60
ROUGHLY = 1000
"""Random sets by which a space is held for easy."""

EASY = 0.8
"""Share of the gain that random search may bring in so many trials."""

Rng = np.random.Generator


def make(family: str, seed: int, settings: int | None = None) -> Problem:
    """One space of a family.

    Args:
        family: One of `FAMILIES`.
        seed: Equal seeds give equal spaces.
        settings: How many settings, however easy the space then is; None for 20 to 60.
    """
    rng = np.random.default_rng([list(FAMILIES).index(family), seed])
    good = int(rng.integers(GOOD[0], GOOD[1] + 1))
    acting = good + int(rng.integers(1, (good + 1) // 2 + 1))
    least = min(max(SETTINGS[0], 8 * acting), SETTINGS[1])
    while True:
        space = FAMILIES[family](
            rng, (least, SETTINGS[1]) if settings is None else (settings, settings)
        )
        problem = _with_effects(f"{family} {seed}", space, rng, good, acting)
        is_of_family = problem.optimum <= -EFFECT[0] and (family != "gated" or problem.joints)
        if is_of_family and (settings is not None or _is_worth_a_search(problem)):
            return problem


def _is_worth_a_search(problem: Problem) -> bool:
    """Whether random search leaves enough of the gain to tell searches from each other."""
    return float(random_search(problem, TRIALS, sets=ROUGHLY)[-1]) > EASY * problem.optimum


# ------------------------------------------------------------------ spaces


def _mixed(rng: Rng, settings: tuple[int, int]) -> SearchSpace:
    return SearchSpace(tuple(simple(rng, name, group) for name, group in _named(rng, settings)))


def _numeric(rng: Rng, settings: tuple[int, int]) -> SearchSpace:
    named = _named(rng, settings)
    thresholds = set(rng.permutation(len(named))[: math.ceil(NUMERIC_SHARE * len(named))].tolist())
    found = [
        threshold(rng, *n) if i in thresholds else simple(rng, *n) for i, n in enumerate(named)
    ]
    return SearchSpace(tuple(found))


FAMILIES: dict[str, Callable[[Rng, tuple[int, int]], SearchSpace]] = {
    "sparse": _mixed,
    "gated": _mixed,
    "hazards": _mixed,
    "numeric": _numeric,
    "catalogue": catalogue_space,
}


def _named(rng: Rng, settings: tuple[int, int]) -> list[tuple[str, str]]:
    """Names and groups; sizes leave enough for the last group."""
    count = int(rng.integers(settings[0], settings[1] + 1))
    groups: list[int] = []
    while (left := count - len(groups)) > 0:
        size = min(int(rng.integers(GROUP[0], GROUP[1] + 1)), left)
        if 0 < left - size < GROUP[0]:
            size = left if left <= GROUP[1] else left - GROUP[0]
        groups += [groups[-1] + 1 if groups else 0] * size
    return [(f"xla_made_up_{i:02d}", f"group {g}") for i, g in enumerate(groups)]


def simple(rng: Rng, name: str, group: str) -> Parameter:
    """A switch, a list of names, or a small whole number; its first value is the default."""
    kind = rng.choice(["bool", "enum", "int"], p=[0.5, 0.25, 0.25])
    if kind == "bool":
        return Parameter(
            name=name, choices=("false", "true"), default="false", type="bool", group=group
        )
    size = int(rng.integers(3, 7))
    if kind == "enum":
        return Parameter(name=name, choices=tuple("abcdef"[:size]), default="a", group=group)
    choices = tuple(map(str, range(size)))
    return Parameter(
        name=name, choices=choices, is_range=True, default="0", type="int", group=group
    )


def threshold(rng: Rng, name: str, group: str) -> Parameter:
    """Powers of two; the default is one of them, or lies between two and is a choice of its own."""
    size, first = int(rng.integers(5, 12)), int(rng.integers(10, 24))
    default = first + int(rng.integers(size))
    if rng.random() < 1 / 3:
        choices = (DEFAULT, *(str(1 << k) for k in range(first, first + size)))
        return Parameter(
            name=name, choices=choices, default=str(3 << (default - 1)), type="int", group=group
        )
    choices = tuple(str(1 << k) for k in range(first, first + size))
    return Parameter(name=name, choices=choices, default=str(1 << default), type="int", group=group)


# ------------------------------------------------------------------ effects


def _with_effects(
    name: str, space: SearchSpace, rng: Rng, good_count: int, acting_count: int
) -> Problem:
    family = name.split()[0]
    bare = Problem(name, space, tuple(np.zeros(len(p.choices)) for p in space.parameters))
    count = len(space.parameters)
    may_act = [i for i in range(count) if family != "numeric" or _isthreshold(space.parameters[i])]
    acting = [int(i) for i in rng.permutation(may_act)[:acting_count]]
    good = acting[:good_count]
    mains = list(bare.mains)
    joints: list[Joint] = []
    for i in acting:
        is_good = i in good
        size = float(rng.uniform(*(EFFECT if is_good else HARM)))
        table = effect_of(rng, bare, i, size=size, is_good=is_good)
        gate = (
            gate_of(rng, bare, i, acting[good_count:]) if family == "gated" and i in good else None
        )
        is_gated = gate is not None and (not joints or rng.random() < GATED_SHARE)
        if gate is not None and is_gated:
            joints.append(Joint(i, gate[0], np.outer(table, gate[1])))
        else:
            mains[i] = mains[i] + table
    hazards = hazards_of(rng, bare) if family == "hazards" else ()
    # The sets that pay are those of the optimum, were nothing to fail: what is published worked for
    # somebody.
    free = Problem(bare.name, space, tuple(mains), tuple(joints))
    recipes = recipes_of(rng, free, good)
    return Problem(bare.name, space, tuple(mains), tuple(joints), hazards, recipes, tuple(good))


def _isthreshold(parameter: Parameter) -> bool:
    return parameter.type == "int" and not parameter.is_range


def _places(parameter: Parameter) -> Floats | None:
    """Places of its values on their scale, log bytes for thresholds; None without an order."""
    texts = [parameter.default if v == DEFAULT else v for v in parameter.choices]
    if len(texts) < 3 or any(t is None or not t.isdigit() for t in texts):
        return None
    numbers = np.array([float(t) for t in texts if t])
    return np.asarray(np.log2(np.maximum(numbers, 0.5)) if numbers.max() > 64 else numbers)


def effect_of(rng: Rng, problem: Problem, i: int, *, size: float, is_good: bool) -> Floats:
    """Log ratios of a parameter's values: down to `-size` if it is good, at least 0 if harmful."""
    parameter, default = problem.space.parameters[i], int(problem.defaults[i])
    size = -size
    places = _places(parameter)
    if places is None:
        table = size * rng.uniform(-1.0, 0.8, len(parameter.choices))
        table[rng.choice([v for v in range(len(parameter.choices)) if v != default])] = size
        table[default] = 0.0
    else:
        shape = _step(rng, places, default) if rng.random() < 0.5 else _bump(rng, places, default)
        table = size * shape
    return table if is_good else np.abs(table)


def _step(rng: Rng, places: Floats, default: int) -> Floats:
    """1 beyond a threshold, 0 on the default's side of it."""
    between = np.sort(np.unique(places))
    middle = (between[1:] + between[:-1]) / 2
    at = float(rng.choice(middle))
    return np.asarray((places > at) != (places[default] > at), dtype=np.float64)


def _bump(rng: Rng, places: Floats, default: int) -> Floats:
    """A smooth hill: 1 at one value, 0 at the default, and no deeper beyond than high."""
    top = int(rng.choice([v for v in range(len(places)) if places[v] != places[default]]))
    unit = (places.max() - places.min()) / (len(places) - 1)
    hill = np.exp(-(((places - places[top]) / (unit * rng.uniform(1, 3))) ** 2))
    return np.asarray(
        np.maximum((hill - hill[default]) / (1 - hill[default]), -1.0), dtype=np.float64
    )


def _peers(problem: Problem, i: int) -> list[int]:
    parameters = problem.space.parameters
    return [j for j, p in enumerate(parameters) if j != i and p.group == parameters[i].group]


def other_code(rng: Rng, problem: Problem, i: int) -> int:
    """A value that is not the default."""
    return int(rng.choice([v for v in range(problem.sizes[i]) if v != problem.defaults[i]]))


def gate_of(
    rng: Rng, problem: Problem, i: int, harmful: Sequence[int]
) -> tuple[int, Floats] | None:
    """Another setting of the group, with 1 for its values that are on, else 0; None without any."""
    peers = [j for j in _peers(problem, i) if j not in harmful]
    if not peers:
        return None
    j = int(rng.choice(peers))
    is_on = np.zeros(problem.sizes[j])
    is_on[other_code(rng, problem, j)] = 1.0
    return j, is_on


def hazards_of(rng: Rng, problem: Problem, counts: tuple[int, int] = HAZARDS) -> tuple[Cause, ...]:
    """Values, or pairs of values of one group, that make a set fail: so many, both ends counted."""
    causes: list[Cause] = []
    for _ in range(int(rng.integers(counts[0], counts[1] + 1))):
        i = int(rng.integers(len(problem.sizes)))
        cause = [(i, other_code(rng, problem, i))]
        peers = _peers(problem, i)
        if peers and rng.random() < PAIR_SHARE:
            j = int(rng.choice(peers))
            cause.append((j, other_code(rng, problem, j)))
        causes.append(tuple(sorted(cause)))
    return tuple(dict.fromkeys(causes))


def recipes_of(rng: Rng, problem: Problem, good: Sequence[int]) -> tuple[Codes, ...]:
    """Sets of about six settings: some that pay, with what they need, and others at random."""
    best = problem.best
    found: list[Codes] = []
    for _ in range(int(rng.integers(3, 6))):
        codes = problem.defaults.copy()
        for i in good:
            if rng.random() < RECIPE_CHANCE:
                needed = [j.other for j in problem.joints if j.one == i]
                for k in (i, *needed, *problem.needs[i]):
                    codes[k] = best[k]
        held = int((codes != problem.defaults).sum())
        others = [
            i
            for i in rng.permutation(len(codes))
            if codes[i] == problem.defaults[i] and i not in good
        ]
        for i in others[: max(0, RECIPE_SETTINGS - held)]:
            codes[i] = other_code(rng, problem, int(i))
        found.append(problem.settle(codes[None])[0])
    return tuple(found)
