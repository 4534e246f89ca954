"""What a driver writes is removed, cut or replaced while it writes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import Assignment
from autotune.model.errors import RunDirectoryError
from autotune.model.records import IncidentRecord
from autotune.model.spec import parse_study
from autotune.rundir.store import KEPT_RECORDS, PAIRS, RECORDS, Store
from autotune.study.driver import run_study
from autotune.study.lanes import Lanes
from autotune.workers.command import CommandLauncher
from harness.simulated import GivenSetup, given_run
from tests.runs import SPACE, Diary, Noting, asking, replay_study
from tests.workers.conftest import study


def copied(file: Path) -> None:
    shutil.copy2(file, file.with_suffix(".copy"))
    file.with_suffix(".copy").replace(file)


def rewritten(file: Path) -> None:
    """As an editor saves: a new file of more lines under the old name."""
    file.with_suffix(".new").write_bytes(file.read_bytes() * 2)
    file.with_suffix(".new").replace(file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda file: os.truncate(file, 0),
    "one line less": lambda file: file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1])),
    "an equal copy": copied,
    "a longer file": rewritten,
    "moved away": lambda file: file.rename(file.with_name("elsewhere")),
    "with its folder": lambda file: shutil.rmtree(file.parent),
}


@pytest.mark.parametrize("is_resumed", [False, True], ids=["first session", "resumed"])
@pytest.mark.parametrize("change", CHANGES)
def test_records_that_are_not_as_they_were_left_are_noticed_and_kept(
    tmp_path: Path, change: str, is_resumed: bool
) -> None:
    run, spec = tmp_path / "run", parse_study({"name": "s", "workload": {"entry": "llama"}})
    store = Store.create_or_resume(run, spec, study_dir=tmp_path)
    for number in range(3):
        store.append(IncidentRecord(what=f"incident {number}"))
    if is_resumed:
        store.close()
        store = Store.create_or_resume(run, spec, study_dir=tmp_path)
        store.append(IncidentRecord(what="incident 3"))
    said = [r.what for r in store.of(IncidentRecord)]
    CHANGES[change](run / RECORDS)
    for what in ("noticed", "at the end"):
        with pytest.raises(RunDirectoryError, match=KEPT_RECORDS):
            store.append(IncidentRecord(what=what))
    store.close()
    if (run / "study.json").exists():
        with pytest.raises(RunDirectoryError, match=KEPT_RECORDS):
            Store.open(run)
    with pytest.raises(RunDirectoryError, match=KEPT_RECORDS):
        Store.create_or_resume(run, spec, study_dir=tmp_path)
    (run / RECORDS).unlink(missing_ok=True)
    (run / KEPT_RECORDS).rename(run / RECORDS)
    again = Store.create_or_resume(run, spec, study_dir=tmp_path) if change != "with its folder" else None
    if again is not None:
        again.append(IncidentRecord(what="goes on"))
        assert [r.what for r in again.of(IncidentRecord)] == [*said, "noticed", "at the end", "goes on"]
        again.close()


def test_a_torn_line_behind_the_records_is_no_other_file(tmp_path: Path) -> None:
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}})
    store = Store.create_or_resume(tmp_path / "run", spec, study_dir=tmp_path)
    store.append(IncidentRecord(what="one"))
    with (tmp_path / "run" / RECORDS).open("ab") as stream:
        stream.write(b'{"kind":')
    store.append(IncidentRecord(what="two"))
    store.close()
    assert [r.what for r in Store.open(tmp_path / "run").of(IncidentRecord)] == ["one", "two"]


@pytest.mark.parametrize("what", [RECORDS, f"aa_run/{PAIRS}", "."], ids=["records", "raw pairs", "the run directory"])
def test_a_study_whose_run_is_removed_under_it_does_not_conclude(tmp_path: Path, what: str) -> None:
    run, spec = tmp_path / "run", replay_study(effects={"xla_a=1": 0.9}, noise={"white_sd": 1e-6})

    def remove(*_: object) -> None:
        path = run / what
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)

    launcher = Noting(spec, after=lambda worker, settings, folder: remove() if launcher.started[2:] else None)
    with pytest.raises(RunDirectoryError, match="--run-dir"):
        run_study(given_run(asking(spec, 5), run, GivenSetup(given_space=SPACE, given_launcher=launcher), Diary()))
    if what != f"aa_run/{PAIRS}":
        assert CliRunner().invoke(app, ["export", str(run)]).exit_code != 0


CLEARS = """
import os, shutil, sys, time
shutil.rmtree("runs", ignore_errors=True)
os.makedirs("runs/events", exist_ok=True)
for step in range(4000):
    time.sleep(0.002)
    print(f"step {step} {2.0 + step % 3 / 100:.2f} ms", flush=True)
"""


@pytest.mark.gate
def test_a_program_that_clears_runs_leaves_raw_pairs_and_logs(tmp_path: Path) -> None:
    project = tmp_path / "project"
    run = project / "runs" / "s"
    run.mkdir(parents=True)
    (project / "train.py").write_text(CLEARS)
    spec = study(
        {
            "command": [sys.executable, "train.py", "{folder}"],
            "read": {"pattern": r"step (?P<step>\d+) (?P<step_ms>[\d.]+) ms"},
        },
        measure={"pairs_cap": 6},
    )
    store = Store.create_or_resume(run, spec, study_dir=project)
    sink = Lanes(store, Diary(), lambda settings: settings)
    runner = TaskRunner(spec, store, CommandLauncher(spec, study_dir=str(project), base=os.environ), sink)
    try:
        found = runner.do(Assignment(folder=("aa_run",), name="aa_run"))
    finally:
        runner.close()
    store.append(found)
    assert (run / "aa_run" / "reference" / "worker.log").exists()
    store.close()
