"""The records of a run directory in memory, by type: each line is parsed once, and only what was appended is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from autotune.model import RECORD, SCHEMA_VERSION, AnyRecord, RunDirectoryError, Stamped
from autotune.rundir.files import cannot_read

R = TypeVar("R", bound=Stamped)
T = TypeVar("T")


class RecordIndex:
    """All records so far, of several files in order of time."""

    def __init__(self) -> None:
        self._all: list[AnyRecord] = []
        self._of: defaultdict[type[Stamped], list[Stamped]] = defaultdict(list)
        self._read: dict[Path, tuple[int, int]] = {}  # bytes and lines of each file that are in the index

    def all(self) -> list[AnyRecord]:
        """Every record, in order."""
        return list(self._all)

    def of(self, kind: type[R]) -> list[R]:
        """All records of one type, in order."""
        return list(self._of[kind])  # type: ignore[arg-type]

    def since(self, kind: type[R], count: int) -> list[R]:
        """Those of one type that come after so many."""
        return self._of[kind][count:]  # type: ignore[return-value]

    def add(self, record: AnyRecord, file: Path, size: int) -> None:
        """Adds one record that was just appended to a file, as so many bytes: it need not be read again."""
        offset, line_count = self._read.get(file, (0, 0))
        self._read[file] = (offset + size, line_count + 1)
        self._append(record)

    def _append(self, record: AnyRecord) -> None:
        self._all.append(record)
        self._of[type(record)].append(record)

    def refresh(self, files: Iterable[Path]) -> None:
        """Reads what files have gained; a torn last line is ignored, and a file that was mended is read anew.

        Raises:
            RunDirectoryError: If a whole line is not a record (the file was edited or is damaged), or cannot be read.
        """
        files = list(files)
        if any(_size(file) < self._read.get(file, (0, 0))[0] for file in files):
            for known in (self._all, self._of, self._read):
                known.clear()
        fresh = [record for file in files if self._has_grown(file) for record in self._parse(file)]
        for record in fresh:
            self._append(record)
        if fresh and len(self._read) > 1:
            self._all.sort(key=lambda r: r.at_s)
            for records in self._of.values():
                records.sort(key=lambda r: r.at_s)

    def _has_grown(self, file: Path) -> bool:
        return _size(file) != self._read.get(file, (0, 0))[0]

    def _parse(self, file: Path) -> list[AnyRecord]:
        """What one file has gained since it was last read."""
        offset, line_count = self._read.get(file, (0, 0))
        try:
            with file.open("rb") as stream:
                stream.seek(offset)
                whole, newline, _ = stream.read().rpartition(b"\n")
        except OSError as error:
            raise cannot_read(file, error) from error
        if not newline:
            return []
        found: list[AnyRecord] = []
        lines = whole.split(b"\n")
        for number, line in enumerate(lines, line_count + 1):
            found.append(parse_line(RECORD, line, file, number, what=f"a record of schema {SCHEMA_VERSION}"))
        self._read[file] = (offset + len(whole) + 1, line_count + len(lines))
        return found


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise cannot_read(file, error) from error


def parse_line(kind: TypeAdapter[T], line: bytes, file: Path, number: int, *, what: str) -> T:
    """Reads and checks one line of a run directory.

    Raises:
        RunDirectoryError: If it is something else; names file, line and field.
    """
    try:
        return kind.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise RunDirectoryError(
            f"{file} line {number} must be {what} but: {f'`{where}`: ' if where else ''}{said:.300}; "
            "`autotune fsck RUN` says what can be mended"
        ) from error
