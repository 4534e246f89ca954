"""Studies with a given space and launcher: the shipped stages, on a machine that a test or benchmark makes up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.model import Callbacks, FlagSet, Pair, Stamped, Stopwatch, StudySpec, WorkloadFacts
from autotune.rundir import Store
from autotune.settings import SearchSpace
from autotune.study import NO_LESSONS, Here, Lessons, Runner, StudyRun
from autotune.workers import Launcher, ReplayLauncher


@dataclass(frozen=True, kw_only=True)
class GivenSetup:
    """A study's setup that no build was asked for; see `autotune.study.run.Setup`."""

    given_space: SearchSpace
    first: Sequence[tuple[str, FlagSet]] = ()
    given_launcher: Launcher | None = None
    rule_defaults: Mapping[str, str] = field(default_factory=dict)
    jaxlib: str = ""
    given_lessons: Lessons = NO_LESSONS
    read_at_run_time: Callable[[FlagSet], FlagSet] = lambda settings: settings.of_kind("env")

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """The given space, whatever the workload."""
        return self.given_space

    def lessons(self, kind: str | None, count: int | None, note: Callable[[str], None]) -> Lessons:
        """The given ones, whatever the devices."""
        return self.given_lessons

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """As given; default: environment variables."""
        return self.read_at_run_time(settings)

    def launcher(self, store: Store) -> Launcher:
        """The given one, or what replays the study's formula."""
        if self.given_launcher is not None:
            return self.given_launcher
        assert store.spec.replay is not None
        make = UnloggedReplay if isinstance(store, MemoryStore) else ReplayLauncher
        return make(store.spec.replay, seed=store.spec.seed, platform=store.spec.device.platform)


class _Silent(Callbacks):
    pass


def silent() -> Callbacks:
    """A view that is told, and says nothing."""
    return _Silent()  # type: ignore[abstract]  # its methods do nothing, as the protocol has them


class UnloggedReplay(ReplayLauncher):
    """A replay whose workers leave no log."""

    def log(self, settings: FlagSet, folder: Path) -> Path:
        """Where it would be."""
        return folder / "worker.log"


class MemoryStore(Store):
    """A run directory without a directory, for thousands of simulated studies; it is the only writer of itself."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(Path("/simulated"), spec, study_dir="/simulated")
        self._is_sole_writer = True

    def go_on(self, spec: StudySpec) -> None:
        """Another session takes it up."""
        self.spec, self._is_sole_writer = spec, True

    def _persist(self, record: Stamped) -> int:
        return 0

    def _refresh(self) -> None:
        pass

    def folder(self, *parts: str) -> Path:
        """A path under which nothing is written."""
        return self.path.joinpath(*parts)

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """Keeps nothing: what is estimated from the pairs is in the records."""
        return lambda pair: None

    def write_beside(self, folder: Path, name: str, make_text: Callable[[], str]) -> None:
        """Writes nothing."""


def runner_of(run: StudyRun) -> Runner:
    """What does the work of a study whose only lane is this process."""
    assert isinstance(run.lanes.engine, Here)
    return run.lanes.engine.runner


def given_run(
    spec: StudySpec,
    folder: Path | None,
    setup: GivenSetup,
    view: Callbacks,
    *,
    storage: str | None = None,
    equip: Callable[[Runner], None] = lambda runner: None,
) -> StudyRun:
    """The context of a study in `folder`, or in memory (None); `equip` may change what measures."""
    create = functools.partial(Store.create_or_resume, study_dir=folder.parent, watch=Stopwatch()) if folder else None

    def here(run: StudyRun) -> Here:
        runner = Runner(run.spec, run.store, run.setup.launcher(run.store), run.lanes)
        equip(runner)
        return Here(runner)

    return StudyRun(
        spec=spec,
        view=view,
        open_store=lambda: create(folder, spec) if create and folder else MemoryStore(spec),
        prepare=lambda note: setup,
        make_engine=here,
        storage=storage,
    )
