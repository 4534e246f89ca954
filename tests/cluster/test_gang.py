"""Trials over two workers of a pool: real workers, real ranks, and what happens when one of them is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("distributed", reason="Dask is not installed")

from autotune.cluster import open_pool
from autotune.cluster.certificates import make_certificates
from autotune.cluster.dask_engine import DaskEngine
from autotune.model import FloorResult, LaunchError, parse_study
from autotune.study.engines import study_message
from autotune.study.units import Assignment, FloorUnit
from autotune.workers import GANG_VARIABLE, GangLauncher
from harness.sandbox import wait_for
from tests.cluster.conftest import ROOT
from tests.cluster.pools import LANE, LOOPBACK, Workers, are_gone, do, first, hear, joined, kinds

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).parent / "programs" / "gang_lane.py"


def spec(**options: object) -> dict[str, Any]:
    return {
        "name": "gang",
        "workload": {"entry": "faulty:build", "options": options},
        "device": {"count": 4, "process_count": 2, "node_count": 2},
        "measure": {"check_steps": 2, "warmup_steps": 2, "start_limit_s": 120, "block_limit_s": 30},
    }


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "run.tls")


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.end()


@pytest.fixture
def engine(tls: Path) -> Iterator[DaskEngine]:
    study = {"type": "study", "study": spec(), "study_dir": str(ROOT / "tests/workers/programs")}
    opened = DaskEngine(study, tls=tls, listen=LOOPBACK, gang_size=2, command=[sys.executable, str(PROGRAM)])
    yield opened
    opened.close()


def trial(engine: DaskEngine, lane: str, *, blocks: int = 2, **settings: object) -> dict[str, Any]:
    engine.begin(lane, {"type": "unit", "settings": settings, "blocks": blocks})
    return dict(hear(engine, lambda heard: "result" in kinds(heard), 120)[-1].message)


def ranks(*workers: int) -> list[psutil.Process]:
    """The ranks below each of some workers, one each."""
    found = []
    for pid in workers:
        below = psutil.Process(pid).children(recursive=True)
        found += [p for p in below if "autotune.child.measure" in p.cmdline() and "-I" not in p.cmdline()]
    return found


def test_a_gang_is_whole_or_no_lane(workers: Workers, tls: Path) -> None:
    engine = DaskEngine(
        {"type": "study", "token": ""}, tls=tls, listen=LOOPBACK, gang_size=2, command=LANE, patience_s=30
    )
    try:
        one = workers.join(engine.address, tls, "--devices", "0", name="a")
        assert engine.news(3) == []  # one worker is no gang of two
        workers.join(engine.address, tls, "--devices", "1", name="b")
        told = first(engine, "joined")
        assert (told.lane, told.message["devices"]) == ("a_and_1_more", 2)
        assert do(engine, "a_and_1_more", 1)[0].message["gang"] == ["127.0.0.1", "127.0.0.1"]
        one.kill()
        assert first(engine, "left").lane == "a_and_1_more"
        workers.join(engine.address, tls, name="c")
        assert joined(engine) == ["b_and_1_more"]
        assert do(engine, "b_and_1_more", 2)[-1].message["value"] == 2
    finally:
        engine.close()


def test_a_trial_runs_over_two_workers(engine: DaskEngine, workers: Workers, tls: Path) -> None:
    for name in ("a", "b"):
        workers.join(engine.address, tls, name=name)
    [lane] = joined(engine)
    result = trial(engine, lane, xla_cpu_prefer_vector_width="256")
    assert (result["processes"], result["devices"]) == (2, 4)
    assert {"worker.log", "worker.1.log"} <= set(result["logs"])
    wrong = trial(engine, lane, xla_no_such_flag="1")
    assert (wrong["failure"], wrong["of_machine"]) == ("unknown_flag", False)
    assert "xla_no_such_flag" in wrong["worker.1.log"]  # written on the other worker's machine
    assert trial(engine, lane)["processes"] == 2


def test_the_study_s_own_lane_measures_over_two_workers(workers: Workers, tls: Path) -> None:
    quick = {**spec()["measure"], "pairs_cap": 6, "block_s": 0.01}
    study = parse_study({**spec(), "measure": quick})
    told = study_message(study, study_dir=str(ROOT / "tests/workers/programs"), run=None, devices=[])
    engine = open_pool(told, tls=tls, listen=LOOPBACK, gang_size=2)
    try:
        for name in ("a", "b"):
            workers.join(engine.address, tls, name=name)
        [lane] = joined(engine)
        unit = Assignment(unit=FloorUnit(), folder=("floor", lane), name="floor")
        engine.begin(lane, {"type": "unit", "assignment": unit.model_dump(mode="json")})
        heard = hear(engine, lambda heard: not {"result", "error", "left"}.isdisjoint(kinds(heard)), 150)
    finally:
        engine.close()
    assert kinds(heard)[-1] == "result", heard[-1]
    floor = FloorResult.model_validate(heard[-1].message["record"])
    assert (floor.reference.process_count, floor.reference.device_count) == (2, 4)
    assert kinds(heard).count("pair") >= 6
    files = {told.message["name"] for told in heard if told.message["type"] == "file"}
    assert {"worker.log", "worker.1.log"} <= files


@pytest.mark.parametrize("lost", ["leader", "member"])
def test_no_rank_outlives_a_worker_of_its_gang(engine: DaskEngine, workers: Workers, tls: Path, lost: str) -> None:
    one = workers.join(engine.address, tls, name="a")
    wait_for(lambda: engine.news(0.1) == [] and len(engine._free) == 1, "the first, which will lead, is in")
    two = workers.join(engine.address, tls, name="b")
    [lane] = joined(engine)
    engine.begin(lane, {"type": "unit", "settings": {}, "blocks": 100_000})
    hear(engine, lambda heard: "block" in kinds(heard), 120)
    both = ranks(one.pid, two.pid)
    assert len(both) == 2
    (one if lost == "leader" else two).kill()
    assert first(engine, "left").lane == lane
    wait_for(lambda: are_gone(both), "no rank is left", limit_s=15)
    workers.join(engine.address, tls, name="c")
    again = joined(engine)
    assert again == (["b_and_1_more"] if lost == "leader" else ["a_and_1_more"])
    assert trial(engine, again[0])["processes"] == 2


@pytest.mark.parametrize(
    ("members", "workload", "words"),
    [(1, {"entry": "faulty:build"}, "gangs of as many"), (2, {"command": ["x"], "hook": True}, "must be an `entry`")],
)
def test_what_cannot_be_is_refused(members: int, workload: dict[str, Any], words: str) -> None:
    gang = json.dumps([{"host": "127.0.0.1", "through": []}] * members)
    study = parse_study({**spec(), "workload": workload, "device": {"count": 4, "node_count": 2}})
    with pytest.raises(LaunchError, match=words):
        GangLauncher(study, study_dir=".", base={GANG_VARIABLE: gang})
