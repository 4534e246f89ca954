"""Compiles flag sets in parallel workers and caches the results.

The number of workers is limited by processors and by memory. The memory of a compilation is known
from earlier ones, so the first one runs alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
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
_LASTING = frozenset({FailureKind.UNKNOWN_FLAG, FailureKind.COMPILE_ERROR, FailureKind.CRASH})


class Cache:
    """Cached results of one job, by flag set; without a folder nothing is kept."""

    def __init__(self, root: Path | None, job: str) -> None:
        self._folder = (root or Path(os.devnull)) / f"v{SCHEMA_VERSION}-{job}"

    def _path(self, settings: FlagSet) -> Path:
        return self._folder / f"{settings.digest}.json"

    def load(self, settings: FlagSet) -> CompileResult | None:
        """Returns the cached result of a set; None if there is no readable one."""
        try:
            result = CompileResult.model_validate_json(self._path(settings).read_bytes())
        except (OSError, ValidationError):
            return None
        return (
            result.model_copy(update={"from_cache": True}) if result.settings == settings else None
        )

    def store(self, result: CompileResult) -> None:
        """Caches a result unless it is a failure of the machine; disk errors are ignored."""
        if result.failure is None or result.failure.kind in _LASTING:
            with contextlib.suppress(OSError):
                replace_file(self._path(result.settings), result.model_dump_json())

    def forget(self, sets: Iterable[FlagSet]) -> None:
        """Removes the results of sets."""
        for settings in sets:
            with contextlib.suppress(OSError):
                self._path(settings).unlink()


WORKER_RESTARTS = 2

MEMORY_SHARE = 0.5
"""Share of the memory available at the start of a batch that its compilations may use together."""

MOST_WORKERS = 16
"""Each worker lowers the step itself, so further ones gain little."""


class Compiler:
    """Compiles flag sets for one job; its workers live until `close`.

    Args:
        processors: Returns the largest number of compilations at once.

    Attributes:
        kept_to: Processors that later compilations may use; empty for all.
        workers: The running workers, by seat.

    Raises:
        LaunchError: If no fitting CUDA plugin is installed.
    """

    def __init__(
        self,
        job: CompileJob,
        *,
        cache_dir: Path | None = None,
        progress: Progress = lambda what: None,
        processors: Callable[[], int] = lambda: 1,
    ) -> None:
        if job.target is not None and (problem := compiler_problem(job.versions)):
            raise LaunchError(problem)
        self.job = job
        self.kept_to: frozenset[int] = frozenset()
        self._cache = Cache(cache_dir, job.digest)
        self._first_s = 0.0
        self._host_bytes = 0
        self._progress = progress
        self._processors = processors
        self.workers: dict[int, CompileWorker] = {}
        # A JAX backend that starts before the fork disables the fork's flags, and listing a CPU's
        # devices starts one.
        self._lowers_first = job.target is not None
        self._is_stopped = False
        self._has_estimates = True

    def compile(self, sets: Sequence[FlagSet]) -> Generator[CompileResult, None, None]:
        """Compiles each distinct set, and yields cached results first; failures are results too.

        After closing the generator no more compilations start; running ones finish and are cached.

        Raises:
            LaunchError: If the workload itself fails.
        """
        missing = []
        for settings in dict.fromkeys(sets):
            cached = self._cache.load(settings)
            if cached is None:
                missing.append(settings)
            else:
                self._learn(cached)
                yield cached
        missing.sort(key=lambda s: str(worker_settings(s)))  # group by worker
        yield from self._side_by_side(missing)

    def _most_at_once(self, missing: Sequence[FlagSet]) -> int:
        """Returns the number of compilations at once; one until the memory of a compilation is
        known.
        """
        if not self._host_bytes:
            return 1
        room = int(MEMORY_SHARE * available_memory_bytes() / self._host_bytes)
        processors = min(self._processors(), len(self.kept_to) or MOST_WORKERS)
        return max(1, min(processors, room, MOST_WORKERS, len(missing)))

    def _side_by_side(self, missing: Sequence[FlagSet]) -> Generator[CompileResult, None, None]:
        queued = list(missing)
        running = dict[Future[CompileResult], int]()
        seats = self._most_at_once(missing)
        free = list(range(seats))
        with ThreadPoolExecutor(max_workers=seats, thread_name_prefix="compile") as pool:
            while queued or running:
                while queued and free:
                    seat = free.pop(0)
                    shared = self.workers[seat].shared if seat in self.workers else None
                    settings = next((s for s in queued if worker_settings(s) == shared), queued[0])
                    queued.remove(settings)
                    running[pool.submit(self._one, seat, settings)] = seat
                try:
                    finished = wait(running, return_when=FIRST_COMPLETED).done
                except KeyboardInterrupt:
                    self.abort()
                    raise
                for future in sorted(
                    finished, key=lambda f: f.exception() is not None
                ):  # so that each result counts
                    free.append(running.pop(future))
                    yield future.result()

    def _one(self, seat: int, settings: FlagSet) -> CompileResult:
        """Compiles one set and caches the result."""
        result = self._tried(seat, settings)
        self._cache.store(result)
        self._learn(result)
        return result

    def _learn(self, result: CompileResult) -> None:
        """Records the memory and time that a compilation took."""
        self._host_bytes = max(self._host_bytes, result.host_bytes)
        self._first_s = self._first_s or (result.cpu_s if result.program is not None else 0.0)

    def _tried(self, seat: int, settings: FlagSet) -> CompileResult:
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
            self._progress(f"compile {settings}")
            limits = compile_limits(self._first_s)
            result = worker.compile(settings, limits=limits, has_estimates=self._has_estimates)
            if (
                self._has_estimates
                and result is not None
                and _may_be_due_to_estimates(result.failure)
            ):
                # XLA's cost models know only some GPUs, and another build may lack the flag: retry
                # without it.
                result = worker.compile(settings, limits=limits, has_estimates=False)
                self._has_estimates = result is None or result.program is None
            if result is not None:
                return result
            self._end(seat)
        failure = Failure(
            kind=FailureKind.CRASH,
            message="the compile worker died again and again",
            phase="compile",
        )
        return CompileResult(settings=settings, failure=failure)

    def _refuse_if_stopped(self) -> None:
        if self._is_stopped:
            raise StoppedError(
                "compiling was stopped; run the same command again, what is compiled is kept"
            )

    def _start(self, seat: int, shared: FlagSet) -> CompileWorker:
        """Starts a worker; if the workload starts a JAX backend in it, another that lowers in its
        forks.
        """
        self._end(seat)
        worker = CompileWorker(
            self.job, shared, self._progress, lowers_first=self._lowers_first, kept_to=self.kept_to
        )
        self.workers[seat] = worker
        if worker.is_touched:
            self._progress(
                "the workload starts a backend as it is built: each set is built in a process of "
                "its own"
            )
            self._lowers_first = False
            return self._start(seat, shared)
        return worker

    def _end(self, seat: int) -> None:
        if (worker := self.workers.pop(seat, None)) is not None:
            worker.close()

    def forget(self, sets: Iterable[FlagSet]) -> None:
        """Removes results from the cache."""
        self._cache.forget(sets)

    def abort(self) -> None:
        """Stops all compilations, from any thread; they and later ones raise `StoppedError`."""
        self._is_stopped = True
        for worker in list(self.workers.values()):
            worker.abort()

    def close(self) -> None:
        """Ends the workers; a later compilation starts new ones."""
        for seat in list(self.workers):
            self._end(seat)

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_be_due_to_estimates(failure: Failure | None) -> bool:
    """Whether a compilation may have failed because of `ESTIMATES`; one that took too long is not
    tried again.
    """
    return (
        failure is not None and failure.kind is not FailureKind.HANG and failure.signal != TOO_SLOW
    )
