"""What the tests of pools share: a driver's engine, workers as real processes, and what they say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from autotune.cluster import open_pool
from autotune.cluster.dask_engine import DaskEngine
from autotune.cluster.engine import ANSWERS, Told
from tests.cluster.conftest import ROOT

LANE = [sys.executable, str(Path(__file__).parent / "programs" / "lane.py")]
STUDY = {"type": "study", "token": "of this study"}
LOOPBACK = "tls://127.0.0.1:0"
AUTOTUNE = [sys.executable, "-m", "autotune", "worker"]


def open_engine(tls: Path, **options: Any) -> DaskEngine:
    return open_pool(STUDY, tls=tls, **{"listen": LOOPBACK, "command": LANE, **options})


class Workers:
    """Workers that a test starts; none outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def join(self, address: str, tls: Path, *options: str, name: str = "w") -> subprocess.Popen[str]:
        return self._start([*AUTOTUNE, "--join", address, "--tls", str(tls), "--name", name, *options])

    def join_by_folder(self, tls: Path, *, name: str = "w") -> subprocess.Popen[str]:
        return self._start([*AUTOTUNE, "--join", str(tls), "--name", name])

    def join_plainly(self, address: str, tls: Path, *options: str) -> subprocess.Popen[str]:
        pair = ["--tls-ca-file", str(tls / "cert.pem"), "--tls-cert", str(tls / "cert.pem")]
        pair += ["--tls-key", str(tls / "key.pem")]
        dask = [sys.executable, "-m", "distributed.cli.dask_worker", address, *pair]
        return self._start([*dask, "--nthreads", "1", "--no-dashboard", *options])

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(self._folder)}
        env = {**os.environ, **own}  # devices are reserved in TMPDIR: tests at the same time have theirs
        process = subprocess.Popen(
            command, env=env, cwd=self._folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                for below in psutil.Process(process.pid).children(recursive=True):
                    below.kill()
            process.kill()
            process.communicate()


def hear(engine: DaskEngine, enough: Callable[[list[Told]], bool], limit_s: float = 60) -> list[Told]:
    """What lanes say until it is enough."""
    heard: list[Told] = []
    deadline = time.monotonic() + limit_s
    while not enough(heard):
        assert time.monotonic() < deadline, f"heard only {heard} within {limit_s} s"
        heard += engine.news(1.0)
    return heard


def first(engine: DaskEngine, kind: str, limit_s: float = 60) -> Told:
    """The last of all messages up to the first of a kind."""
    return hear(engine, lambda heard: kind in kinds(heard), limit_s)[-1]


def kinds(heard: list[Told]) -> list[str]:
    return [told.message["type"] for told in heard]


def joined(engine: DaskEngine, count: int = 1) -> list[str]:
    """Waits for some lanes to join; gives their names."""
    heard = hear(engine, lambda heard: kinds(heard).count("joined") == count)
    return [told.lane for told in heard]


def do(engine: DaskEngine, lane: str, value: int, **fields: Any) -> list[Told]:
    """Has a lane do a unit; gives all it says."""
    engine.begin(lane, {"type": "unit", "do": "answer", "value": value, **fields})
    return hear(engine, lambda heard: any(kind in ANSWERS for kind in kinds(heard)))


def wait_in_unit(engine: DaskEngine, lane: str, until: Path) -> list[psutil.Process]:
    """Has a lane begin a unit that ends when a file is there; gives its process and that one's child."""
    engine.begin(lane, {"type": "unit", "do": "wait", "until": str(until), "value": 0})
    begun, waits = hear(engine, lambda heard: len(heard) == 2)
    return [psutil.Process(begun.message["pid"]), psutil.Process(waits.message["child"])]


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
