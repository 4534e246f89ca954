"""Studies in virtual time: starts, steps and settling blocks of simulated machines move one clock.

Whatever asks for the time inside `virtual_study` gets this clock's: the run directory's stopwatch,
a lane's context, pairs, durations and budgets. So minutes of a study are those of its machine,
though it takes seconds to run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from autotune.measure import context
from autotune.model.clock import LONGEST_GAP_S, Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.spec import StudySpec
from autotune.model.time_limits import TimeLimits
from autotune.settings.space import SearchSpace
from autotune.study.driver import run_study
from autotune.workers.base import Launcher, Progress, Worker
from autotune.workers.caches import Caches
from harness.noise import Process
from harness.simulated import GivenSetup, MemoryStore, UnloggedLauncher, given_run, silent
from harness.simulated_machine import SimulatedWorker

R = TypeVar("R")


class VirtualClock:
    """Seconds that go on only when something takes time.

    Attributes:
        watch: A study's stopwatch by this clock.
        beside: Whether what takes time now runs beside something else.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self.beside = False
        self.watch = Stopwatch(self)

    def __call__(self) -> float:
        """Now."""
        return self._now_s

    def take(self, seconds: float) -> None:
        """Does something that takes so many seconds."""
        self.reach(self._now_s + seconds)

    def reach(self, at_s: float) -> None:
        """Waits until a time, if it is not past."""
        while self._now_s < at_s:
            self._now_s = min(at_s, self._now_s + LONGEST_GAP_S / 2)
            if not self.beside:
                self.watch.total_s  # noqa: B018  # a longer gap between two looks would pass for a pause

    def fork(self, work: Callable[[], R], *, begin_s: float, beside: bool) -> tuple[R, float]:
        """Does work that begins at a time, then goes back; returns its result and its end."""
        now_s, self._now_s, self.beside = self._now_s, begin_s, beside
        try:
            return work(), self._now_s
        finally:
            self._now_s, self.beside = now_s, False


