"""Reads lines of a program's output: from a pipe, a pseudo-terminal or a file. Standard library only."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import re
import stat
import struct
import subprocess
import termios
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LONGEST_LINE = 4_000
"""Characters of a line; longer lines are cut."""

FILE_KINDS = ("*.jsonl", "*.csv")
"""Patterns of files in a folder; the first with a match counts."""

ROWS, COLUMNS = 50, 200
"""Size of the pseudo-terminal, to whose width progress bars are drawn and lines are cut."""

CANNOT_DRAW = ("", "dumb", "unknown")
"""Values of ``TERM`` without a terminal (cron, CI, an editor), with which rich draws nothing."""


# ---------------------------------------------------------------------- streams


def start_program(command: Sequence[str], cwd: str, *, terminal: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program in a session of its own, without input; returns it and the descriptor of its output.

    Raises:
        OSError: If it cannot be started.
    """
    if not terminal:
        program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        assert program.stdout is not None
        return program, program.stdout.fileno()
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        term = os.environ.get("TERM", "")
        environment = {**os.environ, "TERM": "xterm" if term.lower() in CANNOT_DRAW else term}
        program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True,
            env=environment,
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
        """Yields complete lines, each cut to `LONGEST_LINE`."""
        *whole, rest = re.split(rb"[\r\n]", self._rest + data)
        self._rest = rest[:LONGEST_LINE]
        for line in whole:
            if line:
                yield line[:LONGEST_LINE].decode("utf-8", errors="replace")


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
                yield json.dumps(values)[:LONGEST_LINE]


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
    """Resolves a path: a file, or the newest file of a pattern (``*`` in its last parts) or folder."""
    return path if _is_fixed(path) else _newest(_candidates(path))


def _is_fixed(path: Path) -> bool:
    return not any(c in str(path) for c in "*?[") and not path.is_dir()


def _candidates(path: Path) -> list[Path]:
    """Files of a folder or a pattern."""
    if path.is_dir():
        return next((found for kind in FILE_KINDS if (found := list(path.rglob(kind)))), [])
    fixed = next((p for p in path.parents if not any(c in str(p) for c in "*?[")), path)
    return [p for p in fixed.glob(str(path.relative_to(fixed))) if p.is_file()]


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda p: (p.stat().st_mtime, p.name), default=None)


class Tail:
    """Follows a growing file from its present size, or from its start if it is truncated or replaced.

    Args:
        whole: Whether to read the present content too.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.path = path
        self.starts = 0  # number of reads from its start
        self._seen = None if whole else self._identity()

    def read(self) -> bytes:
        """Reads the bytes appended since the last call."""
        now = self._identity()
        if now is None:
            self._seen = None  # its successor is another file, even with the same inode
            return b""
        start = self._seen[1] if self._seen and self._seen[0] == now[0] and self._seen[1] <= now[1] else 0
        try:
            with self.path.open("rb") as stream:
                stream.seek(start)
                data = stream.read(1 << 22)
        except OSError:
            return b""
        self._seen = (now[0], start + len(data))
        self.starts += start == 0 and bool(data)
        return data

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size) if stat.S_ISREG(found.st_mode) else None


class Follow:
    """Follows the file that a program writes, or the newest of a pattern or folder (see `find`).

    Present content is not read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        fixed = _is_fixed(path)
        self._before = {} if fixed else {p: p.stat().st_mtime_ns for p in _candidates(path)}
        self._tail = Tail(path) if fixed else None
        self._lines = _begun(path) if fixed else Lines()
        self._starts = 0

    def read(self) -> Iterator[str]:
        """Yields the lines added since the last call."""
        if self._tail is None and (path := self._written()) is not None:
            self._tail, self._lines = Tail(path, whole=path not in self._before), _begun(path)
        if self._tail is None:
            return
        data = self._tail.read()
        if self._tail.starts != self._starts and data:
            self._starts = self._tail.starts
            self._lines = lines_of(self._tail.path.name)
        yield from self._lines.feed(data)

    def _written(self) -> Path | None:
        """The newest file that is new or has changed."""
        return _newest(p for p in _candidates(self._path) if self._before.get(p) != p.stat().st_mtime_ns)


def _begun(path: Path) -> Lines:
    """A reader that continues a file; of an existing table it has read the header."""
    lines = lines_of(path.name)
    if isinstance(lines, Table) and path.is_file():
        with path.open("rb") as stream:
            list(lines.feed(stream.readline(LONGEST_LINE)))
    return lines
