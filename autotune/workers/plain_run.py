"""Times a user's command from outside, by the lines that it prints, as the user would run it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from autotune.workers.base import LOG_BYTES, GuardedProcess
from autotune.workers.failures import read_log

POLL_S = 0.05
LEAST_LINES = 10  # that tell the pace, after the first third of its time
KILL_PATIENCE_S = 5.0


def pace_outside(process: GuardedProcess, limit_s: float) -> float | None:
    """Returns the seconds between lines of a process, which is ended after `limit_s` seconds."""
    lines = []
    deadline = time.monotonic() + limit_s
    while process.end is None and time.monotonic() < deadline:
        process.first(("exit",), POLL_S)
        text = read_log(process.log)
        if len(text) < LOG_BYTES // 2:  # a larger log may have been cut
            lines.append((time.monotonic(), text.count("\n")))
    process.close(KILL_PATIENCE_S)
    return pace_of(lines)


def pace_of(counts: Sequence[tuple[float, int]]) -> float | None:
    """Returns the seconds between lines after the first third of their time; None of too few."""
    growths = [later for earlier, later in itertools.pairwise(counts) if later[1] > earlier[1]]
    if not growths:
        return None
    first_s = growths[0][0]
    last_s, after = growths[-1]
    third_s = first_s + (last_s - first_s) / 3.0
    begin_s, before = next(growth for growth in growths if growth[0] >= third_s)
    count = after - before
    return (last_s - begin_s) / count if count >= LEAST_LINES else None
