"""Checks a run directory: lists problems, whether they stop the study, and remedies."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from autotune.model.errors import RunDirectoryError, first_problem
from autotune.model.files import plain_content
from autotune.model.measurement import Pair
from autotune.model.records import (
    RECORD,
    SCHEMA_VERSION,
    AaRecord,
    AnyRecord,
    ConfirmRun,
    SessionRecord,
    TrialResult,
    TrialStatus,
)  # fmt: skip
from autotune.model.spec import StudySpec
from autotune.rundir.files import cannot_read, refuse_path
from autotune.rundir.lock import is_held, read_holder
from autotune.rundir.store import PAIRS, RECORDS, STUDY, unnamed_folders

T = TypeVar("T")

_DELETE = "delete this line, and check again; its measurement is repeated"
_RESTORE = "restore it from a copy, or name another folder with --run-dir"
_ANEW = "the command that began the study writes it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of a run directory."""

    file: str
    """Relative to the run directory."""
    line: int | None = None
    """From 1; None for the whole file."""
    what: str
    remedy: str = ""
    """Needed before the study can go on, on a copy of the run; empty if it goes on as it is."""
    is_harmless: bool = False
    """Whether no record is lost."""

    def __str__(self) -> str:
        place = f"{self.file} line {self.line}" if self.line is not None else self.file
        matters = (
            "harmless" if self.is_harmless else f"to continue: {self.remedy}" if self.remedy else "the study continues"
        )
        return f"{place}: {self.what}; {matters}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """The result of a check."""

    run: str
    writer: str | None
    """The driver that writes the run now."""
    record_count: int
    """Number of whole records."""
    problems: tuple[Problem, ...]


def check_run(path: Path) -> RunCheck:
    """Lists all problems of a run directory and those in it; RunDirectoryError if it is none, or unreadable."""
    if not _is_run(path):
        raise RunDirectoryError(
            f"{path} must be a run directory (it holds {STUDY} and {RECORDS}) but it is not; "
            "`autotune status` lists the runs of this folder"
        )
    writer = str(read_holder(path) or "a driver") if is_held(path) else None
    checks = [_Check(path, path, is_being_written=writer is not None)]
    problems = tuple(problem for check in checks for problem in check.problems)
    count = sum(len(check.records) for check in checks)
    return RunCheck(run=str(path), writer=writer, record_count=count, problems=problems)


def _is_run(path: Path) -> bool:
    return any((path / name).exists() or (path / name).is_symlink() for name in (STUDY, RECORDS))


class _Check:
    """One check of a run directory in `root`, or of `root` itself: its whole records by line, and its problems."""

    def __init__(self, path: Path, root: Path, *, is_being_written: bool) -> None:
        self._path = path
        self._root = root
        self._is_being_written = is_being_written
        self.problems: list[Problem] = []
        self.records: dict[int, AnyRecord] = {}
        try:
            self._check_study()
            if path == root:
                self._check_links()
            if (path / RECORDS).is_file():
                self.records = self._read(path / RECORDS, RECORD.validate_json)
            self._check_doubles()
            self._check_named_trials()
            self._check_raw()
            self._check_unnamed()
        except OSError as error:
            raise cannot_read(Path(error.filename or path), error) from error

    def _add(
        self, file: Path, what: str, remedy: str = "", *, line: int | None = None, is_harmless: bool = False
    ) -> None:
        name = file.relative_to(self._root).as_posix()
        self.problems.append(Problem(file=name, line=line, what=what, remedy=remedy, is_harmless=is_harmless))

    def _add_record(self, line: int, what: str, remedy: str = "") -> None:
        self._add(self._path / RECORDS, what, remedy, line=line)

    def _check_study(self) -> None:
        file = self._path / STUDY
        if file.is_symlink():
            return  # named with the other links
        if not file.exists():
            self._add(file, "is missing", _ANEW)
            return
        try:
            data = json.loads(plain_content(file))
            if (schema := data["schema_version"]) != SCHEMA_VERSION:
                self._add(file, f"is of schema {schema}, not {SCHEMA_VERSION}", "use the autotune that wrote it")
                return
            StudySpec.model_validate(data["study"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._add(file, _describe(plain_content(file), error), f"delete it; {_ANEW}")

    def _check_links(self) -> None:
        """Finds symbolic links at any depth."""
        for path in sorted(p for p in self._path.rglob("*") if p.is_symlink()):
            what = f"is a symbolic link (to {path.readlink()}), which is never followed"
            self._add(path, what, "put the file or folder itself there")

    def _read(self, file: Path, parse: Callable[[bytes], T]) -> dict[int, T]:
        """Parses the whole lines of a file, by number."""
        found: dict[int, T] = {}
        *lines, tail = plain_content(file).split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                found[number] = parse(line)
            except (ValidationError, ValueError) as error:
                self._add(file, _describe(line, error), _DELETE, line=number)
        if tail and not self._is_being_written:
            self._add(file, f"is torn: {_describe(tail)}", line=len(lines) + 1, is_harmless=True)
        return found

    # ------------------------------------------------------------------ records

    def _check_doubles(self) -> None:
        """Finds trials and pairs that are recorded twice; the first counts, since later records depend on it."""
        first: dict[str, int] = {}
        for line, record in self.records.items():
            what = ""
            if isinstance(record, TrialResult):
                what = f"trial {record.number}"
            elif isinstance(record, ConfirmRun):
                what = f"pair of processes {record.repeat} of the {record.stage} proof of {record.settings}"
            if what in first:
                self._add_record(line, f"is a second record of {what}; the first is line {first[what]}", _DELETE)
            elif what:
                first[what] = line

    def _check_named_trials(self) -> None:
        """Finds records that name a missing trial; a recheck has no trials at all."""
        known = {r.number for r in self.records.values() if isinstance(r, TrialResult)}
        if not known:
            return
        for line, record in self.records.items():
            if missing := sorted(_named_trials(record) - known):
                self._add_record(
                    line, f"is a {record.kind} record that names trial {missing[0]}, which is not there", _DELETE
                )

    def _check_raw(self) -> None:
        """Checks the raw samples of the records."""
        for line, record in self.records.items():
            if (directory := getattr(record, "directory", None)) is None:
                continue
            what, expected = _expected_pairs(record)
            try:
                for part in directory.split("/"):
                    refuse_path(part)
            except RunDirectoryError:
                self._add_record(line, f"names a folder outside the run ({directory!r})", _DELETE)
                continue
            file = self._path / directory / PAIRS
            if not file.parent.is_dir():
                self._add_record(line, f"names {directory}, which is not there: {what}'s raw data is lost")
                continue
            pairs = self._read(file, Pair.model_validate_json) if file.is_file() else {}
            if expected is not None and len(pairs) != expected:
                told = f"holds {len(pairs)} whole pairs but {what} was found from {expected}"
                self._add(file, f"{told}: the record's figures stand, the raw data behind them is lost")

    def _check_unnamed(self) -> None:
        """Finds measurements that no record names: more than killed drivers leave, and records are lost."""
        unnamed = [] if self._is_being_written else unnamed_folders(self._path, self.records.values())
        if not unnamed:
            return
        sessions = sum(isinstance(r, SessionRecord) for r in self.records.values())
        lanes = len({r.by for r in self.records.values() if isinstance(r, AaRecord)})
        is_rest = len(unnamed) <= sessions * max(1, lanes)
        why = "as a driver that is killed leaves them" if is_rest else "records are lost"
        what = f"does not name {len(unnamed)} folders with measurements ({', '.join(unnamed[:3])}): {why}"
        self._add(self._path / RECORDS, what, "" if self.records else _RESTORE, is_harmless=is_rest)


def _named_trials(record: AnyRecord) -> set[int]:
    """Returns the numbers of the other trials that a record names; 0 is the reference."""
    return {n for n in (getattr(record, "same_as", None), getattr(record, "trial", None)) if n}


def _expected_pairs(record: AnyRecord) -> tuple[str, int | None]:
    """Returns the subject of a record and its number of pairs, if recorded."""
    if isinstance(record, TrialResult):
        measured = record.comparison if record.status is TrialStatus.MEASURED else None
        return f"trial {record.number}", measured.pair_count if measured is not None else None
    if isinstance(record, ConfirmRun):
        return f"this {record.stage} proof", None if record.failure is not None else record.pair_count
    comparison = getattr(record, "comparison", None)
    return f"this {record.kind} record", comparison.pair_count if comparison is not None else None


def _describe(data: bytes, error: Exception | None = None) -> str:
    """Describes the fault of a piece of a file."""
    if not data:
        return "is empty"
    if not data.strip(b"\0"):
        return f"holds {len(data)} zero bytes and nothing else, as a power cut leaves them"
    if isinstance(error, ValidationError):
        return f"is none of this schema's: {first_problem(error)}"
    return "cannot be read" + (f": {error}" if error else f": {len(data)} bytes without an end")
