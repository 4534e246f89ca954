"""The searches under one protocol: this project's, its ablations, and Optuna's samplers."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, WorkerReport
from autotune.model.records import TrialOutcome, TrialResult, TrialStatus
from autotune.model.spec import parse_study
from autotune.search.sampler import USUAL_SD
from autotune.study.proposer import KnownMemory, Proposer
from autotune.study.samplers import ADDITIVE, distribution_of, from_text
from benchmarks.search.problems import Codes, Problem
from harness.simulated import measured_as

LIMIT_BYTES = 60 * 10**9
"""What a simulated set may need."""


class Strategy(Protocol):
    """Searches one space, one trial at a time; sets are settled codes."""

    def ask(self) -> Codes | None:
        """The next set; None if there is nothing left to try."""
        ...

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """What came of it: a measured log ratio and its standard error, or None if it failed."""
        ...

    def chosen(self) -> Codes:
        """The set that it would hand on, by its own estimate."""
        ...


class Remembers:
    """A search without a model, which names the fastest measured set, or else the default.

    Args:
        problem: What is searched.
        seed: Of its draws.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.seed = seed
        self.told: list[tuple[Codes, float | None]] = []

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        self.told.append((codes, value))

    def chosen(self) -> Codes:
        """See `Strategy`."""
        measured = [(v, i) for i, (_, v) in enumerate(self.told) if v is not None and v < 0]
        return self.told[min(measured)[1]][0] if measured else self.problem.defaults


