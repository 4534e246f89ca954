"""A sampler of Optuna's for spaces of flags: many settings of which few act, each trial's noise known.

Usable in any Optuna study::

    sampler = AdditiveFlagSampler(seed=0)
    study = optuna.create_study(sampler=sampler)

What autotune adds is what it knows of settings (`Flag`): defaults, groups, conditions, and how likely each acts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.search.additive import AdditiveModel, Observations
from autotune.search.factors import Codes, Design, Factor, Floats
from autotune.search.hazards import Hazards
from autotune.search.policy import key, propose

SD_KEY = "autotune:log_sd"
"""User attribute of a trial: standard error of its value, or of the value's log where values are no log ratios."""

TWIN_KEY = "autotune:twin_of"
"""User attribute of a trial: number of the trial whose program it shares, so that it was not measured itself."""

LONGEST = 33
"""Values of a long range that are proposed, evenly spread over its scale."""

USUAL_SD = 0.01
"""Standard error of a trial that does not tell its own."""

WORST_SD = 1.0
"""Standard error of a trial whose interval has no end."""


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


class AdditiveFlagSampler(BaseSampler):
    """Proposes by a sparse additive model: few settings act, each by its own, some with another of their group.

    Failed trials (infeasible by a constraint, pruned or failed) teach which values fail, not what is slow. Equal seeds
    and histories give equal proposals. Several objectives are weighed at random, anew for each proposal.

    Args:
        space: What is searched; None for all that finished trials of the study had.
        flags: What is known of its settings; each is searched after those that it needs.
        seed: Of the draws; None for any.
        is_log_ratio: Whether values are logs of ratios to the default's, as autotune tells them. Else logs of the
            values are modelled, or the values themselves where some are not positive.
        with_pairs: Whether two settings may act together.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution] | None = None,
        flags: Mapping[str, Flag] | None = None,
        *,
        seed: int | None = None,
        is_log_ratio: bool = False,
        with_pairs: bool = True,
    ) -> None:
        self._given = dict(space) if space is not None else None
        self._flags = dict(flags or {})
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(1 << 31))
        self._is_log_ratio = is_log_ratio
        self._with_pairs = with_pairs
        self._asked: dict[tuple[int, int], int] = {}
        self._independent = RandomSampler(seed=seed)
        self.culprits: list[Mapping[str, Any]] = []
        """Combinations of values that are known to fail."""

    def reseed_rng(self) -> None:
        """See `optuna.samplers.BaseSampler`: draws in parallel processes differ by their trials' numbers."""
        self._independent.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All settings; of a space that is not given, those of finished trials."""
        if self._given is not None:
            return dict(self._given)
        found: dict[str, BaseDistribution] = {}
        for past in study.get_trials(deepcopy=False, states=_FINISHED):
            found.update({n: d for n, d in past.distributions.items() if n not in found})
        return found

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next set."""
        if not search_space:
            return {}
        coded = CodedSpace(search_space, self._flags)
        trials = study.get_trials(deepcopy=False)
        # Asked again, as for a set that a study's rules forbid, it draws anew.
        self._asked = {(n := (trial.number, len(trials))): self._asked.get(n, -1) + 1}
        rng = np.random.default_rng([self._seed, trial.number + 1, len(trials), self._asked[n]])
        signs = [1.0 if d is StudyDirection.MINIMIZE else -1.0 for d in study.directions]
        models, hazards = self._learn(coded, trials, signs, rng)
        known = {key(c) for t in trials if t.params and (c := coded.codes(t.params)) is not None}
        codes = propose(models, hazards, rng, known)
        return coded.values(codes)

    def learn(
        self, study: Study, search_space: Mapping[str, BaseDistribution] | None = None
    ) -> tuple[CodedSpace, AdditiveModel, Hazards]:
        """What the trials of a study by one objective taught.

        Args:
            study: With its trials.
            search_space: What is searched; None for what is proposed.
        """
        trials = study.get_trials(deepcopy=False)
        space = search_space or self.infer_relative_search_space(study, optuna.trial.create_trial(value=0.0))
        coded = CodedSpace(space, self._flags)
        rng = np.random.default_rng([self._seed, len(trials)])
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        models, hazards = self._learn(coded, trials, [sign], rng)
        return coded, models[0], hazards

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value of a setting that no trial had yet."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _learn(
        self, coded: CodedSpace, trials: Sequence[FrozenTrial], signs: Sequence[float], rng: np.random.Generator
    ) -> tuple[list[AdditiveModel], Hazards]:
        """Models of what was measured, one for each objective, and of what failed."""
        ran: list[Codes] = []
        failed: list[Codes] = []
        kept: list[FrozenTrial] = []
        for past in trials:
            codes = coded.codes(past.params) if past.state in _FINISHED and past.params else None
            if codes is None:
                continue
            if _is_feasible(past):
                ran.append(codes)
                kept.append(past)
            else:
                failed.append(codes)
        rows, bad = coded.table(ran), coded.table(failed)
        sds = np.array([_sd(t) for t in kept])
        places = {t.user_attrs.get(NUMBER_KEY, t.number): at for at, t in enumerate(kept)}
        twins = tuple(
            (at, places[of])
            for at, t in enumerate(kept)
            if (of := t.user_attrs.get(TWIN_KEY)) in places and places[of] != at
        )
        models = []
        for objective, sign in enumerate(signs):
            values = sign * self._as_logs(np.array([t.values[objective] for t in kept], dtype=float))
            lean_rows, lean_values, lean_sds = coded.lean() if objective == 0 else coded.nothing()
            seen = Observations(
                np.concatenate([rows, lean_rows]),
                np.concatenate([values, lean_values]),
                np.concatenate([sds, lean_sds]),
                twins,
            )
            models.append(
                AdditiveModel(
                    coded.design,
                    seen,
                    seed=int(rng.integers(1 << 31)),
                    has_origin=self._is_log_ratio,
                    with_pairs=self._with_pairs,
                )
            )
        known = [c for culprit in self.culprits if (c := coded.part(culprit)) is not None]
        return models, Hazards(coded.design, rows, bad, known)

    def _as_logs(self, values: Floats) -> Floats:
        if self._is_log_ratio or (values <= 0).any():
            return values
        return np.log(values)


