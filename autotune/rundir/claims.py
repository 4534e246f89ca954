"""Who does what in a study that several workers share: units of work are claimed, and given back when a worker dies.

A claim is a file made by ``link(2)``, which succeeds for exactly one of all who try, on local disks and on network
file systems alike. It is never changed and never removed: who takes a dead worker's unit links the next attempt. A
worker is alive while its heartbeat file is locked (seen at once on the same machine) or fresh (seen from others; both
times are the file server's, so clocks that differ or jump play no part).

Layout, inside the run directory::

    workers/node1-0.5f3a...      one process of a worker: who and where; its modification time is the heartbeat
    claims/trial-0007.1          first attempt at trial 7, and who makes it
    claims/trial-0007.2          the second one, after the first one's worker died; or the mark that it is done
    claims/set-3f21....1         this set belongs to trial 7: no other worker tries it too
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.model import RunDirectoryError, TrialConfig

HEARTBEAT_S = 5.0
GRACE_S = 60.0
"""A worker on another machine counts as dead when its heartbeat is older than this, in seconds."""

MOST_DEATHS = 3
"""A unit whose workers died so often is not given back again: perhaps it kills them."""

POLL_S = 0.5
WORKERS, CLAIMS = "workers", "claims"


class Claims(Protocol):
    """What a driver asks before it does a unit of work.

    Attributes:
        worker: Name of this worker; None for the only driver of a study.
    """

    worker: str | None

    def take(self, key: str) -> int | None:
        """The number of this worker's attempt at a unit, from 1; None while a living worker has it."""

    def commit(self, key: str, attempt: int) -> bool:
        """Whether the attempt still counts; asked once, right before its result is recorded."""

    def deaths(self, key: str) -> int:
        """How many workers died over a unit."""

    def is_taken(self, key: str) -> bool:
        """Whether another living worker has a unit."""

    def take_set(self, config: TrialConfig) -> bool:
        """Whether a set is this trial's to try, rather than another's."""

    def sets(self) -> dict[int, TrialConfig]:
        """What each trial has taken to try, finished or not."""

    def end_search(self) -> None:
        """Tells all workers that the search is over, as long as this one lives."""

    def search_is_over(self) -> bool:
        """Whether a living worker, this one included, ended the search."""

    def close(self) -> None:
        """Ends this worker cleanly: its units are free at once, and its end is nobody's fault."""


class SoleClaims:
    """Of the only driver of a run directory: everything is its own."""

    worker: str | None = None

    def __init__(self) -> None:
        self._is_over = False

    def take(self, key: str) -> int | None:
        """See `Claims`."""
        return 1

    def commit(self, key: str, attempt: int) -> bool:
        """See `Claims`."""
        return True

    def deaths(self, key: str) -> int:
        """See `Claims`."""
        return 0

    def is_taken(self, key: str) -> bool:
        """See `Claims`."""
        return False

    def take_set(self, config: TrialConfig) -> bool:
        """See `Claims`."""
        return True

    def sets(self) -> dict[int, TrialConfig]:
        """See `Claims`."""
        return {}

    def end_search(self) -> None:
        """See `Claims`."""
        self._is_over = True

    def search_is_over(self) -> bool:
        """See `Claims`."""
        return self._is_over

    def close(self) -> None:
        """See `Claims`."""


