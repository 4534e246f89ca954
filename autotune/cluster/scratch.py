"""Folders for a while that outlive no one: what a killed process left is swept by the next one that starts.

Whose folder is in use is told by the kernel: its owner holds a lock on a file in it while it lives, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

LANE_PREFIX = "autotune-lane-"
"""Of the names of folders of lane processes, and of who holds one."""

OWNER = "owner"
"""The file on which the owner of a folder holds its lock."""


class Scratch:
    """A folder of this process in the folder for temporary files, for no other user.

    Args:
        prefix: Of its name.

    Attributes:
        path: Where it is.
    """

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._lock = os.open(self.path / f".{OWNER}", flags, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (self.path / f".{OWNER}").rename(self.path / OWNER)  # it has its name only once it is locked

    def clear(self) -> None:
        """Empties it, as far as that can be done."""
        for left in self.path.iterdir():
            if left.name != OWNER:
                with contextlib.suppress(OSError):
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def remove(self) -> None:
        """Takes it away; a second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep_scratch(prefix: str) -> None:
    """Takes away folders of dead processes of this user.

    What is another user's, a link, has no such lock (something else made it, or is making it now), or is locked stays.

    Args:
        prefix: Of their names.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is another's, or another is sweeping it
            _sweep(path)


def _sweep(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid != os.getuid():
            return
        lock = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(lock)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        finally:
            os.close(lock)
    finally:
        os.close(folder)
