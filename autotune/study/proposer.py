"""Ask/tell wrapper around an Optuna sampler; recipes and given sets go first.

Samplers learn from the records, and every proposal draws from a sampler seeded by the study's seed
and the trial's number. So a study whose driver was killed, or whose database is gone, proposes
exactly what it would have proposed.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.compiler.screen import ScreenReport
from autotune.measure.failing import contains_failing
from autotune.measure.memory import limit_bytes
from autotune.model.errors import SettingError, close_matches
from autotune.model.flags import MEMORY_FRACTIONS, FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AaRecord, EffectsRecord, TrialConfig, TrialResult
from autotune.model.spec import StudySpec
from autotune.model.units import format_share
from autotune.rundir.optuna_study import ENQUEUED_KEY, NUMBER_KEY, OptunaStudy
from autotune.search.models import Models
from autotune.search.sampler import MEMORY_KEY, AdditiveFlagSampler
from autotune.settings.space import Parameter, SearchSpace, format_condition, format_domain
from autotune.study.effects import StudyEffects
from autotune.study.plan import ENOUGH_TO_TELL
from autotune.study.samplers import (
    ADDITIVE,
    RANDOM,
    Points,
    Replay,
    certainty_of,
    flag_of,
    make_sampler,
    read_value,
    suggest,
)

ENQUEUED = "enqueued"
"""Origin of a set that somebody enqueued in the study's Optuna storage."""

PREDICTED_BEST = "predicted best"
"""Origin of the last trial of a search: the best expected set by all other trials."""

STARTUP_TRIALS = 8
"""Random trials before a sampler other than `additive` proposes."""

CHANGES = 2
"""Settings that a random proposal changes on average."""

LEAST_CHANCE = 0.02
"""Chance of another set to gain what a proof can show below which it is not worth a trial."""

FEW_REPEATS = 5
"""Known sets in a row after which a sampler counts as stuck on its favourite, and a random set is
drawn.
"""

MAX_REPEATS = 1000
"""Known sets in a row after which the space counts as exhausted."""

FAILURE_PENALTY = 0.1
"""Added to the worst log ratio seen, for failed sets: worse than any other, yet on the same
scale.
"""


class KnownMemory(NamedTuple):
    """The reference's peak; over it its limit, and peaks known as if at that limit; `room`: a set's
    limit over it.
    """

    default_bytes: int
    limit: float
    peaks: Sequence[tuple[FlagSet, float]] = ()
    room: Callable[[FlagSet], float] = lambda _: 1.0


def known_memory(
    spec: StudySpec, space: SearchSpace, aa_run: AaRecord | None, screened: ScreenReport | None
) -> KnownMemory | None:
    """Returns what an A/A run and the screen tell of memory; None if no bound or no peak is
    known.
    """
    if (
        aa_run is None
        or not (peak := aa_run.reference.peak_bytes)
        or not (limit := limit_bytes(spec, aa_run, FlagSet()))
    ):
        return None

    def room(settings: FlagSet) -> float:
        return (limit_bytes(spec, aa_run, settings) or limit) / limit

    shares = [
        FlagSet({p.name: v})
        for p in space.parameters
        if p.name in MEMORY_FRACTIONS
        for v in p.choices
    ]
    peaks = [(part, 1 / room(part)) for part in shares]
    if screened is not None and (usual := screened.reference.peak_bytes):
        for setting in screened.settings:
            peaks += [
                (FlagSet({setting.name: v.value}), v.peak_bytes / usual)
                for v in setting.values
                if v.peak_bytes
            ]
    return KnownMemory(peak, limit / peak, peaks, room)


