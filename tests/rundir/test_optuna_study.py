"""The study as Optuna stores it: complete while the storage answers, no trouble while it does not."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.model.errors import StudyFileError
from autotune.model.records import TrialResult
from autotune.rundir import optuna_study
from autotune.rundir.optuna_study import JOURNAL, NUMBER_KEY, OptunaStudy
from tests.runs import Noting, Run, replay_study
from tests.tables import toml_beside

ROOT = Path(__file__).parents[2]


def trial(number: int) -> FrozenTrial:
    facts = {NUMBER_KEY: number, "status": "measured"}
    return create_trial(value=float(number), user_attrs=facts, constraints={"failure": -1.0})


def begun(number: int) -> FrozenTrial:
    return create_trial(state=TrialState.RUNNING, user_attrs={NUMBER_KEY: number})


def trials_in(storage: str | Path) -> list[FrozenTrial]:
    """The trials of a storage's one study, as anybody reads them."""
    opened: Any = storage
    if isinstance(storage, Path):
        opened = JournalStorage(JournalFileBackend(str(storage)))
    (summary,) = optuna.get_all_study_summaries(opened)
    return optuna.load_study(study_name=summary.study_name, storage=opened).trials


def numbers(storage: str | Path) -> list[int]:
    """Numbers of the trials in a storage that have a result, in the order in which they came."""
    return [t.user_attrs[NUMBER_KEY] for t in trials_in(storage) if t.state is TrialState.COMPLETE]


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


@pytest.fixture(params=["journal", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return tmp_path / JOURNAL if request.param == "journal" else f"sqlite:///{tmp_path / 'o.db'}"


def test_a_trial_runs_then_has_its_result(place: str | Path) -> None:
    stored = OptunaStudy(place, "s")
    stored.put(begun(1))
    assert [t.state for t in trials_in(place)] == [TrialState.RUNNING]
    stored.put(begun(2))
    stored.put(trial(2))
    stored.put(trial(1))
    stored.put(trial(1))
    stored.finish()
    assert stored.news() == []
    found = trials_in(place)
    assert [(t.state, t.value, t.user_attrs, t.constraints) for t in found] == [
        (t.state, t.value, t.user_attrs, t.constraints) for t in map(trial, (1, 2))
    ]


def test_what_a_driver_left_open_is_told_by_the_records_or_failed(place: str | Path) -> None:
    first = OptunaStudy(place, "s")
    for number in (1, 2, 3):
        first.put(begun(number))
    again = OptunaStudy(place, "s")
    again.put(trial(1))  # recorded before the driver died
    again.put(begun(2))  # begun anew
    again.put(trial(2))
    again.finish()  # number 3 is never tried again
    states = [(t.user_attrs[NUMBER_KEY], t.state.name) for t in trials_in(place)]
    assert states == [(1, "COMPLETE"), (2, "FAIL"), (3, "FAIL"), (2, "COMPLETE")]


@pytest.mark.parametrize("harm", ["missing", "torn", "spoilt"])
def test_a_journal_that_lost_trials_is_filled_from_the_records(run_replay: Run, tmp_path: Path, harm: str) -> None:
    _, store, _ = run_replay(replay_study(failures={"xla_a=1": "crash"}), trials=6)
    journal = store.path / JOURNAL
    assert sorted(numbers(journal)) == list(range(1, 7))
    if harm == "missing":
        journal.unlink()
    else:
        journal.write_bytes(journal.read_bytes()[:-200] if harm == "torn" else b"no journal\n" * 9)
    _, store, diary = run_replay(replay_study(failures={"xla_a=1": "crash"}), trials=8)
    assert diary.notes == []
    assert sorted(numbers(journal)) == list(range(1, 9))
    failed = {r.number for r in store.of(TrialResult) if r.failure is not None}
    assert failed
    assert failed == {t.user_attrs[NUMBER_KEY] for t in trials_in(journal) if t.constraints["failure"] > 0}


def test_a_journal_is_as_private_as_its_run_and_writes_through_no_link(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    OptunaStudy(tmp_path / JOURNAL, "s")
    assert stat.S_IMODE((tmp_path / JOURNAL).stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    stored = OptunaStudy(tmp_path / "link", "s")
    stored.put(trial(1))
    assert len(stored.news()) == 1
    assert not (tmp_path / "precious").exists()


def test_a_study_without_a_database_imports_no_driver_of_databases(tmp_path: Path) -> None:
    code = f"""
import sys, pathlib
import autotune.study
from autotune.rundir.optuna_study import OptunaStudy
OptunaStudy(pathlib.Path({str(tmp_path / JOURNAL)!r}), "s").finish()
assert "sqlalchemy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_storage_that_hangs_does_not_hold_the_study_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = OptunaStudy(database.url, "s")
    monkeypatch.setattr(optuna_study, "LIMIT_S", 0.2)
    holder = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        stored.put(trial(1))
        (told,) = stored.news()
        assert "(no answer" in told
        stored.put(trial(2))
        stored.finish()
        assert stored.news() == []  # it is asked no more
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    monkeypatch.setattr(optuna_study, "LIMIT_S", 30.0)
    for thread in [t for t in threading.enumerate() if t.name == "optuna storage"]:
        thread.join(30)
    again = OptunaStudy(database.url, "s")
    for number in (1, 2):
        again.put(trial(number))
    assert again.news() == []
    assert numbers(database.url) == [1, 2]


@pytest.mark.parametrize("url", toml_beside(__file__)["refused_storages"])
def test_a_storage_that_cannot_be_opened_is_refused_at_once(url: str, tmp_path: Path) -> None:
    (tmp_path / "o.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StudyFileError, match="be reachable") as error:
        OptunaStudy(url.replace("FOLDER", str(tmp_path)), "s")
    assert "hunter2" not in str(error.value)


def test_a_study_outlives_its_storage_and_the_next_session_fills_it(
    run_replay: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_study, "PAUSE_S", 0.01)
    spec = replay_study()
    launcher = Noting(spec, before=lambda *_: database.spoil() if len(launcher.started) == 10 else None)
    _, store, diary = run_replay(spec, trials=8, storage=database.url, launcher=launcher)
    assert len(store.of(TrialResult)) == 8
    assert sum("not answer" in n for n in diary.notes) == 1
    database.mend()
    _, _, diary = run_replay(spec, trials=9, storage=database.url)
    assert sorted(numbers(database.url)) == list(range(1, 10))
    assert diary.notes == []
