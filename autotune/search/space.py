"""A search space as numbers: factors for settings, codes for values, features for effects.

A block is one setting's effect on the log of the step time, or the interaction of two settings. Its
features are scaled so that standard normal coefficients give effects of size one; the default's is
zero. Effects of ordered values have an exponential kernel over their scale, whose draws may jump as
a threshold does; effects of other values share a common part.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rng = np.random.Generator
Pair = tuple[int, int]
Values = Mapping[str, Any]  # values of settings by name
Params = dict[str, Any]
Space = Mapping[str, BaseDistribution]
Scale = tuple[float, ...] | None  # places (or nan) of ordered values
MAIN_RANK = 6  # limit of features of a setting
PAIR_RANK = 4  # limit of features of a pair
REACH = 0.5  # correlation length of ordered values, as a share of their scale
COMMON = 0.3  # correlation between effects of two values of an unordered setting
LONGEST = 33  # proposed values of a long range, evenly spread over its scale
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_TINY = 1e-9


class Flag(NamedTuple):
    """Prior knowledge of one setting."""

    default: Any = None  # None if it is not among the values
    default_place: float | None = None  # the default as a number if its name is none
    group: str = ""  # pairs of one group may interact
    needs: Mapping[str, Sequence[Any]] = {}  # values of others under which it acts
    p_active: float | None = None  # prior probability to act; None: usual
    moves_memory: bool = False  # much, as options of the workload do


Flags = Mapping[str, Flag]


class Factor(NamedTuple):
    """A setting of `size` values with its default and its needs in codes."""

    size: int
    default: int | None = 0
    scale: Scale = None
    needs: Mapping[int, frozenset[int]] = {}
    flag: Flag = Flag()


class Block(NamedTuple):
    """Features of the values of a setting, or of combinations of two, in row-major order."""

    factors: tuple[int, ...]
    table: Floats


class Design:
    """All blocks of a space whose factors each follow those that they need.

    A set is a row of codes, one for each factor; the code after the last value means "not set".
    """

    def __init__(self, factors: Sequence[Factor], pairs: Sequence[Pair] = ()) -> None:
        self.factors = factors
        self.pairs = pairs
        self.sizes = [f.size for f in factors]
        mains = [_main_table(f.size, f.default, f.scale) for f in factors]
        self.blocks = [Block((i,), table) for i, table in enumerate(mains)]
        self.blocks += [Block((i, j), _pair_table(mains[i], mains[j])) for i, j in pairs]
        # Start of each block's features, and end of the last.
        self.starts = np.cumsum([0, *(b.table.shape[1] for b in self.blocks)])
        self.conditional = [i for i, f in enumerate(factors) if f.needs]
        defaults = [f.size if f.default is None else f.default for f in factors]
        self.neutral = np.array(defaults, dtype=np.int64)  # codes of the default

    def features(self, codes: Codes) -> Floats:
        """All features of sets, shape (sets, features); zero for the default."""
        tables = [np.zeros((len(codes), 0))]
        for block in self.blocks:
            rows = np.zeros(len(codes), dtype=np.int64)
            for factor in block.factors:
                rows = rows * (self.sizes[factor] + 1) + codes[:, factor]
            tables.append(block.table[rows])
        return np.concatenate(tables, axis=1)

    def settle(self, codes: Codes) -> Codes:
        """Resets settings that another setting of the set switches off."""
        settled = codes.copy()
        for i in self.conditional:
            if any(settled[n] not in values for n, values in self.factors[i].needs.items()):
                settled[i] = self.neutral[i]
        return settled

    def reset(self, codes: Codes, factors: int | Sequence[int]) -> Codes:
        """Returns a set with settings at their defaults, and without what these switch off."""
        changed = codes.copy()
        changed[factors] = self.neutral[factors]
        return self.settle(changed)

    def raised(self, codes: Codes, i: int, code: int, costs: Sequence[Floats] | Floats) -> Codes:
        """Returns a set with a value of a setting, and the cheapest values that this needs."""
        raised = codes.copy()
        raised[i] = code
        for needed, values in self.factors[i].needs.items():
            if values and raised[needed] not in values:
                cheapest = min(values, key=costs[needed].__getitem__)
                raised = self.raised(raised, needed, cheapest, costs)
        return raised


def likely_pairs(factors: Sequence[Factor]) -> list[Pair]:
    """Pairs of one group; all pairs if no setting has a group."""
    groups = [f.flag.group for f in factors]
    is_grouped = any(groups)
    pairs = itertools.combinations(range(len(groups)), 2)
    return [(i, j) for i, j in pairs if groups[i] == groups[j] and bool(groups[i]) == is_grouped]


@functools.lru_cache(maxsize=1024)
def _main_table(size: int, default: int | None, scale: Scale) -> Floats:
    """Features of each value and of "not set", shape (values + 1, features)."""
    values = [v for v in range(size) if v != default]
    if not values:
        return np.zeros((size + 1, 0))
    if scale is None:
        features = np.linalg.cholesky(COMMON + (1 - COMMON) * np.eye(len(values)))
    else:
        places = np.array(scale)
        length = max(np.nanmax(places) - np.nanmin(places), _TINY) * REACH
        alike = np.exp(-np.abs(np.subtract.outer(places, places)) / length)
        kernel = alike[np.ix_(values, values)]
        # The default's effect is zero.
        if default is not None and not np.isnan(places[default]):
            near = alike[values, default]
            kernel -= np.outer(near, near)
        variances, vectors = np.linalg.eigh(kernel)  # in ascending order
        best = np.flatnonzero(variances > 1e-6)[::-1][:MAIN_RANK]
        features = vectors[:, best] * np.sqrt(variances[best])
        features /= max(np.sqrt((features**2).sum(axis=1).mean()), _TINY)
    table = np.zeros((size + 1, features.shape[1]))
    table[values] = features
    return table


def _pair_table(one: Floats, other: Floats) -> Floats:
    """Features of each combination: the largest products of both settings' features."""
    products = np.kron(one, other)
    size = (products**2).sum(axis=0)
    best = np.sort(np.argsort(-size, kind="stable")[:PAIR_RANK])
    return np.ascontiguousarray(products[:, best])


