"""Engine whose lanes are the workers of a user's Dask cluster; workers may come and go at any time.

Dask carries messages and finds dead workers. The driver decides which lane does what: a task names its worker, is never
retried and never moves. The lane process of a worker runs behind a guard, so it ends with the worker, however that
ends. It also ends with the driver: the driver keeps a future of the lane's last task, running or done, so Dask releases
that task when the client is gone, and the plugin sees the transition.

References:
    https://distributed.dask.org/en/stable/worker-state.html
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Client, Future
from distributed.comm import connect
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.security import Security
from distributed.worker import get_worker

from autotune.cluster.engine import ANSWERS, JOINED, LANE_COMMAND, LEFT, LOG_BYTES, Message, Told
from autotune.machine.devices import parse_devices, reserve_devices
from autotune.machine.environment import caller_environment, driver_python, with_packages
from autotune.machine.files import LANE, Scratch
from autotune.machine.gpus import visible_gpu_ids
from autotune.model.errors import LaunchError, NodeLostError
from autotune.model.files import plain_content
from autotune.workers.base import GuardedProcess

if TYPE_CHECKING:
    from distributed import Worker

TOPIC = PLUGIN = "autotune"
FREE, SAID = "free", "said"
"""Kinds of events of a worker: it can take a unit, or its lane has sent a message."""

GPU = "GPU"
"""Dask resource by which a worker declares its number of devices."""

PATIENCE_S = 3600.0
KILL_PATIENCE_S = 15.0
CONNECT_LIMIT_S = 60.0
CLOSE_PATIENCE_S = 20.0
EVERYTHING = "all"
"""Dask's own topic of workers and clients that come and go."""


@dataclass(slots=True)
class _Lane:
    """One worker and its tasks: the last finished one, and the unit in hand."""

    name: str
    address: str
    host: str
    devices: int | None
    tasks: list[Future[None]] = field(default_factory=list)
    is_at_work: bool = False


