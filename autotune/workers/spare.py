"""A process that imports JAX before its flag set is known, so that the next start is shorter.

It imports beside the start of the process before it, never while blocks are timed. It can still be
given a set's variables of `LATE`, which count until a backend starts; a set that changes others
gets a process of its own. Proofs never use one.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from autotune.machine.environment import Environment
from autotune.workers.base import GuardedProcess, WorkerFailed

# Variables that count even if set after the import of JAX; `child.measure` tells it the folder.
LATE = re.compile(
    r"XLA_FLAGS|NCCL_\w+|XLA_(PYTHON_)?CLIENT_\w+|LIBTPU_INIT_ARGS|JAX_COMPILATION_CACHE_DIR"
)

LOG_NAME = "spare.log"
IMPORT_LIMIT_S = 120.0
PATIENCE_S = 5.0


class Spare:
    """At most one such process."""

    def __init__(self) -> None:
        self._process: GuardedProcess | None = None
        self._env: Environment = {}

    def begin(self, command: list[str], entry: str, env: Environment, folder: Path) -> None:
        """Starts a process, if it can, that imports what a workload needs, in `env` until taken."""
        self.close()
        with contextlib.suppress(WorkerFailed):  # a start without a spare tells why
            self._process = GuardedProcess(command, env, folder / LOG_NAME)
            self._process.send({"type": "import", "entry": entry})
            self._env = env

    def take(self, env: Environment, log: Path) -> GuardedProcess | None:
        """Returns the process with a set's environment and log; None if it cannot have them."""
        process = self._process
        if process is None:
            return None
        changed = {n: env.get(n) for n in {*env, *self._env} if env.get(n) != self._env.get(n)}
        process.receive()
        if process.end is not None or not all(map(LATE.fullmatch, changed)):
            self.close()
            return None
        process.move_log(log)
        process.send({"type": "environment", "variables": changed})
        self._process = None
        return process

    def wait(self) -> None:
        """Waits until the process has imported all and is idle; ends one that fails to."""
        process = self._process
        if process is not None and process.first({"imported"}, IMPORT_LIMIT_S) is None:
            self.close()

    def close(self) -> None:
        """Ends the process; safe to call twice."""
        if self._process is not None:
            self._process.close(PATIENCE_S)
            with contextlib.suppress(OSError):
                self._process.log.unlink()
            self._process = None
