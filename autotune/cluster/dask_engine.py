"""Engine whose lanes are the workers of a user's Dask cluster; workers may come and go at any time.

A lane is one long task, pinned to its worker and never retried: it takes units from a queue of
Dask, has a lane process do them, and sends what that says as events. It ends when it is released,
by the driver or because the driver is gone, and when its worker leaves. The lane process runs
behind a guard, so it ends with the worker. See
https://distributed.dask.org/en/stable/worker-state.html.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, Future, Queue, Status
from distributed.comm import connect
from distributed.security import Security
from distributed.worker import get_worker

from autotune.cluster.engine import (
    ANSWERS,
    JOINED,
    LANE_COMMAND,
    LEFT,
    LOG_BYTES,
    Engine,
    LaneMessage,
    Message,
)
from autotune.machine.devices import reserve_devices
from autotune.machine.environment import caller_environment, driver_python, with_packages
from autotune.machine.files import LANE, Scratch
from autotune.machine.gpus import visible_gpu_ids
from autotune.model.errors import LaunchError, NodeLostError
from autotune.model.files import plain_content
from autotune.workers.base import GuardedProcess

Command = Sequence[str] | None

TOPIC = "autotune"
SAID = "said"  # a lane's event: its process has sent a message
ENDED = "ended"  # a lane's event: its task is over
GPU = "GPU"  # Dask resource by which a worker declares its number of devices
PATIENCE_S = 3600.0  # longest wait for a first worker, or for another when all are gone
KILL_PATIENCE_S = 15.0
CONNECT_LIMIT_S = 60.0
CLOSE_PATIENCE_S = 20.0
LOOK_EVERY_S = 0.5  # of a task at whether it is still wanted
# Loggers to which Dask gives a level; all others follow these.
_LOGGERS = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application")


@dataclass
class _Lane:
    """The task of one worker, and its queue of units; without a name until the task has begun."""

    address: str
    task: Future[None]
    units: Queue
    devices: int | None
    name: str = ""
    is_at_work: bool = False


class DaskEngine(Engine):
    """Lanes of a Dask cluster; see `Engine`.

    `scheduler` is its address, or the file that ``dask scheduler --scheduler-file`` writes. With
    `holds_gpus` workers reserve their GPUs against other studies.
    """

    def __init__(
        self,
        study: Message,
        scheduler: str,
        *,
        holds_gpus: bool = False,
        command: Command = None,
    ) -> None:
        self._arguments = (dict(study), command, holds_gpus)
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lanes: dict[str, _Lane] = {}  # by the worker's address
        self._useless: set[str] = set()
        self._messages: list[LaneMessage] = []
        self._numbers = itertools.count(1)
        self._lonely_since = time.monotonic()
        self._client = _connect(scheduler)
        try:
            self._address = str(self._client.scheduler_info()["address"])
            self.words = f"the workers of the Dask cluster at {self._address}"
            _refuse_another_driver(self._client)
            self._listen()
            self._open_lanes()
        except BaseException:
            self._client.close()
            raise

    def begin(self, lane: str, message: Message) -> None:
        """See `Engine`."""
        target = next((x for x in self._lanes.values() if x.name == lane), None)
        if target is None:
            self._left(lane, "there is no such lane any more")
            return
        target.is_at_work = True
        assert self._client.loop is not None
        # Without waiting for the scheduler.
        self._client.loop.add_callback(target.units._put, json.dumps(message))

    def news(self, wait_s: float) -> list[LaneMessage]:
        """See `Engine`."""
        with contextlib.suppress(queue.Empty):
            if not self._messages:
                self._take(self._events.get(timeout=wait_s))
            while True:
                self._take(self._events.get_nowait())
        for lane in [x for x in self._lanes.values() if x.task.status == "error"]:
            self._give_up_broken(lane)
        messages = self._messages
        self._messages = []
        self._refuse_to_wait_for_nobody(messages)
        return messages

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """See `Engine`; unless `for_good` the lane joins again when its worker has cleaned up."""
        for target in [x for x in self._lanes.values() if x.name == lane]:
            if for_good:
                self._useless.add(target.address)
            self._drop(target, why)

    def close(self) -> None:
        """See `Engine`."""
        ending = {lane.task.key for lane in self._lanes.values() if lane.name}
        for lane in self._lanes.values():
            lane.task.release()
        self._lanes.clear()
        end = time.monotonic() + CLOSE_PATIENCE_S
        while ending and self._client.status == "running" and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=LOOK_EVERY_S)
                if event.get("kind") == ENDED:
                    ending.discard(event["key"])
        self._client.close()

    def _listen(self) -> None:
        """Subscribes to the events of lanes and workers, and waits until the subscription holds."""
        driver = self._client.id

        def hear(event: tuple[float, Any]) -> None:
            content = event[1]
            if isinstance(content, dict) and (
                content.get("driver") == driver or content.get("action", "").endswith("-worker")
            ):
                self._events.put(content)

        for topic in ("all", TOPIC):  # "all" is Dask's own, of workers that come and go
            self._client.subscribe_topic(topic, hear)
        while self._events.empty():
            self._client.log_event(TOPIC, {"driver": driver, "kind": "probe"})
            time.sleep(0.05)

    def _open_lanes(self) -> None:
        """Submits the task of each worker that has none."""
        for address, worker in self._client.scheduler_info()["workers"].items():
            if address not in self._lanes and address not in self._useless:
                devices = worker["resources"].get(GPU)
                self._open_lane(address, int(devices) if devices else None)

    def _open_lane(self, address: str, devices: int | None) -> None:
        key = f"{self._client.id}-{next(self._numbers)}"
        task = self._client.submit(
            run_lane,
            self._client.id,
            *self._arguments,
            key=key,
            workers=[address],
            allow_other_workers=False,
            retries=0,
            pure=False,
            resources={GPU: devices} if devices else None,
        )
        self._lanes[address] = _Lane(address, task, Queue(key, self._client), devices)

    def _take(self, event: Message) -> None:
        if event.get("action") == "add-worker":
            self._open_lanes()
        elif event.get("action") == "remove-worker":
            address = str(event["worker"])
            self._useless.discard(address)
            why = "it was stopped, killed or silent, or its machine or network is gone"
            if address in self._lanes:
                self._drop(self._lanes[address], why, is_gone=True)
        for lane in list(self._lanes.values()):
            if lane.task.key == event.get("key"):
                self._handle(lane, event)

    def _handle(self, lane: _Lane, event: Message) -> None:
        if event["kind"] == JOINED:
            lane.name = _name_of(event["name"])
            joined = {"name": lane.name, "host": event["host"], "devices": lane.devices}
            self._messages.append(LaneMessage(lane.name, {"type": JOINED, **joined}))
        elif event["kind"] == LEFT:
            self._drop(lane, event["why"])
        elif event["kind"] == SAID and lane.is_at_work:
            message = json.loads(event["message"])
            lane.is_at_work = message["type"] not in ANSWERS
            if message["type"] not in (JOINED, LEFT):  # only the engine sends those
                self._messages.append(LaneMessage(lane.name, message))

    def _give_up_broken(self, lane: _Lane) -> None:
        """Gives up a worker that cannot run such tasks at all."""
        error = lane.task.exception()
        self._useless.add(lane.address)
        if not any(x.name for x in self._lanes.values()):
            raise LaunchError(
                f"every worker at {self._address} must have this autotune but one says "
                f"{type(error).__name__}: {error}"
                "; install it in the environment of the scheduler and of all workers"
            )
        self._drop(lane, str(error))

    def _left(self, lane: str, why: str) -> None:
        self._messages.append(LaneMessage(lane, {"type": LEFT, "why": why}))

    def _drop(self, lane: _Lane, why: str, *, is_gone: bool = False) -> None:
        """Ends a lane; its worker gets another unless it is gone or of no use."""
        del self._lanes[lane.address]
        lane.task.release()
        lane.units.close()
        if lane.name:
            self._left(lane.name, why)
        if not is_gone and lane.address not in self._useless:
            self._open_lane(lane.address, lane.devices)

    def _refuse_to_wait_for_nobody(self, messages: list[LaneMessage]) -> None:
        """Raises NodeLostError if the scheduler is gone, or no worker was there for too long."""
        now_s = time.monotonic()
        if self._client.status != "running":
            raise NodeLostError(
                f"the scheduler at {self._address} must be there but the connection to it has "
                "ended; start it and its workers again, then the study: it continues"
            )
        if messages or any(x.name for x in self._lanes.values()):
            self._lonely_since = now_s
        elif now_s - self._lonely_since > PATIENCE_S:
            raise NodeLostError(
                f"a worker must be at {self._address} within {PATIENCE_S:.0f} s but none "
                f"is there; start some with `dask worker {self._address} --nthreads 1`, then run "
                "the study again: it continues"
            )


def _name_of(worker: str) -> str:
    """Makes the name of a worker, of which a cluster has one, safe in a path."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"^\w+://", "", worker))
    return plain.lstrip("._-")[:80] or "lane"


