"""Protocols of launchers and workers, and the guarded process that all of them are made of."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from autotune.child.guard import GUARD_PROGRAM
from autotune.machine.child_process import ChildProcess
from autotune.machine.environment import driver_python
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, WorkerReport
from autotune.model.records import MemoryUse
from autotune.model.time_limits import TimeLimits

LOG_BYTES = 4_000_000

_ROOT = Path(__file__).resolve().parents[2]


class WorkerFailed(Exception):
    """A worker gave no number. Not an error of the study: `evaluate` turns it into a record.

    Attributes:
        failure: What happened, classified.
        infrastructure: The machine failed, not the settings; worth one more try.
    """

    def __init__(self, failure: Failure, *, infrastructure: bool = False) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
        self.infrastructure = infrastructure


class Worker(Protocol):
    """One running program under one flag set. Not thread-safe; idle whenever no call is in progress."""

    report: WorkerReport
    last_loss: float | None
    """Of the last step of the last block; None before the first one, and where no loss is known."""
    last_norm: float | None
    """Global gradient norm of the same step; None where it is not known."""
    loss_lag: int
    """Steps between the step that these two belong to and the end of the block."""
    fresh_batches: bool
    """Whether every step gets a batch of its own from now on, if the worker makes them: costs time beside the step."""
    watches_memory: bool
    """Whether every block reports memory in use from now on: costs milliseconds beside the block."""
    last_memory: MemoryUse | None
    """At the end of the last block; None where it was not asked for, or is not known."""

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Runs that many steps now and gives each one's duration in seconds.

        Raises:
            WorkerFailed: If the worker died, hung, or computed a loss that is not finite.
        """

    def profile(self, steps: int) -> bytes:
        """Runs that many steps under a profiler and gives the cost of each instruction as text that XLA reads.

        Empty where the profiler saw none.

        Raises:
            WorkerFailed: If the worker died or hung, or cannot profile.
        """

    def close(self) -> None:
        """Ends the worker and every process below it; safe to call twice, never raises."""


Progress = Callable[[str], None]
"""Called with the phase that a starting worker has reached: ``import``, ``build``, ``compile``, ``warm-up``."""


class Launcher(Protocol):
    """Starts workers."""

    limits: TimeLimits
    """What workers that are started from now on may take."""

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> Worker:
        """Starts a worker under `settings` (baseline merged in) and waits until it is compiled and warm.

        Raises:
            WorkerFailed: If it never became ready.
        """

    def close(self) -> None:
        """Ends every worker that is still alive."""


def reader_command(module: str) -> list[str]:
    """What a guard runs to look at a user's program: a module of `autotune.child`, started in milliseconds."""
    code = (
        f"import sys; sys.path.insert(0, sys.argv.pop(1)); from autotune.child.{module} import main; sys.exit(main())"
    )
    return [driver_python(), "-I", "-S", "-c", code, str(_ROOT)]


class GuardedProcess(ChildProcess):
    """One process behind its guard, which ends everything below it when the driver ends (`autotune.child.guard`).

    Every message has a ``type``, and the last one of all is of type ``exit``.

    Args:
        through: What carries the guard to another machine, such as ``srun ...``; then `env` is that program's own, and
            the command's goes to the guard as its first message.

    Attributes:
        end: The message ``exit``, once it is there.

    Raises:
        WorkerFailed: If it cannot be started.
    """

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str],
        log: Path,
        log_bytes: int = LOG_BYTES,
        cwd: str | None = None,
        through: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.end: dict[str, Any] | None = None
        arguments = [str(log), str(log_bytes), *(["--remote"] if through else []), "--", *command]
        try:
            with self.guard_log.open("wb") as errors:
                guard = [*through, driver_python(), "-I", "-S", GUARD_PROGRAM, *arguments]
                super().__init__(guard, env, errors=errors, cwd=cwd)
        except OSError as error:
            raise WorkerFailed(
                Failure(kind=FailureKind.LAUNCH, message=f"cannot start a process: {error}", phase="launch"),
                infrastructure=True,
            ) from error

    @property
    def guard_log(self) -> Path:
        """What the guard itself, or what carries it, prints; removed in the end if that is nothing."""
        return self.log.with_suffix(".guard")

    def receive(self) -> list[dict[str, Any]]:
        """Messages that have come, without waiting."""
        found = [m for m in super().receive() if isinstance(m.get("type"), str)]
        self.end = self.end or next((m for m in found if m["type"] == "exit"), None)
        if self.is_over and self.end is None:  # the guard vanished before it could say how its command ended
            self.end = {"type": "exit", "exit_status": None, "last_lines": []}
            found.append(self.end)
        return found

    def said_by_carrier(self) -> tuple[str, ...]:
        """The last lines that the guard, or what carries it (``srun``), printed; none while all is well."""
        try:
            text = self.guard_log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ()
        lines = [line[:500] for line in text.splitlines() if line.strip() and "support for cpu binding" not in line]
        return tuple(lines[-8:])

    def first(self, kinds: Collection[str], limit_s: float) -> dict[str, Any] | None:
        """Waits for a message of some kinds; None if the process ended or said nothing within `limit_s` seconds."""
        return next((m for m in self.messages(limit_s) if m["type"] in kinds), None)

    def close(self, patience_s: float) -> None:
        """Ends the guard (its stdin ends), which ends everything below it; kills it if it does not."""
        super().close(patience_s)
        with contextlib.suppress(OSError):
            if self.guard_log.stat().st_size == 0:
                self.guard_log.unlink()


def listen(processes: Sequence[GuardedProcess], wait_s: float) -> list[tuple[int, dict[str, Any]]]:
    """Messages of some processes, each with its rank; waits until there is one, at most `wait_s` seconds."""
    select.select([p.descriptor for p in processes if p.end is None], [], [], wait_s)
    return [(rank, message) for rank, process in enumerate(processes) for message in process.receive()]
