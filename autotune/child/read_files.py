"""Files that programs write their metrics into, as lines: JSON lines, CSV, TensorBoard events, W&B's offline files.

Standard library only. What is no text becomes one JSON object a line, so that one reader (`read_rules`) reads them all,
with the second at which the program made the record where the file tells it: a file is looked at ten times a second,
which is too seldom to time steps by.

Formats: events are TFRecords (length, checksum, `Event` of tensorflow/core/util/event.proto); ``.wandb`` is a log as
LevelDB's, behind 7 bytes, of `Record` (wandb/proto/wandb_internal.proto).
"""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from autotune.child.read_rules import LONGEST_LINE, Lines, Tail

Told = tuple[str, float | None]
"""A line, and when it was made where the file tells that (seconds since 1970)."""

LONGEST_RECORD = 1 << 26
KINDS = ("*.tfevents.*", "*.wandb", "*.jsonl", "*.csv")
"""Files that are looked for in a folder, the first kind that is there."""


class Records(Protocol):
    """Cuts what a file holds into lines."""

    def feed(self, data: bytes) -> Iterator[Told]:
        """The lines that are whole now."""


def records_of(name: str) -> Records:
    """What reads a file of some name."""
    if "tfevents" in name:
        return _Events()
    if name.endswith(".wandb"):
        return _Wandb()
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

    def feed(self, data: bytes) -> Iterator[Told]:
        for line in self._lines.feed(data):
            yield line, None


class _Table:
    """Rows under a header, each as a JSON object."""

    def __init__(self, delimiter: str) -> None:
        self._lines = Lines()
        self._delimiter = delimiter
        self._names: list[str] = []

    def feed(self, data: bytes) -> Iterator[Told]:
        for line in self._lines.feed(data):
            row = next(csv.reader([line], delimiter=self._delimiter), [])
            if not self._names:
                self._names = [name.strip().lstrip("\ufeff") for name in row]
            else:
                yield _line(dict(zip(self._names, map(_value, row), strict=False))), None


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data)[:LONGEST_LINE]


class _Events:
    """Scalars of TensorBoard's event files."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Told]:
        self._rest += data
        while len(self._rest) >= 12:
            (size,) = struct.unpack_from("<Q", self._rest)
            if size > LONGEST_RECORD:
                raise ValueError("this is no file of TensorBoard events, or a broken one")
            if len(self._rest) < size + 16:
                return
            event = self._rest[12 : 12 + size]
            self._rest = self._rest[size + 16 :]
            scalars, wall_s = _scalars(event)
            if len(scalars) > 1:
                yield _line(scalars), wall_s


def _scalars(event: bytes) -> tuple[dict[str, Any], float | None]:
    """Step and scalars of an `Event`, and when it was made."""
    found: dict[str, Any] = {"step": 0}
    wall_s = None
    for number, value in _fields(event):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            (wall_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            found["step"] = value
        elif number == 5 and isinstance(value, bytes):
            for kind, entry in _fields(value):
                if kind == 1 and isinstance(entry, bytes):
                    parts = dict(_fields(entry))
                    scalar = _scalar(parts)
                    if scalar is not None and isinstance(parts.get(1), bytes):
                        found[bytes(parts[1]).decode("utf-8", "replace")] = scalar
    return found, wall_s


def _scalar(parts: dict[int, int | bytes]) -> float | None:
    """The number in a `Summary.Value`: a simple value, or a tensor with one element."""
    if isinstance(simple := parts.get(2), bytes) and len(simple) == 4:
        return float(struct.unpack("<f", simple)[0])
    if not isinstance(tensor := parts.get(8), bytes):
        return None
    inside = dict(_fields(tensor))
    codes = {1: ("f", 4, 5), 2: ("d", 8, 6)}.get(int(inside.get(1, 0)) if isinstance(inside.get(1), int) else 0)
    if codes is None:
        return None
    code, size, list_field = codes
    for content in (inside.get(4), inside.get(list_field)):
        if isinstance(content, bytes) and len(content) == size:
            return float(struct.unpack(f"<{code}", content)[0])
    return None


class _Wandb:
    """The history in W&B's offline file."""

    HEADER, BLOCK = 7, 32768

    def __init__(self) -> None:
        self._rest = b""
        self._at = 0
        self._record = b""

    def feed(self, data: bytes) -> Iterator[Told]:
        self._rest += data
        if self._at == 0:
            if len(self._rest) < self.HEADER:
                return
            if not self._rest.startswith(b":W&B"):
                raise ValueError("this is no offline file of W&B, or of a version that is not known")
            self._skip(self.HEADER)
        while True:
            left = self.BLOCK - self._at % self.BLOCK
            if left < 7:
                if len(self._rest) < left:
                    return
                self._skip(left)
                continue
            if len(self._rest) < 7:
                return
            size, kind = struct.unpack_from("<HB", self._rest, 4)
            if kind == 0 or len(self._rest) < 7 + size:  # padding, or not whole yet
                return
            piece = self._rest[7 : 7 + size]
            self._skip(7 + size)
            self._record = piece if kind in (1, 2) else self._record + piece
            if kind in (1, 4):
                history, made_s = _history(self._record)
                if history:
                    yield _line(history), made_s

    def _skip(self, size: int) -> None:
        self._rest = self._rest[size:]
        self._at += size


def _history(record: bytes) -> tuple[dict[str, Any], float | None]:
    """Metrics of a `Record` that holds a `HistoryRecord`, and when they were logged."""
    found: dict[str, Any] = {}
    for number, history in _fields(record):
        if number != 2 or not isinstance(history, bytes):
            continue
        for kind, item in _fields(history):
            if kind != 1 or not isinstance(item, bytes):
                continue
            names, value = [], None
            for part, content in _fields(item):
                if part in (1, 2) and isinstance(content, bytes) and content:
                    names.append(content.decode("utf-8", "replace"))
                elif part == 16 and isinstance(content, bytes):
                    value = json.loads(content)
            if names and isinstance(value, int | float):
                found["/".join(names)] = value
    made = found.get("_timestamp")
    return found, float(made) if made is not None else None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message of protocol buffers: number, and an integer or bytes; ends at what is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return value, at


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

    def read(self) -> Iterator[Told]:
        """What came since the last call.

        Raises:
            ValueError: If the file is none of the kind that its name says.
        """
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
