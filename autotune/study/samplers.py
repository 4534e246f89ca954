"""Makes the Optuna sampler of a study, and the trials in which it is asked for points."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.model.errors import StudyFileError
from autotune.model.files import Table
from autotune.model.flags import MEMORY_FRACTIONS, OPTION, FlagSet, render_value
from autotune.model.plugins import load_class
from autotune.model.records import TrialResult
from autotune.model.sections import SAMPLERS, SearchSpec
from autotune.rundir.optuna_study import fill_trial
from autotune.search.sampler import DUPLICATE_KEY, NUMBER_KEY, SD_KEY
from autotune.search.space import Flag
from autotune.settings.space import Parameter, SearchSpace
from autotune.stats.estimates import standard_error

ADDITIVE = "additive"
RANDOM = "random"
REHEARSED = 12  # trials of a made-up study: more than the random ones of Optuna's samplers
SURE_SD = 1e-4  # standard error of the log ratio of a program that is the reference's own


class Replay:
    """An Optuna study in memory that is rebuilt from recorded trials, in which samplers are asked.

    Each trial is asked again, given its recorded values and told its result: so what a sampler
    keeps in trials and study (generations, its place in a sequence) follows from the records alone.
    """

    def __init__(self, make: Callable[[int], BaseSampler]) -> None:
        self._make = make
        self.forget()

    def forget(self) -> None:
        """Begins again, for trials whose values have changed."""
        self._replayed: list[FrozenTrial] = []
        self._storage = InMemoryStorage()
        self._storage.create_new_study([StudyDirection.MINIMIZE], _NAME)

    def up_to(self, trials: Sequence[FrozenTrial], number: int) -> optuna.Study:
        """Returns a new study after these trials, with the sampler at the trial of a number."""
        if self._replayed != trials[: len(self._replayed)]:
            self.forget()
        with _unwarned():
            for trial in trials[len(self._replayed) :]:
                self._replay(trial)
        return _load(copy.deepcopy(self._storage), self._make(number))

    def _replay(self, trial: FrozenTrial) -> None:
        study = _load(self._storage, self._make(trial.user_attrs[NUMBER_KEY]))
        repeated = study.ask()
        repeated.relative_params  # noqa: B018  # asks the sampler
        fill_trial(self._storage, self._storage.get_trial(repeated._trial_id), trial)
        if trial.params:
            study.tell(repeated, trial.value)
        else:
            # No point of the space: samplers look for what all trials have, and skip failed ones.
            study.tell(repeated, state=TrialState.FAIL)
        self._replayed.append(trial)


_NAME = "replay"

# Hides Optuna's warnings of what is experimental, and of constraints that are not read.
_unwarned = functools.partial(warnings.catch_warnings, action="ignore")


def _load(storage: BaseStorage, sampler: BaseSampler) -> optuna.Study:
    study = optuna.load_study(study_name=_NAME, storage=storage, sampler=sampler)
    # A sampler that knows nothing new would stop the study; random sets follow.
    study.stop = lambda: None  # type: ignore[method-assign]
    return study


class Points:
    """The points of a search space, as Optuna has their values."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.parameters = {p.name: p for p in space.parameters}
        self.distributions = {n: distribution_of(p) for n, p in self.parameters.items()}

    def point(self, values: Mapping[str, Any]) -> FlagSet:
        """Returns the set with Optuna's values."""
        return self.space.suggest(lambda p: str(values[p.name]))

    def values(self, part: FlagSet) -> Table | None:
        """Returns Optuna's values of settings; None if the space has not all of them."""
        values = {}
        for name, parameter in self.parameters.items():
            text = parameter.match(part[name]) if name in part else None
            if text is not None:
                values[name] = from_text(parameter, text)
        return values if len(values) == len(part) else None

    def located(self, settings: FlagSet) -> Table:
        """Returns Optuna's values of those settings of a point that have a value of the space."""
        located = self.space.locate(settings) or {}
        return {
            n: from_text(p, located[n])
            for n, p in self.parameters.items()
            if located.get(n) in p.choices
        }

    def flag(self, name: str, p_active: float | None, in_force: str | None = None) -> Flag:
        """Returns prior knowledge of a parameter; `in_force` is its value in the baseline."""
        parameter = self.parameters[name]
        needs = {
            parent: [from_text(self.parameters[parent], text) for text in texts]
            for parent, texts in (parameter.condition or {}).items()
            if parent in self.parameters
        }
        default = parameter.default_choice
        if in_force is not None:
            default = parameter.match(in_force) or default
        place = None
        if parameter.default and parameter.default.isdigit():
            place = float(parameter.default)
        return Flag(
            default=from_text(parameter, default) if default in parameter.choices else None,
            default_place=place,
            group=parameter.group,
            needs=needs,
            p_active=p_active,
            moves_memory=name.startswith(OPTION) or name in MEMORY_FRACTIONS,
        )


