"""The run directory: the truth of a study. Append-only records, raw samples and logs; nothing is ever rewritten.

Layout::

    study.json          the checked study, its identity, the schema version
    records.jsonl       one record a line (see `autotune.model.records`), in the order in which things happened
    lock                held by the one driver that writes, or shared by all workers
    records/NAME.jsonl  instead of records.jsonl: what each of several workers recorded
    workers/, claims/   who of them is alive and does what (see `autotune.rundir.claims`)
    trials/0007/        request.json, pairs.jsonl (every step's seconds), worker.log
    confirm/..., minimise/, soak/, blame/, floor/ likewise

A record is appended with one write and synced before anything depends on it. A torn last line (power cut, full disk)
is ignored by readers and cut off by the next writer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from autotune.machine import make_folder
from autotune.model import (
    SCHEMA_VERSION,
    AnyRecord,
    ConclusionRecord,
    Pair,
    RunDirectoryError,
    SessionRecord,
    Stamped,
    Stopwatch,
    StudySpec,
)
from autotune.rundir.claims import Claims, SharedClaims, SoleClaims, list_workers
from autotune.rundir.files import (
    append_synced,
    cannot_write,
    cut_torn_line,
    folder_within,
    refuse_links,
    refuse_path,
    sync_measurement,
    write_atomically,
)
from autotune.rundir.lock import LOCK, Lock
from autotune.rundir.record_index import RecordIndex, cannot_read

R = TypeVar("R", bound=Stamped)

STUDY = "study.json"
RECORDS = "records.jsonl"
PAIRS = "pairs.jsonl"
FOLDERS = ("trials", "confirm", "minimise", "floor", "soak", "blame")
LOST = "lost+found"


_AGAIN = "the command that began the study writes it anew, and `autotune fsck` looks for more"


class Store:
    """One run directory, open for reading, or for writing by exactly one driver or by one of several workers.

    Args:
        path: The run directory.
        spec: The study it belongs to.
        study_dir: Folder of the study file; the user's own modules are looked for there.
    """

    def __init__(self, path: Path, spec: StudySpec, *, study_dir: str) -> None:
        self.path = path
        self.spec = spec
        self.study_dir = study_dir
        self.claims: Claims = SoleClaims()
        self.watch = Stopwatch()
        self._file = path / RECORDS
        self._locks: list[Lock] = []
        self._index = RecordIndex()
        self._is_sole_writer = False
        self._is_read = False

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(cls, path: Path) -> Store:
        """Opens an existing run directory for reading.

        Raises:
            RunDirectoryError: If it is not one, or was written by another schema.
        """
        return cls._open(path, None)

    @classmethod
    def _open(cls, path: Path, replacement: StudySpec | None) -> Store:
        file = path / STUDY
        if not file.is_file():
            if (path / RECORDS).is_file():
                raise RunDirectoryError(f"{file} must hold the study of this run but is missing; {_AGAIN}")
            raise RunDirectoryError(
                f"{path} must be a run directory (it holds a {STUDY}) but it is not; "
                "`autotune status` lists the runs of this folder"
            )
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["schema_version"] != SCHEMA_VERSION:
                raise RunDirectoryError(
                    f"{path} must be of schema {SCHEMA_VERSION} but is of {data['schema_version']}; "
                    "read it with the version of autotune that wrote it, or start a new run directory"
                )
            spec = replacement or StudySpec.model_validate(data["study"])
            return cls(path, spec, study_dir=data["study_dir"])
        except OSError as error:
            raise cannot_read(file, error) from error
        except (ValueError, KeyError, TypeError) as error:
            what = error if file.stat().st_size else "it is empty"
            raise RunDirectoryError(f"{file} must hold the study of this run but: {what}; {_AGAIN}") from error

    @classmethod
    def create_or_resume(
        cls,
        path: Path,
        spec: StudySpec,
        *,
        study_dir: Path,
        worker: str | None = None,
        watch: Stopwatch | None = None,
    ) -> Store:
        """Opens a run directory for writing, making it if needed, and locks it.

        Args:
            path: The run directory.
            spec: The study.
            study_dir: Folder of the study file.
            worker: Name of this worker if several share the study; None is a driver that is alone.
            watch: Shall count the study's time, that of earlier sessions included; default: one of its own.

        Raises:
            RunDirectoryError: If it belongs to another study, another driver holds it, or it cannot be written.
        """
        try:
            make_folder(path)
        except OSError as error:
            raise RunDirectoryError(
                f"the run directory must be writable but {path}: {error.strerror}; name another with --run-dir"
            ) from error
        refuse_links(path)
        lock = Lock(path, is_shared=worker is not None)
        try:
            store = cls._prepare(path, spec, study_dir)
            store._locks = [lock]
            store._is_sole_writer = worker is None
            store.watch = watch or store.watch
            store.watch.go_on_from(store._before_s())
            if worker is not None:
                store._join(worker)
        except BaseException:
            lock.close()
            raise
        return store

    @classmethod
    def _prepare(cls, path: Path, spec: StudySpec, study_dir: Path) -> Store:
        store = cls._known(path, spec) or cls._new(path, spec, study_dir)
        body = {
            "schema_version": SCHEMA_VERSION,
            "identity": spec.identity,
            "study_dir": store.study_dir,
            "study": spec.model_dump(mode="json"),
        }
        write_atomically(path / STUDY, json.dumps(body, indent=1) + "\n")
        for folder in FOLDERS:
            folder_within(path, folder)
        cut_torn_line(path / RECORDS)
        return store

    @classmethod
    def _known(cls, path: Path, spec: StudySpec) -> Store | None:
        """The run directory of a study that began before; None if this one is new, or its study.json is lost."""
        file = path / STUDY
        try:
            json.loads(file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise cannot_read(file, error) from error
        except ValueError:  # torn: all that it held is in the caller's hands
            return None
        old = cls.open(path)
        if old.spec.identity != spec.identity:
            fields = ", ".join(_differences(old.spec, spec)) or "its measuring"
            raise RunDirectoryError(
                f"{path} belongs to another study (different: {fields}); "
                "name another folder with --run-dir, or restore the study file"
            )
        return cls._open(path, spec)

    @classmethod
    def _new(cls, path: Path, spec: StudySpec, study_dir: Path) -> Store:
        """A new run directory, or one whose study.json is lost but whose records say that they are of this study."""
        store = cls(path, spec, study_dir=str(study_dir))
        if records := store.records():
            told = {r.identity for r in records if isinstance(r, SessionRecord)}
            if told != {spec.identity}:
                what = "are of another study" if told - {None} else "do not say of which study they are"
                raise RunDirectoryError(
                    f"{path / STUDY} must hold the study of this run but is lost, and its records {what}; restore "
                    "that file from a copy, or name another folder with --run-dir"
                )
            return store
        strangers = [p.name for p in path.iterdir() if not _is_own(p)]
        if strangers:
            raise RunDirectoryError(
                f"a new run directory must be empty but {path} holds {', '.join(sorted(strangers)[:3])}; "
                "name another folder with --run-dir"
            )
        return store

    def _before_s(self) -> float:
        """Seconds of earlier sessions; of one that was killed, up to the last thing it wrote."""
        before_s = max((r.at_s for r in self.records()), default=0.0)
        if any(w.state == "alive" for w in list_workers(self.path)):  # the study's time went on since then
            before_s += max(0.0, time.time() - max((f.stat().st_mtime for f in self._files()), default=time.time()))
        return before_s

    def _join(self, worker: str) -> None:
        """Takes a worker's own file of records, and its place among those that claim work.

        Raises:
            RunDirectoryError: If a living worker has that name.
        """
        refuse_path(worker)
        self._file = self.folder("records") / f"{worker}.jsonl"
        cut_torn_line(self._file)
        self.claims = SharedClaims(self.path, worker)

    def close(self) -> None:
        """Gives the lock and every claim back; reading goes on."""
        self.claims.close()
        for lock in self._locks:
            lock.close()
        self._locks = []
        self._is_sole_writer = False  # from here on another may write

    # ------------------------------------------------------------------ records

    def append(self, record: Stamped) -> None:
        """Appends one record, stamped with the study's time and the worker, and waits until it is on disk.

        Raises:
            RunDirectoryError: If the disk is full or gone; nothing already written is harmed.
        """
        stamped = record.model_copy(update={"at_s": round(self.watch.total_s, 3), "by": self.claims.worker})
        written = self._persist(stamped)
        if self._is_sole_writer:
            self._index.add(stamped, self._file, written)  # type: ignore[arg-type]

    def _persist(self, record: Stamped) -> int:
        """Writes one record; returns its bytes in the file."""
        if (directory := getattr(record, "directory", None)) is not None:
            sync_measurement(self.path, directory, PAIRS)  # a figure rests on its raw samples
        line = record.model_dump_json(exclude_none=True) + "\n"
        append_synced(self._file, line)
        return len(line.encode())

    def append_once(self, record: R, *, key: str) -> None:
        """Appends what any worker could: once, and not if the newest record of its kind says the same already.

        Raises:
            RunDirectoryError: If it cannot be written.
        """
        bare = {"at_s": 0.0, "by": None, **{k: None for k in ("ended", "provenance") if hasattr(record, k)}}
        alike = [r.model_copy(update=bare) for r in self.of(type(record))]
        if isinstance(record, ConclusionRecord):
            alike = alike[-1:]
        if record.model_copy(update=bare) not in alike and self.claims.take(key) is not None:
            self.append(record)

    def records(self) -> list[AnyRecord]:
        """All records so far, of several workers in order of time; a torn last line is ignored.

        Raises:
            RunDirectoryError: If a whole line is not a record (the file was edited or is damaged).
        """
        self._refresh()
        return self._index.all()

    def _refresh(self) -> None:
        """Reads what others have appended; a sole writer has it all in its index from the start."""
        if not (self._is_sole_writer and self._is_read):
            self._index.refresh(self._files())
            self._is_read = True

    def _files(self) -> list[Path]:
        """Every file of records, that of a sole driver first."""
        return [f for f in (self.path / RECORDS, *sorted((self.path / "records").glob("*.jsonl"))) if f.exists()]

    def of(self, kind: type[R]) -> list[R]:
        """All records of one type, in order."""
        self._refresh()
        return self._index.of(kind)

    def last(self, kind: type[R]) -> R | None:
        """The newest record of one type, or None."""
        found = self.of(kind)
        return found[-1] if found else None

    # ------------------------------------------------------------------ folders of one measurement

    def folder(self, *parts: str) -> Path:
        """A folder inside the run directory, made if needed.

        Raises:
            RunDirectoryError: If a part is not a plain name, or the folder cannot be made.
        """
        return folder_within(self.path, *parts)

    def relative(self, path: Path) -> str:
        """A path as it is kept in records: relative to the run directory, so that runs can be moved."""
        return path.relative_to(self.path).as_posix()

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """What keeps each raw pair of a measurement, in place of what a killed session left of it."""
        file = folder / PAIRS
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(file, error) from error
        return lambda pair: append_synced(file, pair.model_dump_json(exclude_none=True) + "\n", sync=False)

    def write_beside(self, folder: Path, name: str, make_text: Callable[[], str]) -> None:
        """Writes what belongs to one measurement, for people to read."""
        write_atomically(folder / name, make_text())

    def pairs(self, directory: str) -> Iterator[Pair]:
        """Raw pairs of blocks of one measurement, in order; a torn last line is ignored."""
        file = self.path / directory / PAIRS
        try:
            lines = file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise cannot_read(file, error) from error
        for number, line in enumerate(lines, 1):
            try:
                yield Pair.model_validate_json(line)
            except ValidationError as error:
                raise RunDirectoryError(
                    f"{file} line {number} must be a pair of blocks but: {error.errors()[0]['msg']}; "
                    f"`autotune fsck {self.path}` says what can be mended"
                ) from error


# ---------------------------------------------------------------------- writing that survives


def _differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Names of the sections in which two studies differ for good."""
    a, b = old.lasting(), new.lasting()
    return [k for k in {**a, **b} if a.get(k) != b.get(k)]


def _is_own(path: Path) -> bool:
    """Whether something in a folder without a study is left of a start that was cut short, and holds nothing."""
    if path.name in FOLDERS:
        return path.is_dir() and not any(path.iterdir())
    return path.name in (LOCK, LOST, STUDY) or path.name.startswith(".study") or _is_empty_file(path)


def _is_empty_file(path: Path) -> bool:
    return path.name == RECORDS and not path.read_bytes().strip(b"\0")