class Coded(NamedTuple):
    """Trials with their sets."""

    codes: list[Codes]
    trials: list[FrozenTrial]


class CodedSpace:
    """An Optuna search space and its trials encoded as factors and codes; no pairs in `design`."""

    def __init__(self, space: Space, flags: Flags, trials: Sequence[FrozenTrial]) -> None:
        flags = {name: flags.get(name, Flag()) for name in space}
        self.names = _ordered(flags)
        self._at = {n: i for i, n in enumerate(self.names)}
        self._space = space
        self.choices = [_values_of(space[n], flags[n].default) for n in self.names]
        self.factors = [self._factor(i, flags[n]) for i, n in enumerate(self.names)]
        self.design = Design(self.factors)
        self.ran = Coded([], [])
        self.failed = Coded([], [])
        self.running = Coded([], [])
        for trial in trials:
            codes = self.codes(trial.params) if trial.params else None
            if codes is not None:
                group = self._group_of(trial)
                group.codes.append(codes)
                group.trials.append(trial)

    def _group_of(self, trial: FrozenTrial) -> Coded:
        if trial.state not in FINISHED:
            return self.running
        if trial.state is TrialState.COMPLETE:
            is_finite = all(map(math.isfinite, trial.values))
            if is_finite and all(v <= 0 for v in trial.constraints.values()):
                return self.ran
        return self.failed

    def _factor(self, i: int, flag: Flag) -> Factor:
        values = self.choices[i]
        default = None
        if flag.default is not None and flag.default in values:
            default = values.index(flag.default)
        needs = {}
        for name, needed in flag.needs.items():
            if name in self._at:
                choices = enumerate(self.choices[self._at[name]])
                needs[self._at[name]] = frozenset(k for k, v in choices if v in needed)
        scale = _scale(self._space[self.names[i]], values, default, flag.default_place)
        return Factor(len(values), default, scale, needs, flag)

    def table(self, rows: Sequence[Codes]) -> Codes:
        """Stacks sets to a table, shape (sets, settings)."""
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.names))

    def codes(self, params: Values) -> Codes | None:
        """Encodes a set; None if a value is not in the space."""
        encoded = self.part({n: v for n, v in params.items() if n in self._at})
        if encoded is None:
            return None
        codes = self.design.neutral.copy()
        for i, code in encoded:
            codes[i] = code
        return self.design.settle(codes)

    def values(self, codes: Codes) -> Params:
        """Decodes a set; a setting that is not set gets its first value."""
        columns = zip(self.names, self.choices, codes, strict=True)
        return {name: choices[code % len(choices)] for name, choices, code in columns}

    def part(self, values: Values) -> tuple[Pair, ...] | None:
        """Encodes part of a set as (factor, code); None if a value is not in the space."""
        encoded = []
        for name, value in values.items():
            if name not in self._at:
                return None
            i = self._at[name]
            choices = self.choices[i]
            if value in choices:
                code = choices.index(value)
            elif isinstance(self._space[name], IntDistribution) and isinstance(value, int | float):
                code = int(np.argmin(np.abs(np.array(choices) - value)))
            else:
                return None
            encoded.append((i, code))
        return tuple(encoded)


