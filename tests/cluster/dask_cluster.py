"""What the tests of Dask clusters share: scheduler and workers as real processes, a driver's engine, what lanes say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from autotune.cluster.dask_engine import DaskEngine
from autotune.cluster.engine import ANSWERS, LaneMessage
from harness.sandbox import wait_for
from tests.cluster.conftest import ROOT

LANE = [sys.executable, str(Path(__file__).parent / "programs" / "lane.py")]
STUDY = {"type": "study", "token": "of this study"}
DASK = [sys.executable, "-m", "dask"]


class Cluster:
    """A scheduler and workers that a test starts by Dask's own commands; none outlives it."""

    def __init__(self, folder: Path, *, env: dict[str, str] | None = None, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._env = env or {}
        self._started: list[subprocess.Popen[bytes]] = []
        self.file = folder / "scheduler.json"
        self.scheduler = self._start(
            [
                *DASK,
                "scheduler",
                "--scheduler-file",
                str(self.file),
                "--port",
                "0",
                "--host",
                "127.0.0.1",
                "--no-dashboard",
                *options,
            ]
        )
        wait_for(lambda: self.file.exists() and self.file.stat().st_size > 0, "the scheduler listens", limit_s=60)
        self.address = str(json.loads(self.file.read_text())["address"])

    def join(self, name: str = "w", *options: str) -> subprocess.Popen[bytes]:
        """Starts a worker, without a nanny unless told."""
        own = ["--nthreads", "1", "--no-dashboard", "--name", name, *(options or ("--no-nanny",))]
        return self._start([*DASK, "worker", "--scheduler-file", str(self.file), *own])

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self._folder), **self._env}
        with (self._folder / "dask.log").open("ab") as log:
            process = subprocess.Popen(command, env=env, cwd=self._folder, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kills all of them and what is below them."""
        for process in self._started:
            with contextlib.suppress(psutil.NoSuchProcess):
                for below in psutil.Process(process.pid).children(recursive=True):
                    below.kill()
            process.kill()
            process.wait()


def hear(engine: DaskEngine, enough: Callable[[list[LaneMessage]], bool], limit_s: float = 60) -> list[LaneMessage]:
    """What lanes say until it is enough."""
    heard: list[LaneMessage] = []
    deadline = time.monotonic() + limit_s
    while not enough(heard):
        assert time.monotonic() < deadline, f"heard only {heard} within {limit_s} s"
        heard += engine.news(1.0)
    return heard


def first(engine: DaskEngine, kind: str, limit_s: float = 60) -> LaneMessage:
    """The last of all messages up to the first of a kind."""
    return hear(engine, lambda heard: kind in kinds(heard), limit_s)[-1]


def kinds(heard: list[LaneMessage]) -> list[str]:
    return [told.message["type"] for told in heard]


def joined(engine: DaskEngine, count: int = 1) -> list[str]:
    """Waits for some lanes to join; gives their names."""
    heard = hear(engine, lambda heard: kinds(heard).count("joined") == count)
    return [told.lane for told in heard]


def do(engine: DaskEngine, lane: str, value: int, **fields: Any) -> list[LaneMessage]:
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