def _connect(scheduler: str) -> Client:
    """Connects to the scheduler, under the TLS of Dask's own configuration."""
    address = scheduler
    file = Path(scheduler)
    end = time.monotonic() + CONNECT_LIMIT_S
    is_file = scheduler.endswith(".json")
    while is_file and not file.exists() and time.monotonic() < end:
        time.sleep(0.1)  # the scheduler may be about to write it
    for name in _LOGGERS:  # autotune reports lost workers
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if is_file:
            address = json.loads(plain_content(file))["address"]
        # A client that cannot connect leaves a thread behind.
        asyncio.run(_reach(address))
        return Client(address, name=TOPIC, set_as_default=False, timeout=CONNECT_LIMIT_S)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise LaunchError(
            f"a Dask scheduler must be at {scheduler} but {type(error).__name__}: {error}; start "
            "it with `dask scheduler`, or correct --scheduler; its TLS is `distributed.comm.tls` "
            "of Dask's configuration, the same on all sides"
        ) from error


async def _reach(address: str) -> None:
    comm = await connect(
        address, timeout=CONNECT_LIMIT_S, **Security().get_connection_args("client")
    )
    await comm.close()


def _refuse_another_driver(client: Client) -> None:
    """Refuses a cluster with another driver: both studies would disturb each other's times."""
    for name in client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients)):
        if name.startswith(f"Client-{TOPIC}-") and name != client.id:
            raise LaunchError(
                f"a Dask cluster must have one study at a time but another driver is there ({name})"
                "; wait until it has ended, or start another cluster"
            )


