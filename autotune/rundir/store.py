"""Run directory, the truth of a study: append-only records, raw samples and logs.

Layout::

    study.json          the checked study, its identity, the schema version
    records.jsonl       one record a line (see `autotune.model.records`), in order of time
    optuna.log          the trials as an Optuna study
    lock                held by the one driver that writes
    trials/0007/        pairs.jsonl (every step's seconds), worker.log
    confirm/..., minimise/, soak/, failing/, aa_run/ likewise
    lanes/NAME.log      log of each of several lanes
    records.kept.jsonl  what a driver had in memory when it found records.jsonl gone or replaced
    earlier-1/          the same of an edited study that had measured nothing

A record is appended with one write and synced before anything depends on it. Readers ignore a torn
last line, and the next writer cuts it off; `autotune.rundir.damage` finds what else is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from autotune.machine.environment import without_secrets
from autotune.machine.files import make_folder
from autotune.machine.host import utc_now
from autotune.model.clock import Stopwatch
from autotune.model.errors import RunDirectoryError, first_problem
from autotune.model.files import plain_content
from autotune.model.measurement import Pair, Stamped
from autotune.model.records import (
    RECORD,
    SCHEMA_VERSION,
    AaRecord,
    AnyRecord,
    ConclusionRecord,
    ConfirmRun,
    SessionRecord,
    TrialResult,
)
from autotune.model.redaction import redact_command
from autotune.model.spec import StudySpec
from autotune.rundir.files import (
    FileEnd,
    FileReplacedError,
    append_synced,
    folder_within,
    reading,
    refuse_links,
    refuse_path,
    refuse_replaced,
    sync_upwards,
    write_atomically,
    writing,
)
from autotune.rundir.lock import LOCK, Lock

R = TypeVar("R", bound=Stamped)
T = TypeVar("T")

STUDY = "study.json"
RECORDS = "records.jsonl"
KEPT_RECORDS = "records.kept.jsonl"
PAIRS = "pairs.jsonl"
FOLDERS = ("trials", "confirm", "minimise", "aa_run", "soak", "failing")
EARLIER = "earlier"
_KIND = f"a record of schema {SCHEMA_VERSION}"
_AGAIN = "the command that began the study writes it again"
_STAMPS = {"at_s", "by", "ended", "provenance", "record_count"}
_PAIR: TypeAdapter[Pair] = TypeAdapter(Pair)


class Folders:
    """Folders of measurements below a run directory or a lane's scratch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, *parts: str) -> Path:
        """Makes a folder if needed; raises as `folder_within`."""
        return folder_within(self.path, *parts)

    def relative(self, path: Path) -> str:
        """Returns a path relative to the run, so that runs can be moved and lanes be elsewhere."""
        return path.relative_to(self.path).as_posix()

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """Returns a function that appends raw pairs; moves those of a killed session aside."""
        file = folder / PAIRS
        with writing(file), contextlib.suppress(FileNotFoundError):
            file.rename(file.with_name(f"{file.stem}.{time.time_ns()}{file.suffix}"))

        def write(pair: Pair) -> None:
            append_synced(file, _line_of(pair), sync=False)

        return write

    def write_beside(self, folder: Path, name: str, text: str) -> None:
        """Writes a file for people to read beside a measurement."""
        refuse_path(name)
        write_atomically(folder / name, without_secrets(text))

    def pairs(self, directory: str | None) -> Iterator[Pair]:
        """Reads the raw pairs of a measurement but a torn one; RunDirectoryError if damaged."""
        path = PurePosixPath(directory or "/")
        if path.is_absolute() or ".." in path.parts:
            return
        file = self.path / path / PAIRS
        content = b""
        with reading(file), contextlib.suppress(FileNotFoundError):
            content = plain_content(file)
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            yield _parse_line(_PAIR, line, file, number, what="a pair of blocks")


def lost_pairs(folders: Folders, record: Stamped) -> str:
    """Returns as a clause how raw pairs differ from a record's count of them; empty if not."""
    directory = getattr(record, "directory", None)
    measured = getattr(record, "comparison", None)
    if isinstance(record, ConfirmRun):
        measured = record
    if (
        directory is None
        or measured is None
        or getattr(record, "failure", None) is not None
        or getattr(record, "same_as", None) is not None  # of another trial
    ):
        return ""
    count = len(list(folders.pairs(directory)))
    if count == measured.pair_count:
        return ""
    return f"was found from {measured.pair_count} pairs, but {directory} holds {count}"