NUMBER_KEY = "autotune:number"
"""User attribute of a trial that was added under another number than Optuna's."""

_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def _sd(trial: FrozenTrial) -> float:
    """Standard error of a trial's value; the worst where it says none that can be."""
    told = float(trial.user_attrs.get(SD_KEY, USUAL_SD))
    return min(told, WORST_SD) if told >= 0 else WORST_SD


def _is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial has a value that counts."""
    if trial.state is not TrialState.COMPLETE or not all(map(math.isfinite, trial.values)):
        return False
    return all(v <= 0 for v in trial.constraints.values())


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
        self._flags = [flags.get(n, Flag()) for n in self.names]
        self.design = Design([self._factor(i, space[n]) for i, n in enumerate(self.names)])

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
        found = self.design.neutral.copy()
        for i, name in enumerate(self.names):
            if name not in params:
                continue
            code = self._code(i, params[name])
            if code is None:
                return None
            found[i] = code
        return self.design.settle(found)

    def _code(self, i: int, value: Any) -> int | None:
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

    def lean(self) -> tuple[Codes, Floats, Floats]:
        """What is expected of single values before anything is measured, as if it had been: codes, values, errors."""
        rows, values, sds = [], [], []
        for i, flag in enumerate(self._flags):
            for value, (change, sd) in flag.lean.items():
                code = self._code(i, value)
                if code is not None:
                    row = self.design.neutral.copy()
                    row[i] = code
                    rows.append(row)
                    values.append(change)
                    sds.append(sd)
        return self.table(rows), np.array(values, dtype=float), np.array(sds, dtype=float)

    def nothing(self) -> tuple[Codes, Floats, Floats]:
        """What is expected where nothing is."""
        return self.table([]), np.zeros(0), np.zeros(0)


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
    return tuple(math.nan if n is None or n < 0 else math.log2(1 + n) for n in numbers)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None
