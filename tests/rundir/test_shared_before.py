"""A run that three workers of commit 2b61fbc shared, two of them killed in mid-trial: one driver goes on with it.

Recorded by ``autotune worker STUDY --run-dir run --name w0`` (``w1``, ``w2``); w0 and w1 died of SIGKILL, w2 was told
to stop, so that claims, half-made trials and files of three writers are left behind.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.records import FloorResult
from autotune.model.spec import StudySpec
from autotune.model.trial import TrialResult
from autotune.results.export import ExportFormat, render_export
from autotune.rundir.store import Store
from harness.driven import Driven
from harness.tally import tally_of

RUN = Path(__file__).parent / "shared_by_2b61fbc"
STUDY = """
name = "shared"
[workload]
entry = "llama"
[search]
trials = 14
use_environment = false
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [0, 1, 2, 3]
xla_cpu_multi_thread_eigen = [true, false]
xla_cpu_enable_fast_math = [true, false]
[measure]
pairs_cap = 12
[confirm]
processes = 3
finalists = 2
pairs = 6
soak = 0
[replay]
delay_s = 0.03
noise = "drift"
effects = { "xla_backend_optimization_level=1" = 0.9, "xla_cpu_prefer_vector_width=512" = 0.95 }
failures = { "xla_backend_optimization_level=0" = "crash" }
"""
DONE = 8
"""Trials that the three had recorded."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    return tmp_path


def test_the_study_of_this_file_is_the_one_that_was_recorded() -> None:
    recorded = json.loads((RUN / "study.json").read_text(encoding="utf-8"))
    assert StudySpec.model_validate(recorded["study"]).identity == recorded["identity"]
    assert len(list((RUN / "claims").iterdir())) > DONE
    assert {p.name for p in (RUN / "records").iterdir()} == {"w0.jsonl", "w1.jsonl", "w2.jsonl"}


def test_it_is_read(folder: Path) -> None:
    run = folder / "run"
    store = Store.open(run)
    assert len(store.of(TrialResult)) == DONE
    assert {f.by for f in store.of(FloorResult)} == {"w0", "w1", "w2"}
    told = CliRunner().invoke(app, ["status", str(run), "--json"])
    assert told.exit_code == 0, told.output
    (status,) = json.loads(told.stdout)
    assert (status["trials"], status["asked_trials"]) == (DONE, 14)
    assert status["state"] == "stopped; run it again to go on"
    assert [(x["lane"], x["is_here"]) for x in status["lanes"]] == [("w0", False), ("w1", False), ("w2", False)]
    for command in (["show", str(run)], ["show", str(run), "1"]):
        told = CliRunner().invoke(app, command)
        assert told.exit_code == 0, told.output
        assert "backend_optimization_level" in told.stdout
    page = folder / "report.html"
    told = CliRunner().invoke(app, ["report", str(run), "--html", str(page)])
    assert told.exit_code == 0, told.output
    assert "xla_backend_optimization_level" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(), ("--devices", "0,1")], ids=["one lane", "two lanes"])
def test_one_driver_goes_on_with_it(folder: Path, devices: tuple[str, ...]) -> None:
    before = {f: f.read_bytes() for f in (folder / "run" / "records").iterdir()}
    driver = Driven(folder, devices)
    assert driver.wait() == 0, driver.said
    tally = tally_of(folder / "run")
    assert (tally["trials"], tally["conclusions"]) == (14, 1)
    assert tally["lost"] == tally["doubled"] == tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0
    assert {f: f.read_bytes() for f in (folder / "run" / "records").iterdir()} == before
    store = Store.open(folder / "run")
    lanes = {"device-0", "device-1"} if devices else {None}
    assert {f.by for f in store.of(FloorResult)} == {"w0", "w1", "w2"} | lanes
    assert {r.by for r in store.of(TrialResult)[DONE:]} <= lanes
    (status,) = json.loads(CliRunner().invoke(app, ["status", str(folder / "run"), "--json"]).stdout)
    assert status["outcome"] == "winner"
    for form in ExportFormat:
        assert "xla_backend_optimization_level" in render_export(store, form)