def unnamed_folders(path: Path, records: Iterable[AnyRecord]) -> list[str]:
    """Returns the folders of a run with raw pairs of no record, which a killed driver leaves."""
    recorded = {getattr(record, "directory", None) for record in records}
    folders = []
    for name in FOLDERS:
        for file in (path / name).rglob(PAIRS):
            folder = file.parent.relative_to(path)
            if recorded.isdisjoint(map(str, (folder, *folder.parents))):
                folders.append(str(folder))
    return sorted(folders)


def _parse_line(kind: TypeAdapter[T], line: bytes, file: Path, number: int, *, what: str) -> T:
    """Parses one line of a file in a run directory."""
    try:
        return kind.validate_json(line)
    except ValidationError as error:
        raise RunDirectoryError(
            f"{file} line {number} must be {what} but: {first_problem(error)}; "
            "delete this line in a copy of the run; what it recorded is measured again"
        ) from error


def runs_in(folder: Path) -> list[Path]:
    """Returns the run directories in a folder, by name."""
    return sorted(file.parent for file in folder.glob(f"*/{STUDY}"))


class StudyLostError(RunDirectoryError):
    """A folder holds no study.json, or a torn one."""


def _no_study(file: Path, error: Exception) -> str:
    reason = f"{error!s:.1000}" if file.stat().st_size else "it is empty"
    return f"{file} must hold the study of this run but: {reason}; delete it, and {_AGAIN}"


