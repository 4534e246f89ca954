"""Runs a program once and reports what it prints and which of its processes load XLA, until told to stop.

Standard library only. It gets a ``job`` (``command``, ``cwd``, ``terminal``) over the channel and answers with
``lines`` (each with the second at which it came), ``processes`` (as `xla_processes` gives them) and ``ended``.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import Any

from autotune.child.channel import Channel
from autotune.child.output import Lines, read_piece, start_program
from autotune.child.processes import xla_processes

SEND_EVERY_S = 0.2
LOOK_EVERY_S = 0.5
MOST_LINES = 20_000
"""Lines that are sent; of a program that prints more only the first ones count."""


def main() -> int:
    """Takes the job and runs the program; gives the exit status."""
    channel = Channel()
    job = channel.receive()
    if job["type"] != "job":
        return 0
    try:
        program, output = start_program(job["command"], job["cwd"], terminal=bool(job.get("terminal")))
    except OSError as error:
        channel.send("cannot_start", reason=error.strerror or str(error))
        return 127
    return _Run(channel, program, output).run()


class _Run:
    """One run of the program."""

    def __init__(self, channel: Channel, program: subprocess.Popen[bytes], output: int) -> None:
        self._channel = channel
        self._program = program
        self._output = output
        self._lines = Lines()
        self._waiting: list[tuple[float, str]] = []
        self._count = 0
        self._processes: list[dict[str, Any]] = []

    def run(self) -> int:
        """Passes on output until the program ends or the driver says stop; gives the exit status."""
        began = sent = looked = time.monotonic()
        output = self._output
        sources = [output, self._channel.fileno()]
        while True:
            readable, _, _ = select.select(sources, [], [], SEND_EVERY_S)
            if self._channel.fileno() in readable:
                return 0  # whatever the driver says means stop; the guard ends what runs
            now = time.monotonic()
            if output in readable:
                data = read_piece(output)
                if not data:
                    sources.remove(output)
                with contextlib.suppress(OSError):  # the log is the guard's
                    os.write(1, data)
                self._take(data or b"\n", now - began)
            if now - looked >= LOOK_EVERY_S:
                looked = now
                self._send_processes()
            is_over = self._program.poll() is not None and output not in readable
            if now - sent >= SEND_EVERY_S or is_over:
                sent = now
                self._send()
            if is_over:
                self._channel.send("ended", status=self._program.returncode, lines=self._count)
                return 0

    def _take(self, data: bytes, at_s: float) -> None:
        for line in self._lines.feed(data):
            self._count += 1
            if self._count <= MOST_LINES:
                self._waiting.append((at_s, line))

    def _send(self) -> None:
        if self._waiting:
            self._channel.send("lines", lines=self._waiting)
            self._waiting = []

    def _send_processes(self) -> None:
        # Below the guard, which inherits the processes whose parents end: a launcher may leave a daemon.
        found = xla_processes(os.getppid())
        if found != self._processes:
            self._processes = found
            self._channel.send("processes", processes=found)


if __name__ == "__main__":
    sys.exit(main())
