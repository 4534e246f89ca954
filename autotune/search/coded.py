"""A search space of Optuna's as factors and codes, and what is known of its settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.search.factors import Codes, Design, Factor, Floats

LONGEST = 33
"""Values of a long range that are proposed, evenly spread over its scale."""

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
"""States of trials that teach something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What is known of one setting.

    Attributes:
        default: Value that leaves it alone; None if none of its values does.
        default_place: What that value means as a number, where its name is none.
        group: Name of its group; two settings of one group may act together.
        needs: Other setting to its values under which this one acts.
        act: Chance that it acts, before anything is measured; None for that of any setting.
        lean: Value to its expected change of the log step time, before anything is measured, and its standard error.
    """

    default: Any = None
    default_place: float | None = None
    group: str = ""
    needs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    act: float | None = None
    lean: Mapping[Any, tuple[float, float]] = field(default_factory=dict)


class CodedSpace:
    """A search space of Optuna's as factors and codes.

    Args:
        space: Names to distributions.
        flags: What is known of them.
    """

    def __init__(self, space: Mapping[str, BaseDistribution], flags: Mapping[str, Flag]) -> None:
        self.names = _ordered(list(space), flags)
        self._at = {n: i for i, n in enumerate(self.names)}
        self.choices = [_values_of(space[n], flags.get(n, Flag()).default) for n in self.names]
        self._is_range = [not isinstance(space[n], CategoricalDistribution) for n in self.names]
        self._known: list[dict[Any, int]] = [{} for _ in self.names]  # values that were coded: trials repeat them
        self._flags = [flags.get(n, Flag()) for n in self.names]
        self.factors = [self._factor(i, space[n]) for i, n in enumerate(self.names)]
        self._plain = Design(self.factors, [])

    def _factor(self, i: int, distribution: BaseDistribution) -> Factor:
        flag, values = self._flags[i], self.choices[i]
        default = (
            next((k for k, v in enumerate(values) if v == flag.default), None) if flag.default is not None else None
        )
        needs = {
            self._at[other]: frozenset(k for k, v in enumerate(self.choices[self._at[other]]) if v in wanted)
            for other, wanted in flag.needs.items()
            if other in self._at
        }
        return Factor(
            name=self.names[i],
            size=len(values),
            default=default,
            scale=_scale(distribution, values, default, flag.default_place),
            group=flag.group,
            needs=needs,
            act=flag.act,
        )

    def table(self, rows: Sequence[Codes]) -> Codes:
        """Sets as one table, shape (sets, settings)."""
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.names))

    def codes(self, params: Mapping[str, Any]) -> Codes | None:
        """A set as codes; None if it has a value that the space does not have."""
        found = self._plain.neutral.copy()
        for i, name in enumerate(self.names):
            if name not in params:
                continue
            code = self._code(i, params[name])
            if code is None:
                return None
            found[i] = code
        return self._plain.settle(found)

    def _code(self, i: int, value: Any) -> int | None:
        known = self._known[i]
        if (code := known.get(value)) is None and (code := self._find(i, value)) is not None:
            known[value] = code
        return code

    def _find(self, i: int, value: Any) -> int | None:
        values = self.choices[i]
        if not self._is_range[i]:
            return values.index(value) if value in values else None
        if not isinstance(value, int | float):
            return None
        return int(np.argmin(np.abs(np.array(values, dtype=float) - float(value))))

    def values(self, codes: Codes) -> dict[str, Any]:
        """Codes as values; a setting that cannot act has its default, or any value."""
        return {
            n: self.choices[i][c if c < len(self.choices[i]) else 0]
            for i, (n, c) in enumerate(zip(self.names, codes, strict=True))
        }

    def part(self, values: Mapping[str, Any]) -> tuple[tuple[int, int], ...] | None:
        """Some values as pairs of factor and code; None if the space does not have one of them."""
        found = []
        for name, value in values.items():
            code = self._code(self._at[name], value) if name in self._at else None
            if code is None:
                return None
            found.append((self._at[name], code))
        return tuple(found)

    def split(self, trials: Sequence[FrozenTrial]) -> tuple[list[tuple[Codes, FrozenTrial]], list[Codes]]:
        """Finished trials that have a value, with their sets; and the sets of those that have none."""
        ran: list[tuple[Codes, FrozenTrial]] = []
        failed: list[Codes] = []
        for trial in trials:
            codes = self.codes(trial.params) if trial.state in FINISHED and trial.params else None
            if codes is not None and _is_feasible(trial):
                ran.append((codes, trial))
            elif codes is not None:
                failed.append(codes)
        return ran, failed

    def lean(self) -> tuple[Codes, Floats, Floats]:
        """What is expected of single values before anything is measured, as if it had been: codes, values, errors."""
        rows, values, sds = [], [], []
        for i, flag in enumerate(self._flags):
            for value, (change, sd) in flag.lean.items():
                code = self._code(i, value)
                if code is not None:
                    row = self._plain.neutral.copy()
                    row[i] = code
                    rows.append(row)
                    values.append(change)
                    sds.append(sd)
        return self.table(rows), np.array(values, dtype=float), np.array(sds, dtype=float)


def _ordered(names: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """Names, each after those that it needs."""
    found: dict[str, None] = {}

    def add(name: str, above: tuple[str, ...] = ()) -> None:
        if name in above:
            raise ValueError(f"settings must not need each other in a circle but got {' -> '.join((*above, name))}")
        for other in flags.get(name, Flag()).needs:
            if other in names and other not in found:
                add(other, (*above, name))
        found.setdefault(name)

    for name in names:
        add(name)
    return list(found)


def _values_of(distribution: BaseDistribution, default: Any) -> list[Any]:
    """Values that are proposed; a long range is thinned, its default kept."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        if (distribution.high - distribution.low) // distribution.step < LONGEST:
            return list(range(distribution.low, distribution.high + 1, distribution.step))
        grid = _grid(distribution.low, distribution.high, is_log=distribution.log)
        step = distribution.step
        whole = {distribution.low + round((v - distribution.low) / step) * step for v in grid}
        return sorted({*whole, default} if isinstance(default, int) else whole)
    if isinstance(distribution, FloatDistribution):
        found = set(_grid(distribution.low, distribution.high, is_log=distribution.log))
        if distribution.step is not None:
            first, width = distribution.low, distribution.step
            found = {min(first + round((v - first) / width) * width, distribution.high) for v in found}
        return sorted({*found, default} if isinstance(default, float) else found)
    raise ValueError(f"a distribution must be categorical, of integers or of floats but got {distribution!r}")


