"""Runs a user's program once and records its output."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from autotune.child.channel import Message
from autotune.child.guard import CANNOT_START
from autotune.child.output import Output
from autotune.child.steps import Rules
from autotune.machine.environment import STORED, Environment
from autotune.machine.files import COMPILES, PROBES, Scratch
from autotune.model.errors import LaunchError
from autotune.model.options import filled, filled_command
from autotune.workers.base import GuardedProcess, reader_command
from autotune.workers.own_folder import OwnFolder
from autotune.workers.programs import dump_flag, dumped_options, partitions_in

ASK_EVERY_S = 0.5
END_PATIENCE_S = 15.0
MARK = "--xla_dump_max_hlo_modules=-1"  # XLA's default: do flags arrive?


class ProbeRequest(NamedTuple):
    """A program to run once; `rules` are the given keys of `[workload.read]`."""

    command: tuple[str, ...]
    cwd: Path
    platform: str
    rules: Rules
    limit_s: float

    @property
    def says_how(self) -> bool:
        """Whether the given keys say how a step is read."""
        return not {"preset", "pattern", "json_key"}.isdisjoint(self.rules)


@dataclass(kw_only=True)
class Probe:
    """The output of one run of a program, or of its saved log."""

    environment: Environment = field(default_factory=dict)
    has_dumped: bool | None = None  # XLA wrote what it compiled into a folder
    options: Mapping[str, str] = field(default_factory=dict)  # not XLA's defaults
    partitions: int = 1  # devices of the largest program that it compiled
    lines: list[str] = field(default_factory=list)  # of the output or file
    at_s: list[float] = field(default_factory=list)  # none for a saved log
    processes: dict[int, Message] = field(default_factory=dict)  # with XLA, by pid
    status: int | None = None  # None if it was stopped
    took_s: float = 0.0
    last_lines: Output = ()
    place: Path = Path()  # of the files that it writes to its folder, while it runs
    writes: Output = ()  # files below its folder, if it had one of its own
    outside: set[str] = field(default_factory=set)  # opened to write
    folder_warning: str = ""  # why its folder was not its own
    notes: list[str] = field(default_factory=list)

    @property
    def python(self) -> str | None:
        """The interpreter that loaded jaxlib; None if none was seen."""
        return next(filter(None, [process["python"] for process in self.processes.values()]), None)

    @property
    def jaxlib(self) -> str | None:
        """The version of that jaxlib, if it is known."""
        versions = [process["versions"].get("jaxlib") for process in self.processes.values()]
        return next(filter(None, versions), None)

    @property
    def opens_gpu(self) -> bool:
        """Whether one of `processes` has opened a GPU."""
        return any(process["opens_gpu"] for process in self.processes.values())


IsEnough = Callable[[Probe], bool]


def run_probe(request: ProbeRequest, environment: Environment, *, is_enough: IsEnough) -> Probe:
    """Runs a program once, in a folder of its own, until `is_enough`, its end or the time limit.

    LaunchError if it cannot start; ``{folder}`` stands for one that is removed afterwards.
    """
    cwd = str(request.cwd)
    with (
        contextlib.closing(Scratch(PROBES)) as scratch,
        contextlib.closing(Scratch(COMPILES)) as dump,
        contextlib.closing(OwnFolder(cwd, "own")) as private,
    ):
        folder = {"folder": str(scratch.path)}
        arguments = filled_command(request.command, folder)
        file = request.rules.get("file")
        environment = {**environment, "XLA_FLAGS": f"{MARK} {dump_flag(dump.path)}"}
        reader = private.command(reader_command("read_output"), [scratch.path])
        process = GuardedProcess(reader, environment, scratch.path / "probe.log", cwd=cwd)
        probe = Probe(environment=environment, place=private.place, folder_warning=private.warning)
        try:
            process.send(
                {
                    "type": "probe",
                    "command": arguments,
                    "cwd": private.cwd,
                    "rules": {"file": file and filled(file, folder)},
                    "variables": STORED.pattern,
                }
            )
            _follow(process, probe, limit_s=request.limit_s, is_enough=is_enough)
        finally:
            process.close(END_PATIENCE_S)
        end = process.end or {}
        probe.last_lines = end.get("last_lines", ())
        if end.get("exit_status") == 127:
            why = probe.last_lines[-1] if probe.last_lines else arguments[0]
            raise LaunchError(
                "the command must be one that can be started but "
                f"{why.removeprefix(CANNOT_START).strip()}; give its path, word by word without "
                "the quotes of a shell, or activate its environment"
            )
        probe.writes = private.written()
        probe.has_dumped = any(dump.path.iterdir())
        probe.options = dumped_options(dump.path)
        probe.partitions = partitions_in(dump.path)
        cache = Path.home() / ".cache"
        places = (scratch.path, dump.path.resolve(), os.path.realpath(cwd), private.cwd, cache)
        probe.outside = {
            f for f in probe.outside if not any(Path(f).is_relative_to(p) for p in places)
        }
        return probe


def _follow(process: GuardedProcess, probe: Probe, *, limit_s: float, is_enough: IsEnough) -> None:
    began_s = time.monotonic()
    while not process.is_over and probe.took_s < limit_s:
        for message in process.messages(ASK_EVERY_S):
            _take(probe, message)
            if message["type"] == "ended":
                probe.took_s = time.monotonic() - began_s
                return
        probe.took_s = time.monotonic() - began_s
        if is_enough(probe):
            return


def _take(probe: Probe, message: Message) -> None:
    """Adds a message of `autotune.child.read_output`."""
    for at_s, line in message.get("lines", ()):
        probe.at_s.append(at_s)
        probe.lines.append(line)
    probe.outside.update(message.get("files", ()))
    for process in message.get("processes", ()):
        probe.processes[process["pid"]] = process
    probe.status = message.get("status")
