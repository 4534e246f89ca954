"""A search space as numbers: each setting a factor, each set a row of codes, each effect a block of
features.

A block is one setting's effect on the log of the step time, or the interaction of two settings. Its
features are scaled so that standard normal coefficients give effects of size one. Effects of
ordered values (thresholds, thread counts) have an exponential kernel over their scale, whose draws
may jump as a threshold does; effects of other values share a common part. The effect of the default
is zero.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

Coded = tuple[Codes, FrozenTrial]
"""Trial with its set."""

MAIN_RANK, PAIR_RANK = 6, 4
"""Limits of features of a setting, and of a pair."""

REACH = 0.5
"""Correlation length of ordered values, as a share of the length of their scale."""

COMMON = 0.3
"""Correlation between effects of two values of an unordered setting."""

LONGEST = 33
"""Proposed values of a long range, evenly spread over its scale."""

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
"""States of trials from which the model learns."""

_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A setting of `size` values with its prior knowledge (`Flag`), in codes."""

    size: int
    default: int | None = 0
    scale: tuple[float, ...] | None = None
    """Places of ordered values, in the unit in which effects are smooth (log bytes for thresholds);
    nan if unknown.
    """
    group: str = ""
    needs: Mapping[int, frozenset[int]] = field(default_factory=dict)
    p_active: float | None = None
    moves_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Prior knowledge of one setting.

    Attributes:
        default: None if it is not among the values.
        default_place: The default as a number if its name is none.
        group: Pairs of one group may interact.
        needs: Other setting to its values under which this one acts.
        p_active: Prior probability of an effect; None for the usual one.
        moves_memory: Whether it may need much more memory or give it, as options of the workload
            and shares of it do.
    """

    default: Any = None
    default_place: float | None = None
    group: str = ""
    needs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    p_active: float | None = None
    moves_memory: bool = False


class Block(NamedTuple):
    """Features of each value of one setting, or of each combination of two that interact, in
    row-major order.
    """

    factors: tuple[int, ...]
    table: Floats


class Design:
    """All blocks of a space whose factors each follow those that they need.

    A set is a row of codes, one for each factor; the code after the last value means "not set".
    """

    def __init__(
        self, factors: Sequence[Factor], pairs: Sequence[tuple[int, int]] | None = None
    ) -> None:
        self.factors = tuple(factors)
        self.sizes = [f.size for f in factors]
        mains = [_main_table(f.size, f.default, f.scale) for f in factors]
        self.pairs = list(pairs) if pairs is not None else likely_pairs(self.factors)
        self.blocks = [Block((i,), table) for i, table in enumerate(mains)]
        self.blocks += [
            Block(pair, _pair_table(mains[pair[0]], mains[pair[1]])) for pair in self.pairs
        ]
        self.starts = np.cumsum([0, *(b.table.shape[1] for b in self.blocks)])
        """Start of each block's features, and end of the last."""
        self.conditional = [i for i, f in enumerate(factors) if f.needs]
        """Settings that act only under values of others."""
        self.neutral = np.array(
            [f.size if f.default is None else f.default for f in factors], dtype=np.int64
        )
        """Codes of the default."""

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
            if any(settled[other] not in values for other, values in self.factors[i].needs.items()):
                settled[i] = self.neutral[i]
        return settled

    def reset(self, codes: Codes, factors: int | Sequence[int]) -> Codes:
        """Returns a set with settings at their defaults, and without what these switch off."""
        less = codes.copy()
        less[factors] = self.neutral[factors]
        return self.settle(less)

    def raised(self, codes: Codes, i: int, code: int, costs: Sequence[Floats]) -> Codes:
        """Returns a set with a value of a setting, and what that needs at the cheapest values under
        which it acts.
        """
        raised = codes.copy()
        raised[i] = code
        for other, values in self.factors[i].needs.items():
            if values and raised[other] not in values:
                cheapest = min(values, key=costs[other].__getitem__)
                raised = self.raised(raised, other, cheapest, costs)
        return raised


def likely_pairs(factors: Sequence[Factor]) -> list[tuple[int, int]]:
    """Pairs of one group; all pairs if no setting has a group."""
    every = itertools.combinations(range(len(factors)), 2)
    if not any(f.group for f in factors):
        return list(every)
    return [(i, j) for i, j in every if factors[i].group and factors[i].group == factors[j].group]


@functools.lru_cache(maxsize=1024)
def _main_table(size: int, default: int | None, scale: tuple[float, ...] | None) -> Floats:
    """Features of each value and of "not set", shape (values + 1, features)."""
    kept = [v for v in range(size) if v != default]
    if not kept:
        return np.zeros((size + 1, 0))
    if scale is None:
        features = np.linalg.cholesky(
            np.full((len(kept), len(kept)), COMMON) + (1 - COMMON) * np.eye(len(kept))
        )
    else:
        places = np.array(scale)
        grid = places[kept]
        length = max(float(np.nanmax(places) - np.nanmin(places)), _TINY) * REACH
        kernel = np.exp(-np.abs(np.subtract.outer(grid, grid)) / length)
        if default is not None and not np.isnan(
            places[default]
        ):  # given that the default's effect is zero
            near = np.exp(-np.abs(grid - places[default]) / length)
            kernel -= np.outer(near, near)
        values, vectors = np.linalg.eigh(kernel)  # in ascending order
        best = np.flatnonzero(values > 1e-6)[::-1][:MAIN_RANK]
        features = vectors[:, best] * np.sqrt(values[best])
        features /= max(float(np.sqrt((features**2).sum(axis=1).mean())), _TINY)
    table = np.zeros((size + 1, features.shape[1]))
    table[kept] = features
    return table


