"""Files that programs write their metrics into, as lines: text, JSON lines, CSV. Standard library only."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from autotune.child.read_rules import LONGEST_LINE, Lines, Tail

KINDS = ("*.jsonl", "*.csv")
"""Files that are looked for in a folder, the first kind that is there."""


class Records(Protocol):
    """Cuts what a file holds into lines."""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are whole now."""


def records_of(name: str) -> Records:
    """What reads a file of some name."""
    return _Table("\t" if name.endswith(".tsv") else ",") if name.endswith((".csv", ".tsv")) else _Plain()


def find(path: Path) -> Path | None:
    """The file that a path means: itself, the newest that it matches with ``*``, the newest below it if it is a folder.

    Args:
        path: Of a file, a folder, or with ``*`` in its last parts.
    """
    if any(c in str(path) for c in "*?["):
        fixed = next(p for p in path.parents if not any(c in str(p) for c in "*?["))
        return _newest(fixed.glob(str(path.relative_to(fixed))))
    if path.is_dir():
        return next((found for kind in KINDS if (found := _newest(path.rglob(kind))) is not None), None)
    return path


def _newest(paths: Iterator[Path]) -> Path | None:
    return max(paths, key=lambda p: (p.stat().st_mtime, p.name), default=None)


class _Plain:
    """Lines as they are."""

    def __init__(self) -> None:
        self._lines = Lines()

    def feed(self, data: bytes) -> Iterator[str]:
        yield from self._lines.feed(data)


class _Table:
    """Rows under a header, each as a JSON object."""

    def __init__(self, delimiter: str) -> None:
        self._lines = Lines()
        self._delimiter = delimiter
        self._names: list[str] = []

    def feed(self, data: bytes) -> Iterator[str]:
        for line in self._lines.feed(data):
            row = next(csv.reader([line], delimiter=self._delimiter), [])
            if not self._names:
                self._names = [name.strip().lstrip("\ufeff") for name in row]
            else:
                yield _line(dict(zip(self._names, map(_value, row), strict=False)))


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data)[:LONGEST_LINE]


class Follow:
    """Follows what a program writes into a file: one of that name, or the one of a pattern or folder that it writes.

    Args:
        path: As `find` takes it; what lies there already is not read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_fixed = not any(c in str(path) for c in "*?[") and not path.is_dir()
        self._before = {} if self._is_fixed else {p: p.stat().st_mtime_ns for p in _candidates(path)}
        self._tail = Tail(path) if self._is_fixed else None
        self._records = _begun(path) if self._is_fixed else None
        self._starts = 0

    def read(self) -> Iterator[str]:
        """What came since the last call."""
        if self._tail is None and (path := self._written()) is not None:
            self._tail, self._records = Tail(path, whole=path not in self._before), _begun(path)
        if self._tail is None or self._records is None:
            return
        data = self._tail.read()
        if self._tail.starts != self._starts and data:
            self._starts = self._tail.starts
            self._records = records_of(self._tail.path.name)
        yield from self._records.feed(data)

    def _written(self) -> Path | None:
        """The newest file that was not there before, or has changed."""
        changed = (p for p in _candidates(self._path) if self._before.get(p) != p.stat().st_mtime_ns)
        return _newest(changed)


def _candidates(path: Path) -> list[Path]:
    if any(c in str(path) for c in "*?["):
        fixed = next(p for p in path.parents if not any(c in str(p) for c in "*?["))
        return [p for p in fixed.glob(str(path.relative_to(fixed))) if p.is_file()]
    return [p for kind in KINDS for p in path.rglob(kind)] if path.is_dir() else []


def _begun(path: Path) -> Records:
    """What reads on in a file: of a table that is there already it knows the header."""
    records = records_of(path.name)
    if isinstance(records, _Table) and path.is_file():
        with path.open("rb") as stream:
            list(records.feed(stream.readline(LONGEST_LINE)))
    return records
