"""Runs a program once and reports its output and its processes that load XLA, until stopped.

Standard library only. It receives a ``job`` (``command``, ``cwd``, ``terminal``, and
``variables``, a pattern of names) over the channel and answers with
``lines`` (each with its time in seconds), ``processes`` (of `xla_processes`) and ``ended``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.child.channel import Channel
from autotune.child.processes import xla_processes
from autotune.child.read_output import ProgramRun

LOOK_EVERY_S = 0.5
MOST_LINES = 20_000
"""Limit of reported lines, the first ones."""


class ProbedRun(ProgramRun):
    """A run that reports its lines and processes."""

    def __init__(self, channel: Channel, job: Mapping[str, Any]) -> None:
        super().__init__(channel, job, terminal=bool(job["terminal"]))
        self._began = self._looked = time.monotonic()
        self._count = 0
        self._variables = re.compile(job["variables"])
        self._processes: list[dict[str, Any]] = []

    def take(self, lines: Iterable[str]) -> None:
        """Sends lines with their time."""
        at_s = time.monotonic() - self._began
        waiting = [(at_s, line) for line in lines][: MOST_LINES - self._count]
        self._count += len(waiting)
        if waiting:
            self.channel.send("lines", lines=waiting)

    def look(self) -> None:
        """Sends the processes that have loaded XLA, if they changed."""
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        # Below the guard, which inherits orphans: a launcher may leave a daemon.
        found = xla_processes(os.getppid(), self._variables)
        if found != self._processes:
            self._processes = found
            self.channel.send("processes", processes=found)

    def ended(self) -> int:
        """Sends the program's status."""
        self.channel.send("ended", status=self.program.returncode)
        return 0


def main() -> int:
    """Receives the job and runs the program; returns the exit status."""
    channel = Channel()
    job = channel.receive()
    if job["type"] != "job":
        return 0
    try:
        run = ProbedRun(channel, job)
    except OSError as error:
        channel.send("cannot_start", reason=error.strerror or str(error))
        return 127
    return run.run()
