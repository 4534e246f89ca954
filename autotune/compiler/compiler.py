"""Compiles flag sets in parallel workers, limited by processors and memory; caches the results.

The memory of a compilation is known from earlier ones, so the first one runs alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from pydantic import ValidationError

from autotune.compiler.compile_worker import (
    TOO_SLOW,
    CompileJob,
    CompileWorker,
    Progress,
    worker_settings,
)
from autotune.compiler.program import SCHEMA_VERSION, CompileResult
from autotune.compiler.targets import compiler_problem
from autotune.machine.files import replace_file
from autotune.machine.host import available_memory_bytes
from autotune.model.errors import LaunchError, StoppedError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.model.time_limits import compile_limits

# Failures of the set itself; a failure of the machine may not repeat.
_LASTING = (FailureKind.UNKNOWN_FLAG, FailureKind.COMPILE_ERROR, FailureKind.CRASH)


class Cache:
    """Cached results of one job, by flag set; without a folder nothing is kept."""

    def __init__(self, root: Path | None, job: str) -> None:
        self._folder = (root or Path(os.devnull)) / f"v{SCHEMA_VERSION}-{job}"

    def path(self, settings: FlagSet) -> Path:
        """Returns the file of a set's result."""
        return self._folder / f"{settings.digest}.json"

    def load(self, settings: FlagSet) -> CompileResult | None:
        """Returns the cached result of a set; None if there is no readable one."""
        with contextlib.suppress(OSError, ValidationError):
            result = CompileResult.model_validate_json(self.path(settings).read_bytes())
            if result.settings == settings:
                return result.model_copy(update={"from_cache": True})
        return None

    def store(self, result: CompileResult) -> None:
        """Caches a result unless it is a failure of the machine; disk errors are ignored."""
        if result.failure is None or result.failure.kind in _LASTING:
            with contextlib.suppress(OSError):
                replace_file(self.path(result.settings), result.model_dump_json())


WORKER_RESTARTS = 2
MEMORY_SHARE = 0.5  # of what is available at the start of a batch
MOST_WORKERS = 16  # each lowers the step itself, so further ones gain little


