"""Ask/tell wrapper around an Optuna sampler; recipes and given sets go first.

Proposals follow from records, seed and trial number: a study that was killed proposes the same.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import optuna
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.compiler.screen import ScreenReport
from autotune.measure.failing import contains_failing
from autotune.measure.memory import limit_bytes
from autotune.model.errors import SettingError, close_matches
from autotune.model.files import Table
from autotune.model.flags import MEMORY_FRACTIONS, FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AaRecord, EffectsRecord, TrialConfig, TrialResult
from autotune.model.spec import StudySpec
from autotune.model.units import format_share
from autotune.rundir.optuna_study import ENQUEUED_KEY, NUMBER_KEY, OptunaStudy
from autotune.search.models import Models
from autotune.search.sampler import MEMORY_KEY, AdditiveFlagSampler
from autotune.settings.space import (
    NamedSets,
    Parameter,
    SearchSpace,
    format_condition,
    format_domain,
)
from autotune.study.effects import StudyEffects
from autotune.study.plan import ENOUGH_TO_TELL
from autotune.study.samplers import (
    ADDITIVE,
    RANDOM,
    Points,
    Replay,
    certainty_of,
    make_sampler,
    read_value,
    suggest,
)

ENQUEUED = "enqueued"  # origin of a set that somebody enqueued in the study's Optuna storage
PREDICTED_BEST = "predicted best"  # origin of the last trial: all others expect it to be best
STARTUP_TRIALS = 8  # random trials before a sampler other than `additive` proposes
CHANGES = 2  # settings that a random proposal changes on average
LEAST_CHANCE = 0.02  # a set's chance of a provable gain below which no trial is worth it
FEW_REPEATS = 5  # known sets in a row after which a sampler is stuck, and a random set is drawn
MAX_REPEATS = 1000  # known sets in a row after which the space counts as exhausted
FAILURE_PENALTY = 0.1  # added to the worst log ratio seen, for failed sets


class KnownMemory(NamedTuple):
    """What an A/A run and the screen tell of memory: limits and peaks over the reference's."""

    default_bytes: int
    limit: float
    peaks: Sequence[tuple[FlagSet, float]] = ()
    room: Callable[[FlagSet], float] = lambda _: 1.0


def known_memory(
    spec: StudySpec, space: SearchSpace, aa_run: AaRecord, screened: ScreenReport | None
) -> KnownMemory | None:
    """Returns what is known of memory; None if no bound or no peak is known."""
    peak = aa_run.reference.peak_bytes
    limit = limit_bytes(spec, aa_run, FlagSet())
    if not (peak and limit):
        return None

    def room(settings: FlagSet) -> float:
        return (limit_bytes(spec, aa_run, settings) or limit) / limit

    peaks = list[tuple[FlagSet, float]]()
    for parameter in space.parameters:
        if parameter.name in MEMORY_FRACTIONS:
            shares = [FlagSet({parameter.name: value}) for value in parameter.choices]
            peaks += [(share, 1 / room(share)) for share in shares]
    if screened and (usual := screened.reference.peak_bytes):
        for setting in screened.settings:
            peaks += [
                (FlagSet({setting.name: v.value}), v.peak_bytes / usual)
                for v in setting.values
                if v.peak_bytes
            ]
    return KnownMemory(peak, limit / peak, peaks, room)


