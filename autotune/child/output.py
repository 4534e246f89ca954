"""Reads lines of a program's output: from a pipe or a file. Standard library only."""

from __future__ import annotations

import glob
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

Output = Sequence[str]  # lines that a program printed
PIECE = 1 << 16  # bytes that are read at once
LONGEST_LINE = 4_000  # bytes; what is longer is cut
LONGEST_RECORD = 65_536  # of a JSON line


class Lines:
    """Splits a stream of bytes into lines, also at the carriage returns of progress bars."""

    def __init__(self) -> None:
        self._incomplete = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yields complete lines, each cut to `LONGEST_LINE` or `LONGEST_RECORD`."""
        *lines, incomplete = re.split(rb"[\r\n]", self._incomplete + data)
        self._incomplete = self._cut(incomplete)
        for line in lines:
            if line:
                yield self._cut(line).decode("utf-8", errors="replace")

    def _cut(self, line: bytes) -> bytes:
        return line[: LONGEST_RECORD if line.lstrip().startswith(b"{") else LONGEST_LINE]


def _files_of(path: Path) -> list[Path]:
    """Returns the file of a path, or those of a pattern."""
    if path.is_file():
        return [path]
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 (of absolute patterns)
    return [Path(name) for name in names if Path(name).is_file()]


class Follow:
    """Follows the file that a program writes, or the newest of a pattern, from its present end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = {file: _identity(file) for file in _files_of(path)}
        self._file: Path | None = None
        self._lines = Lines()

    def read(self) -> Iterator[str]:
        """Yields the lines added since the last call."""
        if self._file is None:
            files = [f for f in _files_of(self._path) if self._seen.get(f) != _identity(f)]
            self._file = max(files, key=lambda f: (f.stat().st_mtime, f.name), default=None)
        if self._file is None:
            return
        identity = _identity(self._file)
        if identity is None:
            self._seen.pop(self._file, None)  # its successor may have the same inode
            return
        inode, size, changed_ns = identity
        earlier_inode, start, _ = self._seen.get(self._file) or (0, 0, 0)
        if earlier_inode != inode or start > size:
            start = 0
        if start == 0:
            self._lines = Lines()
        try:
            with self._file.open("rb") as stream:
                stream.seek(start)
                data = stream.read(1 << 22)
        except OSError:
            return
        self._seen[self._file] = (inode, start + len(data), changed_ns)
        yield from self._lines.feed(data)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Returns inode, size and time of change of a plain file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode):
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None
