"""What a launcher over several nodes asks before it starts anything; tests/cluster/test_srun.py has a real SLURM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import LaunchError
from autotune.workers import base, srun
from autotune.workers.base import GuardedProcess
from autotune.workers.srun import SRUN_VARIABLE, SrunLauncher
from tests.runs import there
from tests.tables import toml_beside
from tests.workers.conftest import command, study

CASES = toml_beside(__file__)

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}


def launcher(base: dict[str, str], workload: dict[str, Any] | None = None, nodes: int = 2) -> SrunLauncher:
    device = {"count": nodes, "process_count": 1 if workload else nodes, "node_count": nodes}
    return SrunLauncher(study(workload or {"entry": "llama"}, device=device), study_dir=".", base=base)


@pytest.fixture(autouse=True)
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srun, "slurm_hosts", lambda listed, base: ("n1", "n2", "n3"))


def test_a_trial_takes_the_first_nodes_of_its_job() -> None:
    found = launcher({**JOB, SRUN_VARIABLE: "--mpi=none '--comment=a b'"})
    assert found._nodes == ("n1", "n2")
    assert found._extra == ["--mpi=none", "--comment=a b"]


@pytest.mark.parametrize(("base", "nodes", "words"), CASES["lacking_jobs"])
def test_what_a_job_lacks_is_told(base: dict[str, str], nodes: int, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        launcher(base, nodes=nodes)


def test_a_command_over_several_nodes_is_refused() -> None:
    with pytest.raises(LaunchError, match="an `entry`"):
        launcher(JOB, command())


HELLO = """echo '{"type": "hello", "node": "n1", "step": "3", "port": 1}'; exec sleep 600"""


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_step_whose_guard_does_not_confirm_its_end_is_cancelled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(base, "end_slurm_step", lambda step, env: ended.append(step))
    through = ["sh", "-c", HELLO] if is_silent else ["env", "SLURM_STEP_ID=3"]
    process = GuardedProcess(["sleep", "600"], dict(os.environ), tmp_path / "worker.log", through=through)
    there(process.first({"hello"}, 20.0))
    process.close(0.2 if is_silent else 20.0)
    process.close(0.2)
    assert ended == ["3"] * is_silent
