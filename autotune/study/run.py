"""The one context that all stages of a study share: what it is made of, and what the stages before have found."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from autotune.machine import caller_environment, parse_devices, reserve_devices, visible_gpu_ids
from autotune.model import (
    ConclusionRecord,
    FinalistResult,
    FlagSet,
    FloorResult,
    Stamped,
    StudySpec,
    TrialConfig,
    TrialResult,
    View,
    WorkerReport,
    WorkloadFacts,
)
from autotune.rundir import Store, Unit, driver_session, work_off
from autotune.settings import SearchSpace
from autotune.stats import SequentialPlan
from autotune.study.alone import SANDWICH, OneAtATime
from autotune.study.bench import Bench
from autotune.study.comparer import Comparer
from autotune.study.proposer import Proposer
from autotune.study.turns import InTurns
from autotune.workers import Launcher

R = TypeVar("R", bound=Stamped)


class Setup(Protocol):
    """What a study searches and how it starts workers: told by the installed build, or made up by a simulation.

    Attributes:
        first: Sets to try before the sampler proposes, each with the name of who suggests it.
    """

    @property
    def first(self) -> Sequence[tuple[str, FlagSet]]:
        """See above."""

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """The search space, once the reference has told what the workload is."""

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """Those settings that are read when a program runs: no fingerprint of the program holds them."""

    def launcher(self, store: Store) -> Launcher:
        """What starts workers."""


class Evaluator(Protocol):
    """How a study comes by its numbers: by measuring, or by a model of compiled programs."""

    def reference(self) -> WorkloadFacts:
        """Measures or compiles the reference, unless an earlier session did; records it and tells what it is."""

    def narrow(self, space: SearchSpace) -> SearchSpace:
        """The space without what needs no trial."""

    def evaluate(self, config: TrialConfig, known: Sequence[TrialResult], *, attempt: int) -> TrialResult:
        """The result of one trial."""

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Whether it is known, without starting anything, that one measurement serves two sets."""

    def compile_ahead(self, guess: Callable[[], FlagSet | None]) -> None:
        """May compile what is likely to be tried next; `guess` gives it."""

    def close(self) -> None:
        """Ends every process that it started."""


@dataclass(kw_only=True)
class StudyRun:
    """One session of a study, from its first stage to its last.

    The records in `store` are the truth, and what a stage needs of earlier sessions it finds there. The rest of the
    context is what the stages of this session hand on.

    Attributes:
        spec: The study.
        view: Told what happens.
        open_store: Opens the run directory; called once the study is known to be fit to start.
        prepare: Probes the build and checks the study; given where notes go.
        storage: URL of an Optuna storage that mirrors the study.
        devices: What this driver was given of the machine; empty for all.
        command: How the driver was called, for the record.
        asked_trials: For the record of the session; default: those of the study.
        setup: Set by `probe`.
        facts: Set by `noise_floor`: what the reference told of the workload.
        proposer: Set by `screen`: proposes what to try.
        finalists: Set by `confirm`: finalists with their verdicts.
        members: Set by `confirm` in a study by several objectives: the proven front.
        candidates: Set by `minimise`: sets to prove, best first: name of the proof, trial, settings.
        proven: Set by `final_proof`, taken back by `soak`: what holds.
        conclusion: Set by `conclude`.
    """

    spec: StudySpec
    view: View
    open_store: Callable[[], Store]
    prepare: Callable[[Callable[[str], None]], Setup]
    make_evaluator: Callable[[StudyRun], Evaluator]
    storage: str | None = None
    devices: Sequence[str] = ()
    command: Sequence[str] = ()
    asked_trials: int | None = None

    setup: Setup = field(init=False)
    store: Store = field(init=False)
    bench: Bench = field(init=False)
    comparer: Comparer = field(init=False)
    evaluator: Evaluator = field(init=False)
    facts: WorkloadFacts = field(init=False)
    proposer: Proposer = field(init=False)
    finalists: list[FinalistResult] = field(default_factory=list, init=False)
    members: list[FinalistResult] = field(default_factory=list, init=False)
    candidates: list[tuple[str, int, FlagSet]] = field(default_factory=list, init=False)
    proven: FinalistResult | None = field(default=None, init=False)
    conclusion: ConclusionRecord = field(init=False)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    @property
    def reference(self) -> WorkerReport | None:
        """What the reference's process said of itself when the noise floor was measured; None where nothing is."""
        floor = self.store.last(FloorResult)
        return floor.reference if floor is not None else None

    @functools.cached_property
    def plan(self) -> SequentialPlan:
        """When a trial may stop."""
        return SequentialPlan(cap=self.spec.measure.pairs_cap)

    def open(self) -> None:
        """Takes the devices and the run directory; a session begins."""
        hold = self._resources.enter_context
        hold(reserve_devices(self.spec.device.platform, self._to_hold()))
        self.store = self.open_store()
        self._resources.callback(self.store.close)
        trials = self.spec.search.trials if self.asked_trials is None else self.asked_trials
        hold(driver_session(self.store, trials=trials, command=self.command))
        # What is only predicted may be for nodes that are not here: their launcher would refuse this machine.
        launcher = None if self.spec.is_predicted else self.setup.launcher(self.store)
        self.bench = Bench(self.store, launcher, self.setup.runtime_settings, self.view)
        self._resources.callback(self.bench.close)
        self.comparer = _open_comparer(self.bench)
        self.evaluator = self.make_evaluator(self)
        self._resources.callback(self.evaluator.close)

    def _to_hold(self) -> Sequence[str]:
        """The devices that no other study of this machine may use meanwhile.

        Two studies on the cores of one CPU disturb each other but are allowed, unless they named theirs. A SLURM job's
        devices are its own already, and may be numbered from 0 in two jobs at once.
        """
        spec = self.spec
        if spec.replay is not None or spec.is_predicted or "SLURM_JOB_ID" in caller_environment():
            return ()
        if self.devices or spec.device.platform != "cuda":
            return self.devices
        visible = visible_gpu_ids(caller_environment())
        return parse_devices(visible) if visible else ()

    def once(self, key: str, recorded: Callable[[], R | None], make: Callable[[int], R]) -> R:
        """A record that is made once: found among the records, or made now, by this worker or another.

        Args:
            key: Names the work among all workers.
            recorded: Looks the record up.
            make: Makes it; given the number of the attempt.
        """

        def do(attempt: int) -> None:
            record = make(attempt)
            if self.store.claims.commit(key, attempt):
                self.store.append(record)

        unit = Unit(key, lambda: recorded() is not None, do)
        work_off(self.store.claims, [unit], waiting=self.store.watch.waiting)
        found = recorded()
        assert found is not None
        return found

    def close(self) -> None:
        """Ends every process of the session and gives everything back; the records can still be read."""
        self._resources.close()


def _open_comparer(bench: Bench) -> Comparer:
    """How a study compares: as it asks, or as its workload allows."""
    mode, takes_turns = bench.spec.measure.mode, bench.spec.workload.takes_turns
    alone = mode == SANDWICH or (mode == "auto" and not takes_turns)
    return OneAtATime(bench) if alone else InTurns(bench)
