"""Optuna storage of a study: a journal in the run directory, or a storage that the user names.

A trial is added when it begins and told when it is recorded, so `optuna-dashboard` shows a running study. The records
are the truth: missing trials are written from them. A storage that does not answer at the start is refused; one that
fails later gives a note, and trials wait until it is back, or for the next session.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from autotune.model.errors import StudyFileError
from autotune.model.redaction import redact_text
from autotune.rundir.files import append_synced

T = TypeVar("T")

NUMBER_KEY = "autotune:number"
"""User attribute of a trial that holds its number in the run directory."""

JOURNAL = "optuna.log"
"""File name of the journal in the run directory."""

ATTEMPTS = 3
PAUSE_S = 0.3
"""Pause between two attempts, seconds: a storage may restart or be locked for a moment."""

LIMIT_S = 15.0
"""Longest wait for the storage, seconds; a database may hang instead of failing."""

RETRY_S = 30.0
"""Pause between two attempts to reach a lost storage, seconds."""


class OptunaStudy:
    """A study in an Optuna storage, written by one driver.

    Args:
        storage: A journal's path, or a URL: ``sqlite:///...``, ``postgresql://...`` or ``journal:PATH``.

    Raises:
        StudyFileError: If a storage that the user names cannot be opened.
    """

    def __init__(self, storage: Path | str, name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._where, self._name = storage, name
        self._opened: tuple[BaseStorage, optuna.Study] | None = None
        self._told: set[Any] = set()
        self._waiting: dict[int, FrozenTrial] = {}
        self._is_lost = False
        self._next_s = 0.0
        self._call: threading.Thread | None = None
        self._news: list[str] = []
        try:
            self._within_limit(self._write)  # only opens it: nothing waits yet
        except Exception as error:  # whatever SQLAlchemy, a database driver or the file system says
            if isinstance(storage, str):
                raise StudyFileError(
                    "the Optuna storage must be reachable, like sqlite:///FILE, postgresql://... or journal:FILE, "
                    f"but {redact_text(f'{storage}: {error} ({_root(error)})')}"
                ) from error
            self._lose(error)

    def put(self, trial: FrozenTrial) -> None:
        """Adds a running trial or tells a finished one, which has `NUMBER_KEY`; never raises, retries later."""
        number = trial.user_attrs[NUMBER_KEY]
        if number not in self._told:
            self._waiting[number] = trial
        if not self._is_lost or time.monotonic() >= self._next_s:
            self._flush()

    def finish(self) -> None:
        """Tries a last time to write waiting trials; tells open ones as failed."""
        self._waiting = {n: t for n, t in self._waiting.items() if t.state.is_finished()}
        self._flush(is_last=True)
        if self._is_lost and (count := len(self._waiting)):
            self._news.append(
                f"the Optuna storage lacks {count} trial{'s' if count > 1 else ''}; "
                "once it answers, the same command writes them"
            )

    def news(self) -> list[str]:
        """Returns the notes for the user since the last call."""
        news, self._news = self._news, []
        return news

    def _flush(self, *, is_last: bool = False) -> None:
        if not (self._waiting or (is_last and not self._is_lost)):
            return
        if self._call is not None and self._call.is_alive():
            return  # the last try hangs still: two at once would write a trial twice
        count = len(self._waiting)
        try:
            self._within_limit(lambda: self._write(is_last=is_last))
        except Exception as error:
            self._lose(error)
        else:
            if self._is_lost:
                self._news.append(f"the Optuna storage is back; {count} trial{'s' if count > 1 else ''} written")
            self._is_lost = False

    def _lose(self, error: Exception) -> None:
        """Notes once that the storage does not answer."""
        self._opened = None
        self._next_s = time.monotonic() + RETRY_S
        if not self._is_lost:
            self._news.append(
                f"the Optuna storage does not answer ({_root(error)}); the study continues, for the run directory "
                "holds everything; what the storage lacks is written when it is back"
            )
        self._is_lost = True

    def _write(self, *, is_last: bool = False) -> None:
        """Writes waiting trials in a few attempts; `is_last` tells open ones as failed."""
        for attempt in range(ATTEMPTS):
            try:
                storage, study = self._opened or self._open()
                for number, trial in sorted(self._waiting.items()):
                    if number not in self._told:
                        self._write_one(storage, study, trial)
                    if self._waiting.get(number) is trial:
                        del self._waiting[number]
                if is_last:
                    for left in _open_trials(study):
                        study.tell(left.number, state=TrialState.FAIL)
                return
            except Exception:  # as above
                self._opened = None
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE_S)

    def _open(self) -> tuple[BaseStorage, optuna.Study]:
        """Opens the storage and reads which results it holds, since a failed attempt may have been written."""
        storage = _storage_of(self._where)
        study = optuna.create_study(storage=storage, study_name=self._name, load_if_exists=True)
        found = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        self._told = {t.user_attrs.get(NUMBER_KEY) for t in found}
        self._opened = storage, study
        return self._opened

    def _write_one(self, storage: BaseStorage, study: optuna.Study, trial: FrozenTrial) -> None:
        number = trial.user_attrs[NUMBER_KEY]
        begun = next((t for t in _open_trials(study) if t.user_attrs.get(NUMBER_KEY) == number), None)
        is_result = trial.state.is_finished()
        if begun is not None and is_result:
            for key, value in trial.user_attrs.items():
                if key not in begun.user_attrs:
                    storage.set_trial_user_attr(begun._trial_id, key, value)
            for key, value in trial.system_attrs.items():
                storage.set_trial_system_attr(begun._trial_id, key, value)
            study.tell(begun.number, trial.value)
        else:
            if begun is not None:  # its driver died before the trial was recorded
                study.tell(begun.number, state=TrialState.FAIL)
            study.add_trial(trial)
        if is_result:
            self._told.add(number)

    def _within_limit(self, work: Callable[[], T]) -> T:
        """Runs a function in a thread, which is left behind after `LIMIT_S` (TimeoutError)."""
        done: list[T] = []
        failed: list[Exception] = []

        def call() -> None:
            try:
                done.append(work())
            except Exception as error:  # raised again below
                failed.append(error)

        self._call = threading.Thread(target=call, daemon=True, name="optuna storage")
        self._call.start()
        self._call.join(LIMIT_S)
        if failed:
            raise failed[0]
        if not done:
            raise TimeoutError(f"no answer within {LIMIT_S:.0f} s")
        return done[0]


class RunJournal(JournalFileBackend):
    """Journal in the run directory; a view of the records, so it needs neither syncing nor a lock of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        append_synced(path, "", sync=False)
        super().__init__(str(path))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """See `optuna.storages.journal.BaseJournalBackend`."""
        lines = [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        append_synced(self._path, "".join(lines), sync=False)


def _storage_of(where: Path | str) -> BaseStorage:
    """Opens a storage by its journal's path or its URL."""
    if isinstance(where, Path):
        try:
            return JournalStorage(RunJournal(where))
        except (ValueError, KeyError, TypeError):  # damaged; the records hold its content
            where.unlink()
            return JournalStorage(RunJournal(where))
    if where.startswith("journal:"):
        # Absolute, because a stale lock under a relative path is never released (seen on Optuna 5.0).
        path = str(Path(where.removeprefix("journal:")).absolute())
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    return optuna.storages.get_storage(where)


def _open_trials(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _root(error: BaseException) -> str:
    """Returns the first line of the root cause of an error, which Optuna's own text hides."""
    while error.__cause__ is not None:
        error = error.__cause__
    return redact_text((str(error).strip() or type(error).__name__).splitlines()[0])
