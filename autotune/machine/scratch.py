"""Folders for a while: gone with their owner, and swept by the next one if that was killed.

Whose folder is in use is told by the kernel: its owner holds a lock on it while it lives, however it ends. There is
nothing of ours in the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

COMPILES, LANE = "autotune-screen-", "autotune-held-"
"""What names of folders begin with: of what is compiled, and of lanes and of who holds one."""

_YOUNG_S = 60.0
"""Age below which a folder without a holder may be one whose owner has not locked it yet."""


class Scratch:
    """A folder of this user alone that is held by a lock as long as this process lives.

    Args:
        prefix: Of its name; what killed processes left under such names is swept first.
        root: Where to make it; the system's folder for temporary files if None.

    Attributes:
        path: The folder.
    """

    def __init__(self, prefix: str, root: Path | None = None) -> None:
        base = root or Path(tempfile.gettempdir())
        sweep(base, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def clear(self) -> None:
        """Empties it, as far as that can be done; follows no link."""
        for left in self.path.iterdir():
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()

    def close(self) -> None:
        """Removes the folder; a second time does nothing."""
        if self._descriptor < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
        self._descriptor = -1


def sweep(root: Path, prefix: str) -> list[Path]:
    """Removes what killed processes of this user left; gives what was removed.

    What is another user's, a link, young, or locked stays.
    """
    removed = []
    for path in root.glob(f"{prefix}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        except OSError:  # its owner lives
            continue
        finally:
            os.close(descriptor)
    return removed
