"""Asks Optuna samplers for points of a study's search space, one at a time."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Container, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.model.errors import StudyFileError
from autotune.model.flags import MEMORY_FRACTIONS, OPTION
from autotune.model.records import REFERENCE_NUMBER, TrialResult
from autotune.model.sections import SearchSpec
from autotune.search.sampler import DUPLICATE_KEY, SD_KEY
from autotune.search.space import Flag
from autotune.settings.space import Parameter
from autotune.stats.estimates import standard_error

ADDITIVE, TPE, RANDOM = "additive", "tpe", "random"

SURE_SD = 1e-4
"""Standard error of the log ratio of a program that is the reference's own."""


class Questions:
    """A sampler at one trial, which gives any number of points without opening the trial: known ones are passed over.

    `trials` are finished ones, and those that other lanes run.
    """

    def __init__(self, trials: Sequence[FrozenTrial], sampler: BaseSampler) -> None:
        self.trials = trials
        self._study, self._sampler = optuna.create_study(storage=Shown(trials)), sampler
        self._trial = optuna.trial.create_trial(state=TrialState.RUNNING)
        self._space = sampler.infer_relative_search_space(self._study, self._trial)

    def point(self) -> Callable[[Parameter], str]:
        """Returns the next point, as a function from parameter to value."""
        related = self._sampler.sample_relative(self._study, self._trial, self._space)

        def choose(parameter: Parameter) -> str:
            if parameter.size == 1:
                return next(parameter.values())
            if parameter.name in related:
                return to_text(parameter, related[parameter.name])
            distribution = distribution_of(parameter)
            return to_text(
                parameter, self._sampler.sample_independent(self._study, self._trial, parameter.name, distribution)
            )

        return choose


def make_sampler(search: SearchSpec, seed: int) -> BaseSampler:
    """Creates the study's sampler (not the additive); StudyFileError if it is unknown or needs more than a seed."""
    name = search.sampler
    with warnings.catch_warnings():
        # `group` (separate densities for conditional settings) and others are marked experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == TPE:
            # Options are pinned, so that every Optuna searches alike. The proposer makes the startup trials.
            return optuna.samplers.TPESampler(
                n_startup_trials=1, n_ei_candidates=24, multivariate=True, group=True, constant_liar=False, seed=seed
            )
        if name == RANDOM:
            return optuna.samplers.RandomSampler(seed)
        try:
            sampler = pkgutil.resolve_name(name)(seed=seed)
        except (ImportError, AttributeError) as error:
            raise StudyFileError(
                f"`search.sampler` must be importable as MODULE:CLASS but got {name!r}: {error}"
            ) from error
        except (TypeError, ValueError) as error:
            raise StudyFileError(f"the sampler {name} must take `seed` alone but: {error}") from error
    if not isinstance(sampler, BaseSampler):
        raise StudyFileError(f"`search.sampler` must name a sampler of Optuna but {name} makes {sampler!r}")
    return sampler


def certainty_of(result: TrialResult) -> dict[str, float | int]:
    """Returns user attributes: a result's standard error, or the trial that it duplicates."""
    if result.same_as is not None:
        return {SD_KEY: SURE_SD} if result.same_as == REFERENCE_NUMBER else {DUPLICATE_KEY: result.same_as}
    return {} if result.comparison is None else {SD_KEY: standard_error(result.comparison.estimate)}


def flag_of(parameter: Parameter, p_active: float | None, in_force: str | None = None) -> Flag:
    """Returns prior knowledge of a parameter; `in_force` is its value in the study's baseline, if it has one."""
    default = (parameter.match(in_force) if in_force is not None else None) or parameter.default_choice
    place = parameter.default if parameter.default and parameter.default.isdigit() else None
    return Flag(
        default=from_text(parameter, default) if parameter.holds(default) else None,
        default_place=float(place) if place is not None else None,
        group=parameter.group,
        needs=parameter.condition or {},
        p_active=p_active,
        moves_memory=parameter.name.startswith(OPTION) or parameter.name in MEMORY_FRACTIONS,
    )


class Shown(optuna.storages.InMemoryStorage):
    """The storage of a study with given trials, which keep their numbers."""

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        super().__init__()
        self._shown = trials

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """See `optuna.storages.BaseStorage`."""
        return [t for t in self._shown if states is None or t.state in states]


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Returns the Optuna distribution of a parameter; powers of two are searched by their exponent."""
    if parameter.choices is not None:
        return CategoricalDistribution(list(parameter.choices))
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.power_of_two:
        return IntDistribution(parameter.low.bit_length() - 1, parameter.high.bit_length() - 1)
    step = 1 if parameter.log else parameter.step or 1
    return IntDistribution(parameter.low, parameter.high, log=parameter.log, step=step)


def from_text(parameter: Parameter, text: str) -> Any:
    """Converts a recorded value to Optuna's own."""
    if parameter.choices is not None:
        return text
    value = int(text)
    return value.bit_length() - 1 if parameter.power_of_two else value


def to_text(parameter: Parameter, value: Any) -> str:
    """Converts Optuna's value to the recorded one."""
    return str(2**value if parameter.power_of_two else value)