class VirtualPool:
    """A thread pool in virtual time: work is done when submitted, over when awaited."""

    def __init__(self, clock: VirtualClock, max_workers: int) -> None:
        self._clock = clock
        self._free_s = [clock()] * max_workers

    def __enter__(self) -> VirtualPool:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing goes on."""

    def submit(self, work: Callable[..., R], *arguments: Any) -> VirtualFuture[R]:
        """Does some work from when a thread is free for it."""
        index = self._free_s.index(min(self._free_s))
        begin_s = max(self._clock(), self._free_s[index])
        result, self._free_s[index] = self._clock.fork(
            lambda: work(*arguments), begin_s=begin_s, beside=len(self._free_s) > 1
        )
        return VirtualFuture(self._clock, result, self._free_s[index])


class VirtualFuture(Future[R]):
    """The result of some work, there at a time."""

    def __init__(self, clock: VirtualClock, result: R, at_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._at_s = at_s
        self.set_result(result)

    def result(self, timeout: float | None = None) -> R:
        """Waits for it."""
        self._clock.reach(self._at_s)
        return super().result(timeout)


@dataclass(frozen=True, kw_only=True)
class Times:
    """What the processes of a machine take beside their steps, seconds.

    Attributes:
        host_s: Of a start, the first part, which needs no device: import, trace, lower.
        import_s: Of that, what a spare process has done before.
        compile_s: The part that a cache of kernels or programs saves: timing kernels on a GPU,
            compiling on a CPU.
        device_s: The rest: client, weights, warm-up.
        together: Factor of a start beside another one.
        cores: Processors of the machine.
        fast_share: Share by which the first steps after a pause are faster than the others.
        fast_s: For so long, in the mean.
        fast_sd_s: Standard deviation of that.
    """

    host_s: float
    compile_s: float
    device_s: float
    together: float = 1.0
    import_s: float = 0.0
    cores: int = 16
    fast_share: float = 0.0
    fast_s: float = 0.0
    fast_sd_s: float = 0.0

    @property
    def start_s(self) -> float:
        """Of a whole start."""
        return self.host_s + self.compile_s + self.device_s


class VirtualCaches(Caches):
    """What starts find of earlier compilations: their set's program, or any set's kernels."""

    def __init__(self) -> None:
        super().__init__()
        self._sets: set[FlagSet] = set()
        self._has_kernels = False

    def begin(self, *, programs: bool, kernels: bool, anew: bool) -> None:
        """See `Caches`."""
        super().begin(programs=programs, kernels=kernels, anew=anew)
        if anew:
            self._sets.clear()
            self._has_kernels = False

    def hits(self, settings: FlagSet) -> bool:
        """Whether a start need not compile, or time kernels; keeps the set for the next one."""
        is_hit = settings in self._sets if self._keeps_programs else False
        is_hit = is_hit or (self._keeps_kernels and self._has_kernels)
        if self._keeps_programs:
            self._sets.add(settings)
        self._has_kernels = self._has_kernels or self._keeps_kernels
        return is_hit


class VirtualLauncher(Launcher):
    """Starts simulated workers; each start takes its time."""

    def __init__(self, spec: StudySpec, clock: VirtualClock, times: Times) -> None:
        self.limits = TimeLimits()  # nothing hangs
        self.caches: VirtualCaches = VirtualCaches()
        self._machine = UnloggedLauncher(spec)
        self._clock = clock
        self._times = times
        self._keeps_spare = self._has_spare = False

    def keep_spare(self, wanted: bool) -> None:
        """See `Launcher`."""
        self._keeps_spare = wanted
        self._has_spare = wanted and self._has_spare

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> Worker:
        """Makes a worker; see `autotune.workers.base.Launcher`."""
        takes_s = self._times.start_s - (
            self._times.compile_s if self.caches.hits(settings) else 0.0
        )
        takes_s -= self._times.import_s if self._has_spare else 0.0
        self._has_spare = self._keeps_spare
        takes_s *= self._times.together if self._clock.beside else 1.0
        self._clock.take(takes_s)
        worker = self._machine.start(settings, folder, progress=progress)
        worker.report = worker.report.model_copy(update={"start_s": takes_s})
        return VirtualWorker(worker, self._clock, self._times)

    def close(self) -> None:
        """Takes the workers that are left off the machine."""
        self._machine.close()


class VirtualWorker(Worker):
    """A simulated worker whose steps take their time.

    Attributes:
        times: What they take beside what the machine draws.
    """

    def __init__(self, worker: SimulatedWorker, clock: VirtualClock, times: Times) -> None:
        self._worker = worker
        self.report = worker.report
        self._clock = clock
        self.times = times
        self.last_memory = worker.last_memory

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Draws a block's step times; its first ones are faster after another process."""
        process = self._worker.process
        has_paused = process.machine.last is not process
        times = list(self._worker.run_block(steps))
        if has_paused and self.times.fast_share:
            self._hasten(times, process)
        self._clock.take(sum(times))
        self.last_loss = self._worker.last_loss
        self.last_clock_s = sum(times)
        return tuple(times)

    def _hasten(self, times: list[float], process: Process) -> None:
        left_s = float(process.machine.rng.normal(self.times.fast_s, self.times.fast_sd_s))
        for index, step_s in enumerate(times):
            if left_s <= 0.0:
                return
            times[index] -= step_s * self.times.fast_share * min(1.0, left_s / step_s)
            left_s -= step_s

    def close(self) -> None:
        """Leaves the machine."""
        self._worker.close()


def virtual_study(
    spec: StudySpec, space: SearchSpace, times: Times, *, first: Sequence[tuple[str, FlagSet]] = ()
) -> MemoryStore:
    """Runs a study by the shipped stages in virtual time; returns its records.

    Args:
        first: Named sets that are tried before the sampler proposes.
    """
    clock = VirtualClock()
    store = MemoryStore(spec)
    store.watch = clock.watch
    setup = GivenSetup(
        given_space=space, first=first, given_launcher=VirtualLauncher(spec, clock, times)
    )
    run = replace(given_run(spec, None, setup, silent()), open_store=lambda: store)
    pool = functools.partial(VirtualPool, clock)
    with (
        mock.patch("time.monotonic", clock),
        mock.patch.object(context, "ThreadPoolExecutor", pool),
        mock.patch("os.sched_getaffinity", return_value=set(range(times.cores))),
    ):
        run_study(run)
    return store
