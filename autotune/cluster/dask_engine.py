"""Lanes that anyone with the pool's certificate may bring and take away at any time: an engine on Dask.

Each worker of the pool is a lane, or each gang of workers where a trial spans several. Dask carries messages and finds
the dead; which lane does what is decided here, so none of its scheduling is used: a task names its worker, is never
tried again and never moves.

References:
    https://distributed.dask.org/en/stable/worker-state.html
"""

from __future__ import annotations

import json
import queue
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cluster.engine import ANSWERS, JOINED, LEFT, Message, Told
from autotune.cluster.holder import CLOSED, ENDED, HELLO, SAID, LaneHolder, do_unit, end_lane
from autotune.cluster.scheduler import ERRED, GONE, Heard, Pool
from autotune.model import NodeLostError

if TYPE_CHECKING:
    from distributed import Future

WORKER_TTL_S = 60.0
PATIENCE_S = 3600.0
CLOSE_PATIENCE_S = 10.0


@dataclass(slots=True)
class _Worker:
    """One worker of the pool that is not, or not alone, a lane."""

    address: str
    name: str
    host: str
    devices: int | None


@dataclass(slots=True)
class _Lane:
    """One lane: its workers, the leader first, and the task that it does."""

    name: str
    workers: list[_Worker]
    key: str = ""
    future: Future[None] | None = None

    @property
    def leader(self) -> str:
        return self.workers[0].address


