"""Reads lines of a program's output: from a pipe or a file. Standard library only."""

from __future__ import annotations

import glob
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

Output = Sequence[str]
"""Lines that a program printed."""

PIECE = 1 << 16
"""Bytes that are read at once."""

LONGEST_LINE, LONGEST_RECORD = 4_000, 65_536
"""Bytes of a line, and of a JSON line; what is longer is cut."""

# ---------------------------------------------------------------------- lines


class Lines:
    """Splits a stream of bytes into lines, also at the carriage returns of progress bars."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Yields complete lines, each cut to `LONGEST_LINE` or `LONGEST_RECORD`."""
        *whole, rest = re.split(rb"[\r\n]", self._rest + data)
        self._rest = self._cut(rest)
        for line in whole:
            if line:
                yield self._cut(line).decode("utf-8", errors="replace")

    def _cut(self, line: bytes) -> bytes:
        return line[: LONGEST_RECORD if line.lstrip().startswith(b"{") else LONGEST_LINE]


# ---------------------------------------------------------------------- files


def _files_of(path: Path) -> list[Path]:
    """Returns the file of a path, or those of a pattern."""
    if path.is_file():
        return [path]
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 (of absolute patterns)
    return [Path(name) for name in names if Path(name).is_file()]


class Follow:
    """Follows the file that a program writes, or the newest of a pattern.

    Present content is not read, but all of a file that is truncated or replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = {file: _identity(file) for file in _files_of(path)}
        self._file: Path | None = None
        self._lines = Lines()

    def read(self) -> Iterator[str]:
        """Yields the lines added since the last call."""
        if self._file is None:
            changed = [
                file for file in _files_of(self._path) if self._seen.get(file) != _identity(file)
            ]
            self._file = max(
                changed, key=lambda file: (file.stat().st_mtime, file.name), default=None
            )
        if self._file is None:
            return
        identity = _identity(self._file)
        if identity is None:
            self._seen.pop(
                self._file, None
            )  # its successor is another file, even with the same inode
            return
        earlier = self._seen.get(self._file)
        is_appended = (
            earlier is not None and earlier[0] == identity[0] and earlier[1] <= identity[1]
        )
        start = earlier[1] if earlier is not None and is_appended else 0
        if start == 0:
            self._lines = Lines()
        try:
            with self._file.open("rb") as stream:
                stream.seek(start)
                data = stream.read(1 << 22)
        except OSError:
            return
        self._seen[self._file] = (identity[0], start + len(data), identity[2])
        yield from self._lines.feed(data)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of change of a plain file; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
