"""Runs a program once and reports its output and its processes that load XLA, until stopped.

Standard library only. It receives a ``job`` (``command``, ``cwd``, ``terminal``, ``file``, and ``variables``, a pattern
of names) over the channel and answers with ``lines`` (each with its time in seconds; of its output, or of the file that
it writes), ``processes`` (of `xla_processes`), ``writes`` (files that it has open to write them) and ``ended``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.child.channel import Channel
from autotune.child.output import Follow
from autotune.child.processes import open_for_writing, xla_processes
from autotune.child.read_output import ProgramRun, run_job

LOOK_EVERY_S, FILES_EVERY_S = 0.5, 0.1
MOST_LINES = 20_000
"""Limit of reported lines of the output, and of the file; the first ones."""


class ProbedRun(ProgramRun):
    """A run that reports its lines, processes and files."""

    def __init__(self, channel: Channel, job: Mapping[str, Any]) -> None:
        self._file = Follow(Path(job["cwd"]) / job["file"]) if job.get("file") else None
        super().__init__(channel, job, terminal=bool(job["terminal"]))
        self._began = self._looked = self._watched = time.monotonic()
        self._counts = {"output": 0, "file": 0}
        self._variables = re.compile(job["variables"])
        self._processes: list[dict[str, Any]] = []
        self._writes = set[str]()

    def take(self, lines: Iterable[str]) -> None:
        """Sends lines of the output with their time."""
        self._send(lines, of="output")

    def _send(self, lines: Iterable[str], *, of: str) -> None:
        at_s = time.monotonic() - self._began
        waiting = [(at_s, line) for line in lines][: MOST_LINES - self._counts[of]]
        self._counts[of] += len(waiting)
        if waiting:
            self.channel.send("lines", of=of, lines=waiting)

    def look(self) -> None:
        """Sends lines of the file, files that are new, and the processes that have loaded XLA, if they changed."""
        if self._file is not None:
            self._send(self._file.read(), of="file")
        now_s = time.monotonic()
        # Below the guard, which inherits orphans: a launcher may leave a daemon.
        guard = os.getppid()
        if now_s - self._watched >= FILES_EVERY_S:
            self._watched = now_s
            self._tell_writes(guard)
        if now_s - self._looked < LOOK_EVERY_S:
            return
        self._looked = now_s
        found = xla_processes(guard, self._variables)
        if found != self._processes:
            self._processes = found
            self.channel.send("processes", processes=found)

    def _tell_writes(self, guard: int) -> None:
        if new := open_for_writing(guard) - self._writes:
            self._writes |= new
            self.channel.send("writes", files=sorted(new))

    def ended(self) -> int:
        """Sends the last lines of the file, and the program's status."""
        if self._file is not None:
            self._send(self._file.read(), of="file")
        self.channel.send("ended", status=self.program.returncode)
        return 0


def main() -> int:
    """Runs the program; returns the exit status."""
    return run_job(ProbedRun)