def _ordered(flags: Flags) -> list[str]:
    """Settings, each after those that it needs."""
    needs = {name: [n for n in flag.needs if n in flags] for name, flag in flags.items()}
    return list(TopologicalSorter(needs).static_order())


def _values_of(distribution: BaseDistribution, default: Any) -> list[Any]:
    """Proposed values; a long range is thinned, its default kept."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if not isinstance(distribution, IntDistribution):
        raise ValueError(
            f"a distribution must be categorical or of integers but got {distribution!r}"
        )
    values = range(distribution.low, distribution.high + 1, distribution.step)
    if len(values) <= LONGEST:
        return list(values)
    spaced = np.geomspace if distribution.log else np.linspace
    places = spaced(distribution.low, distribution.high, LONGEST).tolist()
    thinned = {values[round((place - distribution.low) / distribution.step)] for place in places}
    if isinstance(default, int):
        thinned.add(default)
    return sorted(thinned)


def _scale(
    distribution: BaseDistribution,
    values: Sequence[Any],
    default: int | None,
    default_place: float | None,
) -> Scale:
    """Places of the values on their scale; None without one. The default's may be unknown (nan)."""
    if isinstance(distribution, IntDistribution):
        return tuple(map(math.log2 if distribution.log else float, values))
    numbers = [_number(value) for value in values]
    if default is not None and default_place is not None and math.isnan(numbers[default]):
        numbers[default] = default_place
    others = {n for k, n in enumerate(numbers) if k != default and n >= 0}
    if len(values) < 3 or len(others) < len(values) - (default is not None):
        return None
    # Places are logs. Zero (no threshold) is below the smallest number by the median distance of
    # the others, at least one doubling; negative numbers have no place.
    logs = sorted({math.log2(n) for n in numbers if n > 0})
    steps = sorted(b - a for a, b in itertools.pairwise(logs)) or [1.0]
    zero = {0.0: logs[0] - max(1.0, steps[len(steps) // 2])}
    return tuple(math.log2(n) if n > 0 else zero.get(n, math.nan) for n in numbers)


def _number(value: Any) -> float:
    """Returns a value as a finite number; nan if it is none."""
    number = math.nan
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            number = float(value)
    return number if math.isfinite(number) else math.nan
