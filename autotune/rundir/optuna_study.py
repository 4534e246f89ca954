"""Optuna storage of a study: a journal in the run directory, or a storage that the user names.

A trial is added when it begins and told when it is recorded, so `optuna-dashboard` shows a running
study. The records are the truth: missing trials are written from them. A storage that fails at the
start is refused; one that fails later gives a note, and the next session writes what it lacks.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
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

NUMBER_KEY = "autotune:number"  # user attribute: a trial's number in the run
ENQUEUED_KEY = "fixed_params"  # Optuna's system attribute: values of an enqueued trial
JOURNAL = "optuna.log"

ATTEMPTS = 3
PAUSE_S = 0.3  # between two attempts: a storage may restart or be locked for a moment
LIMIT_S = 15.0  # longest wait for the storage; a database may hang instead of failing


class OptunaStudy:
    """A study in an Optuna storage, written by one driver.

    The storage is a journal's path, or a URL of the user: ``sqlite:///...``, ``postgresql://...``
    or ``journal:PATH``; StudyFileError if that cannot be opened.
    """

    def __init__(self, storage: Path | str, name: str) -> None:
        # Samplers warn at each value that they draw alone.
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._where = storage
        self._name = name
        self._opened: optuna.Study | None = None
        self._recorded: set[Any] = set()
        self._is_lost = False
        self._news: list[str] = []
        try:
            _within_limit(self._open)
        except Exception as error:  # of SQLAlchemy, a driver, a disk
            if isinstance(storage, str):
                raise StudyFileError(
                    "the Optuna storage must be reachable, like sqlite:///FILE, postgresql://... "
                    f"or journal:FILE, but {redact_text(f'{storage}: {error} ({_root(error)})')}"
                ) from error
            self._lose(error)

    def put(self, trial: FrozenTrial) -> None:
        """Adds a running trial or tells a finished one, which has `NUMBER_KEY`; never raises."""
        self._try(lambda study: self._write(study, trial))

    def enqueued(self) -> list[FrozenTrial]:
        """Returns enqueued trials without a result, begun ones included; never raises."""
        unfinished = self._try(
            lambda study: study.get_trials(states=(TrialState.WAITING, TrialState.RUNNING))
        )
        return [t for t in unfinished or () if ENQUEUED_KEY in t.system_attrs]

    def refuse(self, trial: FrozenTrial) -> None:
        """Ends an enqueued trial as failed; never raises."""
        self._try(
            lambda study: study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        )

    def finish(self) -> None:
        """Tells open trials as failed; never raises."""
        self._try(
            lambda study: [study.tell(t.number, state=TrialState.FAIL) for t in _open_trials(study)]
        )

    def news(self) -> list[str]:
        """Returns the notes for the user since the last call."""
        news = self._news
        self._news = []
        return news

    def _try(self, work: Callable[[optuna.Study], T]) -> T | None:
        """Does something with the study in a few attempts; None if the storage is lost."""
        if not self._is_lost:
            try:
                return _within_limit(lambda: self._attempt(work))
            except Exception as error:  # as above
                self._lose(error)
        return None

    def _attempt(self, work: Callable[[optuna.Study], T]) -> T:
        for _ in range(ATTEMPTS - 1):
            try:
                return work(self._opened or self._open())
            except Exception:  # as above
                self._opened = None
                time.sleep(PAUSE_S)
        return work(self._open())

    def _lose(self, error: Exception) -> None:
        self._is_lost = True
        self._news.append(
            f"the Optuna storage does not answer ({_root(error)}); the study continues, for the "
            "run directory holds everything; once the storage answers, the same command writes "
            "what it lacks"
        )

    def _open(self) -> optuna.Study:
        """Opens the storage and reads its results, for a failed attempt may have been written."""
        study = optuna.create_study(
            storage=_storage_of(self._where), study_name=self._name, load_if_exists=True
        )
        results = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        self._recorded = {t.user_attrs.get(NUMBER_KEY) for t in results}
        self._opened = study
        return study

    def _write(self, study: optuna.Study, trial: FrozenTrial) -> None:
        number = trial.user_attrs[NUMBER_KEY]
        if number in self._recorded:  # maybe by an attempt that failed only after it
            return
        is_result = trial.state.is_finished()
        entry = next(
            (t for t in _open_trials(study) if t.user_attrs.get(NUMBER_KEY) == number), None
        )
        if entry is not None and not is_result:  # its driver died
            study.tell(entry.number, state=TrialState.FAIL)
            entry = None
        if entry is None and ENQUEUED_KEY in trial.system_attrs:
            entry = _take_waiting(study, trial.system_attrs[ENQUEUED_KEY])
        if entry is None:
            study.add_trial(trial)
        else:
            fill_trial(study._storage, entry, trial)
            if is_result:
                study.tell(entry.number, trial.value)
        if is_result:
            self._recorded.add(number)


def fill_trial(storage: BaseStorage, running: FrozenTrial, trial: FrozenTrial) -> None:
    """Gives a running trial what it lacks of another one."""
    number = running._trial_id
    for name, distribution in trial.distributions.items():
        if name not in running.distributions:
            internal = distribution.to_internal_repr(trial.params[name])
            storage.set_trial_param(number, name, internal, distribution)
    for key, value in trial.user_attrs.items():
        if key not in running.user_attrs:
            storage.set_trial_user_attr(number, key, value)
    for key, value in trial.system_attrs.items():
        if key not in running.system_attrs:
            storage.set_trial_system_attr(number, key, value)


def _within_limit(work: Callable[[], T]) -> T:
    """Returns the result of a function; after `LIMIT_S` its thread is left (TimeoutError)."""
    future = Future[T]()

    def call() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True, name="optuna storage").start()
    wait([future], LIMIT_S)
    if not future.done():
        raise TimeoutError(f"no answer within {LIMIT_S:.0f} s")
    return future.result()


class RunJournal(JournalFileBackend):
    """Journal in the run directory, a view of the records: it needs neither syncing nor a lock."""

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
        except (ValueError, KeyError, TypeError):  # damaged
            where.unlink()
            return JournalStorage(RunJournal(where))
    if where.startswith("journal:"):
        # A stale lock under a relative path is never released (seen on Optuna 5.0).
        path = str(Path(where.removeprefix("journal:")).absolute())
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    return optuna.storages.get_storage(where)


def _take_waiting(study: optuna.Study, values: dict[str, Any]) -> FrozenTrial | None:
    """Begins the trial that was enqueued with these values; None if none is waiting."""
    for trial in study.get_trials(states=(TrialState.WAITING,)):
        if trial.system_attrs.get(ENQUEUED_KEY) == values:
            study._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            return trial
    return None


def _open_trials(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def _root(error: BaseException) -> str:
    """Returns the first line of the root cause of an error, which Optuna's own text hides."""
    while error.__cause__ is not None:
        error = error.__cause__
    return redact_text((str(error).strip() or type(error).__name__).splitlines()[0])
