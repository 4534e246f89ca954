"""A process that has imported JAX before its flag set is known, so that a start of the search is
shorter by that.

It imports beside the start of the process before it, never while blocks are timed. Before a backend
starts, neither XLA nor NCCL reads its environment, so a set's variables of `LATE` can be given to
it then; a set that changes others gets a process of its own. Proofs never use one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from autotune.workers.base import GuardedProcess, WorkerFailed

LATE = re.compile(
    r"XLA_FLAGS|NCCL_\w+|XLA_(PYTHON_)?CLIENT_\w+|LIBTPU_INIT_ARGS|JAX_COMPILATION_CACHE_DIR"
)
"""Variables that count if they are set after the import of JAX, which `autotune.child.measure`
tells the folder.
"""

LOG_NAME = "spare.log"
IMPORT_LIMIT_S = 120.0
PATIENCE_S = 5.0


class Spare:
    """At most one such process."""

    def __init__(self) -> None:
        self._process: GuardedProcess | None = None
        self._env: Mapping[str, str] = {}

    def begin(self, command: list[str], entry: str, env: Mapping[str, str], folder: Path) -> None:
        """Starts a process that imports what a workload needs; without one if it cannot be started.

        Args:
            env: Its environment until it gets that of a set.
            folder: Where its log lies until it is taken.
        """
        self.close()
        with contextlib.suppress(WorkerFailed):  # a start without a spare tells why
            self._process = GuardedProcess(command, env, folder / LOG_NAME)
            self._process.send({"type": "import", "entry": entry})
            self._env = env

    def take(self, env: Mapping[str, str], log: Path) -> GuardedProcess | None:
        """Returns the process, with the environment and log of a set; None if there is none that
        can have them.
        """
        process = self._process
        if process is None:
            return None
        names = {n for n in {*env, *self._env} if env.get(n) != self._env.get(n)}
        process.receive()
        if process.end is not None or not all(map(LATE.fullmatch, names)):
            self.close()
            return None
        process.move_log(log)
        process.send({"type": "environment", "variables": {n: env.get(n) for n in sorted(names)}})
        self._process = None
        return process

    def wait(self) -> None:
        """Waits until the process has imported all: then it is idle; ends one that does not come to
        it.
        """
        if self._process is not None and self._process.first({"imported"}, IMPORT_LIMIT_S) is None:
            self.close()

    def close(self) -> None:
        """Ends the process; safe to call twice."""
        if self._process is not None:
            self._process.close(PATIENCE_S)
            with contextlib.suppress(OSError):
                self._process.log.unlink()
            self._process = None
