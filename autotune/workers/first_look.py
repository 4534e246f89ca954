"""A user's program run once, before there is a study: what it prints, when, and under which interpreter."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.machine import driver_python
from autotune.model import LaunchError, filled
from autotune.workers.guarded import GuardedProcess

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from autotune.child.first_look import main; sys.exit(main())"
)
_ASK_EVERY_S = 0.5
_END_S = 15.0


@dataclass(kw_only=True)
class FirstLook:
    """What one run of a program showed.

    Attributes:
        lines: What it printed, each with the second after its start at which it came.
        pythons: Interpreters that loaded jaxlib: path to the version of jaxlib, None where that is not told.
        opens_gpu: Whether one of its processes opened a GPU.
        status: How it ended by itself, as `subprocess` counts; None if it was stopped.
        took_s: Seconds until it ended or was stopped.
        log: The end of its output where it ended by itself.
    """

    lines: list[tuple[float, str]] = field(default_factory=list)
    pythons: dict[str, str | None] = field(default_factory=dict)
    opens_gpu: bool = False
    status: int | None = None
    took_s: float = 0.0
    log: tuple[str, ...] = ()


def look_at(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: Path,
    limit_s: float,
    is_enough: Callable[[FirstLook], bool],
    terminal: bool = False,
) -> FirstLook:
    """Runs a program once under a guard, until enough was seen, it ends, or the time is over; then nothing of it lives.

    Args:
        command: It and its arguments; ``{folder}`` stands for a folder that is gone afterwards.
        environment: Its whole environment.
        cwd: Folder to run in.
        limit_s: Longest time, seconds.
        is_enough: Asked about twice a second.
        terminal: Whether its output goes to a pseudo-terminal instead of a pipe.

    Raises:
        LaunchError: If it cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="autotune-look-"))
    try:
        return _look(
            command, environment, cwd=cwd, limit_s=limit_s, is_enough=is_enough, folder=folder, terminal=terminal
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _look(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: Path,
    limit_s: float,
    is_enough: Callable[[FirstLook], bool],
    folder: Path,
    terminal: bool,
) -> FirstLook:
    arguments = [filled(part, {"folder": str(folder)}) for part in command]
    reader = [driver_python(), "-I", "-S", "-c", _PROGRAM, str(_ROOT)]
    process = GuardedProcess(reader, environment, folder / "look.log", cwd=str(cwd))
    found, began = FirstLook(), time.monotonic()
    asked = began
    try:
        process.send({"type": "job", "command": arguments, "cwd": str(cwd), "terminal": terminal})
        while not process.is_over and (now := time.monotonic()) - began < limit_s:
            for message in process.messages(_ASK_EVERY_S):
                if _take(found, message, arguments[0]):
                    return found
            if now - asked >= _ASK_EVERY_S:
                asked, found.took_s = now, now - began
                if is_enough(found):
                    return found
        return found
    finally:
        found.took_s = time.monotonic() - began
        process.close(_END_S)
        found.log = tuple((process.end or {}).get("last_lines", ()))


def _take(found: FirstLook, message: Mapping[str, object], program: str) -> bool:
    """Notes what a message tells; True if the program has ended.

    Raises:
        LaunchError: If it could not be started.
    """
    kind = message["type"]
    if kind == "lines" and isinstance(message["lines"], list):
        found.lines += [(float(at_s), str(line)) for at_s, line in message["lines"]]
    elif kind == "process":
        version = message.get("jaxlib")
        found.pythons[str(message["python"])] = str(version) if version is not None else None
    elif kind == "gpu":
        found.opens_gpu = True
    elif kind == "cannot_start":
        raise LaunchError(
            f"the command must be one that can be started but {program}: {message['reason']}; give its "
            "path, or activate its environment"
        )
    elif kind == "ended":
        found.status = int(str(message["status"]))
        return True
    return False
