"""The driver is killed with SIGKILL at random moments; `benchmarks/kill_tally.py` does the same at length."""

from __future__ import annotations

import pytest

from benchmarks.kill_tally import REAL, REPLAYED, run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replayed_study_survives_twenty_kills() -> None:
    tally = run(REPLAYED, trials=23, kills=20, longest_s=0.5, seed=1)
    assert (tally["kills"], tally["trials"], tally["conclusions"]) == (20, 23, 1)
    assert tally["lost"] == tally["doubled"] == tally["orphans"] == 0
    assert tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_study_survives_three_kills_and_leaves_no_process() -> None:
    tally = run(REAL, trials=4, kills=3, longest_s=8.0, seed=2)
    assert (tally["kills"], tally["trials"], tally["conclusions"]) == (3, 4, 1)
    assert tally["lost"] == tally["doubled"] == tally["orphans"] == 0
    assert tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0