class Proposer:
    """Proposes the next set, never a known one: those of `first` before the sampler's.

    Args:
        provable: The smallest gain (a share) that proofs of the study can show.
    """

    def __init__(
        self,
        spec: StudySpec,
        space: SearchSpace,
        *,
        first: Sequence[tuple[str, FlagSet]],
        priors: Mapping[str, float] | None = None,
        memory: KnownMemory | None = None,
        provable: float = 0.0,
    ) -> None:
        self._spec = spec
        self._points = Points(space)
        self._least = max(spec.measure.min_effect, provable)
        self.why_none = ""
        """Why no set was proposed when there was none."""
        self._first = list(first)
        self.failing: list[FlagSet] = []
        """Minimal failing sets: proposals that contain one are passed over."""
        self._seen = {FlagSet()}
        """Sets that are not proposed: the default, and all that were tried."""
        self._worst = 0.0
        self._history: list[FrozenTrial] = []
        self._replay = Replay(lambda number: make_sampler(spec.search, self._seed(number)))
        self.priors = priors or {}
        """The prior probability of each parameter to act, as far as there is one."""
        self._memory = memory
        self._enqueued: dict[FlagSet, Mapping[str, Any]] = {}
        """Sets that somebody enqueued in the study's storage, with the values by which it names
        them.
        """

    @property
    def space(self) -> SearchSpace:
        """The space that is searched now."""
        return self._points.space

    def begun(self, config: TrialConfig) -> FrozenTrial:
        """Returns a trial that begins, for the study's storage."""
        return self._under_way(config.settings, _attributes(config))

    def _under_way(self, settings: FlagSet, attributes: dict[str, Any]) -> FrozenTrial:
        return optuna.trial.create_trial(
            state=TrialState.RUNNING, user_attrs=attributes, **self._as_optuna(settings)
        )

    def tell(self, result: TrialResult) -> FrozenTrial | None:
        """Adds a finished trial, a failed one as infeasible, for samplers ignore failed trials;
        returns it as Optuna's.

        One that was ended from outside is not tried again, but tells the models nothing.
        """
        self._seen.add(result.settings)
        if result.failure is not None and result.failure.is_from_outside:
            return None
        value = math.log(result.comparison.estimate.ratio) if result.comparison is not None else 0.0
        self._worst = max(self._worst, value)
        attributes = {**_attributes(result), "status": str(result.status), **certainty_of(result)}
        constraint = -1.0
        if result.failure is not None:
            value, constraint = self._worst + FAILURE_PENALTY, 1.0
            attributes["failure"] = str(result.failure.kind)
        if (peak := self._peak_of(result)) is not None:
            attributes[MEMORY_KEY] = peak
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            value=value,
            **self._as_optuna(result.settings),
            user_attrs=attributes,
            constraints={"failure": constraint},
        )
        trial.number = len(self._history)
        self._history.append(trial)
        return trial

    def _peak_of(self, result: TrialResult) -> float | None:
        """Returns the peak of memory over the reference's, as it would be at the reference's
        limit.
        """
        if self._memory is None:
            return None
        if result.failure is not None and result.failure.kind is FailureKind.OUT_OF_MEMORY:
            return self._memory.limit
        peak = result.worker.peak_bytes if result.worker is not None else None
        return (
            peak / self._memory.default_bytes / self._memory.room(result.settings) if peak else None
        )

    def move_to(
        self,
        space: SearchSpace,
        *,
        first: Sequence[tuple[str, FlagSet]],
        priors: Mapping[str, float],
    ) -> None:
        """Searches another space from now on, after the sets of `first`; what was tried counts in
        it.
        """
        self.priors = priors
        self._points = Points(space)
        self._first += first
        for trial in self._history:
            values = self._as_optuna(FlagSet(trial.user_attrs["settings"]))
            trial.params = values["params"]
            trial.distributions = values["distributions"]
        self._replay.forget()

    def ask(self, number: int, *, taken: Collection[FlagSet] = ()) -> TrialConfig | None:
        """Returns the set to try as trial `number`; None if the space is exhausted.

        Equal numbers after equal histories give equal proposals. `taken` are the sets that other
        lanes are trying.
        """
        known = self._seen.union(taken)
        mended = [
            (origin, rest)
            for origin, settings in self._first
            for rest in self._without_failing(settings)
        ]
        for origin, settings in (*self._first, *mended):
            if settings not in known:
                return self._config(number, settings, origin)
        self.why_none = "the whole space is tried"
        if all(point in known for point in self.space.points()):
            return None
        shown = [t for t in self._history if t.user_attrs[NUMBER_KEY] < number]
        if not self._is_gain_likely(number, shown):
            self.why_none = (
                f"no gain of {format_share(self._least)} or more is expected from another set"
            )
            return self.ask_best(
                number, taken=taken
            )  # it has fewer settings to leave out than tried sets
        others = [self._under_way(s, {}) for s in sorted(known - self._seen, key=str)]
        fitted: Models | None = None
        for repeat, (settings, origin) in enumerate(self._proposals(number, shown, others)):
            if settings in known or contains_failing(settings, self.failing):
                continue
            if origin == RANDOM and self._memory is not None and repeat <= MAX_REPEATS // 2:
                fitted = fitted or self._expecting(0).fit([*shown, *others])
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

    def _is_gain_likely(self, number: int, shown: Sequence[FrozenTrial]) -> bool:
        """Whether another set gains what a proof can show with a chance worth a trial; only the own
        sampler can tell.

        With fewer trials than settings it cannot, either: it would go by what it expects of most
        settings.
        """
        measured = sum("failure" not in t.user_attrs for t in shown)
        if self._spec.search.sampler != ADDITIVE or measured < max(
            ENOUGH_TO_TELL, len(self._points.parameters)
        ):
            return True
        chance = self._expecting(self._seed(number)).chance_of_gain(
            shown, least=-math.log1p(-self._least)
        )
        return chance >= LEAST_CHANCE

    def enqueued(self, number: int, values: Mapping[str, Any]) -> TrialConfig:
        """Returns a trial of a set that somebody enqueued in the storage; SettingError if it is not
        to be tried.

        Args:
            values: Of the set's settings; others have their defaults.
        """
        parameters = self._points.parameters
        if unknown := [n for n in values if n not in parameters]:
            raise SettingError(
                f"{unknown[0]} is not searched{close_matches(unknown[0], parameters)}"
            )
        texts = {n: p.default_choice for n, p in parameters.items()}
        for name, value in values.items():
            text = read_value(parameters[name], value)
            if text is None:
                raise SettingError(
                    f"{name} must be one of {format_domain(parameters[name])} but is {value!r}"
                )
            texts[name] = text
        settings = self.space.suggest(lambda p: texts[p.name])
        if idle := sorted(values.keys() - (self.space.locate(settings) or {})):
            raise SettingError(f"{idle[0]} is searched {format_condition(parameters[idle[0]])}")
        if settings in self._seen:
            raise SettingError("it is tried already")
        if contains_failing(settings, self.failing):
            raise SettingError("a part of it fails")
        self._enqueued[settings] = values
        return self._config(number, settings, ENQUEUED)

    def ask_best(self, number: int, *, taken: Collection[FlagSet] = ()) -> TrialConfig | None:
        """Returns the best expected set as trial `number`; None if it is known or in `taken`."""
        settings = self._estimates().best
        if settings in self._seen or settings in taken or contains_failing(settings, self.failing):
            return None
        return self._config(number, settings, PREDICTED_BEST)

    def _config(self, number: int, settings: FlagSet, origin: str) -> TrialConfig:
        params = self.space.locate(settings) or {}
        return TrialConfig(number=number, settings=settings, origin=origin, params=params)

    def effects(self) -> EffectsRecord | None:
        """Returns estimates from all trials, whichever sampler proposed them; None if none was
        measured.
        """
        estimates = self._estimates()
        return estimates.record() if estimates.measured else None

    def _estimates(self) -> StudyEffects:
        sampler = self._additive(self._seed("effects"))
        return StudyEffects(
            self._points, sampler, self._history, least=self._spec.measure.min_effect
        )

    def _proposals(
        self, number: int, shown: Sequence[FrozenTrial], others: Sequence[FrozenTrial]
    ) -> Iterator[tuple[FlagSet, str]]:
        """Yields points of the space for trial `number`, known or not, and their origins.

        Args:
            shown: Trials of which the sampler knows.
            others: Trials that are running.
        """
        name = self._spec.search.sampler
        if name == RANDOM or (name != ADDITIVE and len(self._history) < STARTUP_TRIALS):
            for repeat in range(FEW_REPEATS):
                yield self._random(self._seed(f"{number}/{repeat}"), changes=CHANGES), RANDOM
        elif name == ADDITIVE:  # the same trials, the same answer
            yield (
                self._points.point(self._expecting(self._seed(number)).propose([*shown, *others])),
                name,
            )
        else:
            study = self._replay.up_to(shown, number)
            study.add_trials(others)
            for _ in range(FEW_REPEATS):
                yield self.space.suggest(functools.partial(suggest, study.ask())), name
        # A sampler that repeats itself is stuck near its favourite or the default: draw from the
        # whole space.
        for repeat in range(FEW_REPEATS, MAX_REPEATS):
            yield (
                self._random(
                    self._seed(f"{number}/{repeat}"), changes=len(self._points.parameters)
                ),
                RANDOM,
            )

    def _expecting(self, seed: int) -> AdditiveFlagSampler:
        """Returns the additive sampler that knows what others published; estimates are of the
        trials alone.
        """
        sampler = self._additive(seed)
        for expected in self.space.expected:
            values = self._points.values(expected.settings)
            if values is not None:
                sampler.expected.append((values, expected.log_ratio, expected.sd))
        return sampler

    def _additive(self, seed: int) -> AdditiveFlagSampler:
        """Returns the additive sampler, whose model also estimates effects for any other
        sampler.
        """
        points = self._points
        flags = {
            n: flag_of(p, self.priors.get(n), self._spec.baseline.get(n), among=points.parameters)
            for n, p in points.parameters.items()
        }
        sampler = AdditiveFlagSampler(points.distributions, flags, seed=seed, is_log_ratio=True)
        sampler.known_failing += [v for v in map(points.values, self.failing) if v is not None]
        if self._memory is not None:
            sampler.memory_limit = self._memory.limit
            peaks = [(points.values(part), peak) for part, peak in self._memory.peaks]
            sampler.known_peaks += [(v, peak) for v, peak in peaks if v is not None]
        return sampler

    def _random(self, seed: int, *, changes: int) -> FlagSet:
        """Returns a random point with about `changes` settings changed from the default.

        Most settings do nothing or harm: a uniform point changes two thirds of them, and one bad
        setting hides the others. OpenTuner's and GroupTuner's flag tuners start from the default
        for the same reason.
        """
        rng = random.Random(seed)
        trial = optuna.create_study(sampler=RandomSampler(seed)).ask()
        changed = rng.randint(1, 2 * changes - 1) / max(1, len(self._points.parameters))

        def choose(parameter: Parameter) -> str:
            # A study may list values without the default among them.
            if rng.random() >= changed and parameter.default_choice in parameter.choices:
                return parameter.default_choice
            return suggest(trial, parameter)

        return self.space.suggest(choose)

    def _seed(self, what: object) -> int:
        """Returns the seed of one of the study's draws."""
        text = f"{self._spec.seed}/{what}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def _as_optuna(self, settings: FlagSet) -> dict[str, Any]:
        """Returns what makes a trial of Optuna of a set: values that are in the space, and how it
        was enqueued.
        """
        params = self._points.located(settings)
        return {
            "params": params,
            "distributions": {n: self._points.distributions[n] for n in params},
            "system_attrs": {ENQUEUED_KEY: self._enqueued[settings]}
            if settings in self._enqueued
            else {},
        }


def open_study(spec: StudySpec, storage: Path | str) -> OptunaStudy:
    """Opens the study in an Optuna storage; raises StudyFileError if it cannot be opened."""
    return OptunaStudy(storage, f"{spec.name}-{spec.identity}")


def _attributes(trial: TrialConfig | TrialResult) -> dict[str, Any]:
    return {NUMBER_KEY: trial.number, "settings": dict(trial.settings), "origin": trial.origin}
