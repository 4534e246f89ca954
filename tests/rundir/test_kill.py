"""What a study is made of is killed or stopped at random moments."""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.kills import REAL, SIMULATED, kill_study
from harness.places import Here, InSlurmJob
from harness.sandbox import Postgres, Slurm, missing_slurm

pytestmark = pytest.mark.timeout(900)
PLAIN = Path(__file__).parents[1] / "workers/programs/plain.py"
PROOFS = ("minimise", "confirm", "isolated runs", "soak")
HOOKED = (
    Path(__file__).with_name("hooked.toml").read_text().replace("PYTHON", sys.executable).replace("PROGRAM", str(PLAIN))
)


def assert_exact(tally: dict[str, Any]) -> None:
    """Every trial once, whole, and nobody left."""
    assert (tally["trials"], tally["conclusions"]) == (tally["asked"], 1)
    assert tally["lost"] == tally["doubled"] == tally["orphans"] == 0, tally
    assert tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0
    assert tally["strikes"]


@pytest.mark.gate
def test_a_killed_driver_takes_its_workers_along_and_the_next_goes_on(tmp_path: Path) -> None:
    tally = kill_study(tmp_path, HOOKED, trials=4, strikes=2, rng=random.Random(7), place=Here())
    assert_exact(tally)
    assert [s["victim"] for s in tally["strikes"]] == ["driver", "driver"]


@pytest.mark.slow
def test_simulated_study_survives_twenty_kills(tmp_path: Path) -> None:
    tally = kill_study(tmp_path, SIMULATED, trials=37, strikes=20, rng=random.Random(1), place=Here(), delay_s=0.04)
    assert_exact(tally)
    assert len(tally["strikes"]) >= 10


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_sixty_kills_inside_proofs_lose_and_double_nothing(tmp_path: Path) -> None:
    def tally_of(seed: int) -> dict[str, Any]:
        folder = tmp_path / str(seed)
        folder.mkdir()
        rng = random.Random(seed)
        return kill_study(folder, SIMULATED, trials=6, strikes=6, rng=rng, place=Here(), delay_s=0.08, stages=PROOFS)

    struck: Counter[str] = Counter()
    with ThreadPoolExecutor(4) as pool:  # they wait most of the time
        for first in range(0, 20, 4):
            for tally in pool.map(tally_of, range(first, first + 4)):
                assert_exact(tally)
                struck.update(s["stage"] for s in tally["strikes"])
            if sum(struck[stage] for stage in PROOFS) >= 60 and min(struck[stage] for stage in PROOFS) >= 5:
                return
    raise AssertionError(struck)


@pytest.mark.slow
def test_real_study_survives_kills_and_stops_and_leaves_no_process(tmp_path: Path) -> None:
    assert_exact(kill_study(tmp_path, REAL, trials=3, strikes=4, rng=random.Random(2), place=Here(2)))


@pytest.fixture
def database() -> Iterator[Postgres | None]:
    """PostgreSQL, where it is installed."""
    if Postgres.programs() is None:
        yield None
        return
    # Not pytest's folder: the server's own user could not enter that.
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as server:
        yield server


@pytest.mark.slow
def test_four_lanes_and_their_database_survive_kills(tmp_path: Path, database: Postgres | None) -> None:
    tally = kill_study(
        tmp_path, SIMULATED, trials=29, strikes=8, rng=random.Random(4), place=Here(4), delay_s=0.04, database=database
    )
    assert_exact(tally)
    if database is not None:
        assert tally["in_database"] == {"trials": 29, "lost": 0, "doubled": 0}


@pytest.mark.slow
@pytest.mark.cluster
def test_lanes_on_nodes_of_a_slurm_job_survive_kills(tmp_path: Path) -> None:
    if missing_slurm():
        pytest.skip(f"SLURM is not installed here ({', '.join(missing_slurm())})")
    with tempfile.TemporaryDirectory() as folder, Slurm(Path(folder), node_count=2) as cluster:
        place = InSlurmJob(cluster)
        tally = kill_study(tmp_path, SIMULATED, trials=29, strikes=8, rng=random.Random(5), place=place, delay_s=0.04)
    assert_exact(tally)
    assert tally["aa_runs_measured_again"] == 0  # a node's name lasts
