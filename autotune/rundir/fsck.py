"""What is wrong with a run directory, and mending it: what is dropped is moved into its `lost+found/`, never deleted.

Mending makes the study able to go on. It invents nothing: a record or raw sample that is lost stays lost and is named,
and the trial whose record it was is measured again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from autotune.machine import make_folder, sync_folder
from autotune.model import (
    RECORD,
    SCHEMA_VERSION,
    AnyRecord,
    BlameRecord,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Pair,
    RunDirectoryError,
    StudySpec,
    TrialResult,
    TrialStatus,
)
from autotune.rundir.files import cannot_read, refuse_path, write_atomically
from autotune.rundir.lock import Lock, is_held, read_holder

T = TypeVar("T")

STUDY, RECORDS, PAIRS, LOST = "study.json", "records.jsonl", "pairs.jsonl", "lost+found"
_ROUNDS = 8
"""What was dropped may be named by what is left, which then is dropped, too; each round follows one such step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: Relative to the run directory.
        line: From 1; None if the whole file is meant.
        what: What is wrong with it.
        mending: What `--mend` does; empty if there is nothing to be done, or nothing that a program could do.
    """

    file: str
    line: int | None = None
    what: str
    mending: str = ""

    def __str__(self) -> str:
        place = f"{self.file} line {self.line}" if self.line is not None else self.file
        return f"{place}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """What a check of a run directory found.

    Attributes:
        run: The run directory.
        writer: Who writes it now; None if nobody does.
        record_count: Whole records.
        problems: What is wrong now, after mending if that was asked for.
        mended: What was wrong before.
    """

    run: str
    writer: str | None
    record_count: int
    problems: tuple[Problem, ...]
    mended: tuple[Problem, ...] = ()


def check_run(path: Path) -> RunCheck:
    """Looks for everything that is wrong with a run directory; changes nothing.

    Raises:
        RunDirectoryError: If it is none, or cannot be read.
    """
    if not any((path / name).exists() or (path / name).is_symlink() for name in (STUDY, RECORDS, "records")):
        raise RunDirectoryError(
            f"{path} must be a run directory (it holds {STUDY} and {RECORDS}) but it is not; "
            "`autotune status` lists the runs of this folder"
        )
    return _Check(path).result()


def mend_run(path: Path) -> RunCheck:
    """Checks a run directory and mends what can be mended.

    Raises:
        RunDirectoryError: If it is none, a driver is writing it, or it cannot be written.
    """
    before = check_run(path)
    if (path / LOST).is_symlink():
        raise RunDirectoryError(f"{path / LOST} must be a folder but is a symbolic link; remove it first")
    mended: list[Problem] = []
    lock = Lock(path) if not (path / "lock").is_symlink() else None
    try:
        for _ in range(_ROUNDS):
            found = _Check(path, is_ours=True)
            if not found.mends:
                break
            mended += [p for p in found.problems if p.mending]
            for mend in found.mends:
                mend()
    except OSError as error:
        raise RunDirectoryError(f"{path} must be writable but: {error}; mend that first") from error
    finally:
        if lock is not None:
            lock.close()
    after = check_run(path)
    return RunCheck(
        run=before.run, writer=None, record_count=after.record_count, problems=after.problems, mended=tuple(mended)
    )


@dataclass
class _Lines(Generic[T]):
    """The lines of a file: those that are whole, and those that are not."""

    file: Path
    kept: list[tuple[int, bytes, T]] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)


class _Check:
    """One look at a run directory: `problems`, and in `mends` what mends those that can be."""

    def __init__(self, path: Path, *, is_ours: bool = False) -> None:
        self._path = path
        self.problems: list[Problem] = []
        self.mends: list[Callable[[], None]] = []
        self._writer = None if is_ours else _writer(path)
        try:
            self._check_study()
            self._check_entries(path)
            self._lines = [self._read(f, RECORD.validate_json) for f in _record_files(path)]
            self._check_doubles()
            self._check_named_trials()
            self._check_raw()
        except OSError as error:
            raise cannot_read(Path(error.filename or path), error) from error
        self.mends += [self._rewriting(lines) for lines in self._lines if lines.dropped]

    def result(self) -> RunCheck:
        """What was found."""
        count = sum(len(lines.kept) for lines in self._lines)
        return RunCheck(run=str(self._path), writer=self._writer, record_count=count, problems=tuple(self.problems))

    def _add(self, file: Path, what: str, mending: str = "", *, line: int | None = None) -> None:
        name = file.relative_to(self._path).as_posix()
        self.problems.append(Problem(file=name, line=line, what=what, mending=mending))

    def _add_file(self, file: Path, what: str) -> None:
        """A file that mending moves away whole."""
        self._add(file, what, f"moved to {LOST}/")
        self.mends.append(lambda: _move_away(self._path, file))

    # ------------------------------------------------------------------ files

    def _check_study(self) -> None:
        file = self._path / STUDY
        again = "the same command that began the study writes it anew"
        if file.is_symlink():
            return  # named with the other links
        if not file.exists():
            self._add(file, f"is missing; {again}")
            return
        try:
            data = json.loads(file.read_bytes())
            if (schema := data["schema_version"]) != SCHEMA_VERSION:
                self._add(file, f"is of schema {schema}, not {SCHEMA_VERSION}; use the autotune that wrote it")
                return
            StudySpec.model_validate(data["study"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._add_file(file, f"{_describe(file.read_bytes(), error)}; {again}")

    def _check_entries(self, folder: Path) -> None:
        """Links, what an interrupted write has left, at any depth."""
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda e: e.name)
        for entry in found:
            path = Path(entry.path)
            if entry.is_symlink():
                self._add_file(path, f"is a symbolic link (to {path.readlink()}), which is never followed")
            elif entry.is_dir() and not (folder == self._path and entry.name == LOST):
                self._check_entries(path)
            elif entry.name.startswith(".") and entry.name.endswith(".tmp") and self._writer is None:
                self._add_file(path, "is left of a write that never ended")

    def _read(self, file: Path, parse: Callable[[bytes], T]) -> _Lines[T]:
        """Sorts the lines of a file; of two that a power cut has joined the second is saved."""
        found: _Lines[T] = _Lines(file)
        whole, newline, tail = file.read_bytes().rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        for number, line in enumerate(lines, 1):
            try:
                found.kept.append((number, line, parse(line)))
            except (ValidationError, ValueError) as error:
                saved = _second_of_two(line, parse)
                found.dropped.append(line[: -len(saved[0])] if saved else line)
                if saved:
                    found.kept.append((number, *saved))
                mending = f"moved to {LOST}/" + ("; the whole line that follows it stays" if saved else "")
                self._add(file, _describe(line, error), mending, line=number)
        if tail and self._writer is None:
            found.dropped.append(tail)
            what = f"is torn: {_describe(tail)}" if tail.strip(b"\0") else _describe(tail)
            self._add(file, what, f"moved to {LOST}/", line=len(lines) + 1)
        return found

    def _rewriting(self, lines: _Lines[T]) -> Callable[[], None]:
        def rewrite() -> None:
            _keep(self._path, lines.file, b"\n".join(lines.dropped) + b"\n")
            write_atomically(lines.file, b"".join(line + b"\n" for _, line, _ in lines.kept))

        return rewrite

    # ------------------------------------------------------------------ records

    def _records(self) -> Iterator[tuple[_Lines[AnyRecord], int, bytes, AnyRecord]]:
        for lines in self._lines:
            for number, line, record in list(lines.kept):
                yield lines, number, line, record

    def _drop(self, lines: _Lines[AnyRecord], number: int, line: bytes, what: str) -> None:
        self._add(lines.file, what, f"moved to {LOST}/", line=number)
        lines.kept = [entry for entry in lines.kept if entry[0] != number]
        lines.dropped.append(line)

    def _check_doubles(self) -> None:
        """What is recorded twice: the first counts, for what came after it was built on that."""
        first: dict[object, str] = {}
        for lines, number, line, record in self._records():
            key: object = None
            if isinstance(record, TrialResult):
                key, what = record.number, f"trial {record.number}"
            elif isinstance(record, ConfirmRun):
                key = (record.stage, record.settings, record.repeat)
                what = f"pair of processes {record.repeat} of the {record.stage} proof of {record.settings}"
            if key is None:
                continue
            if key in first:
                self._drop(lines, number, line, f"is a second record of {what}; the first is {first[key]}")
            else:
                first[key] = f"{lines.file.name} line {number}"

    def _check_named_trials(self) -> None:
        """Records that speak of a trial that is not there; a recheck has no trials at all."""
        known = {r.number for *_, r in self._records() if isinstance(r, TrialResult)}
        if not known:
            return
        for lines, number, line, record in self._records():
            missing = sorted(_named_trials(record) - known)
            if missing:
                what = f"is a {record.kind} record that names trial {missing[0]}, which is not there; it is made again"
                self._drop(lines, number, line, what)

    def _check_raw(self) -> None:
        """The raw samples behind the records."""
        for lines, number, _, record in self._records():
            directory = getattr(record, "directory", None)
            if directory is None:
                continue
            what, expected = _expected_pairs(record)
            try:
                for part in directory.split("/"):
                    refuse_path(part)
            except RunDirectoryError:
                self._add(lines.file, f"names a folder outside the run ({directory!r})", line=number)
                continue
            folder = self._path / directory
            if not folder.is_dir():
                self._add(lines.file, f"names {directory}, which is not there: {what}'s raw data is lost", line=number)
                continue
            file = folder / PAIRS
            pairs: _Lines[Pair] = self._read(file, Pair.model_validate_json) if file.is_file() else _Lines(file)
            if pairs.dropped:
                self.mends.append(self._rewriting(pairs))
            if expected is not None and len(pairs.kept) != expected:
                self._add(
                    file,
                    f"holds {len(pairs.kept)} whole pairs but {what} was found from {expected}: the record's figures "
                    "stand, the raw data behind them is lost",
                )


def _record_files(path: Path) -> list[Path]:
    return [f for f in (path / RECORDS, *sorted((path / "records").glob("*.jsonl"))) if f.is_file()]


def _writer(path: Path) -> str | None:
    if not is_held(path):
        return None
    return str(read_holder(path) or "a driver")


def _named_trials(record: AnyRecord) -> set[int]:
    """Numbers of the trials that a record is about, its own left out."""
    named: set[int | None] = set()
    if isinstance(record, TrialResult):
        named = {record.same_as}
    elif isinstance(record, ConfirmRun | FinalistResult | BlameRecord | ConclusionRecord):
        named = {record.trial}
    return {n for n in named if n}  # 0 is the reference


def _expected_pairs(record: AnyRecord) -> tuple[str, int | None]:
    """What a record is about in words, and how many pairs it was found from; None if it says nothing of that."""
    if isinstance(record, TrialResult):
        measured = record.comparison if record.status is TrialStatus.MEASURED else None
        return f"trial {record.number}", measured.pair_count if measured is not None else None
    if isinstance(record, ConfirmRun):
        return f"this {record.stage} proof", None if record.failure is not None else record.pair_count
    comparison = getattr(record, "comparison", None)
    return f"this {record.kind} record", comparison.pair_count if comparison is not None else None


def _describe(data: bytes, error: Exception | None = None) -> str:
    """What is wrong with a piece of a file, in words."""
    if not data:
        return "is empty"
    if not data.strip(b"\0"):
        return f"holds {len(data)} zero bytes and nothing else, as a power cut leaves them"
    if isinstance(error, ValidationError):
        return f"is none of this schema's: {error.errors()[0]['msg']}"
    return "cannot be read" + (f": {error}" if error else f": {len(data)} bytes without an end")


def _second_of_two(line: bytes, parse: Callable[[bytes], T]) -> tuple[bytes, T] | None:
    """The whole record at the end of a line that begins with a torn one, or with zeros; None if there is none."""
    start = line.find(b"{", 1)
    while start > 0:
        try:
            return line[start:], parse(line[start:])
        except (ValidationError, ValueError):
            start = line.find(b"{", start + 1)
    return None


def _place(path: Path, file: Path) -> Path:
    """A name in `lost+found` that is free."""
    make_folder(path / LOST)
    name = file.relative_to(path).as_posix().replace("/", "__")
    number = 1
    while os.path.lexists(place := path / LOST / f"{name}.{number}"):
        number += 1
    return place


def _keep(path: Path, file: Path, content: bytes) -> None:
    write_atomically(_place(path, file), content)


def _move_away(path: Path, file: Path) -> None:
    place = _place(path, file)
    file.rename(place)
    sync_folder(place.parent)
    sync_folder(file.parent)
