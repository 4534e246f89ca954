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

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from autotune.machine import like_folder, private_folder
from autotune.model import (
    SCHEMA_VERSION,
    AnyRecord,
    ConclusionRecord,
    Pair,
    RunDirectoryError,
    Stamped,
    Stopwatch,
    StudySpec,
)
from autotune.rundir.claims import CLAIMS, WORKERS, Claims, SharedClaims, SoleClaims, list_workers
from autotune.rundir.files import append_synced, cut_torn_line, refuse_path, write_atomically
from autotune.rundir.record_index import RecordIndex

R = TypeVar("R", bound=Stamped)

STUDY = "study.json"
RECORDS = "records.jsonl"
LOCK = "lock"
PAIRS = "pairs.jsonl"
FOLDERS = ("trials", "confirm", "minimise", "floor", "soak", "blame")


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
        self._locks: list[int] = []
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
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{file} must hold the study of this run but: {error}") from error

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
            private_folder(path)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, like_folder(path))
        except OSError as error:
            raise RunDirectoryError(
                f"the run directory must be writable but {path}: {error.strerror}; name another with --run-dir"
            ) from error
        elsewhere = [] if worker else [w for w in list_workers(path) if w.state == "alive"]
        if elsewhere or not _lock(lock, fcntl.LOCK_SH if worker else fcntl.LOCK_EX):
            holder = os.pread(lock, 100, 0).decode(errors="replace").strip()
            whose = f"process {holder}" if holder else ", ".join(f"worker {w.worker}" for w in list_workers(path))
            os.close(lock)
            raise RunDirectoryError(
                f"only one driver may write {path} but another does ({whose or 'unknown'}); wait for it, stop it, "
                "or name another folder with --run-dir; to share a study, start every driver as `autotune worker`"
            )
        os.ftruncate(lock, 0)
        if worker is None:
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        try:
            store = cls._prepare(path, spec, study_dir, is_shared=worker is not None)
            store._locks = [lock]
            store._is_sole_writer = worker is None
            store.watch = watch or store.watch
            store.watch.go_on_from(store._before_s())
            if worker is not None:
                store._join(worker)
        except BaseException:
            os.close(lock)
            raise
        return store

    @classmethod
    def _prepare(cls, path: Path, spec: StudySpec, study_dir: Path, *, is_shared: bool) -> Store:
        if (path / STUDY).exists():
            old = cls.open(path)
            if old.spec.identity != spec.identity:
                fields = ", ".join(_differences(old.spec, spec)) or "its measuring"
                raise RunDirectoryError(
                    f"{path} belongs to another study (different: {fields}); "
                    "name another folder with --run-dir, or restore the study file"
                )
            store = cls._open(path, spec)
        else:
            # Another worker may be making the same folder right now.
            expected = {LOCK, *((*FOLDERS, "records", WORKERS, CLAIMS, STUDY) if is_shared else ())}
            strangers = [p.name for p in path.iterdir() if p.name not in expected and not p.name.startswith(".study")]
            if strangers:
                raise RunDirectoryError(
                    f"a new run directory must be empty but {path} holds {', '.join(sorted(strangers)[:3])}; "
                    "name another folder with --run-dir"
                )
            store = cls(path, spec, study_dir=str(study_dir))
        for folder in FOLDERS:
            store.folder(folder)
        body = {
            "schema_version": SCHEMA_VERSION,
            "identity": spec.identity,
            "study_dir": store.study_dir,
            "study": spec.model_dump(mode="json"),
        }
        write_atomically(path / STUDY, json.dumps(body, indent=1) + "\n")
        if not is_shared:
            cut_torn_line(path / RECORDS)
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
        self._locks.append(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, like_folder(self._file.parent)))
        same = [w for w in list_workers(self.path) if w.worker == worker and w.state == "alive"]
        if same or not _lock(self._locks[-1], fcntl.LOCK_EX):
            os.close(self._locks.pop())
            where = f" on {same[0].host}" if same else ""
            raise RunDirectoryError(
                f"workers of one study must have names of their own but a living one is called {worker!r}{where}; "
                "wait until it ended, or give this one other devices (--devices) or another name (--name)"
            )
        cut_torn_line(self._file)
        self.claims = SharedClaims(self.path, worker)

    def close(self) -> None:
        """Gives the lock and every claim back; reading goes on."""
        self.claims.close()
        for lock in self._locks:
            os.close(lock)
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
        for part in parts:
            refuse_path(part)
        path = self.path.joinpath(*parts)
        try:
            for folder in reversed((path, *path.parents[: len(parts) - 1])):
                folder.mkdir(mode=folder.parent.stat().st_mode & 0o777, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"{path} must be writable but: {error.strerror}") from error
        return path

    def relative(self, path: Path) -> str:
        """A path as it is kept in records: relative to the run directory, so that runs can be moved."""
        return path.relative_to(self.path).as_posix()

    def pair_writer(self, folder: Path) -> Callable[[Pair], None]:
        """What keeps each raw pair of a measurement, in place of what a killed session left of it."""
        file = folder / PAIRS
        file.unlink(missing_ok=True)
        return lambda pair: append_synced(file, pair.model_dump_json(exclude_none=True) + "\n", sync=False)

    def write_beside(self, folder: Path, name: str, make_text: Callable[[], str]) -> None:
        """Writes what belongs to one measurement, for people to read."""
        write_atomically(folder / name, make_text())

    def pairs(self, directory: str) -> Iterator[Pair]:
        """Raw pairs of blocks of one measurement, in order; a torn last line is ignored."""
        file = self.path / directory / PAIRS
        if not file.exists():
            return
        for line in file.read_bytes().split(b"\n")[:-1]:
            yield Pair.model_validate_json(line)


# ---------------------------------------------------------------------- writing that survives


def _differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Names of the sections in which two studies differ for good."""
    a, b = old.lasting(), new.lasting()
    return [k for k in {**a, **b} if a.get(k) != b.get(k)]


def _lock(descriptor: int, how: int) -> bool:
    """Takes a lock; tries a little longer than `is_held` may hold it by asking."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.05)
    return False


def is_held(path: Path) -> bool:
    """Whether a driver, or a worker anywhere, is writing a run directory now."""
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return any(w.state == "alive" for w in list_workers(path))
