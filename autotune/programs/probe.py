"""Runs a user's program once and records its output."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child.guard import CANNOT_START
from autotune.machine.environment import STORED
from autotune.machine.files import PROBES, Scratch
from autotune.model.errors import LaunchError
from autotune.model.options import filled, filled_command
from autotune.workers.base import GuardedProcess, reader_command
from autotune.workers.own_folder import OwnFolder

ASK_EVERY_S = 0.5
END_PATIENCE_S = 15.0


@dataclass(kw_only=True)
class Probe:
    """The output of one run of a program, or of its saved log."""

    environment: Mapping[str, str] = field(default_factory=dict)
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
    """Processes that have loaded XLA, by process number, as `autotune.child.processes` describes them."""
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
        return next((str(p["python"]) for p in self.processes.values() if p["python"] is not None), None)

    @property
    def jaxlib(self) -> str | None:
        """The version of that jaxlib, if it is known."""
        return next((p["versions"]["jaxlib"] for p in self.processes.values() if "jaxlib" in p["versions"]), None)

    @property
    def opens_gpu(self) -> bool:
        """Whether one of `processes` has opened a GPU."""
        return any(p["opens_gpu"] for p in self.processes.values())


def run_probe(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: Path,
    limit_s: float,
    is_enough: Callable[[Probe], bool],
    file: str | None = None,
) -> Probe:
    """Runs a program once, in a folder of its own, until `is_enough`, its end or the time limit; then ends all of it.

    Args:
        command: ``{folder}`` in it stands for a folder that is removed afterwards.
        file: The file that it writes its steps to, as `ReadSpec.file`, whose lines are taken in place of its output.

    Raises:
        LaunchError: If it cannot be started.
    """
    with contextlib.closing(Scratch(PROBES)) as scratch:
        folder = str(scratch.path)
        arguments = filled_command(command, {"folder": folder})
        with contextlib.closing(OwnFolder(str(cwd), "own")) as own:
            reader = own.command(reader_command("read_output"), [Path(folder)])
            process = GuardedProcess(reader, environment, Path(folder) / "probe.log", cwd=str(cwd))
            found = Probe(environment=environment, place=own.place, folder_warning=own.warning)
            rules = {"file": filled(file, {"folder": folder}) if file is not None else None}
            job = {"type": "probe", "command": arguments, "cwd": own.cwd, "rules": rules, "variables": STORED.pattern}
            began = time.monotonic()
            try:
                process.send(job)
                _follow(process, found, limit_s=limit_s, is_enough=is_enough)
            finally:
                found.took_s = time.monotonic() - began
                process.close(END_PATIENCE_S)
                end = process.end or {}
                found.last_lines = tuple(end.get("last_lines", ()))
            if end.get("exit_status") == 127:
                why = found.last_lines[-1] if found.last_lines else arguments[0]
                raise LaunchError(
                    f"the command must be one that can be started but {why.removeprefix(CANNOT_START).strip()}; give "
                    "its path, word by word without the quotes of a shell, or activate its environment"
                )
            found.writes = tuple(own.written())
            places = (folder, os.path.realpath(cwd), own.cwd, str(Path.home() / ".cache"))
            found.outside = {f for f in found.outside if not any(Path(f).is_relative_to(p) for p in places)}
            return found


def _follow(process: GuardedProcess, found: Probe, *, limit_s: float, is_enough: Callable[[Probe], bool]) -> None:
    began = asked = time.monotonic()
    while not process.is_over and (now := time.monotonic()) - began < limit_s:
        for message in process.messages(ASK_EVERY_S):
            _take(found, message)
            if message["type"] == "ended":
                return
        if now - asked >= ASK_EVERY_S:
            asked = now
            found.took_s = now - began
            if is_enough(found):
                return


def _take(found: Probe, message: Mapping[str, Any]) -> None:
    """Adds a message of the guarded process."""
    kind = message["type"]
    if kind == "lines":
        found.at_s += [float(at_s) for at_s, _ in message["lines"]]
        found.lines += [str(line) for _, line in message["lines"]]
    elif kind == "writes":
        found.outside.update(message["files"])
    elif kind == "processes":
        found.processes |= {p["pid"]: p for p in message["processes"]}
    elif kind == "ended":
        found.status = int(message["status"])