_ONE_LANE = threading.Lock()  # a worker may have several threads


def run_lane(driver: str, study: Message, command: Command, holds_gpus: bool) -> None:
    """Does the units of the queue named as its task, on a worker, as long as its lane is wanted."""
    worker = get_worker()
    key = str(worker.get_current_task())
    units = Queue(key)

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return (
            worker.status in (Status.running, Status.paused)
            and task is not None
            and task.state == "executing"
        )

    def report(kind: str, **fields: Any) -> None:
        worker.log_event(TOPIC, {"driver": driver, "key": key, "kind": kind, **fields})

    def pass_on(lane: GuardedProcess) -> None:
        """Passes on messages up to the answer, the end of the process, or of this task."""
        while lane.end is None and is_wanted():
            for message in lane.messages(LOOK_EVERY_S):
                if message["type"] != "exit":
                    report(SAID, message=json.dumps(message))
                if message["type"] in ANSWERS:
                    return

    with _ONE_LANE, contextlib.ExitStack() as stack:
        stack.callback(report, ENDED)
        stack.callback(units.close)
        report(JOINED, name=str(worker.name), host=socket.gethostname())
        lane: GuardedProcess | None = None
        while is_wanted():
            with contextlib.suppress(asyncio.TimeoutError):
                unit = json.loads(units.get(timeout=LOOK_EVERY_S))
                lane = lane or _open_process(stack, study, command, holds_gpus=holds_gpus)
                lane.send(unit)
                pass_on(lane)
            if lane is not None and lane.end is not None:
                report(LEFT, why=lane.why_ended())
                return


def _open_process(
    stack: contextlib.ExitStack, study: Message, command: Command, *, holds_gpus: bool
) -> GuardedProcess:
    """Starts the lane process; `stack` ends it, and then frees its devices."""
    env = caller_environment()
    if holds_gpus and "SLURM_JOB_ID" not in env:  # SLURM reserves a job's devices
        stack.enter_context(reserve_devices("cuda", visible_gpu_ids(env)))
    scratch = Scratch(LANE)
    stack.callback(scratch.close)
    lane = GuardedProcess(
        list(command or (driver_python(), *LANE_COMMAND)),
        with_packages(env),
        scratch.path / "lane.log",
        LOG_BYTES,
        cwd=str(scratch.path),
    )
    stack.callback(lane.close, KILL_PATIENCE_S)
    lane.send(study)
    return lane
