"""Trackers: what they get is what the records say, once and without secrets; a study does not notice how they fare."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

import autotune
from autotune.model.errors import StudyFileError
from autotune.model.records import ConclusionRecord, FinalistResult, TrialResult
from autotune.results import trackers
from autotune.results.tables import trial_rows
from autotune.results.trackers import LONGEST, TRACKERS, TrackedRun, follow, tracked
from autotune.rundir.damage import damages
from autotune.rundir.store import Store
from autotune.study import run as study_run
from autotune.study.driver import run_study
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import write_study
from tests.console import autotune as command_line
from tests.runs import EFFECTS, SPACE, TYPED, Diary, asking, replay_study
from tests.tables import toml_beside

TRACKED = toml_beside(__file__, "trackers.toml")
FAKES: dict[str, str] = TRACKED["libraries"]
SECRET = "hunter2"


def runs_of(store: Store) -> list[TrackedRun]:
    """Every record that a tracker gets."""
    return [tracked(r, store) for r in store.records() if isinstance(r, trackers.Tracked)]


def test_each_trial_proof_and_conclusion_is_one_run_with_the_figures_of_its_record(finished: Store) -> None:
    runs = runs_of(finished)
    kinds = {kind: [r for r in runs if r.facts["kind"] == kind] for kind in ("trial", "finalist", "conclusion")}
    counts = [len(finished.of(kind)) for kind in (TrialResult, FinalistResult, ConclusionRecord)]
    assert [len(found) for found in kinds.values()] == counts
    assert len({r.key for r in runs}) == len(runs)
    assert runs == runs_of(Store.open(finished.path)), "another process makes the same keys"
    for row, run in zip(trial_rows(finished), kinds["trial"], strict=True):
        assert run.figures.get("ratio") == (row.ratio if row.ratio == row.ratio else None)
        assert run.facts.get("failure") == row.failure
        assert run.settings == dict(row.result.settings)
    proof, record = kinds["finalist"][0], finished.of(FinalistResult)[0]
    assert record.estimate is not None
    assert record.corrected is not None
    assert (proof.figures["ratio"], proof.figures["corrected_low"]) == (record.estimate.ratio, record.corrected.low)
    assert proof.facts["verdict"] == record.verdict
    (end,) = kinds["conclusion"]
    assert end.facts["sentence"].startswith(finished.of(ConclusionRecord)[0].sentence[:100])


def test_what_a_tracker_gets_has_no_secrets_and_no_long_texts(finished: Store) -> None:
    origin = f"{'x' * (LONGEST - 15)} --token {SECRET}-of-mine and more"
    trial = finished.of(TrialResult)[0].model_copy(update={"origin": origin, "by": f"https://me:{SECRET}@host"})
    told = tracked(trial, finished)
    assert SECRET not in str(told)
    assert len(told.facts["origin"]) == LONGEST
    assert told.facts["by"].endswith("@host")


def test_a_record_is_written_once_whatever_session_writes_it(finished: Store, tmp_path: Path) -> None:
    got: list[TrackedRun] = []

    def write(run: TrackedRun) -> None:
        got.append(run)
        if len(got) == 3:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        follow(finished, write, tmp_path / "written", lambda: True)
    for _ in range(2):
        follow(finished, write, tmp_path / "written", lambda: True)
    assert got.pop(2) == got[2], "the one that failed is tried again, under the same key"
    assert got == runs_of(finished)


def test_records_are_written_as_they_come(finished: Store, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes((finished.path / "study.json").read_bytes())
    lines = (finished.path / "records.jsonl").read_text().splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if '"kind":"conclusion"' in line)
    (tmp_path / "records.jsonl").write_text("".join([*lines[:end], lines[end][:50]]))
    got: list[TrackedRun] = []
    counts = []

    def is_last() -> bool:
        counts.append(len(got))
        if len(counts) == 2:
            (tmp_path / "records.jsonl").write_text("".join(lines))
        return len(counts) == 3

    follow(Store.open(tmp_path), got.append, tmp_path / "written", is_last)
    assert counts == [0, len(got) - 1, len(got)]
    assert got == runs_of(finished)


@pytest.mark.parametrize("name", FAKES)
def test_a_library_is_called_by_its_contract(
    name: str, finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real ones are called below where they are installed; here each call is one that a small module knows."""
    package, opened = TRACKERS[name]
    fake = ModuleType(package)
    exec(FAKES[name], fake.__dict__)
    monkeypatch.setitem(sys.modules, package, fake)
    write, _ = opened(tmp_path, {})
    for run in runs_of(finished) * 2:  # again, as by a process that ended before it noted the key
        write(run)
    wanted = {(r.name, r.facts["kind"], r.settings.get("xla_a"), r.figures.get("ratio")) for r in runs_of(finished)}
    assert {tuple(told) for told in fake.runs.values()} == wanted
    assert len(fake.runs) == len(runs_of(finished))


