"""Runs a program that nobody has measured yet and tells what it prints and what it runs on, until told to stop.

Standard library only. It runs behind the guard, as a trial does, and gets a ``job`` (``command``, ``cwd``) over the
channel. It speaks ``lines`` (each with the second at which it came), ``process`` (an interpreter that has loaded XLA)
and ``ended``. Nothing is measured: what is read of it becomes a study, which measures.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.child import terminal
from autotune.child.channel import Channel
from autotune.child.guard import descendants
from autotune.child.process_env import environments
from autotune.child.read_rules import Lines

SEND_EVERY_S = 0.2
LOOK_EVERY_S = 0.5
MOST_LINES = 20_000
"""Lines that are told; a program that prints more is read by the first ones."""

_JAXLIB = re.compile(r"(/\S.*?)/jaxlib/\S*\.so")


def main() -> int:
    """Entry point; see the module's first lines."""
    channel = Channel()
    job = channel.receive()
    if job["type"] != "job":
        return 0
    try:
        program, output = terminal.start(job["command"], job["cwd"], terminal=bool(job.get("terminal")))
    except OSError as error:
        channel.send("cannot_start", reason=error.strerror or str(error))
        return 127
    return _Watch(channel, program, output).run()


class _Watch:
    """One program under a first look."""

    def __init__(self, channel: Channel, program: subprocess.Popen[bytes], output: int) -> None:
        self._channel = channel
        self._program = program
        self._output = output
        self._lines = Lines()
        self._waiting: list[tuple[float, str]] = []
        self._count = 0
        self._told: set[int] = set()

    def run(self) -> int:
        """Passes on what there is until the program ends or the driver says stop; gives the program's status."""
        began = sent = looked = time.monotonic()
        output = self._output
        sources = [output, self._channel.fileno()]
        while True:
            readable, _, _ = select.select(sources, [], [], SEND_EVERY_S)
            if self._channel.fileno() in readable:
                return 0  # whatever the driver says means stop; the guard ends what runs
            now = time.monotonic()
            if output in readable:
                data = terminal.read(output)
                if not data:
                    sources.remove(output)
                with contextlib.suppress(OSError):  # the log is the guard's
                    os.write(1, data)
                self._take(data or b"\n", now - began)
            if now - looked >= LOOK_EVERY_S:
                looked = now
                self._tell_processes()
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

    def _tell_processes(self) -> None:
        """Tells of each process once: where its jaxlib lies, and what started it."""
        own = os.getppid()  # the guard's, who inherits what leaves its parents: a launcher may end, or make a daemon
        for pid in descendants(own):
            if pid not in self._told and (found := python_with_jaxlib(pid)) is not None:
                self._told.add(pid)
                self._channel.send("process", **found)
        for seen in environments(own, []) if self._told else ():
            if seen.get("opens_gpu"):
                self._channel.send("gpu", pid=seen["pid"])


def python_with_jaxlib(pid: int, proc: Path = Path("/proc")) -> Mapping[str, Any] | None:
    """Which interpreter a process is that has loaded jaxlib, and from where; None for any other.

    Its first argument tells more than its file: that of a virtual environment is a link to another's.

    Args:
        pid: Of the process.
        proc: Where the kernel shows processes (proc(5)).

    Returns:
        ``python`` (an absolute path), ``packages`` (the folder in which jaxlib lies) and ``jaxlib`` (its version, None
        where the folder does not tell).
    """
    try:
        maps = (proc / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
        found = _JAXLIB.search(maps)
        if found is None:
            return None
        file = str((proc / str(pid) / "exe").readlink())
        first = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")[0].decode(errors="surrogateescape")
        cwd = (proc / str(pid) / "cwd").readlink()
        variables = (proc / str(pid) / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return None
    packages = Path(found[1])
    path = next((v.removeprefix("PATH=") for v in variables if v.startswith("PATH=")), "")
    python = _as_called(first, cwd, path, file) or _beside(packages, file) or file
    told = [p.name.removeprefix("jaxlib-").removesuffix(".dist-info") for p in packages.glob("jaxlib-*.dist-info")]
    return {"pid": pid, "python": python, "packages": str(packages), "jaxlib": told[0] if told else None}


def _as_called(first: str, cwd: Path, path: str, file: str) -> str | None:
    """The interpreter by the name that it was started with, if that leads to the file that runs."""
    named = [cwd / first] if "/" in first else [Path(folder) / first for folder in path.split(":") if folder]
    for candidate in named if first else ():
        with contextlib.suppress(OSError):
            if candidate.samefile(file):
                return str(Path(os.path.abspath(candidate)))  # noqa: PTH100 (resolve would leave the environment)
    return None


def _beside(packages: Path, file: str) -> str | None:
    """The interpreter of the environment in which the packages lie, if that leads to the file that runs."""
    for candidate in (packages.parents[2] / "bin").glob("python*") if len(packages.parents) > 2 else ():
        with contextlib.suppress(OSError):
            if candidate.samefile(file):
                return str(candidate)
    return None


if __name__ == "__main__":
    sys.exit(main())
