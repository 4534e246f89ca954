"""Who proposes: Optuna, asked and told one trial at a time; recipes and the caller's own settings go first.

The run directory is the truth, the Optuna study its shadow: it is filled from the records at every start, so a
study whose driver was killed proposes exactly what it would have proposed. Every proposal draws from a sampler seeded
by the study's seed and the trial's number, not by what happened before in this process.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import math
import random
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import optuna
from optuna.trial import TrialState

from autotune.model import FlagSet, Objective, StudySpec, TrialConfig, TrialResult, WorkerReport, trial_log_ratio
from autotune.rundir import NUMBER_KEY, Mirror
from autotune.settings import Parameter, SearchSpace
from autotune.study.culprit import walks_into
from autotune.study.doubt import DEAD_TOGETHER, Doubt, contradicts

EMPTY: Mapping[str, str] = MappingProxyType({})

CHANGES = 2
"""Settings that a random proposal changes on average."""

FEW_REPEATS = 5
"""Proposals of sets already known after which TPE counts as stuck on its favourite, and any set is drawn."""

MAX_REPEATS = 1000
"""Proposals of sets already known that are passed over before the space counts as tried out."""

FAILURE_PENALTY = 0.1
"""Added to the worst log ratios seen, for sets that have none: worse than anything, yet on the same scale."""

BEST, NEWEST = 25, 100
"""Trials that TPE is shown of a longer study: the best, and the newest of the rest.

