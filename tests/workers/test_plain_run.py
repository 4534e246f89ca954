"""A program that is run as its user would run it, and timed from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.child.channel import CHANNEL_VARIABLE
from autotune.workers.base import GuardedProcess
from autotune.workers.plain_run import pace_of, pace_outside


@pytest.mark.parametrize(
    ("lines", "pace"),
    [
        ([], None),
        ([(0.0, 1)], None),
        ([(float(t), t) for t in range(12)], None),
        ([(float(t), t) for t in range(31)], 1.0),
        ([(float(t), 2 * t) for t in range(31)], 0.5),
        ([(9.0 * t, t) for t in range(2)] + [(9.0 + t, 1 + t) for t in range(1, 31)], 1.0),
    ],
    ids=["none", "one", "too few", "one a second", "two a second", "slow at first"],
)
def test_the_pace_is_that_after_the_first_third(lines: list[tuple[float, int]], pace: float | None) -> None:
    assert pace_of(lines) == (None if pace is None else pytest.approx(pace, rel=0.3))


@pytest.mark.gate
def test_a_plain_run_knows_no_channel_and_tells_its_pace(tmp_path: Path) -> None:
    script = 'for i in $(seq 40); do echo "step $i ${AUTOTUNE_CHANNEL:-none}"; sleep 0.02; done'
    command, log = ["env", "-u", CHANNEL_VARIABLE, "sh", "-c", script], tmp_path / "worker.log"
    pace = pace_outside(GuardedProcess(command, os.environ, log), 20.0)
    assert pace is not None
    assert 0.015 < pace < 0.2
    assert log.read_text().splitlines()[0] == "step 1 none"
    endless = ["sh", "-c", "while true; do sleep 0.1; done"]
    assert pace_outside(GuardedProcess(endless, os.environ, log), 0.5) is None
