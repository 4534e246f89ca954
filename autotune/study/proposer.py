"""Ask/tell wrapper around an Optuna sampler; recipes and given sets go first.

Samplers learn from the records, and every proposal draws from a sampler seeded by the study's seed and the trial's
number. So a study whose driver was killed, or whose database is gone, proposes exactly what it would have proposed.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from autotune.search.sampler import MEMORY_KEY, AdditiveFlagSampler
from autotune.settings.space import Parameter, SearchSpace, format_condition, format_domain
from autotune.study.effects import StudyEffects
from autotune.study.plan import ENOUGH_TO_TELL
from autotune.study.samplers import (
    ADDITIVE,
    RANDOM,
    Replay,
    certainty_of,
    distribution_of,
    flag_of,
    from_text,
    make_sampler,
    read_value,
    suggest,
)  # fmt: skip
from autotune.study.screen import NO_OPS_TOGETHER, NoOpRecheck, contradicts

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
"""Known sets in a row after which a sampler counts as stuck on its favourite, and a random set is drawn."""

MAX_REPEATS = 1000
"""Known sets in a row after which the space counts as exhausted."""

FAILURE_PENALTY = 0.1
"""Added to the worst log ratio seen, for failed sets: worse than any other, yet on the same scale."""


class KnownMemory(NamedTuple):
    """The reference's peak; over it its limit, and peaks known as if at that limit; `room`: a set's limit over it."""

    default_bytes: int
    limit: float
    peaks: Sequence[tuple[FlagSet, float]] = ()
    room: Callable[[FlagSet], float] = lambda _: 1.0


def known_memory(
    spec: StudySpec, space: SearchSpace, aa_run: AaRecord | None, screened: ScreenReport | None
) -> KnownMemory | None:
    """Returns what an A/A run and the screen tell of memory; None if no bound or no peak is known."""
    if aa_run is None or not (peak := aa_run.reference.peak_bytes) or not (limit := limit_bytes(spec, aa_run)):
        return None

    def room(settings: FlagSet) -> float:
        return (limit_bytes(spec, aa_run, settings) or limit) / limit

    shares = [FlagSet({p.name: v}) for p in space.parameters if p.name in MEMORY_FRACTIONS for v in p.choices]
    peaks = [(part, 1 / room(part)) for part in shares]
    if screened is not None and (usual := screened.reference.peak_bytes):
        values = [(FlagSet({s.name: v.value}), v.peak_bytes) for s in screened.settings for v in s.values]
        peaks += [(part, own / usual) for part, own in values if own]
    return KnownMemory(peak, limit / peak, peaks, room)


class Proposer:
    """Proposes the next set, never a known one: those of `first` and of `recheck` before the sampler's.

    Args:
        provable: The smallest gain (a share) that proofs of the study can show.
    """

    def __init__(
        self,
        spec: StudySpec,
        space: SearchSpace,
        *,
        first: Sequence[tuple[str, FlagSet]],
        stored: OptunaStudy | None = None,
        recheck: NoOpRecheck | None = None,
        priors: Mapping[str, float] | None = None,
        memory: KnownMemory | None = None,
        provable: float = 0.0,
    ) -> None:
        self._spec = spec
        self._space = space
        self._recheck = recheck
        self._min_effect = spec.measure.min_effect
        self._least = max(self._min_effect, provable)
        self.why_none = ""
        """Why no set was proposed when there was none."""
        self._notes: list[str] = []
        self._first = [*first, *self._rechecks]
        self.failing: list[FlagSet] = []
        """Minimal failing sets: proposals that contain one are passed over."""
        self._seen = {FlagSet()}
        self._worst = 0.0
        self._history: list[FrozenTrial] = []
        self._replay = Replay(lambda number: make_sampler(spec.search, _seed(f"{spec.seed}/{number}")))
        self._priors = priors or {}
        self._memory = memory
        self._stored = stored
        self._enqueued: dict[FlagSet, dict[str, Any]] = {}
        """Sets that somebody enqueued in the study's storage, with the values by which it names them."""

    @property
    def _rechecks(self) -> list[tuple[str, FlagSet]]:
        """The sets of all no-ops of the screen."""
        no_ops = self._recheck.sets if self._recheck is not None else ()
        return [(NO_OPS_TOGETHER, s) for s in no_ops]

    def begin(self, config: TrialConfig) -> None:
        """Opens a trial in the study's storage."""
        if self._stored is not None:
            self._stored.put(self._under_way(config.settings, _attributes(config)))

    def _under_way(self, settings: FlagSet, attributes: dict[str, Any]) -> FrozenTrial:
        return optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs=attributes, **self._as_optuna(settings))

    def tell(self, result: TrialResult) -> None:
        """Adds a finished trial; a failed one as infeasible, for samplers ignore failed trials.

        One that was ended from outside is not tried again, but tells the models nothing.
        """
        self._seen.add(result.settings)
        if self._recheck is not None and contradicts([result], min_effect=self._min_effect):
            self._widen(self._recheck.whole)
        if result.failure is not None and result.failure.is_from_outside:
            return
        feasible = result.failure is None
        value = math.log(result.comparison.estimate.ratio) if result.comparison is not None else 0.0
        self._worst = max(self._worst, value)
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            value=value if feasible else self._worst + FAILURE_PENALTY,
            **self._as_optuna(result.settings),
            user_attrs={
                **_attributes(result),
                "status": str(result.status),
                **({"failure": str(result.failure.kind)} if result.failure else {}),
                **certainty_of(result),
                **self._memory_of(result),
            },
            constraints={"failure": -1.0 if feasible else 1.0},
        )
        trial.number = len(self._history)
        self._history.append(trial)
        if self._stored is not None:
            self._stored.put(trial)

    def _memory_of(self, result: TrialResult) -> dict[str, float]:
        if self._memory is None:
            return {}
        if result.failure is not None and result.failure.kind is FailureKind.OUT_OF_MEMORY:
            return {MEMORY_KEY: self._memory.limit}
        peak = result.worker.peak_bytes if result.worker is not None else None
        return {MEMORY_KEY: peak / self._memory.default_bytes / self._memory.room(result.settings)} if peak else {}

    def finish(self) -> None:
        """Brings the study's storage up to date, if it has one."""
        if self._stored is not None:
            self._stored.finish()

    def news(self) -> list[str]:
        """Returns notes for the user since the last call."""
        notes, self._notes = self._notes, []
        return notes + (self._stored.news() if self._stored is not None else [])

    def _widen(self, whole: SearchSpace) -> None:
        more = len(whole.parameters) - len(self._space.parameters)
        self._notes.append(f"no-ops of the screen are active on this GPU: {more} settings are searched after all")
        self.move_to(whole, recheck=None, priors=self._priors)

    def move_to(self, space: SearchSpace, *, recheck: NoOpRecheck | None, priors: Mapping[str, float]) -> None:
        """Searches another space from now on; what was tried counts in it."""
        self._recheck = recheck
        self._priors = priors
        self._space = space
        self._first += self._rechecks
        for trial in self._history:
            values = self._as_optuna(FlagSet(trial.user_attrs["settings"]))
            trial.params, trial.distributions = values["params"], values["distributions"]
        self._replay.forget()

    def ask(self, number: int, *, taken: Iterable[FlagSet] = ()) -> TrialConfig | None:
        """Returns the set to try as trial `number`; None if the space is exhausted.

        Equal numbers after equal histories give equal proposals. `taken` are the sets that other lanes are trying.
        """
        now_tried = {s for s in taken if s not in self._seen}
        mended = [(origin, rest) for origin, settings in self._first for rest in self._without_failing(settings)]
        for origin, settings in (*self._first, *mended):
            if settings not in self._seen and settings not in now_tried:
                return self._config(number, settings, origin)
        self.why_none = "the whole space is tried"
        if all(point in self._seen or point in now_tried for point in self._space.points()):
            return None
        shown = [t for t in self._history if t.user_attrs[NUMBER_KEY] < number]
        if not self._is_gain_likely(number, shown):
            self.why_none = f"no gain of {format_share(self._least)} or more is expected from another set"
            return self.ask_best(number, taken=now_tried)  # it has fewer settings to leave out than tried sets
        others = [self._under_way(s, {}) for s in sorted(now_tried, key=str)]
        answer = self._answers(number, shown, others)
        fitted = functools.cache(lambda: self._expecting(0).fit([*shown, *others]))
        for repeat in range(MAX_REPEATS):
            settings, origin = self._propose(number, repeat, answer)
            is_known = settings in self._seen or settings in now_tried
            is_bound = origin == RANDOM and self._memory is not None and repeat <= MAX_REPEATS // 2
            if is_known or (is_bound and not fitted().may_fit(self._values_of(settings) or {})):
                continue
            if not contains_failing(settings, self.failing):
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
        """Whether another set gains what a proof can show with a chance worth a trial; only the own sampler can tell.

        With fewer trials than settings it cannot, either: it would go by what it expects of most settings.
        """
        measured = sum("failure" not in t.user_attrs for t in shown)
        if self._spec.search.sampler != ADDITIVE or measured < max(ENOUGH_TO_TELL, len(self._space.parameters)):
            return True
        sampler = self._expecting(_seed(f"{self._spec.seed}/{number}"))
        return sampler.chance_of_gain(shown, least=-math.log1p(-self._least)) >= LEAST_CHANCE

    def ask_enqueued(self, number: int, *, taken: Iterable[FlagSet] = ()) -> TrialConfig | None:
        """Returns the first set that somebody enqueued in the study's storage; those that cannot be run are refused."""
        for trial in self._stored.enqueued() if self._stored is not None else ():
            values = trial.system_attrs[ENQUEUED_KEY]
            try:
                settings = self._named_by(values)
            except SettingError as error:
                if trial.state is TrialState.WAITING and self._stored is not None:
                    self._notes.append(f"the enqueued trial {trial.number} ({values}) is not run: {error}")
                    self._stored.refuse(trial)
                continue
            if settings not in taken:
                self._enqueued[settings] = values
                return self._config(number, settings, ENQUEUED)
        return None

    def _named_by(self, values: Mapping[str, Any]) -> FlagSet:
        """Returns the set with these values and defaults; SettingError if it is not to be tried."""
        parameters = {p.name: p for p in self._space.parameters}
        if unknown := [n for n in values if n not in parameters]:
            raise SettingError(f"{unknown[0]} is not searched{close_matches(unknown[0], parameters)}")

        def choose(parameter: Parameter) -> str:
            if parameter.name not in values:
                return parameter.default_choice
            value = read_value(parameter, values[parameter.name])
            if value is None:
                got = values[parameter.name]
                raise SettingError(f"{parameter.name} must be one of {format_domain(parameter)} but is {got!r}")
            return value

        settings = self._space.suggest(choose)
        if idle := values.keys() - (self._space.locate(settings) or {}):
            raise SettingError(" and ".join(f"{n} is searched {format_condition(parameters[n])}" for n in sorted(idle)))
        if settings in self._seen:
            raise SettingError("it is tried already")
        if contains_failing(settings, self.failing):
            raise SettingError("a part of it fails")
        return settings

    def ask_best(self, number: int, *, taken: Iterable[FlagSet] = ()) -> TrialConfig | None:
        """Returns the best expected set as trial `number`; None if it is known or in `taken`."""
        settings = self._estimates().best
        if settings in self._seen or settings in taken or contains_failing(settings, self.failing):
            return None
        return self._config(number, settings, PREDICTED_BEST)

    def _config(self, number: int, settings: FlagSet, origin: str) -> TrialConfig:
        params = self._space.locate(settings) or {}
        return TrialConfig(number=number, settings=settings, origin=origin, params=params)

    def effects(self) -> EffectsRecord | None:
        """Returns estimates from all trials, whichever sampler proposed them; None if none was measured."""
        found = self._estimates()
        return found.record() if found.measured else None

    def _estimates(self) -> StudyEffects:
        sampler = self._additive(_seed(f"{self._spec.seed}/effects"))
        return StudyEffects(self._space, sampler, self._history, least=self._min_effect)

    def _propose(self, number: int, repeat: int, answer: Callable[[], FlagSet]) -> tuple[FlagSet, str]:
        """Returns one point of the space, known or not, and its origin."""
        seed, name = _seed(f"{self._spec.seed}/{number}/{repeat}"), self._spec.search.sampler
        # A sampler that repeats itself is stuck near its favourite or the default: draw from the whole space.
        if repeat >= FEW_REPEATS:
            return self._random(seed, changes=len(self._space.parameters)), RANDOM
        if name == RANDOM or (name != ADDITIVE and len(self._history) < STARTUP_TRIALS):
            return self._random(seed, changes=CHANGES), RANDOM
        return answer(), name

    def _answers(
        self, number: int, shown: Sequence[FrozenTrial], others: Sequence[FrozenTrial]
    ) -> Callable[[], FlagSet]:
        """Returns what asks the sampler for trial `number`, after the trials `shown` and while the `others` run."""
        if self._spec.search.sampler == ADDITIVE:  # the same trials, the same answer
            sampler = self._expecting(_seed(f"{self._spec.seed}/{number}"))
            return functools.cache(lambda: self._point(sampler.propose([*shown, *others])))

        @functools.cache
        def study() -> optuna.Study:
            made = self._replay.up_to(shown, number)
            made.add_trials(others)
            return made

        return lambda: self._space.suggest(functools.partial(suggest, study().ask()))

    def _point(self, values: Mapping[str, Any]) -> FlagSet:
        """Returns the set with Optuna's values."""
        return self._space.suggest(lambda p: str(values[p.name]))

    def _expecting(self, seed: int) -> AdditiveFlagSampler:
        """Returns the additive sampler that knows what others published; estimates are of the trials alone."""
        sampler = self._additive(seed)
        for expected in self._space.expected:
            values = self._values_of(expected.settings)
            if values is not None:
                sampler.expected.append((values, expected.log_ratio, expected.sd))
        return sampler

    def _additive(self, seed: int) -> AdditiveFlagSampler:
        """Returns the additive sampler, whose model also estimates effects for any other sampler."""
        parameters = {p.name: p for p in self._space.parameters}
        flags = {
            n: flag_of(p, self._priors.get(n), self._spec.baseline.get(n), among=parameters)
            for n, p in parameters.items()
        }
        space = {n: distribution_of(p) for n, p in parameters.items()}
        sampler = AdditiveFlagSampler(space, flags, seed=seed, is_log_ratio=True)
        sampler.known_failing += [v for part in self.failing if (v := self._values_of(part)) is not None]
        if self._memory is not None:
            sampler.memory_limit = self._memory.limit
            peaks = [(self._values_of(part), peak) for part, peak in self._memory.peaks]
            sampler.known_peaks += [(v, peak) for v, peak in peaks if v is not None]
        return sampler

    def _values_of(self, part: FlagSet) -> dict[str, Any] | None:
        """Returns Optuna's values of settings; None if the space has not all of them."""
        parameters = {p.name: p for p in self._space.parameters if p.name in part}
        texts = {n: p.match(part[n]) for n, p in parameters.items()}
        values = {n: from_text(parameters[n], text) for n, text in texts.items() if text is not None}
        return values if len(values) == len(part) else None

    def _random(self, seed: int, *, changes: int) -> FlagSet:
        """Returns a random point with about `changes` settings changed from the default.

        Most settings do nothing or harm: a uniform point changes two thirds of them, and one bad setting hides the
        others. OpenTuner's and GroupTuner's flag tuners start from the default for the same reason.
        """
        rng, trial = random.Random(seed), optuna.create_study(sampler=RandomSampler(seed)).ask()
        changed = rng.randint(1, 2 * changes - 1) / max(1, len(self._space.parameters))

        def choose(parameter: Parameter) -> str:
            # A study may list values without the default among them.
            if rng.random() >= changed and parameter.default_choice in parameter.choices:
                return parameter.default_choice
            return suggest(trial, parameter)

        return self._space.suggest(choose)

    def _as_optuna(self, settings: FlagSet) -> dict[str, Any]:
        """Returns what makes a trial of Optuna of a set: values that are in the space, and how it was enqueued."""
        located = self._space.locate(settings) or {}
        kept = [p for p in self._space.parameters if p.name in located and located[p.name] in p.choices]
        return {
            "params": {p.name: from_text(p, located[p.name]) for p in kept},
            "distributions": {p.name: distribution_of(p) for p in kept},
            "system_attrs": {ENQUEUED_KEY: self._enqueued[settings]} if settings in self._enqueued else {},
        }


def open_study(spec: StudySpec, storage: Path | str) -> OptunaStudy:
    """Opens the study in an Optuna storage; raises StudyFileError if it cannot be opened."""
    return OptunaStudy(storage, f"{spec.name}-{spec.identity}")


def _attributes(trial: TrialConfig | TrialResult) -> dict[str, Any]:
    return {NUMBER_KEY: trial.number, "settings": dict(trial.settings), "origin": trial.origin}


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
