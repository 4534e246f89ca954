"""What `autotune worker --join` does: brings this machine into a pool, and stays as long as there is work."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Worker
from distributed.comm import CommClosedError, connect, get_address_host
from distributed.comm.core import FatalCommClosedError
from distributed.security import Security

from autotune.cluster.certificates import security_of
from autotune.cluster.holder import DEVICES, hush_dask
from autotune.cluster.scheduler import STUDY_OVER
from autotune.model import STOPPED, LaunchError, NodeLostError, format_seconds

CONNECT_LIMIT_S = 5.0
RETRY_S = 1.0
_INTERRUPTED = 130

_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # it would look at its threads a hundred times a second
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.lifetime.duration": None,
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.tick.interval": "1s",  # else it wakes 50 times a second beside what is measured
    "distributed.admin.low-level-log-length": 10,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "30s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """How a machine takes part in a pool.

    Attributes:
        find: Where the driver listens, ``tls://HOST:PORT``; asked before each attempt, OSError if it is not known yet.
        tls: Folder of the pool's certificate.
        name: What this worker is called; the pool has each name once.
        devices: How many devices it brings; None if that is not known.
        patience_s: How long it waits for a driver, the first and each later one, seconds.
        say: Told what happens, in lines.
    """

    find: Callable[[], str]
    tls: Path
    name: str
    devices: int | None
    patience_s: float
    say: Callable[[str], None]


def be_member(member: Membership) -> int:
    """Joins a pool, and joins again when its driver is gone, until a driver says that the study is over.

    Returns:
        The exit status: 0 when the study is over, `STOPPED` after SIGTERM or SIGUSR1.

    Raises:
        LaunchError: If the pool has another certificate.
        NodeLostError: If no driver was there for the whole patience.
    """
    security = security_of(member.tls)
    hush_dask()
    with dask.config.set(_SETTINGS), tempfile.TemporaryDirectory(prefix="autotune-worker-") as folder:
        return asyncio.run(_stay(member, security, folder))


async def _stay(member: Membership, security: Security, folder: str) -> int:
    told = _told_to_stop()
    while True:
        joining = asyncio.create_task(_join(member, security, folder))
        await _first_of(told, joining)
        if told.done():
            joining.cancel()
            await asyncio.wait({joining})
            if not joining.cancelled() and joining.exception() is None:
                await joining.result().close(reason="told to stop")
            return told.result()
        worker = joining.result()
        member.say(f"joined the pool at {worker.scheduler.address} as {member.name}")
        await _first_of(told, asyncio.ensure_future(worker.finished()))  # type: ignore[no-untyped-call]
        if told.done():
            member.say("told to stop: leaves the pool; what its lane had begun is given to others")
            await worker.close(reason="told to stop")
            return told.result()
        if worker.why == STUDY_OVER:
            member.say("the study is over")
            return 0
        member.say(f"the driver has stopped or is gone; waits up to {format_seconds(member.patience_s)} for another")


def _told_to_stop() -> asyncio.Future[int]:
    """Becomes the exit status when a signal asks for an end."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def tell(number: signal.Signals) -> None:
        if not told.done():
            told.set_result(_INTERRUPTED if number is signal.SIGINT else STOPPED)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        loop.add_signal_handler(number, tell, number)
    return told


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _join(member: Membership, security: Security, folder: str) -> PoolWorker:
    """Tries to join until it is in.

    Raises:
        LaunchError: If the pool has another certificate.
        NodeLostError: If the patience ends.
    """
    end, said = time.monotonic() + member.patience_s, ""
    while time.monotonic() < end:
        try:
            address = member.find()
            async with asyncio.timeout(2 * CONNECT_LIMIT_S):  # a driver that closes may take us in and never greet
                comm = await connect(address, timeout=CONNECT_LIMIT_S, **security.get_connection_args("worker"))
                host = get_address_host(comm.local_address)  # it listens only where it reaches the driver from
                await comm.close()
            worker: PoolWorker = await PoolWorker(
                address, host=host, nthreads=1, name=member.name, security=security, memory_limit=0,
                local_directory=folder, death_timeout=CONNECT_LIMIT_S,
                resources={} if member.devices is None else {DEVICES: member.devices},
            )  # fmt: skip
            return worker
        except FatalCommClosedError as error:
            raise LaunchError(
                f"the pool at {address} must have the certificate in {member.tls} but has another ({error}); "
                "copy RUN_DIR.tls from the driver's machine again"
            ) from error
        except (OSError, TimeoutError, RuntimeError, CommClosedError) as error:
            why = _reason(error, member)
            if why != said:
                member.say(f"cannot join yet: {why}")
            said = why
            await asyncio.sleep(RETRY_S)
    raise NodeLostError(
        f"a driver must be there within {format_seconds(member.patience_s)} but none was: {said}; start "
        "the driver (`autotune run STUDY --listen ...`), look whether this machine reaches that port, or wait longer "
        "with --patience"
    )


def _reason(error: BaseException, member: Membership) -> str:
    """Why it could not join, in words, from the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    if "name taken" in str(error):
        return f"the pool has a worker called {member.name}; give this one another --name"
    if isinstance(error, CommClosedError):
        return "it hangs up, as a pool does that does not know the certificate"
    if isinstance(error, (TimeoutError, asyncio.CancelledError)):
        return "no answer"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class PoolWorker(Worker):
    """A worker without the pages that Dask serves over plain HTTP.

    Attributes:
        why: For which reason it was closed first.
    """

    why = ""

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Starts none."""

    async def close(  # type: ignore[override]  # as in Dask's own worker
        self, timeout: float = 30, executor_wait: bool = True, nanny: bool = True, reason: str = "closed"
    ) -> str | None:
        """Closes it; remembers why."""
        self.why = self.why or reason
        return await super().close(timeout, executor_wait, nanny, reason)