class DaskEngine:
    """Lanes of a pool; see `engine.Engine`.

    Args:
        study: The first message to every lane.
        tls: Folder of the pool's certificate.
        listen: Where workers join, ``tls://HOST:PORT``.
        gang_size: Workers that a trial spans.
        command: The lane program; default: that of the study.
        worker_ttl_s: After so many seconds of silence, or up to twice as many, a worker counts as gone; Dask takes
            5 s at least. One whose connection breaks is gone at once.
        patience_s: How long the driver waits for a first worker, or for another when all are gone, seconds.

    Attributes:
        address: Where workers join, as they are told it.

    Raises:
        LaunchError: If it cannot listen there, or has no certificate.
    """

    def __init__(
        self,
        study: Message,
        *,
        tls: Path,
        listen: str,
        gang_size: int = 1,
        command: Sequence[str] | None = None,
        worker_ttl_s: float = WORKER_TTL_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._gang_size = gang_size
        self._patience_s = patience_s
        self._pool = Pool(listen, tls, LaneHolder(study, command), worker_ttl_s=worker_ttl_s)
        self.address = self._pool.address
        self._lanes: dict[str, _Lane] = {}
        self._free: list[_Worker] = []
        self._cleaning: dict[str, tuple[_Worker, Future[None]]] = {}
        self._told: list[Told] = []
        self._count = 0
        self._lonely_since = time.monotonic()

    @property
    def words(self) -> str:
        """Where the lanes are, for people."""
        each = "" if self._gang_size == 1 else f" of {self._gang_size} workers each"
        return f"{len(self._lanes)} lanes{each} of the pool at {self.address}"

    def begin(self, lane: str, message: Message) -> None:
        """Gives a free lane a unit; see `engine.Engine`."""
        found = self._lanes.get(lane)
        if found is None:
            self._told.append(Told(lane, {"type": LEFT, "why": "there is no such lane any more"}))
            return
        found.key = self._new_key("unit")
        gang = json.dumps([w.address for w in found.workers]) if self._gang_size > 1 else ""
        found.future = self._pool.submit(found.leader, found.key, do_unit, json.dumps(message), gang)

    def news(self, wait_s: float) -> list[Told]:
        """What lanes have said; see `engine.Engine`."""
        deadline = time.monotonic() + wait_s
        while not self._told and (heard := self._next(deadline - time.monotonic())) is not None:
            self._take(heard)
        while (heard := self._next(0)) is not None:
            self._take(heard)
        told, self._told = self._told, []
        self._refuse_to_wait_for_nobody(told)
        return told

    def give_up(self, lane: str, why: str) -> None:
        """Ends a lane; it joins again when its worker has cleaned up. See `engine.Engine`."""
        found = self._lanes.get(lane)
        if found is not None:
            self._drop(found, why, gone="")

    def close(self, *, is_over: bool = False) -> None:
        """Ends every lane; see `engine.Engine`.

        Args:
            is_over: Whether the study has ended, so that workers need not wait for another driver.
        """
        self._lanes.clear()
        self._pool.close(is_over=is_over, patience_s=CLOSE_PATIENCE_S)

    def _next(self, wait_s: float) -> Heard | None:
        try:
            return self._pool.heard.get(timeout=wait_s) if wait_s > 0 else self._pool.heard.get_nowait()
        except queue.Empty:
            return None

    def _take(self, heard: Heard) -> None:
        """Makes news of what was heard; what nobody waits for any more has no reader."""
        lane = next((x for x in self._lanes.values() if any(w.address == heard.worker for w in x.workers)), None)
        if heard.kind == HELLO:
            fields = {name: heard.fields[name] for name in ("name", "host", "devices")}
            self._welcome(_Worker(heard.worker, **fields))
        elif heard.kind == GONE:
            self._forget(heard.worker)
            if lane is not None:
                self._drop(lane, heard.fields["why"], gone=heard.worker)
        elif heard.kind == CLOSED and heard.key in self._cleaning:
            worker, future = self._cleaning.pop(heard.key)
            self._pool.release(future, cancel=False)
            self._welcome(worker)
        elif lane is not None and heard.key and heard.key == lane.key:
            self._hear(lane, heard)

    def _hear(self, lane: _Lane, heard: Heard) -> None:
        """Takes what is told of the unit that a lane has."""
        if heard.kind == ENDED:
            self._drop(lane, heard.fields["why"], gone="")
        elif heard.kind == ERRED:  # it cannot do tasks of ours at all, so it is not asked again
            self._drop(lane, heard.fields["why"], gone=heard.worker)
        elif heard.kind == SAID:
            message = json.loads(heard.fields["message"])
            if message["type"] in ANSWERS:
                self._finish(lane, cancel=False)
            if message["type"] not in (JOINED, LEFT):  # those are the engine's to say
                self._told.append(Told(lane.name, message))

    def _welcome(self, worker: _Worker) -> None:
        """Makes a lane of free workers as soon as there are enough."""
        self._free.append(worker)
        if len(self._free) < self._gang_size:
            return
        members, self._free = self._free[: self._gang_size], self._free[self._gang_size :]
        lane = _Lane(self._name(members), members)
        self._lanes[lane.name] = lane
        counts = [w.devices for w in members]
        devices = None if None in counts else sum(c or 0 for c in counts)
        host = "+".join(dict.fromkeys(w.host for w in members))
        self._told.append(Told(lane.name, {"type": JOINED, "name": lane.name, "host": host, "devices": devices}))

    def _name(self, members: list[_Worker]) -> str:
        """What a lane is called, for people and in paths: after its leader."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", members[0].name.removeprefix("tls://")).lstrip("._-")[:80] or "lane"
        if len(members) > 1:
            name += f"_and_{len(members) - 1}_more"
        names = (name, *(f"{name}-{i}" for i in range(2, len(self._lanes) + 3)))
        return next(n for n in names if n not in self._lanes)

    def _drop(self, lane: _Lane, why: str, *, gone: str) -> None:
        """Takes a lane out; its workers, but for one that is gone, are free again when they have no lane process."""
        self._finish(lane, cancel=True)
        del self._lanes[lane.name]
        self._told.append(Told(lane.name, {"type": LEFT, "why": why}))
        for worker in lane.workers:
            if worker.address != gone:
                key = self._new_key("end")
                self._cleaning[key] = worker, self._pool.submit(worker.address, key, end_lane)

    def _forget(self, address: str) -> None:
        self._free = [w for w in self._free if w.address != address]
        for key in [k for k, (w, _) in self._cleaning.items() if w.address == address]:
            self._pool.release(self._cleaning.pop(key)[1], cancel=True)

    def _finish(self, lane: _Lane, *, cancel: bool) -> None:
        if lane.future is not None:
            self._pool.release(lane.future, cancel=cancel)
        lane.key, lane.future = "", None

    def _new_key(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _refuse_to_wait_for_nobody(self, told: list[Told]) -> None:
        """Ends the driver's wait for workers when its patience ends.

        Raises:
            NodeLostError: With what to do.
        """
        now = time.monotonic()
        if self._lanes or told:
            self._lonely_since = now
        elif now - self._lonely_since > self._patience_s:
            raise NodeLostError(
                f"a worker must join the pool at {self.address} within {self._patience_s:.0f} s but none is there "
                f"(free: {len(self._free)}, a trial needs {self._gang_size}); start some with `autotune worker --join "
                f"{self.address} --tls FOLDER`, then run the study again: it goes on"
            )
