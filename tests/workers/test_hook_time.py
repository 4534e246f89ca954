"""The hook's step time is what a step takes on the device, for loops that do not wait for it."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.workers.conftest import Start, command, study


@pytest.mark.parametrize("says", ["", "report"])
def test_a_step_that_returns_at_once_takes_what_it_takes(start: Start, tmp_path: Path, says: str) -> None:
    worker = start(study(command(says, program="undelayed.py", hook=True)))
    times = worker.run_block(20)
    words = (tmp_path / "worker.log").read_text().split()
    truth, dispatch = float(words[words.index("truth") + 1]), float(words[words.index("dispatch") + 1])
    assert dispatch < truth / 2, "a program that waits by itself shows nothing here"
    assert 1 / 3 < statistics.fmean(times) / truth < 3
    if says:  # every single one, so that those at the beginning can be left out
        assert 1 / 4 < statistics.median(times) / truth < 4
