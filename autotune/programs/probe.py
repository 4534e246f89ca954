"""Runs a user's program once and records its output."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child.guard import CANNOT_START
from autotune.child.steps import Rules
from autotune.machine.environment import STORED, Environment
from autotune.machine.files import PROBES, Scratch
from autotune.model.errors import LaunchError
from autotune.model.options import filled, filled_command
from autotune.workers.base import GuardedProcess, reader_command
from autotune.workers.own_folder import OwnFolder

ASK_EVERY_S = 0.5
END_PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """A program to run once."""

    command: tuple[str, ...]
    cwd: Path
    platform: str
    rules: Rules
    """The keys of `[workload.read]` that are given; where none says how a step is read, that is
    recognised.
    """
    limit_s: float

    @property
    def says_how(self) -> bool:
        """Whether the given keys say how a step is read."""
        return any(key in self.rules for key in ("preset", "pattern", "json_key"))


@dataclass(kw_only=True)
class Probe:
    """The output of one run of a program, or of its saved log."""

    environment: Environment = field(default_factory=dict)
    """The one that it was given."""
    has_dumped: bool | None = None
    """Whether XLA wrote what it compiled into the folder of that environment; None without one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The flags in force beside XLA's defaults in what it compiled, and their values."""
    partitions: int = 1
    """Devices of the largest program that it compiled."""
    lines: list[str] = field(default_factory=list)
    """Lines of the output, or of the file that was asked for."""
    at_s: list[float] = field(default_factory=list)
    """Seconds after the start at which each line came; empty for a saved log."""
    processes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """Processes that have loaded XLA, by process number, as `autotune.child.processes` describes
    them.
    """
    status: int | None = None
    """Exit status as `subprocess` gives it; None if it was stopped."""
    took_s: float = 0.0
    """Seconds until it ended or was stopped."""
    last_lines: tuple[str, ...] = ()
    place: Path = Path()
    """Folder in which the files lie that it writes to its own, while it runs."""
    writes: tuple[str, ...] = ()
    """Files that it wrote below its folder, relative to it, if it had one of its own."""
    outside: set[str] = field(default_factory=set)
    """Files outside its folder that it had open to write them."""
    folder_warning: str = ""
    """Why its folder was not its own; empty if it was."""
    notes: list[str] = field(default_factory=list)

    @property
    def python(self) -> str | None:
        """The interpreter that loaded jaxlib; None if none was seen."""
        return next(
            (str(p["python"]) for p in self.processes.values() if p["python"] is not None), None
        )

    @property
    def jaxlib(self) -> str | None:
        """The version of that jaxlib, if it is known."""
        return next(
            (p["versions"]["jaxlib"] for p in self.processes.values() if "jaxlib" in p["versions"]),
            None,
        )

    @property
    def opens_gpu(self) -> bool:
        """Whether one of `processes` has opened a GPU."""
        return any(p["opens_gpu"] for p in self.processes.values())


IsEnough = Callable[[Probe], bool]


def run_probe(request: ProbeRequest, environment: Environment, *, is_enough: IsEnough) -> Probe:
    """Runs a program once, in a folder of its own, until `is_enough`, its end or the time limit;
    then ends all of it.

    In its command, and in the name of the file with its steps, ``{folder}`` stands for a folder
    that is removed afterwards.

    Raises:
        LaunchError: If it cannot be started.
    """
    cwd = str(request.cwd)
    with (
        contextlib.closing(Scratch(PROBES)) as scratch,
        contextlib.closing(OwnFolder(cwd, "own")) as own,
    ):
        folder = {"folder": str(scratch.path)}
        arguments = filled_command(request.command, folder)
        reader = own.command(reader_command("read_output"), [scratch.path])
        process = GuardedProcess(reader, environment, scratch.path / "probe.log", cwd=cwd)
        probe = Probe(environment=environment, place=own.place, folder_warning=own.warning)
        file = request.rules.get("file")
        rules = {"file": filled(file, folder) if file is not None else None}
        job = {
            "type": "probe",
            "command": arguments,
            "cwd": own.cwd,
            "rules": rules,
            "variables": STORED.pattern,
        }
        began = time.monotonic()
        try:
            process.send(job)
            _follow(process, probe, limit_s=request.limit_s, is_enough=is_enough)
        finally:
            probe.took_s = time.monotonic() - began
            process.close(END_PATIENCE_S)
            end = process.end or {}
            probe.last_lines = tuple(end.get("last_lines", ()))
        if end.get("exit_status") == 127:
            why = probe.last_lines[-1] if probe.last_lines else arguments[0]
            raise LaunchError(
                "the command must be one that can be started but "
                f"{why.removeprefix(CANNOT_START).strip()}; give "
                "its path, word by word without the quotes of a shell, or activate its environment"
            )
        probe.writes = tuple(own.written())
        places = (scratch.path, os.path.realpath(cwd), own.cwd, Path.home() / ".cache")
        probe.outside = {
            f for f in probe.outside if not any(Path(f).is_relative_to(p) for p in places)
        }
        return probe


def _follow(process: GuardedProcess, probe: Probe, *, limit_s: float, is_enough: IsEnough) -> None:
    began = asked = time.monotonic()
    while not process.is_over and (now := time.monotonic()) - began < limit_s:
        for message in process.messages(ASK_EVERY_S):
            _take(probe, message)
            if message["type"] == "ended":
                return
        if now - asked >= ASK_EVERY_S:
            asked = now
            probe.took_s = now - began
            if is_enough(probe):
                return


def _take(probe: Probe, message: Mapping[str, Any]) -> None:
    """Adds a message of the guarded process."""
    match message:
        case {"type": "lines", "lines": lines}:
            probe.at_s += [at_s for at_s, _ in lines]
            probe.lines += [line for _, line in lines]
        case {"type": "writes", "files": files}:
            probe.outside.update(files)
        case {"type": "processes", "processes": processes}:
            probe.processes |= {p["pid"]: p for p in processes}
        case {"type": "ended", "status": status}:
            probe.status = status