class Proposer:
    """Proposes the next set, never a known one: those of `first` before the sampler's.

    Attributes:
        why_none: Why no set was proposed when there was none.
        failing: Minimal failing sets: proposals that contain one are passed over.
        priors: The prior probability of each parameter to act, as far as there is one.
    """

    def __init__(
        self,
        spec: StudySpec,
        space: SearchSpace,
        *,
        first: NamedSets,
        priors: Mapping[str, float] = MappingProxyType({}),
        memory: KnownMemory | None = None,
        provable: float = 0.0,
    ) -> None:
        self._spec = spec
        self._points = Points(space)
        self._gain = max(spec.measure.min_effect, provable)
        self.why_none = ""
        self._first = list(first)
        self.failing: list[FlagSet] = []
        self._seen = {FlagSet()}
        self._worst = 0.0
        self._history: list[FrozenTrial] = []
        self._replay = Replay(lambda number: make_sampler(spec.search, self._seed(number)))
        self.priors = priors
        self._memory = memory
        # Sets that somebody enqueued in the study's storage, with its values of them.
        self._enqueued: dict[FlagSet, Mapping[str, Any]] = {}

    @property
    def space(self) -> SearchSpace:
        """The space that is searched now."""
        return self._points.space

    def begun(self, config: TrialConfig) -> FrozenTrial:
        """Returns a trial that begins, for the study's storage."""
        return self._trial(config.settings, user_attrs=_attributes(config))

    def _trial(
        self, settings: FlagSet, state: TrialState = TrialState.RUNNING, **fields: Any
    ) -> FrozenTrial:
        """Makes Optuna's trial of a set, with its values in the space, and how it was enqueued."""
        params = self._points.located(settings)
        enqueued = {}
        if settings in self._enqueued:
            enqueued[ENQUEUED_KEY] = self._enqueued[settings]
        return optuna.trial.create_trial(
            state=state,
            params=params,
            distributions={n: self._points.distributions[n] for n in params},
            system_attrs=enqueued,
            **fields,
        )

    def tell(self, result: TrialResult) -> FrozenTrial | None:
        """Adds a finished trial and returns it as Optuna's; None if it was ended from outside.

        A failed one is infeasible, as samplers ignore failed trials.
        """
        self._seen.add(result.settings)
        failure = result.failure
        if failure and failure.is_from_outside:
            return None
        value = math.log(result.comparison.estimate.ratio) if result.comparison else 0.0
        self._worst = max(self._worst, value)
        attributes = {**_attributes(result), "status": str(result.status), **certainty_of(result)}
        if failure:
            value = self._worst + FAILURE_PENALTY
            attributes["failure"] = str(failure.kind)
        peak = self._peak_of(result)
        if peak is not None:
            attributes[MEMORY_KEY] = peak
        trial = self._trial(
            result.settings,
            TrialState.COMPLETE,
            value=value,
            user_attrs=attributes,
            constraints={"failure": 1.0 if failure else -1.0},
        )
        trial.number = len(self._history)
        self._history.append(trial)
        return trial

    def _peak_of(self, result: TrialResult) -> float | None:
        """Returns the peak of memory over the reference's, as if at the reference's limit."""
        memory = self._memory
        if memory is None:
            return None
        if result.failure and result.failure.kind is FailureKind.OUT_OF_MEMORY:
            return memory.limit
        if result.worker is None or not result.worker.peak_bytes:
            return None
        return result.worker.peak_bytes / memory.default_bytes / memory.room(result.settings)

    def move_to(
        self, space: SearchSpace, *, priors: Mapping[str, float], first: NamedSets = ()
    ) -> None:
        """Searches another space from now on, after `first`; past trials count in it."""
        self.priors = priors
        self._points = Points(space)
        self._first += first
        for trial in self._history:
            moved = self._trial(FlagSet(trial.user_attrs["settings"]))
            trial.params = moved.params
            trial.distributions = moved.distributions
        self._replay.forget()

    def ask(self, number: int, *, taken: Collection[FlagSet] = ()) -> TrialConfig | None:
        """Returns the set to try as trial `number`, not one of `taken`; None if there is no other.

        Equal numbers after equal histories give equal proposals.
        """
        excluded = self._seen.union(taken)
        candidates = [*self._first]
        for origin, settings in self._first:
            candidates += [(origin, mended) for mended in self._without_failing(settings)]
        for origin, settings in candidates:
            if settings not in excluded:
                return self._config(number, settings, origin)
        self.why_none = "the whole space is tried"
        if all(point in excluded for point in self.space.points()):
            return None
        history = [t for t in self._history if t.user_attrs[NUMBER_KEY] < number]
        if not self._is_gain_likely(number, history):
            self.why_none = (
                f"no gain of {format_share(self._gain)} or more is expected from another set"
            )
            # The best expected set has fewer settings to leave out than tried sets.
            return self.ask_best(number, taken=taken)
        running = [self._trial(s) for s in sorted(excluded - self._seen, key=str)]
        fitted: Models | None = None
        proposals = self._proposals(number, history, running)
        for repeat, (settings, origin) in enumerate(proposals):
            if settings in excluded or contains_failing(settings, self.failing):
                continue
            if origin == RANDOM and self._memory and repeat <= MAX_REPEATS // 2:
                fitted = fitted or self._expecting(0).fit([*history, *running])
                if not fitted.may_fit(self._points.values(settings) or {}):
                    continue
            return self._config(number, settings, origin)
        return None

    def _without_failing(self, settings: FlagSet) -> Iterator[FlagSet]:
        """Yields a set less one setting of each combination in it that is known to fail."""
        for combination in self.failing:
            if contains_failing(settings, [combination]):
                for name in combination:
                    yield from self._without_failing(settings.without(name))
                return
        yield settings

    def _is_gain_likely(self, number: int, history: Sequence[FrozenTrial]) -> bool:
        """Whether another set gains what a proof can show with a chance worth a trial.

        Only the additive sampler can tell, and not before it has as many trials as settings.
        """
        measured = sum("failure" not in t.user_attrs for t in history)
        enough = max(ENOUGH_TO_TELL, len(self._points.parameters))
        if self._spec.search.sampler != ADDITIVE or measured < enough:
            return True
        sampler = self._expecting(self._seed(number))
        return sampler.chance_of_gain(history, least=-math.log1p(-self._gain)) >= LEAST_CHANCE

    def enqueued(self, number: int, values: Mapping[str, Any]) -> TrialConfig:
        """Returns a trial of an enqueued set, else at defaults; SettingError if it is refused."""
        parameters = self._points.parameters
        texts = {n: p.default_choice for n, p in parameters.items()}
        for name in values:
            if name not in parameters:
                raise SettingError(f"{name} is not searched{close_matches(name, parameters)}")
        for name, value in values.items():
            text = read_value(parameters[name], value)
            if text is None:
                domain = format_domain(parameters[name])
                raise SettingError(f"{name} must be one of {domain} but is {value!r}")
            texts[name] = text
        config = self._config(number, self.space.suggest(lambda p: texts[p.name]), ENQUEUED)
        for name in sorted(values.keys() - config.params):
            raise SettingError(f"{name} is searched {format_condition(parameters[name])}")
        if config.settings in self._seen:
            raise SettingError("it is tried already")
        if contains_failing(config.settings, self.failing):
            raise SettingError("a part of it fails")
        self._enqueued[config.settings] = values
        return config

    def ask_best(self, number: int, *, taken: Collection[FlagSet] = ()) -> TrialConfig | None:
        """Returns the best expected set as trial `number`; None if it is known or in `taken`."""
        settings = self._estimates().best_set
        if settings in self._seen.union(taken) or contains_failing(settings, self.failing):
            return None
        return self._config(number, settings, PREDICTED_BEST)

    def _config(self, number: int, settings: FlagSet, origin: str) -> TrialConfig:
        params = self.space.locate(settings) or {}
        return TrialConfig(number=number, settings=settings, origin=origin, params=params)

    def effects(self) -> EffectsRecord | None:
        """Returns estimates from all trials of any sampler; None if none was measured."""
        return self._estimates().record()

    def _estimates(self) -> StudyEffects:
        sampler = self._additive(self._seed("effects"))
        min_effect = self._spec.measure.min_effect
        return StudyEffects(self._points, sampler, self._history, least=min_effect)

    def _proposals(
        self, number: int, history: Sequence[FrozenTrial], running: Sequence[FrozenTrial]
    ) -> Iterator[tuple[FlagSet, str]]:
        """Yields points of the space for trial `number`, known or not, and their origins."""
        name = self._spec.search.sampler
        repeats = range(FEW_REPEATS, MAX_REPEATS)
        if name == ADDITIVE:  # the same trials, the same answer
            sampler = self._expecting(self._seed(number))
            yield self._points.point(sampler.propose([*history, *running])), name
        elif name == RANDOM or len(self._history) < STARTUP_TRIALS:
            repeats = range(MAX_REPEATS)
        else:
            study = self._replay.up_to(history, number)
            study.add_trials(running)
            for _ in range(FEW_REPEATS):
                yield self.space.suggest(functools.partial(suggest, study.ask())), name
        for repeat in repeats:
            # A sampler that repeats itself is stuck near its favourite or the default.
            changes = CHANGES if repeat < FEW_REPEATS else len(self._points.parameters)
            yield self._random(f"{number}/{repeat}", changes), RANDOM

    def _expecting(self, seed: int) -> AdditiveFlagSampler:
        """Returns the additive sampler with published effects; estimates are of trials alone."""
        sampler = self._additive(seed)
        for expected in self.space.expected:
            values = self._points.values(expected.settings)
            if values is not None:
                sampler.expected.append((values, expected.log_ratio, expected.sd))
        return sampler

    def _additive(self, seed: int) -> AdditiveFlagSampler:
        """Returns the additive sampler, which estimates effects for any other one, too."""
        points = self._points
        baseline = self._spec.baseline
        flags = {n: points.flag(n, self.priors.get(n), baseline.get(n)) for n in points.parameters}
        sampler = AdditiveFlagSampler(points.distributions, flags, seed=seed, is_log_ratio=True)
        sampler.known_failing += [v for v in map(points.values, self.failing) if v is not None]
        if self._memory:
            sampler.memory_limit = self._memory.limit
            for settings, peak in self._memory.peaks:
                values = points.values(settings)
                if values is not None:
                    sampler.known_peaks.append((values, peak))
        return sampler

    def _random(self, draw: str, changes: int) -> FlagSet:
        """Returns a random point of few changes, for one bad setting hides what others do."""
        seed = self._seed(draw)
        rng = random.Random(seed)
        trial = optuna.create_study(sampler=RandomSampler(seed)).ask()
        changed = rng.randint(1, 2 * changes - 1) / max(1, len(self._points.parameters))

        def choose(parameter: Parameter) -> str:
            # A study may list values without the default among them.
            if rng.random() >= changed and parameter.default_choice in parameter.choices:
                return parameter.default_choice
            return suggest(trial, parameter)

        return self.space.suggest(choose)

    def _seed(self, draw: object) -> int:
        text = f"{self._spec.seed}/{draw}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def open_study(spec: StudySpec, storage: Path | str) -> OptunaStudy:
    """Opens the study in an Optuna storage; raises StudyFileError if it cannot be opened."""
    return OptunaStudy(storage, f"{spec.name}-{spec.identity}")


def _attributes(trial: TrialConfig) -> Table:
    return {NUMBER_KEY: trial.number, "settings": dict(trial.settings), "origin": trial.origin}
