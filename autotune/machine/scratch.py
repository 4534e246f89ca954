"""Folders for what the compiler dumps: gone with their owner, and swept by the next one if that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "autotune-screen-"
_YOUNG_S = 60.0
"""Age below which a folder without a holder may be one whose owner has not locked it yet."""


class Scratch:
    """A folder that is held by a lock as long as this process lives.

    Args:
        root: Where to make it; the system's folder for temporary files if None.

    Attributes:
        path: The folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        base = root or Path(tempfile.gettempdir())
        sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep(root: Path) -> list[Path]:
    """Removes what killed processes of this user left; gives what was removed."""
    removed = []
    for path in root.glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid != os.getuid() or time.time() - path.stat().st_mtime < _YOUNG_S:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(descriptor)
    return removed
