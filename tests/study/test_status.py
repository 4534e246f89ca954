"""What `autotune status` tells of a study that runs: its stage, since when, and the time left."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autotune.model.records import AnyRecord, ConfirmRun, TrialResult
from autotune.results.format import RUNNING
from autotune.results.status import StudyStatus, format_stage, study_status
from autotune.rundir.lock import LOCK, Lock, read_holder, read_stage
from autotune.rundir.store import Store
from autotune.study.driver import run_study
from harness.simulated import GivenSetup, given_run
from tests.runs import EFFECTS, SPACE, Diary, asking, replay_study, there


class Looking(Diary):
    """A view that asks for the status whenever it is told something, as another process would."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.seen: list[StudyStatus] = []
        self.shown: list[str] = []

    def look(self) -> None:
        self.seen.append(study_status(self.path))
        self.shown.append(format_stage(self.seen[-1]))
        assert self.seen[-1].stage == self.stages[-1]

    def stage(self, name: str, detail: str) -> None:
        super().stage(name, detail)
        self.look()

    def result(self, record: AnyRecord) -> None:
        super().result(record)
        if isinstance(record, TrialResult | ConfirmRun):
            self.look()


def looked_at(path: Path, *, trials: int = 8, budget_s: float | None = None, soak: float = 0.0) -> Looking:
    spec = replay_study(effects=EFFECTS, noise={"white_sd": 1e-6}, study={"confirm": {"soak": soak}})
    search = spec.search.model_copy(update={"trials": trials, "time_budget": budget_s})
    view = Looking(path)
    run_study(given_run(spec.model_copy(update={"search": search}), path, GivenSetup(given_space=SPACE), view))
    return view


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Looking:
    return looked_at(tmp_path_factory.mktemp("looked") / "run")


def test_each_stage_is_told_while_it_runs_and_none_after(view: Looking) -> None:
    assert {s.state for s in view.seen} == {RUNNING}
    stages = list(dict.fromkeys(s.stage for s in view.seen))
    assert stages[:3] == ["A/A run", "search", "minimise"]
    assert stages[-1] == "confirm"
    assert all("left" not in text for text in view.shown)  # it has no budget
    for status in view.seen:
        began = datetime.fromisoformat(there(status.since))
        assert abs(datetime.now(UTC) - began) < timedelta(minutes=10)
    ended = study_status(view.path)
    assert (ended.state, ended.stage, ended.since, ended.left_s) == ("finished", *[None] * 3)
    assert format_stage(ended) == ""


def test_a_budget_bounds_the_time_left(tmp_path: Path) -> None:
    view = looked_at(tmp_path / "run", trials=2, budget_s=500.0)
    first = view.seen[0]
    assert first.stage == "A/A run"
    assert first.left_s == pytest.approx(500.0, abs=30)  # the A/A run is not known, the budget is
    assert all(s.left_s is not None and s.left_s <= 500.0 for s in view.seen)


def test_a_killed_drivers_stage_is_not_told_nor_that_of_the_session_before(tmp_path: Path) -> None:
    spec = asking(replay_study(), 3)
    store = Store.create_or_resume(tmp_path / "run", spec, study_dir=tmp_path)
    store.tell_stage("search")
    at = there(read_stage(store.path))
    assert at.name == "search"
    left_behind = (store.path / LOCK).read_bytes()
    store.close()
    assert read_stage(store.path) is None
    (store.path / LOCK).write_bytes(left_behind)  # as a killed driver leaves it
    assert study_status(store.path).stage is None
    again = Store.create_or_resume(tmp_path / "run", spec, study_dir=tmp_path)
    status = study_status(again.path)
    assert (status.state, status.stage, format_stage(status)) == (RUNNING, None, "starting")
    again.close()


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"{",
        b"[]",
        b'{"name": "search"}',
        b'{"name": "search", "since": "soon"}',
        b"\xff\xfe",
        b"[" * 4000,
        b"null",
        b'{"name": "search", "since": 7}',
    ],
)
def test_a_half_written_stage_is_none_and_the_holder_stays_known(tmp_path: Path, told: bytes) -> None:
    lock = Lock(tmp_path)
    holder = read_holder(tmp_path)
    with (tmp_path / LOCK).open("ab") as file:
        file.write(told)
    assert read_stage(tmp_path) is None
    assert read_holder(tmp_path) == holder
    lock.tell_stage("a longer name of a stage than any")
    lock.tell_stage("soak")
    found = there(read_stage(tmp_path))
    assert found.name == "soak"
    assert read_holder(tmp_path) == holder
    lock.close()


def test_a_full_disk_does_not_end_a_study_for_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    lock = Lock(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock.tell_stage("search")
    monkeypatch.undo()
    assert read_stage(tmp_path) is None
    lock.close()
