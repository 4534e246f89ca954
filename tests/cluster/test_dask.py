"""Pools of workers that join, leave, freeze and die: real processes on loopback, with a lane program of few lines."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("distributed", reason="Dask is not installed")

from autotune.cluster.certificates import make_certificates
from autotune.cluster.dask_engine import DaskEngine
from autotune.model import STOPPED, LaunchError
from harness.sandbox import wait_for
from tests.cluster.conftest import ROOT
from tests.cluster.pools import (
    AUTOTUNE,
    STUDY,
    Workers,
    are_gone,
    do,
    first,
    frozen,
    hear,
    joined,
    kinds,
    open_engine,
    wait_in_unit,
)  # fmt: skip

pytestmark = pytest.mark.cluster


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "run.tls")


@pytest.fixture
def engine(tls: Path) -> Iterator[DaskEngine]:
    opened = open_engine(tls, worker_ttl_s=5)
    yield opened
    opened.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.end()


def test_a_worker_joins_and_does_units_in_one_process(engine: DaskEngine, workers: Workers, tls: Path) -> None:
    workers.join(engine.address, tls, "--devices", "0", name="node 7/a")
    told = first(engine, "joined")
    assert told.lane == told.message["name"] == "node-7-a"
    assert (told.message["devices"], bool(told.message["host"])) == (1, True)
    units = [do(engine, told.lane, value) for value in range(20)]
    assert [kinds(unit) for unit in units] == [["begun", "result"]] * 20
    assert [unit[-1].message["value"] for unit in units] == list(range(20))
    assert {unit[0].message["token"] for unit in units} == {STUDY["token"]}
    assert len({unit[0].message["pid"] for unit in units}) == 1
    assert units[0][0].message["cores"] == [0]
    assert engine.words == f"1 lanes of the pool at {engine.address}"


def test_devices_that_another_worker_holds_are_refused(engine: DaskEngine, workers: Workers, tls: Path) -> None:
    workers.join(engine.address, tls, "--devices", "0", name="a")
    joined(engine)
    other = workers.join(engine.address, tls, "--devices", "0", name="b")
    _, said = other.communicate(timeout=60)
    assert other.returncode == 2
    assert "device 0 is in use by another" in said


def test_a_worker_hardly_wakes_beside_what_is_measured(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path
) -> None:
    process = psutil.Process(workers.join(engine.address, tls).pid)
    [lane] = joined(engine)
    wait_in_unit(engine, lane, tmp_path / "never")
    begun, wakes = time.monotonic(), process.num_ctx_switches().voluntary
    assert engine.news(4) == []
    per_s = (process.num_ctx_switches().voluntary - wakes) / (time.monotonic() - begun)
    assert per_s < 20  # Dask's defaults come to a hundred


def test_what_only_an_engine_may_say_is_not_believed_of_a_lane(engine: DaskEngine, workers: Workers, tls: Path) -> None:
    workers.join(engine.address, tls)
    [lane] = joined(engine)
    heard = do(engine, lane, 5, do="lie")
    assert {"left", "joined"}.isdisjoint(kinds(heard))
    assert heard[-1].message == {"type": "result", "value": 5}
    assert kinds(do(engine, lane, 6)) == ["begun", "result"]


def test_two_lanes_work_at_once(engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        workers.join(engine.address, tls, name=name)
    assert sorted(joined(engine, 2)) == ["a", "b"]
    wait_in_unit(engine, "a", tmp_path / "until a")
    wait_in_unit(engine, "b", tmp_path / "until b")  # begins though the other has not ended
    (tmp_path / "until b").touch()
    assert first(engine, "result").lane == "b"
    (tmp_path / "until a").touch()
    assert first(engine, "result").lane == "a"


def test_a_worker_that_is_killed_in_a_unit_has_left_and_takes_all_below_it_along(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path
) -> None:
    process = workers.join(engine.address, tls)
    [lane] = joined(engine)
    below = wait_in_unit(engine, lane, tmp_path / "never")
    process.kill()
    killed = time.monotonic()
    told = first(engine, "left")
    assert told.lane == lane
    assert "killed" in told.message["why"]
    assert time.monotonic() - killed < 5  # by the broken connection; silence would take longer
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=10)
    workers.join(engine.address, tls)
    assert joined(engine) == [lane]
    assert do(engine, lane, 3)[-1].message["value"] == 3


def test_a_frozen_worker_has_left_and_its_late_answer_has_no_reader(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path
) -> None:
    process = workers.join(engine.address, tls)
    [lane] = joined(engine)
    wait_in_unit(engine, lane, tmp_path / "until")
    with frozen(process.pid):
        told = first(engine, "left", limit_s=30)
        assert "silent" in told.message["why"]
        (tmp_path / "until").touch()  # its lane answers, and nobody carries the answer
    heard = hear(engine, lambda heard: "joined" in kinds(heard))
    assert kinds(heard) == ["joined"]
    assert kinds(do(engine, lane, 8)) == ["begun", "result"]


def test_a_lane_process_that_ends_loses_its_unit_and_joins_again(
    engine: DaskEngine, workers: Workers, tls: Path
) -> None:
    workers.join(engine.address, tls)
    [lane] = joined(engine)
    engine.begin(lane, {"type": "unit", "do": "die", "value": 0})
    heard = hear(engine, lambda heard: "joined" in kinds(heard))
    assert kinds(heard) == ["begun", "left", "joined"]
    assert "status 3" in heard[1].message["why"]
    assert "about to die" in heard[1].message["why"]
    assert do(engine, lane, 1)[-1].message["value"] == 1


def test_a_lane_that_is_given_up_is_ended_and_joins_again(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path
) -> None:
    workers.join(engine.address, tls)
    [lane] = joined(engine)
    below = wait_in_unit(engine, lane, tmp_path / "never")
    engine.give_up(lane, "it is silent")
    heard = hear(engine, lambda heard: len(heard) == 2, limit_s=20)
    assert [(t.lane, t.message["type"]) for t in heard] == [(lane, "left"), (lane, "joined")]
    assert heard[0].message["why"] == "it is silent"
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=5)
    assert kinds(do(engine, lane, 2)) == ["begun", "result"]
    pid = do(engine, lane, 3)[0].message["pid"]
    engine.give_up(lane, "an idle one, too")
    assert kinds(hear(engine, lambda heard: len(heard) == 2, limit_s=20)) == ["left", "joined"]
    assert not psutil.pid_exists(pid)
    engine.give_up("nobody", "that is no lane")
    engine.begin("nobody", {"type": "unit"})
    assert [(t.lane, t.message["type"]) for t in engine.news(1)] == [("nobody", "left")]


def test_an_answer_that_came_before_the_lane_was_given_up_and_is_read_after_has_no_reader(
    engine: DaskEngine, workers: Workers, tls: Path
) -> None:
    workers.join(engine.address, tls)
    [lane] = joined(engine)
    engine.begin(lane, {"type": "unit", "do": "answer", "value": 1})
    wait_for(lambda: engine._pool.heard.qsize() == 2, "the answer has come")
    engine.give_up(lane, "too slow")
    assert kinds(hear(engine, lambda heard: "joined" in kinds(heard))) == ["left", "joined"]
    assert do(engine, lane, 2)[-1].message["value"] == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_worker_that_is_told_to_stop_leaves_at_once(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = workers.join(engine.address, tls)
    [lane] = joined(engine)
    below = wait_in_unit(engine, lane, tmp_path / "never")
    process.send_signal(number)
    assert "told to stop" in first(engine, "left", limit_s=15).message["why"]
    assert process.wait(20) == STOPPED
    assert are_gone(below)


def test_workers_end_with_the_study_and_wait_where_a_driver_only_stops(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path
) -> None:
    process = workers.join(engine.address, tls)
    [lane] = joined(engine)
    below = wait_in_unit(engine, lane, tmp_path / "never")
    engine.close()
    assert are_gone(below)  # `close` returns when lanes have ended
    again = open_engine(tls, listen=engine.address)
    assert joined(again) == [lane]
    assert process.poll() is None
    again.close(is_over=True)
    again.close(is_over=True)
    assert process.wait(20) == 0


def test_workers_that_see_the_certificate_s_folder_find_each_driver_by_themselves(workers: Workers, tls: Path) -> None:
    process = workers.join_by_folder(tls)
    for _ in range(2):  # each listens on another port
        engine = open_engine(tls)
        try:
            [lane] = joined(engine)
            assert do(engine, lane, 1)[-1].message["value"] == 1
        finally:
            engine.close()
    assert process.poll() is None


def test_an_address_alone_is_no_way_in(tmp_path: Path) -> None:
    command = [*AUTOTUNE, "--join", "tls://127.0.0.1:1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "with --tls" in done.stderr


def test_a_driver_that_is_killed_takes_lanes_along_and_workers_join_the_next(
    workers: Workers, tls: Path, tmp_path: Path
) -> None:
    code = f"""
