"""A process behind its guard, which ends everything below it when the driver ends; see `autotune.child.guard`."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.child import GUARD_PROGRAM
from autotune.machine import ChildProcess, driver_python
from autotune.model import Failure, FailureKind
from autotune.workers.base import WorkerFailed

LOG_BYTES = 4_000_000


class GuardedProcess(ChildProcess):
    """One process behind its guard; every message has a ``type``, and the last one of all is of type ``exit``.

    Args:
        command: What the guard runs.
        env: Its whole environment.
        log: Where its output goes.
        log_bytes: How much of the output is kept: half from its start, half from its end.
        cwd: Folder to run in; default: the driver's.
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
        """What the guard itself, or what carries it, has to say; gone in the end if that is nothing."""
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
        """The last of what the guard, or what carries it (``srun``), had to say; nothing while all is well."""
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
