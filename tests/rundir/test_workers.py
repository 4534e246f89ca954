"""Several workers share one study: by the real command, with replayed trials."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.model.errors import LaunchError
from autotune.model.records import ConclusionRecord, ConfirmRun, FinalistResult, FloorResult, Outcome
from autotune.model.trial import TrialResult
from autotune.rundir.nodes import node_effects, refuse_strangers
from autotune.rundir.store import Store
from harness.kills import REPLAYED, tally_of

ROOT = Path(__file__).parents[2]


def start(study: Path, run: Path, name: str) -> subprocess.Popen[str]:
    """One worker process; what it prints goes beside the run directory."""
    with run.with_name(f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", "worker", str(study), "--run-dir", str(run), "--name", name],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


def write_study(folder: Path, *, trials: int, delay_s: float = 0.005) -> Path:
    file = folder / "study.toml"
    file.write_text(REPLAYED.format(trials=trials, delay_s=delay_s), encoding="utf-8")
    return file


def wait_for(condition: object, patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def records_of(run: Path, name: str) -> int:
    file = run / "records" / f"{name}.jsonl"
    return file.read_bytes().count(b'"kind":"trial"') if file.exists() else 0


def test_three_workers_end_at_the_exact_count_with_one_conclusion(tmp_path: Path) -> None:
    study, run = write_study(tmp_path, trials=19), tmp_path / "run"
    processes = [start(study, run, f"w{i}") for i in range(3)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0, 0], (tmp_path / "w0.log").read_text()
    tally = tally_of(run)
    assert (tally["trials"], tally["conclusions"]) == (19, 1)
    assert tally["lost"] == tally["doubled"] == tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0
    store = Store.open(run)
    assert len({r.by for r in store.of(TrialResult)}) == 3
    assert len(store.of(FloorResult)) == 3
    assert store.of(ConclusionRecord)[0].outcome is Outcome.WINNER
    assert len(store.of(FinalistResult)) == len({(f.stage, f.settings) for f in store.of(FinalistResult)})
    shown = json.loads(
        subprocess.run(
            [sys.executable, "-m", "autotune", "status", str(run), "--json"], capture_output=True, text=True, check=True
        ).stdout
    )[0]
    assert [w["state"] for w in shown["workers"]] == ["ended"] * 3
    assert len(shown["nodes"]) == 3


@pytest.mark.slow
def test_the_trial_of_a_killed_worker_is_given_to_another_with_the_same_set(tmp_path: Path) -> None:
    study, run = write_study(tmp_path, trials=13, delay_s=0.03), tmp_path / "run"
    victim = start(study, run, "victim")
    wait_for(lambda: records_of(run, "victim") >= 2)
    victim.send_signal(signal.SIGSTOP)  # so that it holds a trial, or is about to, when it dies
    heir = start(study, run, "heir")
    wait_for(lambda: records_of(run, "heir") >= 2)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert heir.wait(timeout=120) == 0, (tmp_path / "heir.log").read_text()
    tally = tally_of(run)
    assert (tally["trials"], tally["lost"], tally["doubled"], tally["sets_measured_twice"]) == (13, 0, 0, 0)
    assert {r.by for r in Store.open(run).of(TrialResult)} == {"victim", "heir"}


@pytest.mark.slow
def test_a_worker_told_to_stop_ends_with_75_and_the_next_goes_on(tmp_path: Path) -> None:
    study, run = write_study(tmp_path, trials=11, delay_s=0.03), tmp_path / "run"
    for number in (signal.SIGUSR1, signal.SIGTERM):
        worker = start(study, run, "w")
        before = records_of(run, "w")
        wait_for(lambda seen=before: records_of(run, "w") > seen)
        worker.send_signal(number)
        assert worker.wait(timeout=30) == 75
    assert "everything so far is in" in (tmp_path / "w.log").read_text()
    assert start(study, run, "w").wait(timeout=120) == 0
    assert tally_of(run)["trials"] == 11
    assert len(Store.open(run).of(FloorResult)) == 1  # the name lasts, and so does its noise floor


def test_what_workers_began_a_sole_driver_can_end(tmp_path: Path) -> None:
    study, run = write_study(tmp_path, trials=7), tmp_path / "run"
    worker = start(study, run, "w")
    wait_for(lambda: records_of(run, "w") >= 2)
    worker.kill()
    worker.wait()
    command = [sys.executable, "-m", "autotune", "run", str(study), "--run-dir", str(run)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120)
    tally = tally_of(run)
    assert (tally["trials"], tally["lost"], tally["doubled"]) == (7, 0, 0)
    assert {r.by for r in Store.open(run).of(ConfirmRun)} <= {None, "w"}


# ---------------------------------------------------------------------- nodes


@pytest.fixture
def floor(tmp_path: Path) -> FloorResult:
    """The noise floor of a short replayed study."""
    study, run = write_study(tmp_path, trials=1), tmp_path / "floor"
    assert start(study, run, "w").wait(timeout=60) == 0
    return Store.open(run).of(FloorResult)[0]


def at(floor: FloorResult, worker: str, step_s: float, **report: object) -> FloorResult:
    """The same floor as another worker's, with another step time."""
    comparison = floor.comparison.model_copy(update={"reference_step_s": step_s})
    reference = floor.reference.model_copy(update=report)
    return floor.model_copy(update={"by": worker, "comparison": comparison, "reference": reference})


def test_a_slow_node_is_named_and_its_effect_estimated(floor: FloorResult) -> None:
    nodes = node_effects([at(floor, "a", 0.100), at(floor, "b", 0.110), at(floor, "c", 0.101)], [])
    assert [(n.worker, n.is_slow) for n in nodes] == [("b", True), ("c", False), ("a", False)]
    assert nodes[0].ratio == pytest.approx(0.110 / 0.101)
    assert node_effects([floor], []) == []


def test_workers_on_other_devices_or_versions_are_refused(floor: FloorResult) -> None:
    first = at(floor, "a", 0.1, device_kind="H100", versions={"jaxlib": "0.10.2"})
    refuse_strangers(at(floor, "b", 0.2, device_kind="H100", versions={"jaxlib": "0.10.2"}), [first])
    with pytest.raises(LaunchError, match=r"kind of device: H100 there, A100 here.*--run-dir"):
        refuse_strangers(at(floor, "b", 0.2, device_kind="A100", versions={"jaxlib": "0.10.2"}), [first])
    with pytest.raises(LaunchError, match=r"version of jaxlib: 0.10.2 there, 0.12.0 here"):
        refuse_strangers(at(floor, "b", 0.2, device_kind="H100", versions={"jaxlib": "0.12.0"}), [first])