from pathlib import Path
from tests.cluster.pools import joined, open_engine, wait_in_unit
engine = open_engine(Path({str(tls)!r}))
print(engine.address, flush=True)
[lane] = joined(engine)
print(*(p.pid for p in wait_in_unit(engine, lane, Path("/nowhere"))), flush=True)
while True:
    engine.news(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        address = driver.stdout.readline().strip()
        process = workers.join(address, tls)
        below = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(below) == 2
        driver.kill()
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=10)
    engine = open_engine(tls, listen=address)
    try:
        [lane] = joined(engine)
        assert do(engine, lane, 4)[-1].message["value"] == 4
        assert process.poll() is None
    finally:
        engine.close()


@pytest.mark.parametrize("options", [["--no-nanny"], ["--nanny"]])
def test_a_plain_dask_worker_is_a_lane(
    engine: DaskEngine, workers: Workers, tls: Path, tmp_path: Path, options: list[str]
) -> None:
    process = workers.join_plainly(engine.address, tls, "--name", "7", *options)
    assert joined(engine) == ["7"]
    assert do(engine, "7", 1)[-1].message["value"] == 1
    below = wait_in_unit(engine, "7", tmp_path / "never")
    engine.give_up("7", "it is silent")
    hear(engine, lambda heard: kinds(heard) == ["left", "joined"], limit_s=20)
    assert are_gone(below)
    below = wait_in_unit(engine, "7", tmp_path / "never")
    process.terminate()
    first(engine, "left", limit_s=20)
    wait_for(lambda: are_gone(below), "nothing of the lane is left", limit_s=20)