def _pair_table(one: Floats, other: Floats) -> Floats:
    """Features of each combination: the largest products of both settings' features."""
    products = np.kron(one, other)
    size = (products**2).sum(axis=0)
    best = np.sort(np.argsort(-size, kind="stable")[:PAIR_RANK])
    return np.ascontiguousarray(products[:, best])


class CodedSpace:
    """An Optuna search space encoded as factors and codes."""

    def __init__(self, space: Mapping[str, BaseDistribution], flags: Mapping[str, Flag]) -> None:
        self.names = _ordered(list(space), flags)
        self._at = {n: i for i, n in enumerate(self.names)}
        self._space = space
        known = {n: flags.get(n, Flag()) for n in self.names}
        self.choices = [_values_of(space[n], flag.default) for n, flag in known.items()]
        self.factors = [self._factor(n, flag) for n, flag in known.items()]
        self._plain = Design(self.factors, [])

    def _factor(self, name: str, flag: Flag) -> Factor:
        values = self.choices[self._at[name]]
        default: int | None = None
        if flag.default is not None and flag.default in values:
            default = values.index(flag.default)
        needs = {
            self._at[other]: frozenset(
                k for k, v in enumerate(self.choices[self._at[other]]) if v in wanted
            )
            for other, wanted in flag.needs.items()
            if other in self._at
        }
        return Factor(
            size=len(values),
            default=default,
            scale=_scale(self._space[name], values, default, flag.default_place),
            group=flag.group,
            needs=needs,
            p_active=flag.p_active,
            moves_memory=flag.moves_memory,
        )

    def table(self, rows: Sequence[Codes]) -> Codes:
        """Stacks sets to a table, shape (sets, settings)."""
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.names))

    def codes(self, params: Mapping[str, Any]) -> Codes | None:
        """Encodes a set; None if a value is not in the space."""
        part = self.part({n: v for n, v in params.items() if n in self._at})
        if part is None:
            return None
        codes = self._plain.neutral.copy()
        for i, code in part:
            codes[i] = code
        return self._plain.settle(codes)

    def _code(self, i: int, value: Any) -> int | None:
        choices = self.choices[i]
        if value in choices:
            return choices.index(value)
        if isinstance(self._space[self.names[i]], CategoricalDistribution) or not isinstance(
            value, int | float
        ):
            return None
        return int(np.argmin(np.abs(np.array(choices) - value)))

    def values(self, codes: Codes) -> dict[str, Any]:
        """Decodes a set; a setting that is not set gets its first value."""
        zipped = zip(self.names, self.choices, codes, strict=True)
        return {n: choices[c if c < len(choices) else 0] for n, choices, c in zipped}

    def part(self, values: Mapping[str, Any]) -> tuple[tuple[int, int], ...] | None:
        """Encodes part of a set as (factor, code); None if a value is not in the space."""
        encoded = []
        for name, value in values.items():
            code = self._code(self._at[name], value) if name in self._at else None
            if code is None:
                return None
            encoded.append((self._at[name], code))
        return tuple(encoded)

    def split(self, trials: Sequence[FrozenTrial]) -> tuple[list[Coded], list[Coded]]:
        """Splits finished trials into successful and failed ones, with their sets."""
        ran: list[Coded] = []
        failed: list[Coded] = []
        for trial in trials:
            codes = self.codes(trial.params) if trial.state in FINISHED and trial.params else None
            if codes is not None:
                alike = ran if _is_feasible(trial) else failed
                alike.append((codes, trial))
        return ran, failed


def _ordered(names: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """Settings, each after those that it needs."""
    needs = {name: [n for n in flags.get(name, Flag()).needs if n in names] for name in names}
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ValueError(
            f"settings must not need each other in a circle but got {circle}"
        ) from error


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
) -> tuple[float, ...] | None:
    """Places of the values on their scale; None without one. The default's may be unknown (nan)."""
    if isinstance(distribution, IntDistribution):
        return tuple(map(math.log2 if distribution.log else float, values))
    numbers = list(map(_number, values))
    if default is not None and default_place is not None and math.isnan(numbers[default]):
        numbers[default] = default_place
    others = {n for k, n in enumerate(numbers) if k != default and n >= 0}
    is_scale = len(values) >= 3 and len(others) == len(values) - (default is not None)
    return _places(numbers) if is_scale else None


def _places(numbers: Sequence[float]) -> tuple[float, ...]:
    """Places of non-negative numbers on a log scale; nan for others.

    Zero (no threshold) is below the smallest number by the median distance of the others, at least
    one doubling.
    """
    logs = sorted({math.log2(n) for n in numbers if n > 0})
    steps = sorted(b - a for a, b in itertools.pairwise(logs)) or [1.0]
    none = (logs[0] if logs else 0.0) - max(1.0, steps[len(steps) // 2])
    return tuple(math.log2(n) if n > 0 else none if n == 0 else math.nan for n in numbers)


def _number(value: Any) -> float:
    """Returns a value as a finite number; nan if it is none."""
    number = math.nan
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            number = float(value)
    return number if math.isfinite(number) else math.nan


def _is_feasible(trial: FrozenTrial) -> bool:
    if trial.state is not TrialState.COMPLETE or not all(map(math.isfinite, trial.values)):
        return False
    return all(v <= 0 for v in trial.constraints.values())
