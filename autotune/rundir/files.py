"""Writing that survives: appended lines, whole files, plain names."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from autotune.machine import like_folder, replace_file
from autotune.model import RunDirectoryError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def refuse_path(name: str) -> None:
    """Refuses a name that could lead out of the run directory.

    Raises:
        RunDirectoryError: If it is not a plain name.
    """
    if not _NAME.fullmatch(name):
        raise RunDirectoryError(
            f"what lies inside a run must have a plain name (letters, digits, `.`, `_`, `-`) but got {name!r}"
        )


def append_synced(path: Path, line: str, *, sync: bool = True) -> None:
    """Appends one line with one write; on failure the file ends where it ended before.

    Raises:
        RunDirectoryError: If it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, like_folder(path.parent))
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        end = os.fstat(descriptor).st_size
        data = line.encode()
        try:
            written = os.write(descriptor, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, end)
            raise _cannot_write(path, error) from error
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file whole or not at all; see `autotune.machine.replace_file`.

    Raises:
        RunDirectoryError: If it cannot be written.
    """
    try:
        replace_file(path, text)
    except OSError as error:
        raise _cannot_write(path, error) from error


def cut_torn_line(path: Path) -> None:
    """Cuts off what follows the last newline of a file: the trace of a write that never ended."""
    if not path.exists():
        return
    try:
        with path.open("rb+") as stream:
            data = stream.read()
            end = data.rfind(b"\n") + 1
            if end != len(data):
                stream.truncate(end)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> RunDirectoryError:
    advice = "free some space and run the same command again; it goes on where it stopped"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        advice = "make it writable and run the same command again; it goes on where it stopped"
    return RunDirectoryError(f"{path} must be writable but: {error.strerror or error}; {advice}")
