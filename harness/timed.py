"""Simulated studies on a simulated clock: half an hour takes a second, without sleeping."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.records import Callbacks, ConfirmRun
from autotune.model.spec import StudySpec
from autotune.model.stop import Stopped
from autotune.stats.aa_noise import STARTS
from autotune.study.run import StudyRun
from autotune.workers.base import Progress
from harness.simulated import GivenSetup, MemoryStore, given_run
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker, Simulation

LONGEST_JUMP_S = 20.0
"""A stopwatch takes a longer gap between two looks for a pause."""


class SimulatedClock:
    """A clock that goes on when it is told to.

    Attributes:
        now_s: The time.
        stop_at_s: When it stops the study, as a batch system would; None for never.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stop_at_s: float | None = None
        self.watch = Stopwatch(clock=lambda: self.now_s)
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Lets time pass.

        Raises:
            Stopped: If it is time to stop.
        """
        with self._lock:
            while seconds > 0.0:
                jump = min(seconds, LONGEST_JUMP_S)
                self.now_s += jump
                seconds -= jump
                _ = self.watch.total_s
            if self.stop_at_s is not None and self.now_s >= self.stop_at_s:
                self.stop_at_s = None
                raise Stopped


class SharedClock(SimulatedClock):
    """The clock of all stopwatches made from now on, for studies of several run directories.

    Args:
        patch: Of pytest.
    """

    def __init__(self, patch: Any) -> None:
        super().__init__()
        self._watches, make = list[Stopwatch](), Stopwatch.__init__

        def made(watch: Stopwatch) -> None:
            make(watch, lambda: self.now_s)
            self._watches.append(watch)

        patch.setattr(Stopwatch, "__init__", made)

    def advance(self, seconds: float) -> None:
        """See `SimulatedClock`."""
        jumps = math.ceil(seconds / LONGEST_JUMP_S)
        for _ in range(jumps):
            super().advance(seconds / jumps)
            _ = [watch.total_s for watch in self._watches]


class TimedLauncher(SimulatedLauncher):
    """Simulated workers whose starts and steps take their time.

    Args:
        spec: The study.
        clock: What goes on with them.
        start_factor: What a candidate takes to start, over the reference.
        simulation: The machine; default: that of the study.
    """

    def __init__(
        self,
        spec: StudySpec,
        clock: SimulatedClock,
        *,
        start_factor: float = 1.0,
        simulation: Simulation | None = None,
    ) -> None:
        super().__init__(spec, simulation)
        self._clock, self._factor, self._start_s = clock, start_factor, self.simulation.start_s
        self._in_order = spec.block_sizes.in_order

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        """See `base.Launcher`; two starts at once, by threads, share the compiling machine."""
        is_beside = threading.current_thread() is not threading.main_thread()
        is_at_once = is_beside and not self._in_order
        own_s = self._start_s * (self._factor if settings else 1.0)
        self._clock.advance(own_s * (STARTS / 2 if is_at_once else 1.0))
        worker = super().start(settings, folder, progress=progress)
        run = worker.run_block

        def run_block(steps: int) -> tuple[float, ...]:
            times = run(steps)
            self._clock.advance(sum(times))
            return times

        worker.run_block = run_block  # type: ignore[method-assign]
        return worker

    def log(self, settings: FlagSet, folder: Path) -> Path:
        """Where it would be."""
        return folder / "worker.log"


class TimedStore(MemoryStore):
    """Keeps the simulated time of proofs' pairs of processes; a lane does one after the other.

    Args:
        spec: The study.
        clock: The clock.
    """

    def __init__(self, spec: StudySpec, clock: SimulatedClock) -> None:
        super().__init__(spec)
        self._clock, self._last_s = clock, 0.0

    def append(self, record: Any) -> Any:
        """See `Store`."""
        if isinstance(record, ConfirmRun):
            record = record.model_copy(update={"duration_s": self._clock.now_s - self._last_s})
        self._last_s = self._clock.now_s
        return super().append(record)


class TimedStudy:
    """A study in memory on a clock of its own; it can be stopped and gone on with.

    Args:
        setup: Space and first sets.
        start_factor: See `TimedLauncher`.
    """

    def __init__(self, setup: GivenSetup, *, start_factor: float = 1.0) -> None:
        self.clock = SimulatedClock()
        self.store: MemoryStore | None = None
        self._setup, self._factor = setup, start_factor

    def session(self, spec: StudySpec, view: Callbacks) -> StudyRun:
        """One session of it."""
        launcher = TimedLauncher(spec, self.clock, start_factor=self._factor)
        run = given_run(spec, None, dataclasses.replace(self._setup, given_launcher=launcher), view)
        run.open_store = self._opener(spec)
        return run

    def _opener(self, spec: StudySpec) -> Callable[[], MemoryStore]:
        def open_store() -> MemoryStore:
            if self.store is None:
                self.store = TimedStore(spec, self.clock)
            self.store.watch = self.clock.watch = Stopwatch(clock=lambda: self.clock.now_s)
            self.store.go_on(spec)
            self.clock.watch.earlier_s = max((r.at_s for r in self.store.records()), default=0.0)
            return self.store

        return open_store
