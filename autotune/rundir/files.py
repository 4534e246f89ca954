"""Durable writes: synced appends, atomic files, plain names; nothing through symbolic links."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from autotune.machine.files import like_folder, make_folder, replace_file, sync, sync_folder
from autotune.model.errors import RunDirectoryError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def refuse_path(name: str) -> None:
    """Raises RunDirectoryError if a name is not plain, and so could lead out of the run."""
    if not _NAME.fullmatch(name):
        raise RunDirectoryError(
            "what lies inside a run must have a plain name (letters, digits, `.`, `_`, `-`) but "
            f"got {name!r}"
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into a RunDirectoryError that names a file or folder."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turns an OSError of the block into a RunDirectoryError that names a file."""
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(
            f"{file} must be readable but: {error.strerror or error}; see to the disk or its "
            "permissions and try again"
        ) from error


def refuse_links(folder: Path) -> None:
    """Raises RunDirectoryError if a folder holds symbolic links, or cannot be read."""
    with writing(folder), os.scandir(folder) as entries:
        link = next((e.path for e in entries if e.is_symlink()), None)
    if link is not None:
        raise _is_link(Path(link))


def folder_within(root: Path, *parts: str) -> Path:
    """Makes and syncs a folder below another if needed; refuses links in it, and odd names."""
    path = root
    with writing(path):
        make_folder(path)
    for name in parts:
        refuse_path(name)
        path = path / name
        if path.is_symlink():
            raise _is_link(path)
        with writing(path):
            # As private as its parent.
            make_folder(path, mode=path.parent.stat().st_mode & 0o777)
    refuse_links(path)
    return path


class FileEnd(NamedTuple):
    """How an append left a file."""

    size: int
    inode: int | None = None


class FileReplacedError(RunDirectoryError):
    """A file to which is appended is gone, shorter than it was, or another one."""


def refuse_replaced(path: Path, end: FileEnd) -> None:
    """Raises FileReplacedError if a file is not as the last append left it, but for a torn line."""
    size = 0
    inode = None
    with writing(path), contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        size = status.st_size
        inode = status.st_ino
    if size < end.size or end.inode not in (None, inode):
        raise FileReplacedError(
            f"{path} must be as the last record left it but is gone, shorter or another file"
        )


def append_synced(path: Path, line: str, *, sync: bool = True) -> FileEnd:
    """Appends a whole line or nothing, after cutting off a torn one; returns the file's end."""
    data = line.encode()
    with writing(path):
        is_new = not path.exists()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _FLAGS
        descriptor = os.open(path, flags, like_folder(path.parent))
        try:
            end = _cut(descriptor)
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(descriptor)
                    if is_new:
                        sync_folder(path.parent)
                return FileEnd(end + len(data), os.fstat(descriptor).st_ino)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, end)
                    os.fsync(descriptor)
                raise
        finally:
            os.close(descriptor)


def sync_upwards(file: Path, root: Path) -> None:
    """Syncs a file, unless missing, and its folders up to a root; refuses links and bad disks."""
    path = file
    try:
        sync(file, os.O_RDONLY | _FLAGS)
        for path in file.parents:
            sync_folder(path)
            if path == root:
                return
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_write(path, error) from error


def write_atomically(path: Path, content: str) -> None:
    """Writes a file whole, or raises RunDirectoryError."""
    with writing(path):
        replace_file(path, content)


def _cut(descriptor: int) -> int:
    """Cuts off a torn last line; returns the size of the file."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    end = os.pread(descriptor, size, 0).rfind(b"\n") + 1
    os.ftruncate(descriptor, end)
    os.fsync(descriptor)
    return end


def _is_link(path: Path) -> RunDirectoryError:
    return RunDirectoryError(
        f"nothing inside a run directory may be a symbolic link but {path} is one "
        f"(to {path.readlink()}); put the file or folder itself there, or move the whole run: "
        "the run directory as a whole may be a link"
    )


def is_fault_of_disk(error: OSError) -> bool:
    """Returns whether an error comes from the disk: full, failed, gone or read-only."""
    faults = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.ENODEV)
    return error.errno in faults


def cannot_write(path: Path, error: OSError) -> RunDirectoryError:
    """Makes the error for a file or folder that cannot be written."""
    if error.errno == errno.ELOOP and path.is_symlink():
        return _is_link(path)
    return RunDirectoryError(
        f"{path} must be writable but: {error.strerror or error}; see to the disk, make it "
        "writable or free some space and run the same command again; it continues where it stopped"
    )
