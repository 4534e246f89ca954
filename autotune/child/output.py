"""Reads lines of a program's output: from a pipe, a pseudo-terminal or a file. Standard library only."""

from __future__ import annotations

import csv
import errno
import fcntl
import functools
import glob
import json
import os
import re
import stat
import struct
import subprocess
import termios
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from autotune.child.guard import die_with_parent

LONGEST_LINE, LONGEST_RECORD = 4_000, 65_536
"""Characters of a line, and bytes of a JSON line or a row of a table; what is longer is cut."""

FILE_KINDS = ("*.jsonl", "*.csv")
"""Patterns of files in a folder; the first with a match counts."""

ROWS, COLUMNS = 50, 200
"""Size of the pseudo-terminal, to whose width progress bars are drawn and lines are cut."""

CANNOT_DRAW = ("", "dumb", "unknown")
"""Values of ``TERM`` without a terminal (cron, CI, an editor), with which rich draws nothing."""


# ---------------------------------------------------------------------- streams


def start_program(command: Sequence[str], cwd: str, *, terminal: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program in a session of its own, without input; returns it and the descriptor of its output.

    It ends with this process: nothing would continue it if it was paused.
    """
    ours, theirs = os.openpty() if terminal else os.pipe()
    environment = dict(os.environ)
    try:
        if terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            environment["TERM"] = "xterm" if (term := environment.get("TERM", "")).lower() in CANNOT_DRAW else term
        program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True,
            env=environment, preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )  # fmt: skip
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return program, ours


def read_piece(descriptor: int) -> bytes:
    """Reads available output; empty at the end, which a pseudo-terminal reports as an error (EIO, see pty(7))."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


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


class Table(Lines):
    """Converts rows of CSV with a header to JSON objects."""

    def __init__(self, delimiter: str) -> None:
        super().__init__()
        self._delimiter = delimiter
        self._names: list[str] = []

    def feed(self, data: bytes) -> Iterator[str]:
        """Yields complete rows."""
        for line in super().feed(data):
            row = next(csv.reader([line], delimiter=self._delimiter), [])
            if not self._names:
                self._names = [name.strip().lstrip("\ufeff") for name in row]
            else:
                values = dict(zip(self._names, map(_value, row), strict=False))
                yield json.dumps(values)

    def _cut(self, line: bytes) -> bytes:
        return line[:LONGEST_RECORD]


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def lines_of(name: str) -> Lines:
    """The reader of lines for a file name."""
    return Table("\t" if name.endswith(".tsv") else ",") if name.endswith((".csv", ".tsv")) else Lines()


# ---------------------------------------------------------------------- files


def find(path: Path) -> Path | None:
    """Resolves a path: a file, or the newest file of a pattern or folder; None if there is none."""
    return _newest(_candidates(path))


def _candidates(path: Path) -> list[Path]:
    """Files of a path, a folder or a pattern."""
    if path.is_file():
        return [path]
    if path.is_dir():
        return next((found for kind in FILE_KINDS if (found := list(path.rglob(kind)))), [])
    return [Path(name) for name in glob.glob(str(path)) if Path(name).is_file()]  # noqa: PTH207 (of absolute patterns)


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda p: (p.stat().st_mtime, p.name), default=None)


class Follow:
    """Follows the file that a program writes, or the newest of a pattern or folder (see `find`).

    Present content is not read, but all of a file that is truncated or replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = {p: _identity(p) for p in _candidates(path)}
        self._file: Path | None = None
        self._lines: Lines | None = None

    def read(self) -> Iterator[str]:
        """Yields the lines added since the last call."""
        if self._file is None:
            self._file = _newest(p for p in _candidates(self._path) if self._seen.get(p) != _identity(p))
        if self._file is None:
            return
        if (now := _identity(self._file)) is None:
            self._seen.pop(self._file, None)  # its successor is another file, even with the same inode
            return
        seen = self._seen.get(self._file)
        start = seen[1] if seen is not None and seen[0] == now[0] and seen[1] <= now[1] else 0
        try:
            with self._file.open("rb") as stream:
                header = stream.readline(LONGEST_RECORD) if start else b""
                stream.seek(start)
                data = stream.read(1 << 22)
        except OSError:
            return
        if self._lines is None or start == 0:
            self._lines = lines_of(self._file.name)
            list(self._lines.feed(header))  # of a table
        self._seen[self._file] = (now[0], start + len(data), now[2])
        yield from self._lines.feed(data)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of change of a plain file; None without one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