def test_nobody_joins_within_the_patience(tls: Path, workers: Workers) -> None:
    engine = open_engine(tls, patience_s=0.5)
    try:
        with pytest.raises(LaunchError, match="autotune worker --join"):
            hear(engine, lambda heard: False, limit_s=10)
    finally:
        engine.close()
    process = workers.join(engine.address, tls, "--patience", "2s")
    _, said = process.communicate(timeout=60)
    assert process.returncode == STOPPED
    assert "start the driver" in said
    assert "Traceback" not in said


def test_a_listener_that_takes_workers_in_and_never_greets_does_not_hold_them_forever(
    workers: Workers, tls: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls / "cert.pem"))
    context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
    taken: list[socket.socket] = []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(listener.accept()[0])

    with context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True) as listener:
        threading.Thread(target=take, daemon=True).start()
        process = workers.join(f"tls://127.0.0.1:{listener.getsockname()[1]}", tls, "--patience", "5s")
        _, said = process.communicate(timeout=60)
        listener.shutdown(socket.SHUT_RDWR)
    for stream in taken:
        stream.close()
    assert taken
    assert process.returncode == STOPPED
    assert "no answer" in said


@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_place_where_nothing_can_listen_is_refused_with_the_reason(engine: DaskEngine, tls: Path) -> None:
    with pytest.raises(LaunchError, match="in use"):
        open_engine(tls, listen=engine.address)
    gc.collect()  # the socket that tornado does not close when it cannot bind it
    with pytest.raises(LaunchError, match="no pool is without TLS"):
        open_engine(tls, listen="tcp://127.0.0.1:0")
    with pytest.raises(LaunchError, match="must look like"):
        open_engine(tls, listen="everywhere")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--join", "tcp://127.0.0.1:1"], "no pool is without TLS"),
        (["--join", "tls://127.0.0.1"], "must look like tls://HOST:PORT"),
        (["--join", "127.0.0.1:99999"], "must look like tls://HOST:PORT"),
        (["--join", "127.0.0.1:1", "--patience", "soon"], "--patience must look like"),
        (["--join", "127.0.0.1:1", "--devices", "0,0"], "each device must be named once"),
    ],
)
def test_what_cannot_be_is_refused(tls: Path, arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [*AUTOTUNE, "--tls", str(tls), *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
