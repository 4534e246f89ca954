"""Writes files atomically and durably; makes scratch folders that end with their process."""

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

# Prefixes of scratch folders.
COMPILES = "autotune-screen-"
LANE = "autotune-held-"
FOLDERS = "autotune-folder-"
CACHES = "autotune-cache-"
PROBES = "autotune-probe-"

_YOUNG_S = 60.0  # the owner of a younger folder may be about to lock it
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def like_folder(folder: Path) -> int:
    """Returns a new file's mode: only who may enter its folder may read it; OSError without one."""
    return folder.stat().st_mode & 0o666 | 0o600


def replace_file(path: Path, content: str) -> None:
    """Writes a file atomically: temporary name beside it, sync, rename; makes a missing folder.

    On return the file is on disk. A symbolic link in its place is replaced, not followed. The old
    file is unchanged if an OSError says that it cannot be written.
    """
    data = content.encode()
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
    """Makes a folder (of this mode if new) and its missing parents, and syncs their names."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, safe from a power cut; OSError if it fails."""
    try:
        sync(path, _FOLDER_FLAGS)
    except PermissionError:  # it may be written but not read: its names reach the disk in time
        return
    except OSError as error:
        # Some file systems cannot do that.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def sync(path: Path, flags: int) -> None:
    """Waits until what is opened with these flags is on disk; OSError if that fails."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Scratch:
    """A temporary folder, locked while this process lives; removes what killed ones left."""

    def __init__(self, prefix: str) -> None:
        sweep(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._descriptor = os.open(self.path, _FOLDER_FLAGS)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Removes the folder; safe to call twice."""
        if self._descriptor < 0:
            return
        remove_tree(self.path)
        os.close(self._descriptor)
        self._descriptor = -1


def remove_tree(path: Path) -> None:
    """Removes a folder as far as it can, but changes no modes beside it or behind a link in it."""

    def allow(_: object, name: str, *__: object) -> None:
        refused = Path(name)
        for closed in (refused.parent, refused):
            if closed.is_relative_to(path) and not closed.is_symlink():
                with contextlib.suppress(OSError):
                    closed.chmod(0o700)
        if refused.is_dir() and not refused.is_symlink():
            shutil.rmtree(refused, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                refused.unlink()

    shutil.rmtree(path, onerror=allow)


def sweep(root: Path, prefix: str) -> None:
    """Removes what killed processes of this user left; links, young and locked folders stay."""
    for path in root.glob(f"{prefix}*"):
        # An OSError: it is no folder, or its owner lives.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            descriptor = os.open(path, _FOLDER_FLAGS | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if status.st_uid == os.getuid() and time.time() - status.st_mtime >= _YOUNG_S:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