def suggest(trial: optuna.Trial, parameter: Parameter) -> str:
    """Returns the value that a trial suggests for a parameter."""
    with _unwarned():
        return str(trial._suggest(parameter.name, distribution_of(parameter)))


class PinnedTpe(optuna.samplers.TPESampler):
    """Optuna's TPE with pinned options; the proposer makes the startup trials."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            n_startup_trials=1,
            n_ei_candidates=24,
            multivariate=True,
            group=True,
            constant_liar=False,
            seed=seed,
        )


def make_sampler(search: SearchSpec, seed: int, folder: str | None = None) -> BaseSampler:
    """Creates the study's sampler, of a class in `folder` if need be; raises as `load_class`."""
    name = search.sampler
    with _unwarned():
        kind = load_class(SAMPLERS.get(name, name), BaseSampler, folder, key="search.sampler")
        sampler: BaseSampler = kind(seed=seed)
    return sampler


def check_sampler(search: SearchSpec, folder: str | None = None) -> None:
    """Asks a sampler by import path in a made-up study; StudyFileError if it cannot be asked."""
    if search.sampler in SAMPLERS:
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {"number": IntDistribution(0, 9), "word": CategoricalDistribution(("a", "b", "c"))}
    try:
        study = optuna.create_study(sampler=make_sampler(search, seed=0, folder=folder))
        with _unwarned():
            for value in range(REHEARSED):
                study.tell(study.ask(space), float(value))
    except StudyFileError:
        raise
    except Exception as error:  # whatever a sampler's code raises
        lack = "install what it lacks" if isinstance(error, ImportError) else "mend it"
        raise StudyFileError(
            f"the sampler {search.sampler} must propose sets in a study of Optuna but: {error!r}; "
            f"{lack}, or name another one in `search.sampler`"
        ) from error


def certainty_of(result: TrialResult) -> dict[str, float | int]:
    """Returns user attributes: a result's standard error, or the trial that it duplicates."""
    if result.is_the_default:
        return {SD_KEY: SURE_SD}
    if result.same_as is not None:
        return {DUPLICATE_KEY: result.same_as}
    if not result.comparison:
        return {}
    return {SD_KEY: standard_error(result.comparison.estimate)}


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Returns the Optuna distribution of a parameter."""
    if not parameter.is_range:
        return CategoricalDistribution(list(parameter.choices))
    numbers = [int(value) for value in parameter.choices]
    return IntDistribution(numbers[0], numbers[-1], step=numbers[1] - numbers[0])


def from_text(parameter: Parameter, text: str) -> Any:
    """Converts a recorded value to Optuna's own."""
    return int(text) if parameter.is_range else text


def read_value(parameter: Parameter, value: Any) -> str | None:
    """Converts what somebody enqueued to the recorded value; None if the parameter lacks it."""
    try:
        return parameter.match(render_value(value))
    except ValueError:
        return None
