"""Optuna study in the run directory, for `optuna-dashboard` and for sets that somebody enqueues.

A trial is added when it begins and finished when it is recorded, so that a dashboard shows a running study. The records
are the truth: missing trials are written from them. A journal that cannot be written costs the study nothing but a
note; the next session writes what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from autotune.model.redaction import redact_text
from autotune.rundir.files import append_synced

NUMBER_KEY = "autotune:number"
"""User attribute of a trial that holds its number in the run directory."""

ENQUEUED_KEY = "fixed_params"
"""System attribute in which Optuna keeps the values of an enqueued trial."""

JOURNAL = "optuna.log"


class OptunaStudy:
    """A study in a journal of Optuna, written by one driver. No method raises; what goes wrong is a note, once."""

    def __init__(self, journal: Path, name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # samplers warn at each value that they draw alone
        self._news: list[str] = []
        self._finished: set[Any] = set()
        self._opened: tuple[BaseStorage, optuna.Study] | None = None
        try:
            storage = _open_journal(journal)
            study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
            finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            self._finished = {t.user_attrs.get(NUMBER_KEY) for t in finished}
            self._opened = storage, study
        except Exception as error:  # whatever Optuna or the file system says
            self._lose(error)

    def put(self, trial: FrozenTrial) -> None:
        """Adds a running trial, or finishes one; its number is in `NUMBER_KEY`."""
        if trial.user_attrs[NUMBER_KEY] not in self._finished:
            self._try(lambda storage, study: self._write(storage, study, trial))

    def enqueued(self) -> list[FrozenTrial]:
        """Returns trials that somebody enqueued and that have no result, begun ones included."""
        enqueued: list[FrozenTrial] = []

        def read(_: BaseStorage, study: optuna.Study) -> None:
            unfinished = study.get_trials(states=(TrialState.WAITING, TrialState.RUNNING))
            enqueued[:] = [t for t in unfinished if ENQUEUED_KEY in t.system_attrs]

        self._try(read)
        return enqueued

    def refuse(self, trial: FrozenTrial) -> None:
        """Ends an enqueued trial as failed."""
        self._try(lambda storage, _: storage.set_trial_state_values(trial._trial_id, TrialState.FAIL))

    def finish(self) -> None:
        """Ends open trials as failed."""

        def fail_open_trials(_: BaseStorage, study: optuna.Study) -> None:
            for left in _open_trials(study):
                study.tell(left.number, state=TrialState.FAIL)

        self._try(fail_open_trials)

    def news(self) -> list[str]:
        """Returns the notes for the user since the last call."""
        news = self._news
        self._news = []
        return news

    def _try(self, work: Callable[[BaseStorage, optuna.Study], object]) -> None:
        """Does something with the study, unless it is lost."""
        if self._opened is None:
            return
        try:
            work(*self._opened)
        except Exception as error:  # as above
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self._opened = None
        self._news.append(
            f"the Optuna study cannot be written ({redact_text(str(error))}); the study continues, for the records "
            "hold everything; the next session writes what it lacks"
        )

    def _write(self, storage: BaseStorage, study: optuna.Study, trial: FrozenTrial) -> None:
        number = trial.user_attrs[NUMBER_KEY]
        is_result = trial.state.is_finished()
        begun = next((t for t in _open_trials(study) if t.user_attrs.get(NUMBER_KEY) == number), None)
        if begun is not None and not is_result:  # its driver died before the trial was recorded
            study.tell(begun.number, state=TrialState.FAIL)
            begun = None
        if begun is None and ENQUEUED_KEY in trial.system_attrs:
            begun = _take_waiting(storage, study, trial.system_attrs[ENQUEUED_KEY])
        if begun is None:
            study.add_trial(trial)
        else:
            fill_trial(storage, begun, trial)
            if is_result:
                study.tell(begun.number, trial.value)
        if is_result:
            self._finished.add(number)


def fill_trial(storage: BaseStorage, begun: FrozenTrial, trial: FrozenTrial) -> None:
    """Gives a begun trial what it lacks of another one."""
    for name, distribution in trial.distributions.items():
        if name not in begun.distributions:
            internal = distribution.to_internal_repr(trial.params[name])
            storage.set_trial_param(begun._trial_id, name, internal, distribution)
    for key, value in trial.user_attrs.items():
        if key not in begun.user_attrs:
            storage.set_trial_user_attr(begun._trial_id, key, value)
    for key, value in trial.system_attrs.items():
        if key not in begun.system_attrs:
            storage.set_trial_system_attr(begun._trial_id, key, value)


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


def _open_journal(path: Path) -> BaseStorage:
    try:
        return JournalStorage(RunJournal(path))
    except (ValueError, KeyError, TypeError):  # damaged; the records hold its content
        path.unlink()
        return JournalStorage(RunJournal(path))


def _take_waiting(storage: BaseStorage, study: optuna.Study, values: dict[str, Any]) -> FrozenTrial | None:
    """Begins the trial that was enqueued with these values; None if none is waiting."""
    waiting = study.get_trials(states=(TrialState.WAITING,))
    taken = next((t for t in waiting if t.system_attrs.get(ENQUEUED_KEY) == values), None)
    if taken is not None:
        storage.set_trial_state_values(taken._trial_id, TrialState.RUNNING)
    return taken


def _open_trials(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