def _grid(low: float, high: float, *, is_log: bool) -> list[float]:
    if is_log:
        return [min(max(v, low), high) for v in np.geomspace(low, high, LONGEST).tolist()]
    return list(np.linspace(low, high, LONGEST).tolist())


def _scale(
    distribution: BaseDistribution, values: Sequence[Any], default: int | None, default_place: float | None
) -> tuple[float, ...] | None:
    """Places of values on their scale; None if they have none. The default's may be unknown (nan)."""
    if not isinstance(distribution, CategoricalDistribution):
        is_log = getattr(distribution, "log", False)
        return tuple(math.log2(v) if is_log else float(v) for v in values)
    numbers: list[float | None] = [_number(v) for v in values]
    if default is not None and numbers[default] is None and default_place is not None:
        numbers[default] = default_place
    others = [n for k, n in enumerate(numbers) if k != default]
    if len(values) < 3 or any(n is None or n < 0 for n in others) or len(set(others)) < len(others):
        return None
    return _places([math.nan if n is None or n < 0 else n for n in numbers])


def _places(numbers: Sequence[float]) -> tuple[float, ...]:
    """Places of numbers of at least 0 on a scale of their logs; nan stays.

    Zero (no threshold at all) has no log: it is as far below the least of the others as these usually are apart, and at
    least one doubling. Counted in bytes it would be twenty doublings below 1 MiB, whose own 64-fold is six.
    """
    logs = sorted({math.log2(n) for n in numbers if n > 0})
    steps = sorted(b - a for a, b in itertools.pairwise(logs)) or [1.0]
    none = (logs[0] if logs else 0.0) - max(1.0, steps[len(steps) // 2])
    return tuple(math.log2(n) if n > 0 else none if n == 0 else math.nan for n in numbers)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial has a value that counts."""
    if trial.state is not TrialState.COMPLETE or not all(map(math.isfinite, trial.values)):
        return False
    return all(v <= 0 for v in trial.constraints.values())
