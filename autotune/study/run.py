"""One session of a study: the context that all its stages share, the state of its sets, and a clean stop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from autotune.cluster.engine import Engine
from autotune.machine.devices import parse_devices, reserve_devices
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import visible_gpu_ids
from autotune.measure.runner import LocalExecutor, TaskRunner
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport, WorkloadFacts
from autotune.model.proofs import Reestimate
from autotune.model.records import Callbacks, ConclusionRecord, FinalistResult, FloorResult
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store, driver_session
from autotune.settings.space import SearchSpace
from autotune.study.budget import TimeLeft
from autotune.study.lanes import Lanes
from autotune.study.priors import LibraryWinners
from autotune.study.proposer import Proposer
from autotune.study.screen import NoOpRecheck, StudyScreener, open_study_screener
from autotune.workers.base import Launcher


class Setup(Protocol):
    """What a study searches and how it starts workers: from the installed build, or made up by a simulation."""

    @property
    def first(self) -> Sequence[tuple[str, FlagSet]]:
        """Sets to try before the sampler proposes, each with the name of who suggests it."""

    @property
    def jaxlib(self) -> str:
        """The build's release; empty if it is made up, or no build is asked."""

    @property
    def rule_defaults(self) -> Mapping[str, str]:
        """What the build has for the settings that `limits.rules` name."""

    def library_winners(self, kind: str | None, count: int | None, note: Callable[[str], None]) -> LibraryWinners:
        """Winners of earlier studies, for so many devices of a kind; None for what nobody knows."""

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """The search space, given the facts of the reference."""

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """Settings that are read when a program runs: no fingerprint of the program holds them."""

    def launcher(self, store: Store) -> Launcher:
        """Makes the launcher of workers."""


class SetState(StrEnum):
    """How far a candidate has come; what decides is in `autotune.study.confirm`."""

    CONFIRMED = "confirmed"
    """It held in fresh processes, at the error of finalists."""

    MINIMAL = "minimal"
    """It is what is left of a confirmed set without what does not pay."""

    PROVEN = "proven"
    """It held once more in processes of its own, which selected nothing."""

    SOAKED = "soaked"
    """It is proven, and ran for long without a fault."""

    REFUTED = "refuted"
    """It did not hold, was objected to, or failed later."""


@dataclass
class Candidate:
    """A set that trials nominated.

    Attributes:
        stage: Name of its newest proof in the records.
        trial: Number of the trial that had it first.
        proof: That proof; None before it.
        after: What came after the final proof: the gain, and what speaks against the set.
    """

    stage: str
    trial: int
    settings: FlagSet
    state: SetState
    proof: FinalistResult | None = None
    after: Reestimate = field(default_factory=Reestimate)


@dataclass(kw_only=True)
class StudyRun:
    """One session of a study, from its first stage to its last.

    The records in `store` are the truth, and what a stage needs of earlier sessions it finds there. The rest of the
    context is what the stages of this session hand on.

    Attributes:
        view: Told what happens.
        open_store: Opens the run directory; called once the study is known to be fit to start.
        prepare: Probes the build and checks the study; given where notes go.
        storage: URL of the Optuna storage to keep the study in; None for a journal in the run directory.
        devices: What this driver was given of the machine: one group for each lane; empty for all in one.
        make_engine: Offers lanes; default: this process is the only one.
        command: How the driver was called, for the record.
        asked_trials: For the record of the session; default: those of the study.
        time: Set by `probe`, as `setup` and `lanes` are: what is left of the budgets.
        screener: Set by `probe`; None where the study is not screened.
        recheck: Set by `screen`: what to try because the screen may be wrong on the GPU that runs.
        facts: Set by `noise_floor`: about the workload, from the reference's report.
        first: Set by `probe`, added to by `screen`: what is tried before the sampler proposes.
        search_more: Set by `search`: tries more with the time that proofs have left; whether it did.
        candidates: Set by `confirm`, then by `minimise` to what is to be proven, best first.
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
    recheck: NoOpRecheck | None = field(default=None, init=False)
    facts: WorkloadFacts = field(init=False)
    first: tuple[tuple[str, FlagSet], ...] = field(default=(), init=False)
    proposer: Proposer = field(init=False)
    search_more: Callable[[], bool] = field(init=False)
    candidates: list[Candidate] = field(default_factory=list, init=False)
    conclusion: ConclusionRecord = field(init=False)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    @property
    def waiting(self) -> list[Candidate]:
        """Candidates that wait for their final proof, best first."""
        return [c for c in self.candidates if c.state in (SetState.CONFIRMED, SetState.MINIMAL)]

    @property
    def winner(self) -> Candidate | None:
        """The candidate that holds."""
        return next((c for c in self.candidates if c.state in (SetState.PROVEN, SetState.SOAKED)), None)

    @property
    def reference(self) -> WorkerReport | None:
        """The report of the noise floor's reference; None before that is measured."""
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
        if "SLURM_JOB_ID" in caller_environment():
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
    return LocalExecutor(TaskRunner(run.spec, run.store, run.setup.launcher(run.store), run.lanes))


class Stopped(KeyboardInterrupt):
    """A signal asks for a clean stop: a time limit comes near, a job is pre-empted."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Turns the signals of batch systems into a clean stop.

    Raises:
        Stopped: Inside the block, at the first SIGTERM or SIGUSR1.
    """

    def stop(number: int, frame: object) -> None:
        for other in old:  # the second signal must not interrupt the cleaning up after the first
            signal.signal(other, signal.SIG_IGN)
        raise Stopped

    old = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
