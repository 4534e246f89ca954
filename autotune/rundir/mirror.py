"""The Optuna study in a storage that others look at; a copy of the run directory, so nothing waits for it for long.

A storage that dies in mid-study, or does not answer at its start, costs a note, not the study: its trials wait here and
are copied when it is back, or by the next session. One that will never answer (a mistyped URL) is refused at once.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

from autotune.model import StudyFileError, strike_text

T = TypeVar("T")

NUMBER_KEY = "autotune:number"
"""User attribute of a copied trial that holds its number in the run directory."""

ATTEMPTS = 3
PAUSE_S = 0.3
"""Between two attempts: a storage that restarts or is locked for a moment is no news."""

LIMIT_S = 15.0
"""Longest time that the study waits for the storage at once; a database may hang instead of failing."""

RETRY_S = 30.0
"""Time between two tries of a storage that was lost."""


class Mirror:
    """Copies finished trials into an Optuna storage, each once.

    Args:
        url: ``sqlite:///...``, ``postgresql://...`` or ``journal:PATH``.
        name: Of the study in the storage.

    Raises:
        StudyFileError: If the storage can never be opened: a mistyped URL must not show after hours.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._study: optuna.Study | None = None
        self._copied: set[Any] = set()
        self._waiting: dict[int, FrozenTrial] = {}
        self._is_lost = False
        self._next_s = 0.0
        self._call: threading.Thread | None = None
        self._news: list[str] = []
        try:
            self._within_limit(self._copy)  # nothing yet, but a few attempts to open it
        except Exception as error:  # whatever SQLAlchemy, a database driver or the file system says
            if not may_pass(error):
                raise StudyFileError(
                    "the Optuna storage must be reachable, like sqlite:///FILE, postgresql://... or journal:FILE, "
                    f"but {strike_text(f'{url}: {error}')}"
                ) from error
            self._lose(error)

    def add(self, number: int, trial: FrozenTrial) -> None:
        """Copies a trial unless the storage has it; one that cannot be copied now waits. Never raises."""
        if number not in self._copied:
            self._waiting[number] = trial
        if not self._is_lost or time.monotonic() >= self._next_s:
            self._flush()

    def finish(self) -> None:
        """Tries a last time to copy what waits."""
        self._flush()
        if self._is_lost and (count := len(self._waiting)):
            self._news.append(
                f"the Optuna storage lacks {count} trial{'s' if count > 1 else ''}; "
                "once it answers, the same command copies them"
            )

    def news(self) -> list[str]:
        """What the user should know since the last call."""
        news, self._news = self._news, []
        return news

    def _flush(self) -> None:
        if not self._waiting or (self._call is not None and self._call.is_alive()):
            return  # nothing to do, or the last try hangs still: two at once would copy a trial twice
        count = len(self._waiting)
        try:
            self._within_limit(self._copy)
        except Exception as error:
            self._lose(error)
        else:
            if self._is_lost:
                self._news.append(f"the Optuna storage is back; {count} trial{'s' if count > 1 else ''} copied")
            self._is_lost = False

    def _lose(self, error: Exception) -> None:
        """Notes, once, that the storage does not answer."""
        self._study = None  # its connections are worth nothing now
        self._next_s = time.monotonic() + RETRY_S
        if not self._is_lost:
            self._news.append(
                f"the Optuna storage does not answer ({_root(error)}); the study goes on, for the run directory "
                "holds everything; what the storage lacks is copied when it is back"
            )
        self._is_lost = True

    def _copy(self) -> None:
        """Copies all that waits; a few attempts."""
        for attempt in range(ATTEMPTS):
            try:
                study = self._study or self._open()
                for number, trial in sorted(self._waiting.items()):
                    if number not in self._copied:  # an attempt that failed may have arrived all the same
                        study.add_trial(trial)
                        self._copied.add(number)
                    del self._waiting[number]
                return
            except Exception:  # as above
                self._study = None
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(PAUSE_S)

    def _open(self) -> optuna.Study:
        """Opens the storage, and sees what it holds."""
        storage: Any = self._url
        if self._url.startswith("journal:"):
            # Absolute, because a stale lock under a relative path is never released (seen on Optuna 5.0).
            path = str(Path(self._url.removeprefix("journal:")).absolute())
            storage = JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
        study = optuna.create_study(storage=storage, study_name=self._name, load_if_exists=True)
        self._copied = {t.user_attrs.get(NUMBER_KEY) for t in study.get_trials(deepcopy=False)}
        self._study = study
        return study

    def _within_limit(self, work: Callable[[], T]) -> T:
        """Does something that may hang, in a thread that may be left behind.

        Raises:
            TimeoutError: If it takes longer than `LIMIT_S`.
        """
        done: list[T] = []
        failed: list[Exception] = []

        def call() -> None:
            try:
                done.append(work())
            except Exception as error:  # to be raised where it is waited for
                failed.append(error)

        self._call = threading.Thread(target=call, daemon=True, name="optuna storage")
        self._call.start()
        self._call.join(LIMIT_S)
        if failed:
            raise failed[0]
        if not done:
            raise TimeoutError(f"no answer within {LIMIT_S:.0f} s")
        return done[0]


_FOR_GOOD = re.compile(
    "authentication failed|no password|access denied|permission denied|pg_hba|does not exist|unknown database"
    "|name or service not known|nodename nor servname|no address associated|unknown .*server host",
    re.IGNORECASE,
)
"""What servers and their drivers say of a URL that will never do: who asks, for what, of whom."""

_SQLITE_FOR_NOW = re.compile("locked|busy")


def may_pass(error: BaseException) -> bool:
    """Whether a storage that could not be opened may answer later: it is down, starting, busy, or the network is.

    Any other error is for good: a URL that is malformed or names an unknown dialect, a package that is not installed, a
    host, database or user that does not exist, a file that is no database.
    """
    from sqlalchemy.exc import InterfaceError, OperationalError  # a fifth of each start, and few studies have a storage

    chain = list(_chain(error))
    said = " ".join(map(str, chain))
    if any(isinstance(e, OperationalError | InterfaceError) and "sqlite3" in str(type(e.orig)) for e in chain):
        return _SQLITE_FOR_NOW.search(said) is not None
    kinds = (OperationalError, InterfaceError, TimeoutError, ConnectionError)
    return any(isinstance(e, kinds) for e in chain) and _FOR_GOOD.search(said) is None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _root(error: BaseException) -> str:
    """The first line of what began a chain of errors: Optuna's own text hides the database's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return strike_text((str(error).strip() or type(error).__name__).splitlines()[0])
