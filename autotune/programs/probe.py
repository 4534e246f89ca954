"""Runs a user's program once and records its output."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.model.errors import LaunchError
from autotune.model.options import filled
from autotune.workers.base import GuardedProcess, reader_command

ASK_EVERY_S = 0.5
END_PATIENCE_S = 15.0


@dataclass(kw_only=True)
class Probe:
    """The output of one run of a program, or of its saved log.

    Attributes:
        at_s: Seconds after the start at which each line came; empty for a saved log.
        processes: Processes that have loaded XLA, by process number, as `autotune.child.processes` describes them.
        status: Exit status as `subprocess` gives it; None if it was stopped.
        took_s: Seconds until it ended or was stopped.
        last_lines: The end of its output where it ended by itself.
    """

    lines: list[str] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    processes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    status: int | None = None
    took_s: float = 0.0
    terminal: bool = False
    last_lines: tuple[str, ...] = ()
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
    terminal: bool = False,
) -> Probe:
    """Runs a program once under a guard, until `is_enough`, its end or the time limit; then ends all of its processes.

    Args:
        command: ``{folder}`` in it stands for a folder that is removed afterwards.
        is_enough: Called about twice a second.

    Raises:
        LaunchError: If it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-probe-", ignore_cleanup_errors=True) as folder:
        arguments = [filled(part, {"folder": folder}) for part in command]
        log = Path(folder) / "probe.log"
        process = GuardedProcess(reader_command("probe"), environment, log, cwd=str(cwd))
        found, began = Probe(terminal=terminal), time.monotonic()
        try:
            process.send({"type": "job", "command": arguments, "cwd": str(cwd), "terminal": terminal})
            _follow(process, found, arguments[0], limit_s=limit_s, is_enough=is_enough)
        finally:
            found.took_s = time.monotonic() - began
            process.close(END_PATIENCE_S)
            found.last_lines = tuple((process.end or {}).get("last_lines", ()))
        return found


def _follow(
    process: GuardedProcess, found: Probe, program: str, *, limit_s: float, is_enough: Callable[[Probe], bool]
) -> None:
    began = asked = time.monotonic()
    while not process.is_over and (now := time.monotonic()) - began < limit_s:
        for message in process.messages(ASK_EVERY_S):
            _take(found, message, program)
            if message["type"] == "ended":
                return
        if now - asked >= ASK_EVERY_S:
            asked, found.took_s = now, now - began
            if is_enough(found):
                return


def _take(found: Probe, message: Mapping[str, Any], program: str) -> None:
    """Adds a message of the guarded process; raises LaunchError if the program could not be started."""
    kind = message["type"]
    if kind == "lines":
        found.at_s += [float(at_s) for at_s, _ in message["lines"]]
        found.lines += [str(line) for _, line in message["lines"]]
    elif kind == "processes":
        found.processes |= {p["pid"]: p for p in message["processes"]}
    elif kind == "ended":
        found.status = int(message["status"])
    elif kind == "cannot_start":
        raise LaunchError(
            f"the command must be one that can be started but {program}: {message['reason']}; give its "
            "path, or activate its environment"
        )
