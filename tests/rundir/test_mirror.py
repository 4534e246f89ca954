"""The copy of a study in an Optuna storage: complete while it answers, no trouble while it does not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.sections import ReplaySpec
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


class Interrupting(ReplayLauncher):
    """Does something before the start of some workers."""

    def __init__(self, replay: ReplaySpec, at: dict[int, Callable[[], None]]) -> None:
        super().__init__(replay, seed=0, platform="cpu")
        self._at = at
        self._starts = 0

    def start(self, settings: FlagSet, folder: Path, **more: Any) -> ReplayWorker:
        self._starts += 1
        self._at.pop(self._starts, lambda: None)()
        return super().start(settings, folder, **more)


def test_a_study_outlives_its_storage_and_the_next_session_fills_it(
    run_replay: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.01)
    spec = replay_study()
    assert spec.replay is not None
    launcher = Interrupting(spec.replay, {6: database.spoil})
    _, store, diary = run_replay(spec, trials=8, storage=database.url, launcher=launcher)
    assert len(store.of(TrialResult)) == 8
    assert sum("does not answer" in n for n in diary.notes) == 1
    assert any(n.startswith("the Optuna storage lacks") for n in diary.notes)
    database.mend()
    _, _, diary = run_replay(spec, trials=9, storage=database.url)
    assert sorted(numbers(database.url)) == list(range(1, 10))
    assert diary.notes == []