class Compiler:
    """Compiles flag sets for one job; its workers, by seat, live until `close`.

    Later compilations use the processors `kept_to` (all if empty), at most `processors()` at once.
    The constructor raises LaunchError if no fitting CUDA plugin is installed.
    """

    def __init__(
        self,
        job: CompileJob,
        *,
        cache_dir: Path | None = None,
        progress: Progress = lambda what: None,
        processors: Callable[[], int] = lambda: 1,
    ) -> None:
        if job.target is not None:
            problem = compiler_problem(job.versions)
            if problem is not None:
                raise LaunchError(problem)
        self.job = job
        self.kept_to: frozenset[int] = frozenset()
        self._cache = Cache(cache_dir, job.digest)
        self._first_s = 0.0
        self._host_bytes = 0
        self.progress = progress
        self._processors = processors
        self.workers: dict[int, CompileWorker] = {}
        # A backend that starts before the fork disables its flags; listing a CPU's devices does.
        self._lowers_first = job.target is not None
        self._is_stopped = False
        self._has_estimates = True

    def compile(self, sets: Iterable[FlagSet]) -> Generator[CompileResult, None, None]:
        """Compiles each distinct set, and yields cached results first; failures are results too.

        After closing the generator no more compilations start; running ones finish and are cached.
        LaunchError if the workload itself fails.
        """
        queued = []
        for settings in dict.fromkeys(sets):
            cached = self._cache.load(settings)
            if cached is None:
                queued.append(settings)
            else:
                self._learn(cached)
                yield cached
        queued.sort(key=lambda s: str(worker_settings(s)))  # group by worker
        running = dict[Future[CompileResult], int]()
        free = list(range(self._most_at_once()))
        with ThreadPoolExecutor(max_workers=len(free), thread_name_prefix="compile") as pool:
            while queued or running:
                while queued and free:
                    seat = free.pop(0)
                    shared = self.workers[seat].shared if seat in self.workers else None
                    settings = next((s for s in queued if worker_settings(s) == shared), queued[0])
                    queued.remove(settings)
                    running[pool.submit(self._compile_and_keep, seat, settings)] = seat
                try:
                    finished = wait(running, return_when=FIRST_COMPLETED).done
                except KeyboardInterrupt:
                    self.abort()
                    raise
                # Errors come last, so that each result counts.
                for future in sorted(finished, key=lambda f: f.exception() is not None):
                    free.append(running.pop(future))
                    yield future.result()

    def _most_at_once(self) -> int:
        """Returns the number of compilations at once; 1 until the memory of one is known."""
        if not self._host_bytes:
            return 1
        room = int(MEMORY_SHARE * available_memory_bytes() / self._host_bytes)
        processors = len(self.kept_to) or MOST_WORKERS
        return max(1, min(self._processors(), processors, room, MOST_WORKERS))

    def _compile_and_keep(self, seat: int, settings: FlagSet) -> CompileResult:
        result = self._compile_one(seat, settings)
        self._cache.store(result)
        self._learn(result)
        return result

    def _learn(self, result: CompileResult) -> None:
        """Records the memory and time that a compilation took."""
        self._host_bytes = max(self._host_bytes, result.host_bytes)
        if result.program is not None:
            self._first_s = self._first_s or result.cpu_s

    def _compile_one(self, seat: int, settings: FlagSet) -> CompileResult:
        shared = worker_settings(settings)
        for _ in range(WORKER_RESTARTS + 1):
            self._refuse_if_stopped()
            worker = self.workers.get(seat)
            if worker is None or worker.shared != shared:
                worker = self._start(seat, shared)
            self._refuse_if_stopped()
            worker.kept_to = self.kept_to
            if worker.broken is not None:
                if not shared:
                    raise LaunchError(worker.broken.message)
                return CompileResult(settings=settings, failure=worker.broken)
            self.progress(f"compile {settings}")
            limits = compile_limits(self._first_s)
            result = worker.compile(settings, limits=limits, has_estimates=self._has_estimates)
            failure = result.failure if result is not None else None
            if (
                self._has_estimates
                and failure is not None
                and failure.kind is not FailureKind.HANG
                and failure.signal != TOO_SLOW
            ):
                # XLA's cost models know only some GPUs, and another build may lack the flag.
                result = worker.compile(settings, limits=limits, has_estimates=False)
                self._has_estimates = result is None or result.program is None
            if result is not None:
                return result
            self._end(seat)
        message = "the compile worker died again and again"
        failure = Failure(kind=FailureKind.CRASH, message=message, phase="compile")
        return CompileResult(settings=settings, failure=failure)

    def _refuse_if_stopped(self) -> None:
        if self._is_stopped:
            raise StoppedError(
                "compiling was stopped; run the same command again, what is compiled is kept"
            )

    def _start(self, seat: int, shared: FlagSet) -> CompileWorker:
        """Starts a worker; another, which lowers in forks, if the workload starts a JAX backend."""
        self._end(seat)
        worker = CompileWorker(
            self.job, shared, self.progress, lowers_first=self._lowers_first, kept_to=self.kept_to
        )
        self.workers[seat] = worker
        if worker.is_touched:
            self.progress(
                "the workload starts a backend as it is built: each set is built in a process of "
                "its own"
            )
            self._lowers_first = False
            return self._start(seat, shared)
        return worker

    def _end(self, seat: int) -> None:
        if seat in self.workers:
            self.workers.pop(seat).close()

    def forget(self, sets: Iterable[FlagSet]) -> None:
        """Removes results from the cache."""
        for settings in sets:
            with contextlib.suppress(OSError):
                self._cache.path(settings).unlink()

    def abort(self) -> None:
        """Stops all compilations, from any thread; they and later ones raise `StoppedError`."""
        self._is_stopped = True
        for worker in list(self.workers.values()):
            worker.abort()

    def close(self) -> None:
        """Ends the workers; a later compilation starts new ones."""
        for seat in list(self.workers):
            self._end(seat)
