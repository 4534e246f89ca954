"""The copy of a study in an Optuna storage: complete while it answers, no trouble while it does not."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import OperationalError

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.replay import ReplaySpec
from autotune.model.trial import TrialResult
from autotune.rundir import mirror
from autotune.rundir.mirror import NUMBER_KEY, Mirror
from autotune.workers.replay import ReplayLauncher, ReplayWorker
from tests.runs import Run, replay_study


def trial(number: int) -> FrozenTrial:
    return create_trial(state=TrialState.COMPLETE, value=float(number), user_attrs={NUMBER_KEY: number})


def numbers(url: str) -> list[int]:
    """Numbers of the trials in a storage, in the order in which they came."""
    (summary,) = optuna.get_all_study_summaries(url)
    study = optuna.load_study(study_name=summary.study_name, storage=url)
    return [t.user_attrs[NUMBER_KEY] for t in study.trials]


class Database:
    """A sqlite file that can be made one that no database would read, and whole again."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._kept = b""

    def spoil(self) -> None:
        self._kept = self._path.read_bytes()
        self._path.write_bytes(b"no database" * 1000)

    def mend(self) -> None:
        self._path.write_bytes(self._kept)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "o.db")


@pytest.mark.slow
def test_what_a_lost_storage_misses_is_copied_once_when_it_is_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.01)
    monkeypatch.setattr(mirror, "RETRY_S", 0.0)
    copy = Mirror(database.url, "s")
    copy.add(1, trial(1))
    assert copy.news() == []
    database.spoil()
    copy.add(2, trial(2))
    (told,) = copy.news()
    assert "does not answer (file is not a database)" in told or "malformed" in told
    copy.add(3, trial(3))
    assert copy.news() == []  # said once
    database.mend()
    copy.add(4, trial(4))
    assert copy.news() == ["the Optuna storage is back; 3 trials copied"]
    copy.add(4, trial(4))
    copy.finish()
    assert copy.news() == []
    assert numbers(database.url) == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_lost_storage_is_not_asked_again_at_every_trial(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.01)
    copy = Mirror(database.url, "s")
    database.spoil()
    copy.add(1, trial(1))
    database.mend()
    copy.add(2, trial(2))
    assert numbers(database.url) == []
    copy.finish()
    assert numbers(database.url) == [1, 2]


def test_a_storage_that_hangs_does_not_hold_the_study_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Mirror(database.url, "s")
    monkeypatch.setattr(mirror, "LIMIT_S", 0.2)
    holder = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        copy.add(1, trial(1))
        (told,) = copy.news()
        assert "does not answer (no answer within" in told
        copy.finish()
        assert copy.news() == ["the Optuna storage lacks 1 trial; once it answers, the same command copies them"]
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    monkeypatch.setattr(mirror, "LIMIT_S", 30.0)
    for _ in range(100):  # the hanging call comes to its end by itself, then all is copied, once
        copy.finish()
        if not copy._waiting:
            break
        time.sleep(0.1)
    assert numbers(database.url) == [1]


def test_a_storage_that_cannot_be_opened_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "o.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StudyFileError, match="must be reachable"):
        Mirror(f"sqlite:///{tmp_path / 'o.db'}", "s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "url",
    [
        "nonsense", "foo://me:hunter2@x/y", "postgresql+nodriver://me:hunter2@127.0.0.1/x", "sqlite:////none/such/o.db",
        "postgresql+psycopg://me:hunter2@127.0.0.1:port/x", "journal:/none/such/journal", "",
    ],
)  # fmt: skip
def test_a_url_that_will_never_do_is_refused_at_once(url: str, tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="must be reachable") as error:
        Mirror(url, "s")
    assert "hunter2" not in str(error.value)


def test_a_host_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(StudyFileError, match="Name or service not known"):
        Mirror("postgresql+psycopg://me:hunter2@mistyped/x", "s")


def test_a_database_that_is_down_at_the_start_costs_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    monkeypatch.setattr(mirror, "PAUSE_S", 0.01)
    copy = Mirror(f"postgresql+psycopg://me:hunter2@127.0.0.1:{free_port()}/x", "s")
    (told,) = copy.news()
    assert "does not answer" in told
    assert "refused" in told
    assert "hunter2" not in told
    copy.finish()
    assert copy.news() == []  # nothing to copy, nothing is lacking
    copy.add(1, trial(1))
    assert copy.news() == []
    copy.finish()
    assert copy.news() == ["the Optuna storage lacks 1 trial; once it answers, the same command copies them"]


