"""A Dask worker's side of a lane: it holds one lane process and carries messages between that and the driver.

It comes to every worker of the cluster as a plugin. The lane process stands behind a guard, so it ends with the worker,
however that ends. It ends with the driver, too: the driver keeps the lane's last task, at work or done, so a client
that is gone takes that task from the worker, and the plugin sees it go.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import WorkerPlugin
from distributed.worker import get_worker

from autotune.cluster.engine import ANSWERS, Message
from autotune.cluster.processes import LANE_COMMAND, LOG_BYTES
from autotune.machine import (
    LANE,
    Scratch,
    caller_environment,
    driver_python,
    let_import_packages,
    parse_devices,
    reserve_devices,
    visible_gpu_ids,
)  # fmt: skip
from autotune.workers import GuardedProcess

if TYPE_CHECKING:
    from distributed import Worker

TOPIC = PLUGIN = "autotune"
FREE, SAID = "free", "said"
"""What a holder tells: that it has no lane process and can take a unit, what its lane says."""

GPU = "GPU"
"""Under this name a worker says as a resource of Dask's how many devices it has."""

KILL_PATIENCE_S = 15.0


def do_unit(unit: str) -> None:
    """Runs on a worker: gives its lane one unit, as JSON, and sees it through."""
    worker = get_worker()
    holder = worker.plugins[PLUGIN]
    assert isinstance(holder, LaneHolder)
    holder.do(str(worker.get_current_task()), json.loads(unit))


class LaneHolder(WorkerPlugin):
    """Holds the lane process of one worker, from its first unit on.

    Args:
        driver: Whose tasks it does: their keys begin with this, and all it tells is marked with it.
        study: The first message to each lane process.
        command: The lane program; default: that of a study, with the worker's own interpreter.
        holds_gpus: Whether the worker's GPUs are reserved against other studies while there is a lane process.
    """

    name = PLUGIN

    def __init__(self, driver: str, study: Message, command: Sequence[str] | None, *, holds_gpus: bool) -> None:
        self._driver = driver
        self._study = dict(study)
        self._command = command
        self._holds_gpus = holds_gpus

    def setup(self, worker: Worker) -> None:
        """Runs in the worker's loop when it has joined."""
        self._worker = worker
        self._turn = threading.Lock()  # a worker may have several threads
        self._lane: GuardedProcess | None = None
        self._held = contextlib.ExitStack()
        self._key = ""  # of the task whose end is the lane's
        self._leaves = False
        self._scratch = Scratch(LANE)
        self._tell(FREE)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Runs in the worker's loop: a task that is taken back, at work or done, takes the lane process with it."""
        if not str(key).startswith(self._driver):
            return
        if finish == "executing":
            self._key = str(key)
        elif finish in ("released", "cancelled", "forgotten"):
            if key == self._key:
                self._key = ""
                if self._lane is not None:
                    self._lane.abort()
                threading.Thread(target=self._end, name="ending", daemon=True).start()
            elif start in ("ready", "constrained") and not self._key:  # it was never begun
                self._tell(FREE)

    async def teardown(self, worker: Worker) -> None:
        """Runs in the worker's loop when it closes, or when the driver needs no lanes any more."""
        self._leaves = True
        if self._lane is not None:
            self._lane.abort()
        await asyncio.to_thread(self._end)
        self._scratch.close()

    def do(self, key: str, unit: Message) -> None:
        """Gives the lane a unit and passes on what it says, to the answer or the lane's end."""
        with self._turn:
            if not key.startswith(self._driver) or self._leaves:  # a task of a driver that is gone
                return
            lane = self._open()
            if self._key != key:  # taken back meanwhile
                lane.abort()
            lane.send(unit)
            if not self._carry(key, lane) and self._key == key:
                self._key = ""
                self._close()
                self._tell(FREE, why=_describe(lane))

    def _carry(self, key: str, lane: GuardedProcess) -> bool:
        while lane.end is None:
            for message in lane.messages(60):
                if message["type"] != "exit":
                    self._tell(SAID, key=key, message=json.dumps(message))
                if message["type"] in ANSWERS:
                    return True
        return False

    def _end(self) -> None:
        """Ends the lane process after its task was taken back."""
        with self._turn:
            self._close()
            self._tell(FREE)

    def _open(self) -> GuardedProcess:
        if self._lane is not None:
            self._lane.receive()  # it may have ended since
            if self._lane.end is None:
                return self._lane
            self._close()
        env = caller_environment()
        if self._holds_gpus and "SLURM_JOB_ID" not in env:  # a job's devices are its own already
            visible = visible_gpu_ids(env)
            self._held.enter_context(reserve_devices("cuda", parse_devices(visible) if visible else ()))
        let_import_packages(env)
        command = list(self._command or (driver_python(), *LANE_COMMAND))
        folder = self._scratch.path
        self._lane = GuardedProcess(command, env, folder / "lane.log", LOG_BYTES, cwd=str(folder))
        self._lane.send(self._study)
        return self._lane

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close(KILL_PATIENCE_S)
            self._scratch.clear()
        self._held.close()

    def _tell(self, kind: str, **fields: Any) -> None:
        """Tells the driver, unless there is nothing to tell it but that the worker leaves; Dask adds which worker."""
        if self._leaves:
            return
        devices = self._worker.state.total_resources.get(GPU)
        own = {"name": str(self._worker.name), "host": socket.gethostname(), "devices": devices and int(devices)}
        self._worker.log_event(TOPIC, {"driver": self._driver, "kind": kind, **(own if kind == FREE else {}), **fields})


def _describe(lane: GuardedProcess) -> str:
    end = lane.end or {}
    said = " ".join(end.get("last_lines", [])[-3:])
    return f"its lane process ended (status {end.get('exit_status')}){': ' if said else ''}{said}"[:1000]