def test_a_tracker_that_is_unknown_or_missing_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_study(tmp_path / "typed.toml", TYPED)
    (tmp_path / "wandb").mkdir()  # as wandb leaves it behind: no package
    before = {p.name for p in tmp_path.iterdir()}
    monkeypatch.syspath_prepend(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlflow" else real(name))
    for name in ["nosuch", "mlflow", *(["wandb"] if (spec := real("wandb")) is None or spec.origin is None else [])]:
        for words in (["run", "typed.toml"], ["tune", "--yes", "--", "python", "nowhere.py"]):
            done = command_line(*words[:1], "--tracker", name, *words[1:], cwd=tmp_path)
            assert done.returncode == 2, done.stdout + done.stderr
            assert name in done.stderr
        with pytest.raises(StudyFileError):
            autotune.run(tmp_path / "typed.toml", tmp_path / "run", tracker=name)
    assert {p.name for p in tmp_path.iterdir()} == before


# ---------------------------------------------------------------------- processes

SPEC = replay_study(effects=EFFECTS, noise={"white_sd": 1e-6})


def study(path: Path, names: list[str], trials: int) -> tuple[Store, list[str]]:
    """Runs a simulated study, or goes on with it, and returns its notes on trackers."""
    diary = Diary()
    session = given_run(asking(SPEC, trials), path, GivenSetup(given_space=SPACE), diary)
    session.trackers = names
    run_study(session)
    return session.store, [n for n in diary.notes if n.startswith("tracker")]


def count_of(folder: Path) -> int:
    """How often a tracker's library was given a run, by what it left in the run directory."""
    logs = [*folder.glob("wandb/wandb/offline-run-*"), *folder.glob("mlflow/mlruns/*/*/params")]
    return len([*logs, *folder.glob("tensorboard/events/*/")])


@pytest.mark.gate
@pytest.mark.parametrize("name", TRACKERS)
def test_the_library_itself_gets_each_record_once_over_two_sessions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(TRACKERS[name][0])
    for variable in [v for v in os.environ if v.startswith(("WANDB", "MLFLOW"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))  # nobody is logged in
    for trials in (2, 3):
        store, notes = study(tmp_path / "run", [name, name], trials)
        assert len(notes) == 1, notes
        assert "failed" not in notes[0]
        assert count_of(store.path / "trackers") == len(runs_of(store))
    proof = next(r for r in runs_of(store) if r.facts["kind"] == "finalist")
    files = [p for p in (store.path / "trackers").rglob("*") if p.is_file()]
    kept = b"".join(str(p).replace("-", " ").encode() + p.read_bytes() for p in files)
    assert proof.name.encode() in kept
    assert proof.facts["verdict"].encode() in kept
    assert damages(store) == []


FAULTS = TRACKED["faults"]


@pytest.mark.gate
@pytest.mark.parametrize("fault", FAULTS)
def test_a_study_goes_on_whatever_its_tracker_does(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorboardX.py").write_text(FAULTS[fault])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(study_run, "END_S", 4.0 if fault == "it hangs" else 54.0)
    store, notes = study(tmp_path / "run", ["tensorboard"], 2)
    assert len(store.of(TrialResult)) == 2
    *_, lost = notes
    assert len(notes) == 1 + (fault == "it hangs over a record"), notes
    assert SECRET not in lost
    assert ("4 s" in lost) == (fault == "it hangs")
    assert "54 s" not in lost
    assert not [p for p in psutil.process_iter(["cmdline"]) if "1234.5" in (p.info["cmdline"] or [])]
