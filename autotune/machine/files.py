"""Writes files atomically and durably, and makes scratch folders that are removed with their
process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

COMPILES, LANE, FOLDERS, CACHES = (
    "autotune-screen-",
    "autotune-held-",
    "autotune-folder-",
    "autotune-cache-",
)
PROBES = "autotune-probe-"
"""Prefixes of scratch folders."""

_YOUNG_S = 60.0
"""Age below which the owner of an unlocked folder may be about to lock it."""


def like_folder(folder: Path) -> int:
    """Returns a new file's mode: only who may enter its folder may read it; OSError if there is no
    such folder.
    """
    return folder.stat().st_mode & 0o666 | 0o600


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file atomically (temporary name beside it, sync, rename), and makes its folder if it
    is missing.

    On return the file is on disk under its name. A symbolic link in its place is replaced, not
    followed.

    Raises:
        OSError: If it cannot be written; the old file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    # A process number would not do: workers on two machines may share one.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        make_folder(path.parent)
        mode = like_folder(path.parent)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Makes a folder and its missing parents, and waits until their names are on disk.

    Args:
        mode: Mode of a new folder; not of an existing one, nor of parents.

    Raises:
        OSError: If it cannot be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk: a power cut loses the others; OSError if the
    disk fails.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (
        PermissionError
    ):  # a folder that may be entered and written but not read: its names reach the disk in time
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.ENOSYS,
        ):  # file systems that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------- scratch folders


class Scratch:
    """A temporary folder of this user alone, locked as long as this process lives.

    Folders of the same prefix that killed processes left are removed first: the kernel has freed
    their locks.
    """

    def __init__(self, prefix: str, root: Path | None = None) -> None:
        base = root or Path(tempfile.gettempdir())
        sweep(base, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Removes the folder; safe to call twice."""
        if self._descriptor < 0:
            return
        remove_tree(self.path)
        os.close(self._descriptor)
        self._descriptor = -1


def remove_tree(path: Path) -> None:
    """Removes a folder as far as it can, folders without permissions included: a mounted overlay
    leaves one.

    Modes of what is beside the folder, or behind a link in it, stay as they are.
    """

    def allow(_: object, name: str, *__: object) -> None:
        for closed in (Path(name).parent, Path(name)):
            if closed.is_relative_to(path) and not closed.is_symlink():
                with contextlib.suppress(OSError):
                    closed.chmod(0o700)
        if Path(name).is_dir() and not Path(name).is_symlink():
            shutil.rmtree(name, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                Path(name).unlink()

    shutil.rmtree(path, onerror=allow)


def sweep(root: Path, prefix: str) -> list[Path]:
    """Removes folders that killed processes of this user left; links, young folders and locked ones
    stay.
    """
    removed = []
    for path in root.glob(f"{prefix}*"):
        with (
            contextlib.suppress(OSError),
            contextlib.ExitStack() as stack,
        ):  # no folder, or its owner lives
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid() and time.time() - status.st_mtime >= _YOUNG_S:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
                removed.append(path)
    return removed
