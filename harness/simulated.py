"""Studies by the shipped stages with a given space and launcher, on a made-up machine."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from autotune.machine.telemetry import NO_WATCH, EnergyMeter
from autotune.measure.runner import LocalExecutor, TaskRunner
from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.measurement import INTERLEAVED, Comparison, Pair, Stamped, WorkloadFacts
from autotune.model.records import Callbacks, TrialOutcome, TrialStatus
from autotune.model.spec import StudySpec
from autotune.rundir.files import FileEnd
from autotune.rundir.store import Store
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import NORMAL, Estimate
from autotune.study import lanes
from autotune.study.preflight import Setup
from autotune.study.run import StudyRun
from autotune.workers.base import Launcher
from harness.simulated_machine import SimulatedLauncher


@dataclass(frozen=True, kw_only=True)
class GivenSetup(Setup):
    """A study's setup that no build was asked for."""

    given_space: SearchSpace
    given_launcher: Launcher | None = None
    jaxlib: str = ""
    read_at_run_time: Callable[[FlagSet], FlagSet] = lambda settings: settings.of_kind("env")

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """The given space, whatever the workload."""
        return self.given_space

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """As given; default: environment variables."""
        return self.read_at_run_time(settings)

    def launcher(self, store: Store) -> Launcher:
        """The given one, or the study's simulated machine."""
        if self.given_launcher is not None:
            return self.given_launcher
        make = UnloggedLauncher if isinstance(store, MemoryStore) else SimulatedLauncher
        return make(store.spec)


class _Silent(Callbacks):
    pass


def silent() -> Callbacks:
    """A view that is told, and says nothing."""
    return _Silent()  # type: ignore[abstract]  # its methods do nothing, as the protocol has them


class UnloggedLauncher(SimulatedLauncher):
    """A simulated machine whose workers leave no log."""

    def log(self, settings: FlagSet, folder: Path) -> Path:
        """Where it would be."""
        return folder / "worker.log"


class MemoryStore(Store):
    """A run directory in memory, for thousands of simulated studies; its only writer is itself."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(Path("/simulated"), spec, study_dir="/simulated")
        self._is_sole_writer = True

    def go_on(self, spec: StudySpec) -> None:
        """Another session takes it up."""
        self.spec, self._is_sole_writer = spec, True

    def _persist(self, record: Stamped) -> FileEnd:
        return FileEnd(0)

    def _refresh(self) -> None:
        pass

    def folder(self, *parts: str) -> Path:
        """A path under which nothing is written."""
        return self.path.joinpath(*parts)

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """Keeps nothing: what is estimated from the pairs is in the records."""
        return lambda pair: None

    def write_beside(self, folder: Path, name: str, text: str) -> None:
        """Writes nothing."""


def runner_of(run: StudyRun) -> TaskRunner:
    """What does the work of a study whose only lane is this process."""
    assert isinstance(run.lanes.engine, LocalExecutor)
    return run.lanes.engine.runner


def given_run(
    spec: StudySpec,
    folder: Path | None,
    setup: Setup,
    view: Callbacks,
    *,
    storage: str | None = None,
    equip: Callable[[TaskRunner], None] = lambda runner: None,
) -> StudyRun:
    """The context of a study in `folder`, or in memory (None); `equip` may change what measures."""
    create = (
        functools.partial(Store.create_or_resume, study_dir=folder.parent, watch=Stopwatch())
        if folder
        else None
    )

    def here(run: StudyRun) -> LocalExecutor:
        runner = TaskRunner(run.spec, run.store, run.setup.launcher(run.store), run.lanes)
        runner.context.meter = EnergyMeter()
        runner.context.gpus = NO_WATCH
        if isinstance(
            run.store, MemoryStore
        ):  # of thousands: what their proofs could find takes seconds to work out
            run._resources.enter_context(
                mock.patch.object(lanes, "power_analysis", return_value=None)
            )
        equip(runner)
        return LocalExecutor(runner)

    return StudyRun(
        spec=spec,
        view=view,
        open_store=lambda: create(folder, spec) if create and folder else MemoryStore(spec),
        prepare=lambda note: setup,
        make_engine=here,
        storage=storage,
    )


def measured_as(value: float, sd: float) -> TrialOutcome:
    """The outcome of a trial whose log ratio is `value`, with a standard error."""
    half = NORMAL.inv_cdf(0.975) * sd
    low, high = math.exp(value - half), math.exp(value + half)
    estimate = Estimate(ratio=math.exp(value), low=low, high=high, level=0.95, pair_count=8)
    comparison = Comparison(
        estimate=estimate,
        reference_step_s=1.0,
        candidate_step_s=math.exp(value),
        pair_count=8,
        mode=INTERLEAVED,
        stopped="simulated",
    )
    return TrialOutcome(status=TrialStatus.MEASURED, comparison=comparison)