It fits all that it is shown anew at each question; whole, that was four fifths of a long study's processor time
(`benchmarks/rereading.py`), for trials that it weighs the less the older they are. A tenth of them counts as good.
"""


class Proposer:
    """Proposes the next set, never one that is known.

    Args:
        spec: The study.
        space: What may be searched.
        first: Sets to try before the sampler proposes, each with the name of who suggests it.
        storage: URL of an Optuna storage that mirrors the study, or None to keep it in memory.
        reference: What the reference said of itself; needed for a study by several objectives.
        doubt: What is tried, after the first sets, because the screen may be wrong on the GPU that runs.
        rule_defaults: What the build has for settings that the study's rules name.

    Raises:
        StudyFileError: If the storage cannot be opened.
    """

    def __init__(
        self,
        spec: StudySpec,
        space: SearchSpace,
        *,
        first: Sequence[tuple[str, FlagSet]],
        storage: str | None,
        reference: WorkerReport | None = None,
        doubt: Doubt | None = None,
        rule_defaults: Mapping[str, str] = EMPTY,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec = spec
        self._space = space
        self._doubt = doubt
        self._sesoi = spec.measure.smallest_effect
        self._rule_defaults = rule_defaults
        self._notes: list[str] = []
        doubted = doubt.sets if doubt else ()
        self._first = [*first, *((DEAD_TOGETHER, s) for s in doubted if self._is_allowed(s))]
        self.bad: list[FlagSet] = []
        """Combinations that are known to crash or hang: the sampler's proposals that hold one are passed over."""
        self._reference = reference
        self._objectives = spec.search.objectives
        # Every set that is known, and how many of them are points of the space; the default is known from the start.
        self._seen: set[FlagSet] = set()
        self._points_seen = 0
        self._size = space.size()
        self._see(FlagSet())
        self._worst = [0.0 for _ in self._objectives]
        self._told = 0
        self._memory = optuna.storages.InMemoryStorage() if len(self._objectives) > 1 else _ShortMemory()
        self._study = optuna.create_study(
            study_name=spec.name, storage=self._memory, directions=["minimize" for _ in self._objectives]
        )
        self._mirror = open_mirror(spec, storage) if storage else None

    def tell(self, result: TrialResult) -> None:
        """Adds a finished trial, once; a set without a number is told as infeasible, not as failed.

        Samplers do not see failed trials: told as FAIL, a toy study spent 83 % of its trials where everything failed.
        """
        self._see(result.settings)
        if self._doubt is not None and contradicts([result], sesoi=self._sesoi):
            self._widen(self._doubt.whole)
        found = [self._log_ratio(objective, result) for objective in self._objectives]
        self._worst = [max(w, v) if v is not None else w for w, v in zip(self._worst, found, strict=True)]
        params, distributions = self._as_optuna(result.params)
        feasible = result.failure is None
        # A figure that is missing although the set runs, such as energy while a counter failed, promises nothing.
        values = [w if v is None else v for w, v in zip(self._worst, found, strict=True)]
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            values=values if feasible else [w + FAILURE_PENALTY for w in self._worst],
            params=params,
            distributions=distributions,
            user_attrs={
                NUMBER_KEY: result.number,
                "settings": dict(result.settings),
                "status": str(result.status),
                "origin": result.origin,
                **({"failure": str(result.failure.kind)} if result.failure else {}),
            },
            constraints={"failure": -1.0 if feasible else 1.0},
        )
        self._study.add_trial(trial)
        self._told += 1
        if self._mirror is not None:
            self._mirror.add(result.number, trial)

    def _log_ratio(self, objective: Objective, result: TrialResult) -> float | None:
        if objective is not Objective.STEP_TIME:
            assert self._reference is not None
            return trial_log_ratio(objective, result, self._reference)
        if (told := result.prediction or (result.comparison.estimate if result.comparison else None)) is not None:
            return math.log(told.ratio)
        return 0.0 if result.failure is None else None  # the reference's own program

    def finish(self) -> None:
        """Brings the mirror up to date, if it can be."""
        if self._mirror is not None:
            self._mirror.finish()

    def news(self) -> list[str]:
        """What the user should know of the mirror since the last call."""
        notes, self._notes = self._notes, []
        return notes + (self._mirror.news() if self._mirror is not None else [])

    def _widen(self, whole: SearchSpace) -> None:
        """From now on proposes points of a larger space."""
        more = len(whole.parameters) - len(self._space.parameters)
        self._notes.append(f"what the screen called dead is not on this GPU: {more} settings are searched after all")
        self._doubt, self._space, self._size = None, whole, whole.size()
        self._points_seen = sum(map(self._is_point, self._seen))

    def _see(self, settings: FlagSet) -> None:
        if settings not in self._seen:
            self._seen.add(settings)
            self._points_seen += self._is_point(settings)

    def ask(self, number: int, *, taken: Iterable[FlagSet] = ()) -> TrialConfig | None:
        """The set to try as trial `number`, or None if everything that can be proposed is known.

        Args:
            number: Of the trial; equal numbers after equal histories give equal proposals.
            taken: Sets that other lanes are trying now.
        """
        now_tried = {s for s in taken if s not in self._seen}
        for origin, settings in self._first:
            if settings not in self._seen and settings not in now_tried:
                return TrialConfig(
                    number=number, settings=settings, origin=origin, params=self._space.locate(settings) or {}
                )
        if self._size <= self._points_seen + sum(map(self._is_point, now_tried)):
            return None
        tpe = functools.cache(lambda: self._tpe(number))
        for repeat in range(MAX_REPEATS):
            settings, origin = self._propose(number, repeat, tpe)
            if settings in self._seen or settings in now_tried:
                continue
            if self._is_allowed(settings) and not walks_into(settings, self.bad):
                params = self._space.locate(settings) or {}
                return TrialConfig(number=number, settings=settings, origin=origin, params=params)
        return None

    def may_hold(self, part: FlagSet) -> bool:
        """Whether a set that is tried may hold a combination: a point of the space, or one of the first sets."""
        values = {p.name: p for p in self._space.parameters}
        is_of_space = all(n in values and values[n].match(v) is not None for n, v in part.items())
        return is_of_space or any(walks_into(settings, [part]) for _, settings in self._first)

    def _is_allowed(self, settings: FlagSet) -> bool:
        """Whether a set keeps the study's own rules."""
        return self._spec.broken_rule(settings, self._rule_defaults) is None

    def _is_point(self, settings: FlagSet) -> bool:
        """Whether a set can be proposed: the default cannot where a study lists values without it."""
        located = self._space.locate(settings)
        parameters = self._space.parameters
        return located is not None and all(p.holds(located[p.name]) for p in parameters if p.name in located)

    def _propose(self, number: int, repeat: int, tpe: Callable[[], _Tpe]) -> tuple[FlagSet, str]:
        """One point of the space, known or not, and who proposes it."""
        seed = _seed(f"{self._spec.seed}/{number}/{repeat}")
        # After a few repeats TPE is stuck on its favourite, as is the neighbourhood of the default: look everywhere.
        if repeat >= FEW_REPEATS:
            return self._random(random.Random(seed), changes=len(self._space.parameters)), "random"
        if self._spec.search.sampler == "random" or self._told < self._spec.search.startup_trials:
            return self._random(random.Random(seed), changes=CHANGES), "random"
        return self._space.suggest(tpe().point()), "tpe"

    def _tpe(self, number: int) -> _Tpe:
        """TPE as the trials told so far have taught it."""
        # A study keeps what it has read for its samplers: a new one sees what was told since.
        study = optuna.load_study(study_name=self._spec.name, storage=self._memory)
        return _Tpe(study, _seed(f"{self._spec.seed}/{number}"))

    def _random(self, rng: random.Random, *, changes: int) -> FlagSet:
        """A random point with about so many settings changed from the default.

        Most settings do nothing or harm: a point drawn uniformly changes two thirds of them, and one that is bad hides
        the others. OpenTuner's and GroupTuner's flag tuners start from the default for the same reason.
        """
        changed = rng.randint(1, 2 * changes - 1) / max(1, len(self._space.parameters))

        def choose(parameter: Parameter) -> str:
            # A study may list values without the default among them.
            if rng.random() >= changed and parameter.holds(parameter.default_choice):
                return parameter.default_choice
            return _random_value(parameter, rng)

        return self._space.suggest(choose)

    def _as_optuna(self, params: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters of one trial as Optuna keeps them; those that left the space are dropped."""
        values: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        for parameter in self._space.parameters:
            if parameter.name in params and parameter.holds(params[parameter.name]):
                distribution = _distribution(parameter)
                internal = _from_text(parameter, params[parameter.name])
                if distribution._contains(distribution.to_internal_repr(internal)):
                    values[parameter.name] = internal
                    distributions[parameter.name] = distribution
        return values, distributions


def open_mirror(spec: StudySpec, storage: str) -> Mirror:
    """The copy of a study in an Optuna storage.

    Raises:
        StudyFileError: If the storage cannot be opened.
    """
    return Mirror(storage, f"{spec.name}-{spec.identity}", objectives=len(spec.search.objectives))


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


class _ShortMemory(optuna.storages.InMemoryStorage):
    """Shows of a long study by one objective the `BEST` trials and the `NEWEST` of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._ranked: list[tuple[bool, float, int]] = []

    def create_new_trial(self, study_id: int, template_trial: optuna.trial.FrozenTrial | None = None) -> int:
        """See `optuna.storages.BaseStorage`; only finished trials are added."""
        assert template_trial is not None
        assert template_trial.value is not None
        rank = (template_trial.constraints["failure"] > 0, template_trial.value, len(self._ranked))
        bisect.insort(self._ranked, rank)
        return super().create_new_trial(study_id, template_trial)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[optuna.trial.FrozenTrial]:
        """See `optuna.storages.BaseStorage`."""
        trials = super().get_all_trials(study_id, deepcopy, states)
        if len(trials) <= BEST + NEWEST:
            return trials
        best = {number for _, _, number in self._ranked[:BEST]}
        # Of the newest BEST + NEWEST at most BEST are among the best.
        rest = [number for number in range(len(trials) - BEST - NEWEST, len(trials)) if number not in best]
        return [trials[number] for number in sorted(best.union(rest[-NEWEST:]))]


class _Tpe:
    """TPE at one trial: as many points as are asked for, drawn from one seed.

    The sampler is asked as `Study.ask` does it, but no trial is opened: a study that holds thousands of questions
    beside its trials is slow to look through.

    Args:
        study: Opened since it was last told, for a study keeps what it has read for its samplers.
        seed: Of the draws.
    """

    def __init__(self, study: optuna.Study, seed: int) -> None:
        self._study = study
        self._trial = optuna.trial.create_trial(state=TrialState.RUNNING)
        with warnings.catch_warnings():
            # `group` (densities of their own for conditional settings) is marked experimental.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Every option that matters is pinned, so that another Optuna searches alike.
            self._sampler = optuna.samplers.TPESampler(
                n_startup_trials=1,  # the start is ours, see `Proposer._random`
                n_ei_candidates=24,
                multivariate=True,
                group=True,
                constant_liar=False,
                seed=seed,
            )
        self._space = self._sampler.infer_relative_search_space(study, self._trial)

    def point(self) -> Callable[[Parameter], str]:
        """The next point, as what is chosen for each parameter."""
        related = self._sampler.sample_relative(self._study, self._trial, self._space)

        def choose(parameter: Parameter) -> str:
            distribution = _distribution(parameter)
            if distribution.single():
                value = distribution.choices[0] if parameter.choices is not None else distribution.low
            elif parameter.name in related:
                value = related[parameter.name]
            else:
                value = self._sampler.sample_independent(self._study, self._trial, parameter.name, distribution)
            return str(2**value if parameter.power_of_two else value)

        return choose


def _random_value(parameter: Parameter, rng: random.Random) -> str:
    """Any value of a parameter; logarithmic ranges are drawn on their scale."""
    if parameter.choices is not None:
        return rng.choice(parameter.choices)
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.power_of_two:
        return str(1 << rng.randint(parameter.low.bit_length() - 1, parameter.high.bit_length() - 1))
    if parameter.log:
        return str(round(math.exp(rng.uniform(math.log(parameter.low), math.log(parameter.high)))))
    return str(rng.randrange(parameter.low, parameter.high + 1, parameter.step))


def _distribution(parameter: Parameter) -> Any:
    """The Optuna distribution of one parameter; powers of two are searched by their exponent."""
    if parameter.choices is not None:
        return optuna.distributions.CategoricalDistribution(list(parameter.choices))
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.power_of_two:
        return optuna.distributions.IntDistribution(parameter.low.bit_length() - 1, parameter.high.bit_length() - 1)
    return optuna.distributions.IntDistribution(
        parameter.low, parameter.high, log=parameter.log, step=1 if parameter.log else parameter.step or 1
    )


def _from_text(parameter: Parameter, text: str) -> Any:
    """A recorded value as Optuna's own."""
    if parameter.choices is not None:
        return text
    value = int(text)
    return value.bit_length() - 1 if parameter.power_of_two else value
