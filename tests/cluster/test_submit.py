"""`autotune submit` on a real SLURM: jobs as users make them, stopped in every way, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.model.records import TrialResult
from autotune.rundir.store import Store
from harness.sandbox import Slurm, wait_for
from tests.cluster.conftest import ROOT, autotune, marked
from tests.cluster.jobs import ended, logs, submit, trials_of, wait_for_trials, write
from tests.runs import is_whole
from tests.tables import toml_beside

CASES = toml_beside(__file__)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module", autouse=True)
def limited(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A job with the shortest limit there is: a minute, of which SLURM may give warning a minute before."""
    folder = tmp_path_factory.mktemp("limited")
    write(folder, trials=20, delay_s=0.5)
    arguments = ["--nodes", "1", "--time", "61s", "--grace", "30s", "--sbatch", "--nodelist=127.0.0.4"]
    return submit(slurm, folder, *arguments), folder


def test_a_lane_on_each_node_and_the_login_node_sees_them_without_jax(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "a b'c $(touch pwned) é"
    write(folder, trials=17)
    job = submit(slurm, folder, "--nodes", "3", "--gpus-per-node", "8", "--time", "10m")
    assert ended(slurm, job) == "COMPLETED", logs(folder)
    is_whole(folder / "run", trials=17)
    assert {r.by for r in Store.open(folder / "run").of(TrialResult)} == {f"127.0.0.{i}" for i in (1, 2, 3)}
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("raise ImportError('a login node has no jax')")
    code = "import sys; sys.argv[0] = 'autotune'; from autotune.cli.app import main; main()"
    command = [sys.executable, "-c", code, "status", "run", "--json"]
    env = {**slurm.env, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=env)
    row = json.loads(shown.stdout)[0]
    assert (row["state"], row["trials"], row["asked_trials"]) == ("finished", 17, 17)
    lanes = [(x["lane"], x["is_here"], x["is_slow"]) for x in row["lanes"]]
    assert lanes == [(f"127.0.0.{i}", False, False) for i in (1, 2, 3)]
    assert row["device_hours"] >= 0
    assert not list(tmp_path.rglob("pwned"))


def test_scancel_leaves_no_process_and_the_next_job_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    write(tmp_path, trials=14, delay_s=0.04)
    job = submit(slurm, tmp_path, "--nodes", "2", "--time", "10m", "--requeue")
    wait_for_trials(tmp_path, 2)
    slurm.call("scancel", job)
    assert ended(slurm, job) == "CANCELLED"
    wait_for(lambda: not marked(str(tmp_path)), "no process is left")
    assert trials_of(tmp_path / "run") < 14
    assert slurm.states()["127.0.0.1"] == "idle"
    again = submit(slurm, tmp_path, "--nodes", "2", "--time", "10m")
    assert ended(slurm, again) == "COMPLETED", logs(tmp_path)
    is_whole(tmp_path / "run", trials=14)


@pytest.mark.gate
def test_a_job_whose_time_is_up_stops_cleanly_and_goes_on_in_the_queue(slurm: Slurm, tmp_path: Path) -> None:
    write(tmp_path, trials=14, delay_s=0.05)
    job = submit(slurm, tmp_path, "--nodes", "2", "--time", "10m", "--requeue")
    wait_for_trials(tmp_path, 2)
    slurm.call("scancel", "--signal=USR1", "--batch", job)  # what SLURM itself sends before the time is up
    wait_for(lambda: "Restarts=1" in slurm.call("scontrol", "show", "job", job), "the job is in the queue again")
    assert "stopped; " in logs(tmp_path)
    # Else it starts two minutes later: SLURM counts seconds, and takes it for the first run before some have passed.
    time.sleep(3)
    slurm.call("scontrol", "update", f"jobid={job}", "StartTime=now")
    assert ended(slurm, job) == "COMPLETED", logs(tmp_path)
    is_whole(tmp_path / "run", trials=14)


def test_a_node_lost_in_mid_study_costs_its_lane_only(slurm: Slurm, tmp_path: Path) -> None:
    write(tmp_path, trials=14, delay_s=0.04)
    job = submit(slurm, tmp_path, "--nodes", "2", "--time", "10m")
    wait_for_trials(tmp_path, 4)
    lost = slurm.call("squeue", "-h", "-j", job, "-o", "%N").strip()
    victim = slurm.call("scontrol", "show", "hostnames", lost).split()[-1]
    try:
        slurm.kill_node(victim)
        ended(slurm, job)
        is_whole(tmp_path / "run", trials=14)
        assert "Restarts=0" in slurm.call("scontrol", "show", "job", job)
    finally:
        slurm.start_node(victim)
        slurm.wait_until_back(victim)


def test_groups_of_nodes_are_a_lane_each(slurm: Slurm, tmp_path: Path) -> None:
    write(tmp_path, node_count=2, trials=8)
    job = submit(slurm, tmp_path, "--nodes", "4", "--time", "10m")
    assert ended(slurm, job) == "COMPLETED", logs(tmp_path)
    is_whole(tmp_path / "run", trials=8)
    assert {r.by for r in Store.open(tmp_path / "run").of(TrialResult)} == {"127.0.0.1", "127.0.0.3"}


@pytest.mark.parametrize(("arguments", "words"), CASES["refused_jobs"])
def test_what_fails_or_waits_forever_is_refused(slurm: Slurm, tmp_path: Path, arguments: list[str], words: str) -> None:
    write(tmp_path)
    before = sorted(slurm.call("squeue", "-h", "-o", "%i").split())
    done = autotune("submit", "study.toml", "--run-dir", "run", *arguments, cwd=tmp_path, env=slurm.env)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(slurm.call("squeue", "-h", "-o", "%i").split()) == before
    assert not list(tmp_path.glob("run*"))


def test_a_machine_without_slurm_still_shows_the_script(tmp_path: Path) -> None:
    write(tmp_path)
    env = {"PATH": "/nonexistent", "HOME": str(tmp_path)}
    done = autotune("submit", "study.toml", "--nodes", "2", cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert "sbatch must" in done.stderr
    shown = autotune("submit", "study.toml", "--nodes", "2", "--dry-run", cwd=tmp_path, env=env)
    assert "#SBATCH --nodes=2" in shown.stdout
    assert not (tmp_path / "runs").exists()
