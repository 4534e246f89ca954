"""Lanes that are the workers of a real Dask cluster, which join, freeze and die; a lane program of few lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runs import there

pytest.importorskip("distributed", reason="Dask is not installed")

from autotune.cluster.dask_engine import DaskEngine
from autotune.model.errors import LaunchError, NodeLostError
from harness.sandbox import wait_for
from tests.cluster.conftest import ROOT
from tests.cluster.dask_cluster import LANE, STUDY, Cluster, are_gone, do, first, hear, joined, kinds, wait_in_unit
from tests.tables import toml_beside

pytestmark = pytest.mark.cluster

PROGRAMS = toml_beside(__file__, "programs.toml")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    yield started
    started.end()


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[DaskEngine]:
    opened = DaskEngine(STUDY, str(cluster.file), command=LANE)
    yield opened
    opened.close()


def test_a_worker_joins_and_does_units_in_one_process(engine: DaskEngine, cluster: Cluster) -> None:
    cluster.join("node 7/a", "--no-nanny", "--resources", "GPU=2")
    told = first(engine, "joined")
    assert told.lane == told.message["name"] == "node-7-a"
    assert (told.message["devices"], bool(told.message["host"])) == (2, True)
    units = [do(engine, told.lane, value) for value in range(10)]
    assert [kinds(unit) for unit in units] == [["begun", "result"]] * 10
    assert [unit[-1].message["value"] for unit in units] == list(range(10))
    assert {unit[0].message["token"] for unit in units} == {STUDY["token"]}
    assert len({unit[0].message["pid"] for unit in units}) == 1
    assert engine.words.endswith(f" {cluster.address}")
    lies = do(engine, told.lane, 5, do="lie")  # what only an engine may say
    assert {"left", "joined"}.isdisjoint(kinds(lies))
    [process] = [psutil.Process(lies[0].message["pid"])]
    engine.close()
    assert are_gone([process])  # `close` returns when lanes have ended


@pytest.mark.parametrize("options", [["--no-nanny"], ["--nanny"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_ends_in_a_unit_has_left_and_takes_all_below_it_along(
    engine: DaskEngine, cluster: Cluster, tmp_path: Path, options: list[str], number: signal.Signals
) -> None:
    process = cluster.join("w", *options)
    [lane] = joined(engine)
    below = wait_in_unit(engine, lane, tmp_path / "never")
    process.send_signal(number)
    assert first(engine, "left", limit_s=20).lane == lane
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=20)
    cluster.join("w", *options)
    assert joined(engine) == [lane]
    assert do(engine, lane, 3)[-1].message["value"] == 3


def test_a_lane_process_that_ends_loses_its_unit_and_joins_again(engine: DaskEngine, cluster: Cluster) -> None:
    cluster.join()
    [lane] = joined(engine)
    engine.begin(lane, {"type": "unit", "do": "die", "value": 0})
    heard = hear(engine, lambda heard: "joined" in kinds(heard))
    assert kinds(heard) == ["begun", "left", "joined"]
    assert "status 3" in heard[1].message["why"]
    assert "to die" in heard[1].message["why"]
    assert do(engine, lane, 4)[-1].message["value"] == 4


@pytest.mark.parametrize("is_idle", [False, True])
def test_a_lane_that_is_given_up_is_ended_and_joins_again_unless_it_is_for_good(
    engine: DaskEngine, cluster: Cluster, tmp_path: Path, is_idle: bool
) -> None:
    cluster.join()
    [lane] = joined(engine)
    for _ in range(2):
        if is_idle:
            below = [psutil.Process(do(engine, lane, 1)[0].message["pid"])]
        else:
            below = wait_in_unit(engine, lane, tmp_path / "never")
        engine.give_up(lane, "it is silent")
        assert kinds(hear(engine, lambda heard: "joined" in kinds(heard), limit_s=20)) == ["left", "joined"]
        assert are_gone(below)
    engine.give_up(lane, "it has had no unit yet")
    assert kinds(hear(engine, lambda heard: len(heard) == 2, limit_s=20)) == ["left", "joined"]
    below = wait_in_unit(engine, lane, tmp_path / "never")
    engine.give_up(lane, "of no use", for_good=True)
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=20)
    assert kinds(engine.news(1) + engine.news(1)) == ["left"]
    engine.begin("nobody", {"type": "unit"})
    assert [(t.lane, t.message["type"]) for t in engine.news(1)] == [("nobody", "left")]


@pytest.mark.parametrize("is_idle", [False, True])
def test_a_driver_that_is_killed_takes_lanes_along_and_the_next_one_has_them_again(
    cluster: Cluster, tmp_path: Path, is_idle: bool
) -> None:
    worker = cluster.join()
    command = [sys.executable, "-c", PROGRAMS["dask_driver"], cluster.address, *["idle"] * is_idle]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        below = [psutil.Process(int(pid)) for pid in there(driver.stdout).readline().split()]
        assert below
        with pytest.raises(LaunchError, match="one study"):
            DaskEngine(STUDY, cluster.address, command=LANE)
        driver.kill()
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=10)
    engine = DaskEngine(STUDY, cluster.address, command=LANE)
    try:
        [lane] = joined(engine)
        assert do(engine, lane, 4)[-1].message["value"] == 4
        assert worker.poll() is None
    finally:
        engine.close()


def test_a_frozen_worker_has_left_and_its_late_answer_has_no_reader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, env={"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s"})
    try:
        engine = DaskEngine(STUDY, str(cluster.file), command=LANE)
        process = cluster.join()
        [lane] = joined(engine)
        below = wait_in_unit(engine, lane, tmp_path / "until")
        process.send_signal(signal.SIGSTOP)
        assert "silent" in first(engine, "left", limit_s=40).message["why"]
        (tmp_path / "until").touch()  # its lane answers, and nobody carries the answer
        process.send_signal(signal.SIGCONT)
        assert "result" not in kinds(engine.news(3) + engine.news(1))
        wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=20)
        engine.close()
    finally:
        cluster.end()


def test_a_scheduler_that_is_killed_takes_lanes_along_and_its_driver_says_what_to_do(
    engine: DaskEngine, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.join()
    [lane] = joined(engine)
    below = wait_in_unit(engine, lane, tmp_path / "never")
    cluster.scheduler.kill()
    with pytest.raises(NodeLostError, match="scheduler at"):
        hear(engine, lambda heard: False, limit_s=30)
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=20)


def test_a_scheduler_that_is_none_or_has_no_worker_says_what_to_do(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.cluster.dask_engine.PATIENCE_S", 0.5)
    engine = DaskEngine(STUDY, cluster.address, command=LANE)
    try:
        with pytest.raises(NodeLostError, match="dask worker"):
            hear(engine, lambda heard: False, limit_s=10)
    finally:
        engine.close()
    monkeypatch.setattr("autotune.cluster.dask_engine.CONNECT_LIMIT_S", 0.5)
    with pytest.raises(LaunchError, match="dask scheduler"):
        DaskEngine(STUDY, "tcp://127.0.0.1:1")
    with pytest.raises(LaunchError, match=r"nowhere\.json"):
        DaskEngine(STUDY, str(tmp_path / "nowhere.json"))


def test_tls_is_that_of_dask_s_own_configuration(tmp_path: Path) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=autotune", "-days", "2"]
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run([*make, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = {"DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}
    tls["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] = str(certificate)
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        tls[f"DASK_DISTRIBUTED__COMM__TLS__{role}__CERT"] = str(certificate)
        tls[f"DASK_DISTRIBUTED__COMM__TLS__{role}__KEY"] = str(key)
    cluster = Cluster(tmp_path, env=tls, options=["--protocol", "tls"])
    call = [sys.executable, "-c", PROGRAMS["dask_unit"], cluster.address]
    options: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 90}
    try:
        assert cluster.address.startswith("tls://")
        cluster.join("w", "--no-nanny", "--protocol", "tls")
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(call, env={**env, **tls}, check=False, **options)
        assert done.stdout == "6\n", done.stderr
        refused = subprocess.run(call, env=env, check=False, **options)
        assert refused.returncode != 0
        assert "distributed.comm.tls" in refused.stderr
    finally:
        cluster.end()


def test_a_worker_whose_gpus_another_has_reserved_is_left_out(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, env={"CUDA_VISIBLE_DEVICES": "0"})
    try:
        engine = DaskEngine(STUDY, str(cluster.file), command=LANE, holds_gpus=True)
        for name in ("a", "b"):
            cluster.join(name)
        joined(engine, 2)
        assert do(engine, "a", 1)[-1].message["value"] == 1
        engine.begin("b", {"type": "unit", "do": "answer", "value": 2})
        assert "device 0" in first(engine, "left").message["why"]
        assert do(engine, "a", 3)[-1].message["value"] == 3
        engine.close()
    finally:
        cluster.end()
