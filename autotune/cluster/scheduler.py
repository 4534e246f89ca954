"""The scheduler of a pool, in a thread of the driver: it listens with TLS only, and tells what it hears.

Everything that Dask does on the driver's side happens in this thread's event loop; the driver calls `Pool` from its
own thread and reads what happened from one queue, in the order in which it happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import dask
from distributed import Client, Future, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin

from autotune.cluster.certificates import security_of
from autotune.cluster.holder import TOPIC, LaneHolder, hush_dask
from autotune.model import LaunchError

T = TypeVar("T")

STUDY_OVER = "autotune: the study is over"
"""With this reason workers are closed that need not wait for another driver."""

ANSWER_LIMIT_S = 30.0

_SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.contact-address": None,
    "distributed.scheduler.idle-timeout": None,
    "distributed.scheduler.no-workers-timeout": None,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "30s",
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.low-level-log-length": 10,  # what lanes send is kept by the driver, not once more here
}


GONE, ERRED = "gone", "erred"
"""What the scheduler itself tells: that a worker is gone, that a worker cannot do a task at all."""


class Heard(NamedTuple):
    """One thing that the scheduler heard of a worker.

    Attributes:
        kind: One of this module's and of `holder`'s.
        worker: Its address.
        key: The task that it is about; empty for the worker as a whole.
        fields: What was told: ``why``, or what that kind has.
    """

    kind: str
    worker: str
    key: str
    fields: Mapping[str, Any]


class Pool:
    """A scheduler, and a client of it that gives tasks to chosen workers.

    Args:
        listen: Where it listens, ``tls://HOST:PORT``; port 0 takes a free one.
        tls: Folder of the pool's certificate.
        holder: What every worker gets when it joins.
        worker_ttl_s: After so many seconds of silence a worker counts as gone, or up to twice as many.

    Attributes:
        address: Where workers join.
        heard: What happened, in order.

    Raises:
        LaunchError: If it cannot listen there.
    """

    def __init__(self, listen: str, tls: Path, holder: LaneHolder, *, worker_ttl_s: float) -> None:
        self.heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="autotune-pool", daemon=True)
        self._security = security_of(tls)
        hush_dask()
        self._settings = contextlib.ExitStack()
        self._settings.enter_context(dask.config.set({**_SETTINGS, "distributed.scheduler.worker-ttl": worker_ttl_s}))
        self._thread.start()
        try:
            self.address = self._call(self._open(listen, holder))
        except Exception as error:
            self._stop()
            raise LaunchError(
                f"a pool must listen somewhere but cannot at {listen}: {error.__cause__ or error}; name another "
                "address or port, such as tls://0.0.0.0:0"
            ) from error

    async def _open(self, listen: str, holder: LaneHolder) -> str:
        host, _, port = listen.removeprefix("tls://").rpartition(":")
        ears = _Ears(self.heard)
        self._scheduler = await _TlsScheduler(
            host=host, port=int(port), protocol="tls", security=self._security, dashboard=False, plugins=[ears]
        )
        self._client = await Client(
            self._scheduler.address, security=self._security, asynchronous=True, set_as_default=False
        )
        await self._client.register_plugin(holder)
        return str(self._scheduler.address)

    def submit(self, worker: str, key: str, function: Any, *arguments: str) -> Future[None]:
        """Gives one worker a task; nobody else gets it, and it is not tried again."""

        async def submit() -> Future[None]:
            future: Future[None] = self._client.submit(
                function, *arguments, key=key, workers=[worker], allow_other_workers=False, pure=False, retries=0
            )
            return future

        return self._call(submit())

    def release(self, future: Future[None], *, cancel: bool) -> None:
        """Forgets a task; ends it first if it may still run."""

        async def release() -> None:
            if cancel:
                await future.cancel(reason="given up", msg="the driver does not want it any more")
            future.release()

        self._call(release())

    def close(self, *, is_over: bool, patience_s: float) -> None:
        """Sends all workers away and ends the scheduler; waits some seconds for their lanes to end."""
        if self._thread.is_alive():
            try:
                self._call(self._close(is_over=is_over, patience_s=patience_s), limit_s=patience_s + ANSWER_LIMIT_S)
            finally:
                self._stop()

    async def _close(self, *, is_over: bool, patience_s: float) -> None:
        if is_over:
            for worker in list(self._scheduler.workers):
                self._scheduler.worker_send(worker, {"op": "close", "reason": STUDY_OVER})
        else:
            for worker in list(self._scheduler.workers):
                self._scheduler.close_worker(worker)
        end = self._loop.time() + patience_s
        while self._scheduler.workers and self._loop.time() < end:
            await asyncio.sleep(0.02)
        await self._client.close(timeout=2)
        await self._scheduler.close(reason="autotune: closed")

    def _call(self, work: Coroutine[Any, Any, T], limit_s: float = ANSWER_LIMIT_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_LIMIT_S)
        self._loop.close()
        self._settings.close()


class _TlsScheduler(Scheduler):
    """A scheduler without the pages that Dask serves over plain HTTP, even where it shows no dashboard."""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Starts none."""


class _Ears(SchedulerPlugin):
    """Puts into a queue what concerns workers and their tasks; runs in the scheduler's loop, so the order is right."""

    name = "autotune-ears"

    def __init__(self, heard: queue.SimpleQueue[Heard]) -> None:
        self._heard = heard
        self._why: dict[str, str] = {}

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == TOPIC:
            self._heard.put(Heard(msg["kind"], msg["worker"], msg["key"], msg))
        elif isinstance(msg, dict) and msg.get("action") == "closing-worker":
            self._why[topic] = f"it was closed ({msg.get('reason')})"
        elif isinstance(msg, dict) and msg.get("action") == "worker-ttl-timed-out":
            self._why |= dict.fromkeys(msg["workers"], f"it was silent for {msg['ttl']:.0f} s")

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        why = self._why.pop(worker, "its connection ended: it was killed, or its machine or network is gone")
        self._heard.put(Heard(GONE, worker, "", {"why": why}))

    def transition(self, key: Any, start: str, finish: str, *_: Any, **more: Any) -> None:
        if finish == "erred" and more.get("exception_text"):
            self._heard.put(Heard(ERRED, str(more.get("worker")), str(key), {"why": more["exception_text"]}))
