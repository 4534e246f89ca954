"""Lock of a run directory, so that only one driver writes it.

The kernel releases a flock however a driver dies. Some shared file systems keep a flock to one
machine, so the lock file also names its holder: a holder on another machine counts until its
session has ended or a user deletes the file. A second line names the holder's stage.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from autotune.machine.files import like_folder
from autotune.machine.host import utc_now
from autotune.model.errors import RunDirectoryError
from autotune.model.files import packaged_table, plain_content
from autotune.rundir.files import writing

LOCK = "lock"
_LONGEST = 4096
_FILE_SYSTEMS = packaged_table("file_systems.toml")


class Mount(NamedTuple):
    """The mount of a path."""

    point: str
    kind: str
    options: frozenset[str]

    @property
    def locks_everywhere(self) -> bool:
        """Whether a lock here is known to be visible on every machine that sees the file."""
        is_capable = self.kind in _FILE_SYSTEMS["locks_everywhere"]
        return is_capable and self.options.isdisjoint(_FILE_SYSTEMS["locks_only_here"])


def mount_of(path: Path) -> Mount:
    """Finds the mount of an absolute path."""
    mount = Mount("/", "unknown", frozenset())
    for partition in psutil.disk_partitions(all=True):
        point = partition.mountpoint
        # Of two mounts on one point the later hides the other.
        if path.is_relative_to(point) and len(point) >= len(mount.point):
            mount = Mount(point, partition.fstype, frozenset(partition.opts.split(",")))
    return mount


class Holder(NamedTuple):
    """Holder of a lock: process, host name and boot ID."""

    pid: str
    host: str = ""
    boot: str = ""

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" on {self.host}" if self.host else "")

    def may_live(self, mount: Mount) -> bool:
        """Returns whether it may live on another machine, whose locks are not seen here."""
        # A holder from before a reboot of this machine is dead.
        return (
            not mount.locks_everywhere
            and self.boot not in ("", _boot())
            and self.host != socket.gethostname()
        )


class CurrentStage(NamedTuple):
    """Stage of a run's driver and its start (UTC, ISO 8601)."""

    name: str
    since: str


class Lock:
    """Lock of a run directory until `close`; RunDirectoryError if it cannot be taken."""

    def __init__(self, path: Path) -> None:
        file = path / LOCK
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with writing(file):
            self._descriptor = os.open(file, flags, like_folder(path))
        try:
            self._take(path)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self, path: Path) -> None:
        holder = read_holder(path)
        mount = mount_of(path.resolve())
        if not _try_lock(self._descriptor, fcntl.LOCK_EX, path, mount):
            raise RunDirectoryError(
                f"only one driver may write {path} but another does ({holder or 'unknown'}); "
                "wait for it, stop it, or name another folder with --run-dir (tune, ab: --name); a "
                "driver takes as many lanes as it is given (--devices)"
            )
        if holder and holder.may_live(mount):
            raise RunDirectoryError(
                f"only one driver may write {path} but {holder} has not ended, and a lock on "
                f"{mount.kind} ({mount.point}) is not seen from here; stop it there, or, if it is "
                f"dead for certain, delete {path / LOCK}"
            )
        driver = Holder(str(os.getpid()), socket.gethostname(), _boot())
        with writing(path / LOCK):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{' '.join(driver)}\n".encode(), 0)
            os.fsync(self._descriptor)
        # Of two machines at once the last to write holds the lock.
        if read_holder(path) != driver:
            raise RunDirectoryError(
                f"only one driver may write {path} but another began just now; wait for it"
            )

    def tell_stage(self, name: str) -> None:
        """Writes the stage behind the holder's name; ignores a full disk."""
        with contextlib.suppress(OSError):
            holder = os.pread(self._descriptor, _LONGEST, 0).partition(b"\n")[0]
            lines = holder + f"\n{utc_now()} {name}\n".encode()
            os.pwrite(self._descriptor, lines, 0)
            os.ftruncate(self._descriptor, len(lines))

    def close(self) -> None:
        """Releases the lock and removes this process's name from it."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # closing releases the lock
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1


def read_holder(path: Path) -> Holder | None:
    """Reads the holder of a run directory, dead or alive; None if the last one ended properly."""
    try:
        text = plain_content(path / LOCK, most=_LONGEST).decode(errors="replace")
    except OSError:
        return None
    facts = text.strip("\0\n ").split()
    return Holder(*facts[:3]) if facts else None


def read_stage(path: Path) -> CurrentStage | None:
    """Reads the stage of the holder of a run directory, if any."""
    if not is_held(path):
        return None
    try:
        _, stage, _ = plain_content(path / LOCK, most=_LONGEST).decode().split("\n")
        since, _, name = stage.partition(" ")
        return CurrentStage(name=name, since=datetime.fromisoformat(since).isoformat())
    except (OSError, ValueError):  # half written
        return None


def is_held(path: Path) -> bool:
    """Returns whether a driver holds a run directory now, as far as visible from this machine."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    mount = mount_of(path.resolve())
    try:
        if not _try_lock(descriptor, fcntl.LOCK_SH, path, mount, tries=1):
            return True
    except RunDirectoryError:
        return False
    finally:
        os.close(descriptor)
    holder = read_holder(path)
    return holder is not None and holder.may_live(mount)


def _try_lock(descriptor: int, how: int, path: Path, mount: Mount, *, tries: int = 5) -> bool:
    """Takes a lock; retries, because `is_held` takes it for a moment."""
    for _ in range(tries):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
        except OSError as error:
            raise RunDirectoryError(
                f"a run directory must lie on a file system with locks but {path} lies on "
                f"{mount.kind} ({mount.point}), which has none ({error.strerror}); name another "
                "folder with --run-dir (tune, ab: --name), or have it mounted with locks (Lustre: "
                "`-o flock`; NFS: a running lock daemon)"
            ) from error
    return False


def _boot() -> str:
    """Returns the boot ID of this machine, which its containers share."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        return socket.gethostname()
