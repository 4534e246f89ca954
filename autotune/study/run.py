"""The one context that all stages of a study share: what it is made of, and what the stages before have found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.cluster import Engine
from autotune.machine import caller_environment, parse_devices, reserve_devices, visible_gpu_ids
from autotune.model import (
    Callbacks,
    ConclusionRecord,
    FinalistResult,
    FlagSet,
    FloorResult,
    Reestimate,
    StudySpec,
    WorkerReport,
    WorkloadFacts,
)
from autotune.rundir import Store, driver_session
from autotune.settings import SearchSpace
from autotune.study.doubt import Doubt
from autotune.study.here import Here
from autotune.study.lanes import Lanes
from autotune.study.library_priors import Lessons
from autotune.study.proposer import Proposer
from autotune.study.runner import Runner
from autotune.study.screen import StudyScreener, open_study_screener
from autotune.study.time_left import TimeLeft
from autotune.workers import Launcher


class Setup(Protocol):
    """What a study searches and how it starts workers: told by the installed build, or made up by a simulation.

    Attributes:
        first: Sets to try before the sampler proposes, each with the name of who suggests it.
    """

    @property
    def first(self) -> Sequence[tuple[str, FlagSet]]:
        """See above."""

    @property
    def jaxlib(self) -> str:
        """The build's release; empty if it is made up, or nobody asks."""

    @property
    def rule_defaults(self) -> Mapping[str, str]:
        """What the build has for the settings that `limits.rules` name."""

    def lessons(self, kind: str | None, count: int | None, note: Callable[[str], None]) -> Lessons:
        """What a library of winners teaches, for so many devices of a kind; None for what nobody knows."""

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """The search space, once the reference has told what the workload is."""

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """Those settings that are read when a program runs: no fingerprint of the program holds them."""

    def launcher(self, store: Store) -> Launcher:
        """What starts workers."""


class MoreSearch(Protocol):
    """A search that can go on."""

    def go_on(self) -> bool:
        """Tries more with the time that proofs have left; whether it did."""


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
        storage: URL of the Optuna storage to keep the study in; None for a journal in the run directory.
        devices: What this driver was given of the machine: one group for each lane; empty for all in one.
        make_engine: Offers lanes; default: this process is the only one.
        command: How the driver was called, for the record.
        asked_trials: For the record of the session; default: those of the study.
        setup: Set by `probe`.
        time: What is left of the budgets; set by `probe`, too.
        screener: Set by `probe`: compiles; None where the study is not screened.
        doubt: Set by `screen`: what to try because the screen may be wrong on the GPU that runs.
        facts: Set by `noise_floor`: what the reference told of the workload.
        first: Set by `probe`, added to by `screen`: what is tried before the sampler proposes.
        proposer: Set by `screen`: proposes what to try.
        search: Set by `search`, which `confirm` may go on with.
        finalists: Set by `confirm`: finalists with their verdicts.
        candidates: Set by `minimise`: sets to prove, best first: name of the proof, trial, settings.
        proven: Set by `final_proof`, taken back by `soak`: what holds.
        reestimate: Set by `final_proof`: how much faster that is, from pairs that decided nothing.
        objections: Set by `final_proof`: what speaks against sets that held in their final proof.
        conclusion: Set by `conclude`.
    """

    spec: StudySpec
    view: Callbacks
    open_store: Callable[[], Store]
    prepare: Callable[[Callable[[str], None]], Setup]
    storage: str | None = None
    devices: Sequence[Sequence[str]] = ()
    make_engine: Callable[[StudyRun], Engine] | None = None
    command: Sequence[str] = ()
    asked_trials: int | None = None

    setup: Setup = field(init=False)
    store: Store = field(init=False)
    lanes: Lanes = field(init=False)
    time: TimeLeft = field(init=False)
    screener: StudyScreener | None = field(init=False)
    doubt: Doubt | None = field(default=None, init=False)
    facts: WorkloadFacts = field(init=False)
    first: tuple[tuple[str, FlagSet], ...] = field(default=(), init=False)
    proposer: Proposer = field(init=False)
    search: MoreSearch = field(init=False)
    finalists: list[FinalistResult] = field(default_factory=list, init=False)
    candidates: list[tuple[str, int, FlagSet]] = field(default_factory=list, init=False)
    proven: FinalistResult | None = field(default=None, init=False)
    reestimate: Reestimate = field(default_factory=Reestimate, init=False)
    objections: dict[FlagSet, str] = field(default_factory=dict, init=False)
    conclusion: ConclusionRecord = field(init=False)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    @property
    def reference(self) -> WorkerReport | None:
        """What the reference's process said of itself when the noise floor was measured; None where nothing is."""
        floor = self.store.last(FloorResult)
        return floor.reference if floor is not None else None

    def open(self) -> None:
        """Takes the devices and the run directory; a session begins."""
        hold = self._resources.enter_context
        hold(reserve_devices(self.spec.device.platform, self._to_hold()))
        self.store = self.open_store()
        self._resources.callback(self.store.close)
        trials = self.spec.search.trials if self.asked_trials is None else self.asked_trials
        hold(driver_session(self.store, trials=trials, command=self.command))
        self.lanes = Lanes(self.store, self.view, self.setup.runtime_settings)
        self.time = TimeLeft(self.store, self.lanes)
        self.lanes.engine = (self.make_engine or _this_process)(self)
        self._resources.callback(self.lanes.close)
        self.screener = hold(open_study_screener(self.store, self.view))

    def _to_hold(self) -> Sequence[str]:
        """The devices that no other study of this machine may use meanwhile.

        Two studies on the cores of one CPU disturb each other but are allowed, unless they named theirs. A SLURM job's
        devices are its own already, and may be numbered from 0 in two jobs at once.
        """
        spec = self.spec
        if spec.replay is not None or "SLURM_JOB_ID" in caller_environment():
            return ()
        if self.make_engine is not None and not self.devices:
            return ()  # lanes are elsewhere, and who offers them reserves them
        if self.devices or spec.device.platform != "cuda":
            return [device for group in self.devices for device in group]
        visible = visible_gpu_ids(caller_environment())
        return parse_devices(visible) if visible else ()

    def begin_stage(self, name: str, detail: str) -> None:
        """Tells whoever looks on, here or by `autotune status`, that a stage begins."""
        self.store.tell_stage(name)
        self.view.stage(name, detail)

    def close(self) -> None:
        """Ends every process of the session and gives everything back; the records can still be read."""
        self._resources.close()


def _this_process(run: StudyRun) -> Engine:
    return Here(Runner(run.spec, run.store, run.setup.launcher(run.store), run.lanes))
