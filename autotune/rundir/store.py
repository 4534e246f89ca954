"""The run directory: the truth of a study. Append-only records, raw samples and logs; nothing is ever rewritten.

Layout::

    study.json          the checked study, its identity, the schema version
    records.jsonl       one record a line (see `autotune.model.records`), in the order in which things happened
    optuna.log          the trials as an Optuna study, for others to look at
    lock                held by the one driver that writes
    trials/0007/        pairs.jsonl (every step's seconds), worker.log
    confirm/..., minimise/, soak/, blame/, floor/ likewise
    lanes/NAME.log      what each of several lanes had to say
    records/NAME.jsonl  of runs made before 2026-11-22, which several workers recorded: read, never written

A record is appended with one write and synced before anything depends on it. A torn last line (power cut, full disk)
is ignored by readers and cut off by the next writer; `autotune fsck` (see `autotune.rundir.fsck`) mends what else a
failed disk may leave, and moves what it drops into lost+found/.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from autotune.machine import make_folder
from autotune.model import (
    SCHEMA_VERSION,
    AnyRecord,
    ConclusionRecord,
    RunDirectoryError,
    SessionRecord,
    Stamped,
    Stopwatch,
    StudySpec,
)
from autotune.rundir.files import (
    append_synced,
    cannot_read,
    cut_torn_line,
    folder_within,
    refuse_links,
    sync_measurement,
    write_atomically,
)
from autotune.rundir.folders import PAIRS, Folders
from autotune.rundir.lock import LOCK, Lock
from autotune.rundir.record_index import RecordIndex

R = TypeVar("R", bound=Stamped)

STUDY = "study.json"
RECORDS = "records.jsonl"
FOLDERS = ("trials", "confirm", "minimise", "pgle", "floor", "soak", "blame")
LOST = "lost+found"
_AGAIN = "the command that began the study writes it anew, and `autotune fsck` looks for more"


class Store(Folders):
    """One run directory, open for reading, or for writing by exactly one driver.

    Args:
        path: The run directory.
        spec: The study it belongs to.
        study_dir: Folder of the study file; the user's own modules are looked for there.
    """

    def __init__(self, path: Path, spec: StudySpec, *, study_dir: str) -> None:
        super().__init__(path)
        self.spec = spec
        self.study_dir = study_dir
        self.watch = Stopwatch()
        self._file = path / RECORDS
        self._lock: Lock | None = None
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
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"{error!s:.1000}" if file.stat().st_size else "it is empty"
            raise RunDirectoryError(f"{file} must hold the study of this run but: {what}; {_AGAIN}") from error

    @classmethod
    def create_or_resume(
        cls,
        path: Path,
        spec: StudySpec,
        *,
        study_dir: Path,
        watch: Stopwatch | None = None,
    ) -> Store:
        """Opens a run directory for writing, making it if needed, and locks it.

        Args:
            path: The run directory.
            spec: The study.
            study_dir: Folder of the study file.
            watch: Shall count the study's time, that of earlier sessions included; default: one of its own.

        Raises:
            RunDirectoryError: If it belongs to another study, another driver holds it, or it cannot be written.
        """
        try:
            make_folder(path, mode=0o700)
        except OSError as error:
            raise RunDirectoryError(
                f"the run directory must be writable but {path}: {error.strerror}; name another with --run-dir"
            ) from error
        for folder in (path, *(p for p in path.iterdir() if p.is_dir() and p.name != LOST and not p.is_symlink())):
            refuse_links(folder)
        lock = Lock(path)
        try:
            store = cls._prepare(path, spec, study_dir)
            store._lock = lock
            store._is_sole_writer = True
            store.watch = watch or store.watch
            # Of a session that was killed, up to the last thing it wrote.
            store.watch.go_on_from(max((r.at_s for r in store.records()), default=0.0))
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
        except (ValueError, RecursionError):  # torn: all that it held is in the caller's hands
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

    def close(self) -> None:
        """Gives the lock back; reading goes on."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._is_sole_writer = False  # from here on another may write

    def tell_stage(self, name: str) -> None:
        """Leaves word which stage this driver is in, for `autotune status`, until it gives the lock back."""
        if self._lock is not None:
            self._lock.tell_stage(name)

    # ------------------------------------------------------------------ records

    def append(self, record: Stamped) -> None:
        """Appends one record, stamped with the study's time, and waits until it is on disk.

        Raises:
            RunDirectoryError: If the disk is full or gone; nothing already written is harmed.
        """
        stamped = record.model_copy(update={"at_s": round(self.watch.total_s, 3)})
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

    def append_news(self, record: R) -> None:
        """Appends a record unless a session before said the same: any earlier one, of a conclusion the newest.

        Raises:
            RunDirectoryError: If it cannot be written.
        """
        bare = {"at_s": 0.0, "by": None, **{k: None for k in ("ended", "provenance", "digest") if hasattr(record, k)}}
        alike = [r.model_copy(update=bare) for r in self.of(type(record))]
        if isinstance(record, ConclusionRecord):
            alike = alike[-1:]
        if record.model_copy(update=bare) not in alike:
            self.append(record)

    def records(self) -> list[AnyRecord]:
        """All records so far, in order of time; a torn last line is ignored.

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
        """Every file of records; more than one only in a run that several workers recorded, as old ones may be."""
        return [f for f in (self.path / RECORDS, *sorted((self.path / "records").glob("*.jsonl"))) if f.exists()]

    def of(self, kind: type[R]) -> list[R]:
        """All records of one type, in order."""
        self._refresh()
        return self._index.of(kind)

    def since(self, kind: type[R], count: int) -> list[R]:
        """All records of one type but for the first so many: what a driver has not seen yet."""
        self._refresh()
        return self._index.since(kind, count)

    def last(self, kind: type[R]) -> R | None:
        """The newest record of one type, or None."""
        found = self.of(kind)
        return found[-1] if found else None


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
