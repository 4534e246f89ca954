"""One session of a study: what it was started with, its records and lanes, and a clean stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.cluster.engine import Engine
from autotune.machine.devices import reserve_devices
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import visible_gpu_ids
from autotune.machine.host import describe_machine, utc_now
from autotune.measure.runner import LocalExecutor, TaskRunner
from autotune.model.records import Callbacks, ConclusionRecord, TrialResult
from autotune.model.spec import StudySpec
from autotune.model.texts import Note
from autotune.results.trackers import END_S, TrackerProcess, refuse_trackers
from autotune.rundir.damage import damages
from autotune.rundir.store import Store, driver_session
from autotune.study.budget import TimeLeft
from autotune.study.lanes import Lanes
from autotune.study.preflight import Setup

MakeEngine = Callable[["StudyRun"], Engine]


@dataclass(kw_only=True)
class StudyRun:
    """One session of a study, whose records in `store` are those of all sessions.

    Attributes:
        open_store: Called after the study was checked.
        prepare: Probes the build and checks the study; its argument receives notes.
        storage: URL of the study's Optuna storage; None for a journal in the run directory.
        devices: Groups of this machine's devices, one for each lane; empty for all in one.
        make_engine: None if this process is the only lane.
        trackers: Names of `autotune.results.trackers.TRACKERS`.
    """

    spec: StudySpec
    view: Callbacks
    open_store: Callable[[], Store]
    prepare: Callable[[Note], Setup]
    storage: str | None = None
    devices: Sequence[Sequence[str]] = ()
    make_engine: MakeEngine | None = None
    command: Sequence[str] = ()
    trackers: Sequence[str] = ()

    def __post_init__(self) -> None:
        refuse_trackers(self.trackers)
        self.setup: Setup
        self.store: Store
        self.lanes: Lanes
        self.conclusion: ConclusionRecord
        self._stage = ("", "")
        self._resources = contextlib.ExitStack()
        self._trackers: list[TrackerProcess] = []

    @property
    def time(self) -> TimeLeft:
        """The time left now."""
        return TimeLeft(self.store, self.store.watch.total_s, max(1, len(self.lanes.names)))

    def open(self) -> None:
        """Checks the study, takes the devices and the run directory, and begins a session."""
        note = self.view.note
        self.setup = self.prepare(note)
        hold = self._resources.enter_context
        hold(reserve_devices(self.spec.device.platform, self._to_hold()))
        self.store = hold(contextlib.closing(self.open_store()))
        if self.store.earlier:
            note(
                "the study before its edit had measured nothing; its files lie in "
                f"{self.store.earlier}"
            )
        hold(driver_session(self.store, command=self.command))
        self.lanes = Lanes(self.store, self.view, self.setup.runtime_settings)
        self.lanes.engine = (self.make_engine or _this_process)(self)
        self._resources.callback(self.lanes.close)
        for line in damages(self.store):
            note(line)
        for name in dict.fromkeys(self.trackers):
            self._trackers.append(TrackerProcess(name, self.store.path, note))

    def _to_hold(self) -> Sequence[str]:
        """Returns the devices to reserve against other studies; CPU cores only if named."""
        environment = caller_environment()
        if "SLURM_JOB_ID" in environment:
            return ()  # they are its own already, and two jobs may both number theirs from 0
        if self.devices:
            return [device for group in self.devices for device in group]
        if self.make_engine is not None or self.spec.device.platform != "cuda":
            return ()  # workers of lanes elsewhere reserve devices
        return visible_gpu_ids(environment)

    def begin_stage(self, name: str, detail: str) -> None:
        """Shows a stage as it begins, here and in `autotune status`; of a search once."""
        if (name, detail) == self._stage or name == self._stage[0] == "search":
            return
        self._stage = (name, detail)
        self.store.tell_stage(name)
        self.view.stage(name, detail)
        for tracker in self._trackers:
            tracker.look()

    def conclude(self, **fields: Any) -> None:
        """Records the conclusion, unless the newest one says the same; see `ConclusionRecord`."""
        conclusion = ConclusionRecord(
            ended=utc_now(),
            provenance=describe_machine(),
            trial_count=len(self.store.of(TrialResult)),
            **fields,
        )
        if self.store.is_news(conclusion):
            self.store.append(conclusion)
        self.conclusion = self.store.of(ConclusionRecord)[-1]

    def close(self) -> None:
        """Ends every process of the session and releases its devices; records stay readable."""
        self._resources.close()
        for tracker in self._trackers:
            tracker.close(END_S if hasattr(self, "conclusion") else 0.0)


def _this_process(run: StudyRun) -> Engine:
    return LocalExecutor(TaskRunner(run.spec, run.store, run.setup.launcher(run.store), run.lanes))