class DaskEngine:
    """Lanes of a Dask cluster; see `Engine`.

    Args:
        address: The scheduler's; None if it is in `scheduler_file`, which ``dask scheduler --scheduler-file`` writes.
        holds_gpus: Whether workers reserve their GPUs against other studies.
        command: The lane program, for tests; default: `LANE_COMMAND`.
        patience_s: Longest wait for a first worker, or for another when all are gone, seconds.

    Raises:
        LaunchError: If there is no such scheduler, it has another driver, or a worker has no autotune.
    """

    def __init__(
        self,
        study: Message,
        *,
        address: str | None = None,
        scheduler_file: Path | None = None,
        holds_gpus: bool = False,
        command: Sequence[str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._heard: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._lanes: dict[str, _Lane] = {}
        self._useless: set[str] = set()
        self._told: list[Told] = []
        self._count = 0
        self._is_closed = False
        self._lonely_since = time.monotonic()
        self._client = _connect(address, scheduler_file)
        try:
            self._address = str(self._client.scheduler_info()["address"])
            _refuse_another_driver(self._client)
            self._listen()
            holder = LaneHolder(self._client.id, study, command, holds_gpus=holds_gpus)
            self._client.register_plugin(holder)
        except Exception as error:
            self._client.close()
            if isinstance(error, LaunchError):
                raise
            raise LaunchError(
                f"every worker at {self._address} must have this autotune but one says {type(error).__name__}: {error}"
                "; install it in the environment of the scheduler and of all workers"
            ) from error

    @property
    def words(self) -> str:
        """See `Engine`."""
        return f"the workers of the Dask cluster at {self._address}"

    def begin(self, lane: str, message: Message) -> None:
        """See `Engine`."""
        found = self._lanes.get(lane)
        if found is None:
            self._told.append(Told(lane, {"type": LEFT, "why": "there is no such lane any more"}))
            return
        self._count += 1
        found.is_at_work = True
        found.tasks.append(
            self._client.submit(
                do_unit, json.dumps(message), key=f"{self._client.id}-{self._count}", workers=[found.address],
                allow_other_workers=False, retries=0, pure=False,
                resources={GPU: found.devices} if found.devices else None,
            )
        )  # fmt: skip

    def news(self, wait_s: float) -> list[Told]:
        """See `Engine`."""
        with contextlib.suppress(queue.Empty):
            if not self._told:
                self._take(self._heard.get(timeout=wait_s))
            while True:
                self._take(self._heard.get_nowait())
        for lane in [x for x in self._lanes.values() if x.tasks and x.tasks[-1].status == "error"]:
            self._useless.add(lane.address)  # the worker cannot run such tasks at all
            self._drop(lane, str(lane.tasks[-1].exception()))
        told, self._told = self._told, []
        self._refuse_to_wait_for_nobody(told)
        return told

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """See `Engine`; unless `for_good` the lane joins again when its worker has cleaned up."""
        found = self._lanes.get(lane)
        if found is None:
            return
        if for_good:
            self._useless.add(found.address)
        self._drop(found, why)
        if not for_good and not found.tasks:  # nothing is there to clean up
            self._welcome(found.address, found.name, found.host, found.devices)

    def close(self) -> None:
        """See `Engine`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._lanes.clear()
        with contextlib.suppress(Exception):  # a worker that does not answer ends its lane when it sees the client gone
            self._client.sync(self._client._unregister_worker_plugin, name=PLUGIN, callback_timeout=CLOSE_PATIENCE_S)
        self._client.close()

    def _listen(self) -> None:
        """Subscribes to the events of the workers, and waits until the subscription holds."""
        mine = self._client.id

        def hear(event: tuple[float, Any]) -> None:
            told = event[1]
            if isinstance(told, dict) and (told.get("driver") == mine or told.get("action") == "remove-worker"):
                self._heard.put(told)

        for topic in (EVERYTHING, TOPIC):
            self._client.subscribe_topic(topic, hear)
        while self._heard.empty():
            self._client.log_event(TOPIC, {"driver": mine, "kind": "probe"})
            time.sleep(0.05)

    def _take(self, told: Mapping[str, Any]) -> None:
        """Handles one event of the cluster."""
        address = str(told.get("worker"))
        lane = next((x for x in self._lanes.values() if x.address == address), None)
        if told.get("action") == "remove-worker":
            self._useless.discard(address)
            if lane is not None:
                self._drop(lane, "it was stopped, killed or silent, or its machine or network is gone")
        elif told.get("kind") == FREE:
            if lane is not None:
                self._drop(lane, told.get("why", "its task was taken back"))
            if address not in self._useless:
                self._welcome(address, told["name"], told["host"], told["devices"])
        elif told.get("kind") == SAID and lane is not None and lane.tasks and told["key"] == lane.tasks[-1].key:
            self._hear(lane, json.loads(told["message"]))

    def _hear(self, lane: _Lane, message: Message) -> None:
        """Handles a message from a lane about its unit."""
        if not lane.is_at_work:
            return
        if message["type"] in ANSWERS:
            lane.is_at_work = False
            while len(lane.tasks) > 1:  # the last one stays: the lane process ends with it
                lane.tasks.pop(0).release()
        if message["type"] not in (JOINED, LEFT):  # only the engine sends those
            self._told.append(Told(lane.name, message))

    def _welcome(self, address: str, called: str, host: str, devices: int | None) -> None:
        """Makes a lane of a free worker, with a name that is safe in a path."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"^\w+://", "", called)).lstrip("._-")[:80] or "lane"
        names = (name, *(f"{name}-{i}" for i in range(2, len(self._lanes) + 3)))
        lane = _Lane(next(n for n in names if n not in self._lanes), address, host, devices)
        self._lanes[lane.name] = lane
        self._told.append(Told(lane.name, {"type": JOINED, "name": lane.name, "host": host, "devices": devices}))

    def _drop(self, lane: _Lane, why: str) -> None:
        del self._lanes[lane.name]
        for task in lane.tasks:
            task.release()
        self._told.append(Told(lane.name, {"type": LEFT, "why": why}))

    def _refuse_to_wait_for_nobody(self, told: list[Told]) -> None:
        """Raises NodeLostError when the scheduler is gone, or no worker has been there for too long."""
        now = time.monotonic()
        if self._client.status != "running":
            raise NodeLostError(
                f"the scheduler at {self._address} must be there but the connection to it has ended; start it and its "
                "workers again, then the study: it continues"
            )
        if self._lanes or told:
            self._lonely_since = now
        elif now - self._lonely_since > self._patience_s:
            raise NodeLostError(
                f"a worker must be at {self._address} within {self._patience_s:.0f} s but none is there; start some "
                f"with `dask worker {self._address} --nthreads 1`, then run the study again: it continues"
            )


def _connect(address: str | None, scheduler_file: Path | None) -> Client:
    """Connects to the scheduler, under the TLS of Dask's own configuration."""
    where = address or str(scheduler_file)
    end = time.monotonic() + CONNECT_LIMIT_S
    while scheduler_file is not None and not scheduler_file.exists() and time.monotonic() < end:
        time.sleep(0.1)  # the scheduler may be about to write it
    for name in [n for n in logging.root.manager.loggerDict if n.split(".")[0] in ("distributed", "tornado")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # autotune itself reports lost workers
    try:
        if scheduler_file is not None:
            address = json.loads(plain_content(scheduler_file))["address"]
        asyncio.run(_reach(address))  # a client that cannot connect leaves a thread behind
        return Client(address, name=PLUGIN, set_as_default=False, timeout=CONNECT_LIMIT_S)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LaunchError(
            f"a Dask scheduler must be at {where} but {type(error).__name__}: {error}; start it with `dask scheduler`, "
            "or correct --scheduler; its TLS is `distributed.comm.tls` of Dask's configuration, the same on all sides"
        ) from error


async def _reach(address: str | None) -> None:
    comm = await connect(address, timeout=CONNECT_LIMIT_S, **Security().get_connection_args("client"))
    await comm.close()


def _refuse_another_driver(client: Client) -> None:
    """Refuses a cluster with another driver: both studies would disturb each other's times."""
    clients = client.run_on_scheduler(_clients)
    if others := [c for c in clients if c.startswith(f"Client-{PLUGIN}-") and c != client.id]:
        raise LaunchError(
            f"a Dask cluster must have one study at a time but another driver is there ({others[0]}); wait "
            "until it has ended, or start another cluster"
        )


def _clients(dask_scheduler: Any) -> list[str]:
    """Runs on the scheduler; lists the ids of its clients."""
    return list(dask_scheduler.clients)


# ---------------------------------------------------------------------- on the workers


def do_unit(unit: str) -> None:
    """Runs on a worker; has its lane do one unit, given as JSON."""
    worker = get_worker()
    holder = worker.plugins[PLUGIN]
    assert isinstance(holder, LaneHolder)
    holder.do(str(worker.get_current_task()), json.loads(unit))


class LaneHolder(WorkerPlugin):
    """Holds the lane process of one worker, from its first unit on.

    Args:
        driver: Id of the client whose tasks it does; their keys begin with it.
        command: The lane program; default: `LANE_COMMAND` with the worker's own interpreter.
        holds_gpus: Whether the worker's GPUs are reserved against other studies while there is a lane process.
    """

    name = PLUGIN

    def __init__(self, driver: str, study: Message, command: Sequence[str] | None, *, holds_gpus: bool) -> None:
        self._driver = driver
        self._study = dict(study)
        self._command = command
        self._holds_gpus = holds_gpus

    def setup(self, worker: Worker) -> None:
        """Runs in the worker's event loop when it has joined."""
        self._worker = worker
        self._one_thread = threading.Lock()  # a worker may have several threads
        self._lane: GuardedProcess | None = None
        self._held = contextlib.ExitStack()
        self._key = ""  # of the task whose end is the lane's
        self._leaves = False
        self._tell(FREE)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Runs in the worker's event loop; ends the lane process when its task, running or done, is released."""
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
            elif start in ("ready", "constrained") and not self._key:  # it never began
                self._tell(FREE)

    async def teardown(self, worker: Worker) -> None:
        """Runs in the worker's event loop when it closes, or when the driver unregisters the plugin."""
        self._leaves = True
        if self._lane is not None:
            self._lane.abort()
        await asyncio.to_thread(self._end)

    def do(self, key: str, unit: Message) -> None:
        """Gives the lane a unit and passes its messages on, up to the answer or the lane's end."""
        with self._one_thread:
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
        """Ends the lane process after its task was released."""
        with self._one_thread:
            self._close()
            self._tell(FREE)

    def _open(self) -> GuardedProcess:
        if self._lane is not None:
            self._lane.receive()  # it may have ended since
            if self._lane.end is None:
                return self._lane
            self._close()
        env = caller_environment()
        if self._holds_gpus and "SLURM_JOB_ID" not in env:  # SLURM reserves a job's devices
            visible = visible_gpu_ids(env)
            self._held.enter_context(reserve_devices("cuda", parse_devices(visible) if visible else ()))
        command = list(self._command or (driver_python(), *LANE_COMMAND))
        scratch = Scratch(LANE)
        self._held.callback(scratch.close)
        folder = scratch.path
        self._lane = GuardedProcess(command, with_packages(env), folder / "lane.log", LOG_BYTES, cwd=str(folder))
        self._lane.send(self._study)
        return self._lane

    def _close(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close(KILL_PATIENCE_S)
        self._held.close()

    def _tell(self, kind: str, **fields: Any) -> None:
        """Sends an event to the driver, unless the worker is leaving; Dask adds the worker's address."""
        if self._leaves:
            return
        devices = self._worker.state.total_resources.get(GPU)
        own = {"name": str(self._worker.name), "host": socket.gethostname(), "devices": devices and int(devices)}
        self._worker.log_event(TOPIC, {"driver": self._driver, "kind": kind, **(own if kind == FREE else {}), **fields})


def _describe(lane: GuardedProcess) -> str:
    end = lane.end or {}
    said = " ".join(end.get("last_lines", [])[-3:])
    return f"its lane process ended (status {end.get('exit_status')}){': ' if said else ''}{said}"[:1000]
