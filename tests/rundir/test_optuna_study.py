"""The study as Optuna's journal has it: complete while it can be written, no trouble while it cannot."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.model.errors import RunDirectoryError
from autotune.model.records import TrialResult
from autotune.rundir import optuna_study
from autotune.rundir.optuna_study import JOURNAL, NUMBER_KEY, OptunaStudy
from tests.runs import Noting, Run, replay_study

ROOT = Path(__file__).parents[2]


def trial(number: int) -> FrozenTrial:
    facts = {NUMBER_KEY: number, "status": "measured"}
    return create_trial(value=float(number), user_attrs=facts, constraints={"failure": -1.0})


def begun(number: int) -> FrozenTrial:
    return create_trial(state=TrialState.RUNNING, user_attrs={NUMBER_KEY: number})


def trials_in(journal: Path) -> list[FrozenTrial]:
    """The trials of a journal's one study, as anybody reads them."""
    opened = JournalStorage(JournalFileBackend(str(journal)))
    (summary,) = optuna.get_all_study_summaries(opened)
    return optuna.load_study(study_name=summary.study_name, storage=opened).trials


def numbers(journal: Path) -> list[int]:
    """Numbers of the trials in a journal that have a result, in the order in which they came."""
    return [t.user_attrs[NUMBER_KEY] for t in trials_in(journal) if t.state is TrialState.COMPLETE]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / JOURNAL


def test_a_trial_runs_then_has_its_result(place: Path) -> None:
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


def test_what_a_driver_left_open_is_told_by_the_records_or_failed(place: Path) -> None:
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


def test_a_study_outlives_its_journal_and_the_next_session_fills_it(
    run_replay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replay_study()

    def spoil(*_: object) -> None:
        if len(launcher.started) == 10:
            monkeypatch.setattr(optuna_study, "append_synced", no_space)

    launcher = Noting(spec, before=spoil)
    _, store, diary = run_replay(spec, trials=8, launcher=launcher)
    assert len(store.of(TrialResult)) == 8
    assert sum("cannot be written" in n for n in diary.notes) == 1
    monkeypatch.undo()
    _, store, diary = run_replay(spec, trials=9)
    assert sorted(numbers(store.path / JOURNAL)) == list(range(1, 10))
    assert diary.notes == []


def no_space(*_: object, **__: object) -> None:
    raise RunDirectoryError("no space left")
