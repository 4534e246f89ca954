"""Runs a user's command as the user would, and times it from outside by the lines that it prints.

No hook and no reader is told of it, and its environment has nothing of ours but that its output is
not held back.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.child.guard import CHANNEL_VARIABLE
from autotune.machine.environment import Environment
from autotune.workers.base import LOG_BYTES, GuardedProcess
from autotune.workers.failures import read_log

POLL_S = 0.05
LEAST_LINES = 10
"""Lines after the first third of its time that tell the pace of a program."""

KILL_PATIENCE_S = 5.0


def without_channel(command: Sequence[str]) -> list[str]:
    """Returns the command that starts a program which does not know of our channel."""
    return ["env", "-u", CHANNEL_VARIABLE, *command]


def pace_outside(
    command: list[str], env: Environment, log: Path, *, cwd: str, limit_s: float
) -> float | None:
    """Runs a command for `limit_s` seconds, or to its own end; returns the seconds between its
    lines, see `pace_of`.

    Args:
        log: Receives its output.

    Raises:
        WorkerFailed: If it cannot be started.
    """
    process = GuardedProcess(command, env, log, cwd=cwd)
    lines: list[tuple[float, int]] = []
    deadline = time.monotonic() + limit_s
    while process.end is None and time.monotonic() < deadline:
        process.first(("exit",), POLL_S)
        lines.append((time.monotonic(), _lines_in(log)))
    process.close(KILL_PATIENCE_S)
    return pace_of(lines)


def _lines_in(log: Path) -> int:
    """Returns the number of lines of a log; 0 before there is one, or if it is so large that it may
    have been cut.
    """
    text = read_log(log)
    return text.count("\n") if len(text) < LOG_BYTES // 2 else 0


def pace_of(seen: Sequence[tuple[float, int]]) -> float | None:
    """Returns the seconds between lines after the first third of the time in which they came; None
    of too few lines.

    Args:
        seen: Times in seconds, and how many lines there were then.
    """
    growths = [later for earlier, later in itertools.pairwise(seen) if later[1] > earlier[1]]
    if not growths:
        return None
    first_s = growths[0][0]
    last_s, after = growths[-1]
    begin_s, before = next(
        growth for growth in growths if growth[0] >= first_s + (last_s - first_s) / 3.0
    )
    count = after - before
    return (last_s - begin_s) / count if count >= LEAST_LINES else None
