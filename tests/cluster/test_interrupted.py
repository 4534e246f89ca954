"""Jobs that SLURM itself interrupts: suspended for a while, and pre-empted by more urgent ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from autotune.model.records import LedgerRecord, TrialResult
from autotune.rundir.store import Store
from harness.sandbox import Slurm, wait_for
from tests.cluster.conftest import marked
from tests.cluster.jobs import REAL, ended, incidents, logs, submit, trials_of, wait_for_trials, write
from tests.runs import is_whole

pytestmark = pytest.mark.cluster

NODES = ("--nodes", "2", "--time", "10m", "--sbatch", "--nodelist=127.0.0.[1-2]")
SUSPENDED_S = 35.0
"""Longer than a block of the study may take, and than what the stopwatch takes for work."""


def test_time_in_which_the_job_is_suspended_is_nobody_s(slurm: Slurm, tmp_path: Path) -> None:
    write(tmp_path, REAL, trials=4)
    run = tmp_path / "run"
    job = submit(slurm, tmp_path, *NODES)
    wait_for(lambda: (run / "records.jsonl").exists(), "the study has begun", limit_s=120)
    began_s = time.monotonic()
    wait_for_trials(tmp_path, 1)
    slurm.call("scontrol", "suspend", job)
    wait_for(lambda: slurm.job_state(job) == "SUSPENDED", "the job is suspended")
    before = trials_of(run)
    time.sleep(SUSPENDED_S)
    assert trials_of(run) <= before + 1  # SLURM says so a moment before it is so
    slurm.call("scontrol", "resume", job)
    assert ended(slurm, job) == "COMPLETED", logs(tmp_path)
    wall_s = time.monotonic() - began_s
    is_whole(run, trials=4)
    store = Store.open(run)
    assert incidents(run) == []
    assert [r.failure for r in store.of(TrialResult) if r.failure is not None] == []
    study_s = max(r.at_s for r in store.records())
    assert study_s < wall_s - SUSPENDED_S + 5
    assert store.of(LedgerRecord)[-1].device_s <= 4 * study_s  # two lanes of two devices


def test_a_job_that_is_pre_empted_goes_on_exactly(slurm: Slurm, tmp_path: Path) -> None:
    write(tmp_path, trials=17, delay_s=0.25)  # SLURM may take its time to make room
    job = submit(slurm, tmp_path, "--requeue", *NODES)
    wait_for_trials(tmp_path, 3)
    urgent = ["--parsable", "--partition=urgent", "--exclusive", "--nodes=2", "--nodelist=127.0.0.[1-2]", "--time=5"]
    other = slurm.call("sbatch", *urgent, f"--output={tmp_path}/urgent.log", "--wrap=sleep 2").strip()
    wait_for(lambda: "Restarts=1" in slurm.call("scontrol", "show", "job", job), "the job makes room")
    assert trials_of(tmp_path / "run") < 17
    assert ended(slurm, other) == "COMPLETED"
    assert "DUE TO PREEMPTION" in logs(tmp_path)
    assert not marked(str(tmp_path))
    time.sleep(3)  # as in tests of `--requeue`: SLURM counts whole seconds
    slurm.call("scontrol", "update", f"jobid={job}", "StartTime=now")
    assert ended(slurm, job) == "COMPLETED", logs(tmp_path)
    is_whole(tmp_path / "run", trials=17)