@pytest.mark.slow
def test_one_that_hangs_at_the_start_costs_a_note_and_is_filled_when_it_is_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Mirror(database.url, "s")
    monkeypatch.setattr(mirror, "LIMIT_S", 0.2)
    holder = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        copy = Mirror(database.url, "s")
        (told,) = copy.news()
        assert "does not answer (no answer within" in told
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    monkeypatch.setattr(mirror, "LIMIT_S", 30.0)
    monkeypatch.setattr(mirror, "RETRY_S", 0.0)
    copy._next_s = 0.0
    assert copy._call is not None
    copy._call.join(30)
    copy.add(1, trial(1))
    assert copy.news() == ["the Optuna storage is back; 1 trial copied"]
    assert numbers(database.url) == [1]


def raised(kind: type[Exception], text: str, module: str = "psycopg") -> Exception:
    """An error of a database's driver, as SQLAlchemy and Optuna hand it on."""
    driver = type("OperationalError", (Exception,), {"__module__": module})
    try:
        try:
            raise OperationalError("SELECT 1", {}, driver(text))
        except OperationalError as error:
            raise kind("An exception is raised during the commit") from error
    except kind as error:
        return error


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ('connection to server at "10.0.0.1", port 5432 failed: Connection refused', True),
        ("connection timeout expired", True),
        ("FATAL:  the database system is starting up", True),
        ("FATAL:  sorry, too many clients already", True),
        ("server closed the connection unexpectedly", True),
        ("failed to resolve host 'db': [Errno -3] Temporary failure in name resolution", True),
        ("(2003, \"Can't connect to MySQL server on 'db' ([Errno 111] Connection refused)\")", True),
        ('FATAL:  password authentication failed for user "me"', False),
        ('FATAL:  database "x" does not exist', False),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.2"', False),
        ("failed to resolve host 'db': [Errno -2] Name or service not known", False),
        ("(1045, \"Access denied for user 'me'@'localhost'\")", False),
        ("(1049, \"Unknown database 'x'\")", False),
        ("(2005, \"Unknown MySQL server host 'db' (-2)\")", False),
        ("fe_sendauth: no password supplied", False),
    ],
)
def test_what_servers_say_is_told_apart(text: str, passes: bool) -> None:
    assert mirror.may_pass(raised(StorageInternalError, text)) is passes


def test_of_a_file_only_a_lock_passes() -> None:
    assert mirror.may_pass(raised(StorageInternalError, "database is locked", "sqlite3"))
    assert not mirror.may_pass(raised(StorageInternalError, "unable to open database file", "sqlite3"))
    assert not mirror.may_pass(ValueError("rubbish"))
    assert mirror.may_pass(TimeoutError("no answer within 15 s"))


class Interrupting(ReplayLauncher):
    """Does something before the start of some workers."""

    def __init__(self, replay: ReplaySpec, at: dict[int, Callable[[], None]]) -> None:
        super().__init__(replay, seed=0, platform="cpu")
        self._deeds = at
        self._begun = 0

    def start(self, settings: FlagSet, folder: Path, **more: Any) -> ReplayWorker:
        self._begun += 1
        self._deeds.pop(self._begun, lambda: None)()
        return super().start(settings, folder, **more)


def test_a_study_outlives_its_storage_and_the_next_session_fills_it(
    run_replay: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.01)
    spec = replay_study()
    assert spec.replay is not None
    launcher = Interrupting(spec.replay, {10: database.spoil})
    _, store, diary = run_replay(spec, trials=8, storage=database.url, launcher=launcher)
    assert len(store.of(TrialResult)) == 8
    assert sum("does not answer" in n for n in diary.notes) == 1
    assert any(n.startswith("the Optuna storage lacks") for n in diary.notes)
    database.mend()
    _, _, diary = run_replay(spec, trials=9, storage=database.url)
    assert sorted(numbers(database.url)) == list(range(1, 10))
    assert diary.notes == []


@pytest.mark.slow
def test_a_study_whose_database_is_down_at_the_start_runs_and_the_next_session_fills_it(
    run_replay: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replay_study()
    Mirror(database.url, "other")
    monkeypatch.setattr(mirror, "LIMIT_S", 0.2)
    holder = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        _, store, diary = run_replay(spec, trials=5, storage=database.url)
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    for call in threading.enumerate():  # a real session's last call ends with its process
        if call.name == "optuna storage":
            call.join(30)
    assert len(store.of(TrialResult)) == 5
    assert sum("does not answer" in n for n in diary.notes) == 1
    monkeypatch.setattr(mirror, "LIMIT_S", 30.0)
    _, _, diary = run_replay(spec, trials=6, storage=database.url)
    name = f"{spec.name}-{spec.identity}"
    found = optuna.load_study(study_name=name, storage=database.url).trials
    assert sorted(t.user_attrs[NUMBER_KEY] for t in found) == list(range(1, 7))
