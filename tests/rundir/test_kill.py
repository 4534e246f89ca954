"""What a study is made of is killed with SIGKILL at random moments; `benchmarks/kill_tally.py` does it at length."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from harness.kills import REAL, REPLAYED, run, run_children, run_workers
from harness.sandbox import Postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def assert_exact(tally: dict[str, Any], *, trials: int) -> None:
    """Every trial once, whole, and nobody left."""
    assert (tally["trials"], tally["conclusions"]) == (trials, 1)
    assert tally["lost"] == tally["doubled"] == tally["orphans"] == 0
    assert tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0


def test_replayed_study_survives_twenty_kills() -> None:
    tally = run(REPLAYED, trials=37, kills=20, longest_s=0.5, seed=1, delay_s=0.02)
    assert tally["kills"] == 20
    assert_exact(tally, trials=37)


def test_real_study_survives_three_kills_and_leaves_no_process() -> None:
    tally = run(REAL, trials=4, kills=3, longest_s=8.0, seed=2)
    assert tally["kills"] == 3
    assert_exact(tally, trials=4)


def test_real_study_survives_the_death_of_what_measures() -> None:
    tally = run_children(trials=4, kills=2, longest_s=6.0, seed=3)
    assert tally["kills"] == 2
    assert_exact(tally, trials=4)


def test_four_workers_and_their_database_survive_kills() -> None:
    if Postgres.programs() is None:
        tally = run_workers(trials=29, kills=8, longest_s=1.0, seed=4, database=None)
    else:
        # Not pytest's folder: the server's own user could not enter that.
        with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as database:
            tally = run_workers(trials=29, kills=8, longest_s=1.0, seed=4, database=database)
        assert tally["in_database"] == {"trials": tally["asked"], "lost": 0, "doubled": 0}
    assert_exact(tally, trials=tally["asked"])
