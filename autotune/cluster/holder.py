"""A worker's side of a pool: it holds one lane process and carries messages between that and the driver.

It comes to every worker that joins, `autotune worker` or plain `dask worker`, as a plugin. The lane process stands
behind a guard, so it ends with the worker, however that ends; and with the driver, for a Dask worker that has lost its
scheduler closes, and takes its plugins down first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distributed.comm import get_address_host
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.worker import get_worker

from autotune.cluster.carry import RANK_OPERATION, serve_rank
from autotune.cluster.engine import ANSWERS, Message
from autotune.machine import LANE, Scratch, caller_environment, driver_python, let_import_packages
from autotune.workers import GANG_VARIABLE, GuardedProcess

if TYPE_CHECKING:
    from distributed import Worker

TOPIC = "autotune"
HELLO, SAID, ENDED, CLOSED = "hello", "said", "ended", "closed"
"""What a holder tells: that it is there, what its lane says, that its lane ended by itself, that it was ended."""

LANE_LOG_BYTES = 1_000_000
KILL_PATIENCE_S = 15.0
DEVICES = "devices"
"""Under this name a worker says as a resource of Dask's how many devices it has."""


def lane_command() -> list[str]:
    """What runs as a lane."""
    return [driver_python(), "-m", "autotune.study.lane"]


def do_unit(unit: str, gang: str) -> None:
    """Runs on a worker: gives its lane one unit, and sees it through.

    Args:
        unit: The message, as JSON.
        gang: Addresses of all workers of the lane, as a list in JSON; empty if it is this one alone.
    """
    worker = get_worker()
    _holder(worker).do(str(worker.get_current_task()), json.loads(unit), gang)


def end_lane() -> None:
    """Runs on a worker: ends its lane process, and says so."""
    worker = get_worker()
    _holder(worker).end(str(worker.get_current_task()))


def _holder(worker: Worker) -> LaneHolder:
    found = worker.plugins[LaneHolder.name]
    assert isinstance(found, LaneHolder)
    return found


class LaneHolder(WorkerPlugin):
    """Holds the lane process of one worker, from its first unit on.

    Args:
        study: The first message to each lane process.
        command: The lane program; default: that of `lane_command`, asked on the worker's machine.
    """

    name = "autotune-lane"

    def __init__(self, study: Message, command: Sequence[str] | None = None) -> None:
        self._study = dict(study)
        self._command = command

    def setup(self, worker: Worker) -> None:
        """Runs in the worker's loop when it has joined."""
        self._worker = worker
        self._turn = threading.Lock()  # a plain worker may have several threads
        self._lane: GuardedProcess | None = None
        self._gang = ""
        self._in_hand = ""
        self._leaves = False
        self._unwanted: set[str] = set()
        self._scratch = Scratch(LANE)
        self._folder = self._scratch.path
        for page in worker.services.values():
            page.stop()  # a plain worker's, over plain HTTP
        worker.handlers[RANK_OPERATION] = serve_rank
        devices = worker.state.total_resources.get(DEVICES)
        self._tell(
            HELLO, name=str(worker.name), host=socket.gethostname(), devices=None if devices is None else int(devices)
        )

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Runs in the worker's loop: a task that is taken back while it runs takes its lane process with it."""
        if start in ("executing", "long-running") and finish in ("released", "cancelled", "forgotten"):
            self._unwanted.add(str(key))
            if self._in_hand == key and self._lane is not None:
                self._lane.abort()

    async def teardown(self, worker: Worker) -> None:
        """Runs in the worker's loop when it closes."""
        self._leaves = True
        if self._lane is not None:
            self._lane.abort()
        await asyncio.to_thread(self._end_for_good)

    def _end_for_good(self) -> None:
        with self._turn:
            self._close()
            self._scratch.close()

    def do(self, key: str, unit: Message, gang: str) -> None:
        """Gives the lane a unit and passes on what it says, to the answer or the lane's end."""
        with self._turn:
            lane = self._open(gang)
            self._in_hand = key
            if key in self._unwanted:
                lane.abort()
            lane.send(unit)
            if not self._carry(key, lane):
                self._in_hand = ""
                self._close()
                if not self._leaves:  # else that the worker has left says all
                    self._tell(ENDED, key, why=_describe(lane))

    def _carry(self, key: str, lane: GuardedProcess) -> bool:
        while lane.end is None:
            for message in lane.messages(60):
                if message["type"] in ANSWERS:
                    self._in_hand = ""  # from here on a task that is taken back is one that is done
                if message["type"] != "exit":
                    self._tell(SAID, key, message=json.dumps(message))
                if not self._in_hand:
                    return True
        return False

    def end(self, key: str) -> None:
        """Ends the lane process, if there is one."""
        with self._turn:
            self._close()
            self._tell(CLOSED, key)

    def _open(self, gang: str) -> GuardedProcess:
        if self._lane is not None:
            self._lane.receive()  # it may have ended since
            if self._lane.end is None and self._gang == gang:
                return self._lane
            self._close()
        self._gang = gang
        env = caller_environment()
        if gang:
            env[GANG_VARIABLE] = json.dumps([self._member(address) for address in json.loads(gang)])
        let_import_packages(env)
        command = list(self._command or lane_command())
        self._lane = GuardedProcess(command, env, self._folder / "lane.log", LANE_LOG_BYTES, cwd=str(self._folder))
        self._lane.send(self._study)
        return self._lane

    def _member(self, address: str) -> dict[str, Any]:
        """One worker of the gang, as `autotune.workers.gang` takes it."""
        pair = self._worker.security.get_tls_config_for_role("worker")
        files = [pair["ca_file"], pair["cert"], pair["key"]]
        through = [driver_python(), "-m", "autotune.cluster.carry", address, *files]
        return {"host": get_address_host(address), "through": through}

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close(KILL_PATIENCE_S)
            self._scratch.clear()

    def _tell(self, kind: str, key: str = "", **fields: Any) -> None:
        self._worker.log_event(TOPIC, {"kind": kind, "key": key, **fields})  # Dask adds which worker it is


def _describe(lane: GuardedProcess) -> str:
    end = lane.end or {}
    said = " ".join(end.get("last_lines", [])[-3:])
    return f"its lane process ended (status {end.get('exit_status')}){': ' if said else ''}{said}"[:1000]


def hush_dask() -> None:
    """Keeps Dask's own log lines from the screen: what they say of workers is told by autotune, once."""
    for name in [n for n in logging.root.manager.loggerDict if n.split(".")[0] in ("distributed", "tornado")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