class SharedClaims:
    """Of one of several workers.

    Args:
        run: The run directory.
        worker: Name of this worker, unique among those that live.
        heartbeat_s: Seconds between two signs of life.
        grace_s: Age of a heartbeat, in seconds, past which its worker counts as dead.

    Raises:
        RunDirectoryError: If the folder cannot be written.
    """

    def __init__(self, run: Path, worker: str, *, heartbeat_s: float = HEARTBEAT_S, grace_s: float = GRACE_S) -> None:
        self.worker: str | None = worker
        self._run = run
        self._claims = run / CLAIMS
        self._owner = f"{worker}.{secrets.token_hex(8)}"
        self._grace_s = grace_s
        self._known: dict[str, dict[str, Any]] = {}
        try:
            self._claims.mkdir(parents=True, exist_ok=True)
            (run / WORKERS).mkdir(exist_ok=True)
            self._file = run / WORKERS / self._owner
            self._body = {"worker": worker, "host": socket.gethostname(), "boot": _boot(), "pid": os.getpid()}
            temporary = self._file.with_name(f".{self._owner}.tmp")
            temporary.write_text(json.dumps(self._body) + "\n", encoding="utf-8")
            # Locked before it has its name: nobody may find it unlocked and think its worker dead.
            self._lock = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            temporary.rename(self._file)
        except OSError as error:
            raise RunDirectoryError(f"{run} must be writable but: {error.strerror}") from error
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._beat_on, args=(heartbeat_s,), name="heartbeat", daemon=True)
        self._beat.start()

    def _beat_on(self, heartbeat_s: float) -> None:
        while not self._stop.wait(heartbeat_s):
            with contextlib.suppress(OSError):  # a file server that is away for a while; the grace is longer
                os.utime(self._file)

    # ------------------------------------------------------------------ units

    def take(self, key: str) -> int | None:
        """See `Claims`."""
        newest = self._newest(key)
        if newest:
            owner = self._read(key, newest)["owner"]
            if owner == self._owner:
                return newest
            if self._lives(owner):
                return None
        return newest + 1 if self._link(key, newest + 1) else None

    def commit(self, key: str, attempt: int) -> bool:
        """See `Claims`: done by linking the next attempt, so that nobody who thinks this worker dead can."""
        return self._link(key, attempt + 1)

    def deaths(self, key: str) -> int:
        """See `Claims`."""
        owners = {self._read(key, n)["owner"] for n in range(1, self._newest(key) + 1)}
        return sum(owner != self._owner and self._died(owner) for owner in owners)

    def is_taken(self, key: str) -> bool:
        """See `Claims`."""
        newest = self._newest(key)
        owner = self._read(key, newest)["owner"] if newest else self._owner
        return owner != self._owner and self._lives(owner)

    def take_set(self, config: TrialConfig) -> bool:
        """See `Claims`."""
        key = f"set-{config.settings.digest}"
        if self._link(key, 1, config=config.model_dump(mode="json")):
            return True
        return self._config(key).number == config.number

    def sets(self) -> dict[int, TrialConfig]:
        """See `Claims`."""
        found = (self._config(name.rpartition(".")[0]) for name in self._names() if name.startswith("set-"))
        return {config.number: config for config in found}

    def _config(self, key: str) -> TrialConfig:
        return TrialConfig.model_validate(self._read(key, 1)["config"])

    def end_search(self) -> None:
        """See `Claims`."""
        self.take("search-over")

    def search_is_over(self) -> bool:
        """See `Claims`."""
        newest = self._newest("search-over")
        return bool(newest) and self._lives(self._read("search-over", newest)["owner"])

    def close(self) -> None:
        """See `Claims`."""
        self._stop.set()
        self._beat.join()
        with contextlib.suppress(OSError):
            os.pwrite(self._lock, json.dumps({**self._body, "ended": True}).encode() + b"\n", 0)
        os.close(self._lock)

    # ------------------------------------------------------------------ files

    def _names(self) -> list[str]:
        return [p.name for p in self._claims.iterdir() if not p.name.startswith(".")]

    def _newest(self, key: str) -> int:
        """The newest attempt at a unit; 0 if there is none."""
        attempts = [int(n.rpartition(".")[2]) for n in self._names() if n.rpartition(".")[0] == key]
        return max(attempts, default=0)

    def _read(self, key: str, attempt: int) -> dict[str, Any]:
        """One claim; never changed, so read once."""
        name = f"{key}.{attempt}"
        if name not in self._known:
            self._known[name] = json.loads((self._claims / name).read_text(encoding="utf-8"))
        return self._known[name]

    def _link(self, key: str, attempt: int, **more: Any) -> bool:
        """Makes a claim, unless another was faster.

        Raises:
            RunDirectoryError: If the folder cannot be written.
        """
        temporary = self._claims / f".{self._owner}.{threading.get_ident()}.tmp"
        try:
            temporary.write_text(json.dumps({"owner": self._owner, **more}) + "\n", encoding="utf-8")
            os.link(temporary, self._claims / f"{key}.{attempt}")
        except FileExistsError:
            return False
        except OSError as error:
            raise RunDirectoryError(f"{self._claims} must be writable but: {error.strerror}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return True

    def _lives(self, owner: str) -> bool:
        return owner == self._owner or _state(self._run / WORKERS / owner, self._now_s(), self._grace_s) == "alive"

    def _died(self, owner: str) -> bool:
        return _state(self._run / WORKERS / owner, self._now_s(), self._grace_s) == "died"

    def _now_s(self) -> float:
        """The present time of the file server."""
        with contextlib.suppress(OSError):
            os.utime(self._file)
        return self._file.stat().st_mtime


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker process of a study.

    Attributes:
        state: ``alive``, ``ended`` (cleanly) or ``died``.
    """

    worker: str
    host: str
    state: str


def list_workers(run: Path, *, grace_s: float = GRACE_S) -> list[WorkerState]:
    """The workers that a run directory ever had, of each name the newest process."""
    found: dict[str, tuple[float, WorkerState]] = {}
    for file in sorted((run / WORKERS).glob("[!.]*")):
        try:
            born_s, body = file.stat().st_mtime, json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        name = file.name.rpartition(".")[0]
        state = WorkerState(name, str(body.get("host", "")), _state(file, time.time(), grace_s))
        if name not in found or found[name][0] <= born_s:
            found[name] = (born_s, state)
    return [state for _, state in found.values()]


def _state(file: Path, now_s: float, grace_s: float) -> str:
    """How a worker is, from its heartbeat file."""
    try:
        # Opening asks a network file system for the file's times anew; `stat` alone may be a minute old.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "died"
    try:
        body = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
        if body.get("ended"):
            return "ended"
        if (body.get("host"), body.get("boot")) == (socket.gethostname(), _boot()):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return "alive"
            return "died"
        return "alive" if now_s - os.fstat(descriptor).st_mtime < grace_s else "died"
    finally:
        os.close(descriptor)


def _boot() -> str:
    """Names this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


# ---------------------------------------------------------------------- working together


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing that must be done once, by whoever comes first.

    Attributes:
        key: Names it among all workers.
        is_done: Whether its result is recorded, or no longer wanted.
        do: Does it and records the result; given the number of the attempt.
    """

    key: str
    is_done: Callable[[], bool]
    do: Callable[[int], None]


def work_off(
    claims: Claims, units: Sequence[Unit], *, waiting: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Does those units that nobody else does, and returns when all are done by somebody.

    Args:
        claims: Of this worker.
        units: In the order in which they are begun.
        waiting: Entered while only others are at work.
    """
    pending = list(units)
    while pending:
        left = []
        did = False
        for unit in pending:
            if unit.is_done():
                continue
            # One at a time, then look again: what the others did meanwhile may have made the rest unwanted.
            attempt = None if did else claims.take(unit.key)
            if attempt is not None and not unit.is_done():  # its last owner may have done it, and ended, just now
                unit.do(attempt)
                did = True
            if not unit.is_done():
                left.append(unit)
        pending = left
        if pending and not did:
            with waiting():
                time.sleep(POLL_S)


def attempts(name: str, attempt: int) -> str:
    """The folder of one attempt: a worker that only seemed dead may still write into the first one's."""
    return name if attempt == 1 else f"{name}.{attempt}"


def trial_key(number: int) -> str:
    """The unit that a trial is."""
    return f"trial-{number:04d}"
