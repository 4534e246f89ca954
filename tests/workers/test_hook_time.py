"""The hook's step time is what a step takes on the device, for loops that do not wait for it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.workers.conftest import Start, command, study


@pytest.mark.parametrize("says", ["", pytest.param("report", marks=pytest.mark.gate)])
def test_a_step_that_returns_at_once_takes_what_it_takes(start: Start, tmp_path: Path, says: str) -> None:
    worker = start(study(command(says, program="undelayed.py", hook=True)))
    began = time.monotonic()
    times = worker.run_block(20)
    elapsed = time.monotonic() - began
    words = (tmp_path / "worker.log").read_text().split()
    truth, dispatch = float(words[words.index("truth") + 1]), float(words[words.index("dispatch") + 1])
    assert dispatch < truth / 2, "a program that waits by itself shows nothing here"
    assert statistics.fmean(times) > truth / 2  # the least that a step took: a busy machine makes it only longer
    assert sum(times) <= elapsed
    if says:  # every single one, so that those at the beginning can be left out
        assert statistics.median(times) > truth / 2