class Product(Remembers):
    """This project's own search: `autotune.study.proposer.Proposer`, as a study has it.

    Args:
        problem: What is searched.
        seed: Of the study.
        has_recipes: Whether recipes are tried first.
        sampler: `search.sampler`.
        has_widths: Whether each trial tells its own standard error, or all the usual one.
        knows_memory: Whether peaks of memory and their limit are told.
        finds_culprits: Whether what made a set fail is told after it, as by the study's own search
            for culprits.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int,
        *,
        has_recipes: bool,
        sampler: str = "additive",
        has_widths: bool = True,
        knows_memory: bool = True,
        finds_culprits: bool = False,
    ) -> None:
        super().__init__(problem, seed)
        search = {"sampler": sampler, "trials": 1000}
        study = {"name": "search", "seed": seed, "workload": {"entry": "llama"}, "search": search}
        recipes = problem.recipes if has_recipes else ()
        first = [(f"recipe {i}", problem.as_set(r)) for i, r in enumerate(recipes)]
        known = KnownMemory(round(problem.default_peak * LIMIT_BYTES), 1 / problem.default_peak)
        memory = known if problem.has_memory and knows_memory else None
        self._proposer = Proposer(parse_study(study), problem.space, first=first, memory=memory)
        self._is_additive = sampler == ADDITIVE
        self._has_widths, self._finds_culprits = has_widths, finds_culprits
        self.hunts = 0
        """How often a culprit was looked for: each time costs a real study several starts."""

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        config = self._proposer.ask(len(self.told) + 1)
        return None if config is None else self.problem.as_codes(config.settings)

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        super().tell(codes, value, sd)
        settings = self.problem.as_set(codes)
        told_sd = sd if self._has_widths else USUAL_SD
        self._proposer.tell(
            TrialResult(
                number=len(self.told),
                settings=settings,
                origin="search",
                params=self.problem.space.locate(settings) or {},
                **self._outcome(codes, value, told_sd),
            )
        )
        if value is None and self._finds_culprits:
            self._find_culprit(codes)

    def _outcome(self, codes: Codes, value: float | None, sd: float) -> dict[str, Any]:
        if value is None:
            hits = self.problem.hits_a_hazard(codes[None])[0]
            return dict(_failed(FailureKind.CRASH if hits else FailureKind.OUT_OF_MEMORY))
        return {
            **dict(measured_as(value, sd)),
            "worker": _report(float(self.problem.peaks(codes[None])[0])),
        }

    def _find_culprit(self, codes: Codes) -> None:
        for cause in self.problem.hazards:
            if all(codes[i] == code for i, code in cause):
                alone = self.problem.defaults.copy()
                for i, code in cause:
                    alone[i] = code
                part = FlagSet(
                    {n: v for n, v in self.problem.as_set(codes).items() if n in self._names(cause)}
                )
                if part not in self._proposer.failing:
                    self._proposer.failing.append(part)
                    self.hunts += 1
                return

    def _names(self, cause: tuple[tuple[int, int], ...]) -> set[str]:
        return {self.problem.space.parameters[i].name for i, _ in cause}

    def chosen(self) -> Codes:
        """See `Strategy`; the additive model names the set of best expectation, tried or not."""
        if not self._is_additive:
            return super().chosen()
        return self.problem.as_codes(self._proposer._estimates().best_set)


class Ceiling(Product):
    """This project's search, told beforehand which settings act, which no search can know.

    What it scores below 1 is what the values' effects cost to find; what a search scores below it,
    finding who acts.
    """

    def __init__(self, problem: Problem, seed: int, *, has_recipes: bool) -> None:
        self._whole, self._kept = problem, problem.acting
        super().__init__(problem.only(self._kept), seed, has_recipes=has_recipes)

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        codes = super().ask()
        return None if codes is None else self._in_whole(codes)

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        super().tell(codes[self._kept], value, sd)

    def chosen(self) -> Codes:
        """See `Strategy`."""
        return self._in_whole(super().chosen())

    def _in_whole(self, codes: Codes) -> Codes:
        whole = self._whole.defaults.copy()
        whole[self._kept] = codes
        return whole


def _report(peak: float) -> WorkerReport:
    """What a program tells of itself; `peak` is a share of what it may need."""
    return WorkerReport(
        fingerprint="simulated",
        platform="cuda",
        device_kind="simulated",
        device_count=8,
        start_s=1.0,
        losses=(1.0,),
        grad_norms=(1.0,),
        warmup_step_times_s=(1.0,),
        peak_bytes=round(peak * LIMIT_BYTES),
    )


def _failed(kind: FailureKind) -> TrialOutcome:
    failure = Failure(kind=kind, message="simulated", phase="run")
    return TrialOutcome(status=TrialStatus.FAILED, failure=failure)


class Asked(Remembers):
    """A sampler of Optuna unchanged, by ask and tell; failed trials are reported as failed.

    Args:
        problem: What is searched.
        seed: Of the sampler.
        has_recipes: Whether recipes are tried first.
        make: Makes the sampler.
    """

    def __init__(
        self, problem: Problem, seed: int, *, has_recipes: bool, make: Callable[[int], BaseSampler]
    ) -> None:
        super().__init__(problem, seed)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study = optuna.create_study(sampler=make(seed))
        # The default is measured in any case.
        self._study.add_trial(
            optuna.trial.create_trial(value=0.0, **self._as_optuna(problem.defaults))
        )
        for recipe in problem.recipes if has_recipes else ():
            self._study.enqueue_trial(self._as_optuna(recipe)["params"])

    def _as_optuna(self, codes: Codes) -> dict[str, Any]:
        located = self.problem.space.locate(self.problem.as_set(codes)) or {}
        held = [p for p in self.problem.space.parameters if p.name in located]
        return {
            "params": {p.name: from_text(p, located[p.name]) for p in held},
            "distributions": {p.name: distribution_of(p) for p in held},
        }

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._trial = self._study.ask()
            settings = self.problem.space.suggest(
                lambda p: str(self._trial._suggest(p.name, distribution_of(p)))
            )
        return self.problem.as_codes(settings)

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        super().tell(codes, value, sd)
        if value is None:
            self._study.tell(self._trial, state=TrialState.FAIL)
        else:
            self._study.tell(self._trial, value)


class UniformRandom(Remembers):
    """Random search: every value of every setting is as likely."""

    def __init__(self, problem: Problem, seed: int, *, has_recipes: bool) -> None:
        super().__init__(problem, seed)
        self._rng = np.random.default_rng([seed, 2])
        self._first = list(problem.recipes) if has_recipes else []

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        return self._first.pop(0) if self._first else self.problem.random(self._rng, 1)[0]


class Smac(Remembers):
    """SMAC3's facade for hyperparameters unchanged, a random forest; failures cost the worst time.

    Args:
        problem: What is searched.
        seed: Of its draws.
        has_recipes: Whether recipes are tried first.
        trials: Of the whole search, a quarter of which are its initial design.
    """

    def __init__(self, problem: Problem, seed: int, *, has_recipes: bool, trials: int = 60) -> None:
        super().__init__(problem, seed)
        from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, OrdinalHyperparameter  # type: ignore[import-not-found]
        from smac import HyperparameterOptimizationFacade, Scenario  # type: ignore[import-not-found]

        self._space = ConfigurationSpace(seed=seed)
        for i, parameter in enumerate(problem.space.parameters):
            kind = OrdinalHyperparameter if parameter.is_range else CategoricalHyperparameter
            self._space.add(
                kind(f"p{i}", list(range(problem.sizes[i])), default_value=int(problem.defaults[i]))
            )
        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            self._space,
            output_directory=Path(self._folder.name),
            deterministic=True,
            n_trials=trials,
            seed=seed,
        )
        self._smac = HyperparameterOptimizationFacade(
            scenario, lambda config, seed=0: 0.0, logging_level=False, overwrite=True
        )
        self._worst = 1.0
        self._first = list(problem.recipes) if has_recipes else []
        self._asked = self._info(problem.defaults)
        self._tell(0.0)  # the default is measured in any case

    def _info(self, codes: Codes) -> Any:
        from ConfigSpace import Configuration
        from smac.runhistory.dataclasses import TrialInfo  # type: ignore[import-not-found]

        return TrialInfo(
            Configuration(self._space, values={f"p{i}": int(c) for i, c in enumerate(codes)}),
            seed=0,
        )

    def _tell(self, value: float | None) -> None:
        from smac.runhistory import StatusType  # type: ignore[import-not-found]
        from smac.runhistory.dataclasses import TrialValue

        cost = self._worst if value is None else math.exp(value)
        self._worst = max(self._worst, cost)
        status = StatusType.CRASHED if value is None else StatusType.SUCCESS
        self._smac.tell(self._asked, TrialValue(cost=cost, status=status))

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        self._asked = self._info(self._first.pop(0)) if self._first else self._smac.ask()
        codes = [[int(self._asked.config[f"p{i}"]) for i in range(len(self.problem.sizes))]]
        return np.asarray(self.problem.settle(np.array(codes, dtype=np.int64))[0])

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        super().tell(codes, value, sd)
        self._tell(value)