class Store(Folders):
    """One run directory, open for reading, or for writing by exactly one driver."""

    def __init__(self, path: Path, spec: StudySpec, *, study_dir: str) -> None:
        super().__init__(path)
        self.spec = spec
        self.study_dir = study_dir  # the user's modules are imported from there
        self.watch = Stopwatch()
        self.earlier: Path | None = None  # to where an earlier study's files were moved
        self._file = path / RECORDS
        self._lock: Lock | None = None
        self._end = FileEnd(0)
        self._all: list[AnyRecord] = []
        self._by_type: defaultdict[type[Stamped], list[Stamped]] = defaultdict(list)
        self._is_sole_writer = False  # then all records that were read stay in memory

    @classmethod
    def open(cls, path: Path) -> Store:
        """Opens a run directory for reading; RunDirectoryError if it is none of this schema."""
        copy = path / KEPT_RECORDS
        if copy.exists():
            raise RunDirectoryError(
                f"{path / RECORDS} was removed, cut or replaced while a driver wrote it, and "
                f"{KEPT_RECORDS} holds its records; put them back (mv {copy} {path / RECORDS}), "
                "then the same command goes on"
            )
        file = path / STUDY
        if not file.is_file():
            raise StudyLostError(
                f"{path} must be a run directory but holds no {STUDY}; `autotune status` lists "
                f"the runs of this folder; if the file was lost, {_AGAIN}"
            )
        try:
            with reading(file):
                data = json.loads(plain_content(file))
        except (ValueError, RecursionError) as error:
            raise StudyLostError(_no_study(file, error)) from error
        try:
            if data["schema_version"] != SCHEMA_VERSION:
                raise RunDirectoryError(
                    f"{path} must be of schema {SCHEMA_VERSION} but is of "
                    f"{data['schema_version']}; read it with the version of autotune that wrote "
                    "it, or start a new run directory"
                )
            return cls(path, StudySpec.model_validate(data["study"]), study_dir=data["study_dir"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(_no_study(file, error)) from error

    @classmethod
    def create_or_resume(
        cls, path: Path, spec: StudySpec, *, study_dir: Path, watch: Stopwatch | None = None
    ) -> Store:
        """Opens a run directory for writing, making it if needed, and locks it.

        A given `watch` goes on from the time of earlier sessions.

        Raises:
            RunDirectoryError: If another study or driver has it, or it cannot be written.
        """
        with writing(path):
            make_folder(path, mode=0o700)
        refuse_links(path)
        for folder in filter(Path.is_dir, path.iterdir()):
            refuse_links(folder)
        lock = Lock(path)
        try:
            store = cls._prepare(path, spec, study_dir)
            store._lock = lock
            store.watch = watch or store.watch
            # The time of a killed session counts up to its last record.
            store.watch.earlier_s = store.recorded_s
            store._is_sole_writer = True
        except BaseException:
            lock.close()
            raise
        return store

    @classmethod
    def _prepare(cls, path: Path, spec: StudySpec, study_dir: Path) -> Store:
        store = cls._known(path, spec) or cls._new(path, spec, study_dir)
        unnamed = [] if store.records() else unnamed_folders(path, ())
        if unnamed:
            raise RunDirectoryError(
                f"{path / RECORDS} must hold the records of this run but has none, though "
                f"{len(unnamed)} folders hold measurements ({', '.join(unnamed[:3])}); restore it "
                "from a copy, or name another folder with --run-dir (tune, ab: --name)"
            )
        body = {
            "schema_version": SCHEMA_VERSION,
            "identity": spec.identity,
            "study_dir": store.study_dir,
            "study": spec.model_dump(mode="json"),
        }
        write_atomically(path / STUDY, json.dumps(body, indent=1) + "\n")
        for folder in FOLDERS:
            folder_within(path, folder)
        return store

    @classmethod
    def _known(cls, path: Path, spec: StudySpec) -> Store | None:
        """Opens the run directory of a known study; None if it is new, or its study.json lost."""
        try:
            store = cls.open(path)
        except StudyLostError:  # the caller has its content
            return None
        if store.spec.identity == spec.identity:
            store.spec = spec
            return store
        # An A/A run that was refused, or did not end, has measured nothing.
        folders = unnamed_folders(path, ())
        if store.of(AaRecord) or not all(folder.startswith("aa_run") for folder in folders):
            a = store.spec.lasting()
            b = spec.lasting()
            fields = ", ".join(k for k in {**a, **b} if a.get(k) != b.get(k)) or "its measuring"
            raise RunDirectoryError(
                f"{path} belongs to another study (different: {fields}); "
                "name another folder with --run-dir (tune, ab: --name), or restore the study file"
            )
        empty = cls(path, spec, study_dir=store.study_dir)
        empty.earlier = _set_aside(path)
        return empty

    @classmethod
    def _new(cls, path: Path, spec: StudySpec, study_dir: Path) -> Store:
        """Opens a new run directory, or one of this study whose study.json is lost."""
        store = cls(path, spec, study_dir=str(study_dir))
        if store.records():
            if {session.identity for session in store.of(SessionRecord)} != {spec.identity}:
                raise RunDirectoryError(
                    f"{path / STUDY} must hold the study of this run but is lost, and its records "
                    "are not of this one; restore that file from a copy, or name another folder "
                    "with --run-dir (tune, ab: --name)"
                )
            return store
        # What an interrupted start leaves is no stranger.
        names = sorted({entry.name for entry in path.iterdir()} - {LOCK, STUDY, RECORDS, *FOLDERS})
        strangers = [n for n in names if not n.startswith((".study", f"{EARLIER}-"))]
        if strangers:
            raise RunDirectoryError(
                f"a new run directory must be empty but {path} holds {', '.join(strangers[:3])}; "
                "name another folder with --run-dir (tune, ab: --name)"
            )
        return store

    def close(self) -> None:
        """Releases the lock; the store stays readable."""
        if self._lock:
            self._lock.close()
        self._is_sole_writer = False

    def tell_stage(self, name: str) -> None:
        """Writes this driver's stage into the lock file, for `autotune status`."""
        if self._lock:
            self._lock.tell_stage(name)

    def append(self, record: Stamped) -> None:
        """Appends one record with the study's time, and syncs it.

        If someone else removed, cut or replaced the records, those in memory are written beside.

        Raises:
            RunDirectoryError: Then, if the disk is full or gone, or raw pairs of it are lost.
        """
        stamps = {"at_s": round(self.watch.total_s, 3)}
        if isinstance(record, ConclusionRecord):
            stamps["record_count"] = len(self.records())
        stamped = _without_secrets(record.model_copy(update=stamps))
        try:
            end = self._persist(stamped)
        except FileReplacedError as error:
            self._add(stamped)  # type: ignore[arg-type]
            copy = self.path / KEPT_RECORDS
            write_atomically(copy, "".join(map(_line_of, self._all)))
            raise RunDirectoryError(
                f"{error}: the program of the study or someone else has removed or changed it. "
                f"Its {len(self._all)} records are kept; put them back (mv {copy} {self._file}), "
                "keep the program from writing there (name a folder outside of its own with "
                "--run-dir; tune, ab: --name), and run the same command again"
            ) from error
        if self._is_sole_writer:
            self._add(stamped)  # type: ignore[arg-type]
            self._end = end

    def _persist(self, record: Stamped) -> FileEnd:
        """Writes one record; returns how that left the file."""
        if self._is_sole_writer:
            refuse_replaced(self._file, self._end)
        loss = lost_pairs(self, record)
        if loss:
            raise RunDirectoryError(
                f"raw pairs must stay where they are written but what was measured last {loss}: "
                "the program of the study has removed them, or someone else; name a folder outside "
                "of the program's own with --run-dir (tune, ab: --name), and have it write to "
                "{folder} or to a folder of another name"
            )
        directory = getattr(record, "directory", None)
        if directory is not None:  # a figure needs its raw samples
            sync_upwards(self.path / directory / PAIRS, self.path)
        return append_synced(self._file, _line_of(record))

    def is_news(self, record: Stamped) -> bool:
        """Returns whether a record tells more than earlier ones, stamps and dates aside.

        A conclusion is compared with the newest one, which is stale if records before it are lost.
        """
        earlier = self.of(type(record))
        if isinstance(record, ConclusionRecord):
            newest = self.last(ConclusionRecord)
            if newest and newest.record_count != self.records().index(newest):
                return True
            earlier = earlier[-1:]
        facts = record.model_dump(exclude=_STAMPS)
        return all(r.model_dump(exclude=_STAMPS) != facts for r in earlier)

    def records(self) -> list[AnyRecord]:
        """Returns all records in order but a torn one; RunDirectoryError if unreadable."""
        self._refresh()
        return list(self._all)

    @property
    def recorded_s(self) -> float:
        """Time of the study up to its last record, in seconds."""
        return max((record.at_s for record in self.records()), default=0.0)

    def _refresh(self) -> None:
        """Reads appended lines, or all if the file has become shorter."""
        if self._is_sole_writer:
            return
        with reading(self._file):
            size = self._file.stat().st_size if self._file.exists() else 0
            if size == self._end.size:
                return
            if size < self._end.size:
                self._end = FileEnd(0)
                self._all.clear()
                self._by_type.clear()
            with self._file.open("rb") as stream:
                stream.seek(self._end.size)
                lines = stream.read().split(b"\n")[:-1]
        for number, line in enumerate(lines, len(self._all) + 1):
            self._add(_parse_line(RECORD, line, self._file, number, what=_KIND))
            self._end = FileEnd(self._end.size + len(line) + 1)

    def _add(self, record: AnyRecord) -> None:
        self._all.append(record)
        self._by_type[type(record)].append(record)

    def of(self, kind: type[R]) -> list[R]:
        """Returns all records of one type, in order."""
        self._refresh()
        return list(self._by_type[kind])  # type: ignore[arg-type]

    def last(self, kind: type[R]) -> R | None:
        """Returns the newest record of one type, or None."""
        return next(reversed(self.of(kind)), None)

    def before(self, record: Stamped) -> Store:
        """Returns a view of the records before one, or of all if it is not recorded, to read."""
        view = Store(self.path, self.spec, study_dir=self.study_dir)
        view._is_sole_writer = True  # it never reads the file
        for earlier in itertools.takewhile(lambda r: r != record, self.records()):
            view._add(earlier)
        return view


def _without_secrets(record: R) -> R:
    """Strikes the values of the caller's secrets out of a record."""
    data = record.model_dump(mode="json", exclude_none=True)
    struck = without_secrets(data)
    if struck == data:
        return record
    return type(record).model_validate_json(json.dumps(struck))


def _line_of(record: Stamped | Pair) -> str:
    return record.model_dump_json(exclude_none=True) + "\n"


def _set_aside(path: Path) -> Path:
    """Moves what a study has written into a new folder of its run, study.json last; returns it."""
    number = 1
    while (path / f"{EARLIER}-{number}").exists():
        number += 1
    folder = path / f"{EARLIER}-{number}"
    with writing(folder):
        folder.mkdir(mode=0o700)
        for name in ("lanes", "optuna.log", *FOLDERS, RECORDS, STUDY):
            if (path / name).exists():
                # It copies a folder of the lower layer of an overlay.
                shutil.move(path / name, folder / name)
    return folder


def driver_session(store: Store, *, command: Sequence[str]) -> AbstractContextManager[None]:
    """Records the begin of a driver in a locked run directory; the context counts its time."""
    store.append(
        SessionRecord(
            identity=store.spec.identity,
            started=utc_now(),
            pid=os.getpid(),
            host=socket.gethostname(),
            asked_trials=store.spec.search.trials,
            command=redact_command(command),
        )
    )
    return store.watch.ticking()


def earlier_runs(store: Store) -> int:
    """Counts the finished searches of a study beside it, whatever their seed and budget."""
    count = 0
    for path in runs_in(store.path.parent):
        with contextlib.suppress(RunDirectoryError):
            neighbour = Store.open(path)
            count += bool(
                path.name != store.path.name
                and neighbour.spec.question == store.spec.question
                and neighbour.of(TrialResult)
                and neighbour.of(ConclusionRecord)
            )
    return count
