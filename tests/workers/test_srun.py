"""What a launcher over several nodes asks before it starts anything; tests/cluster/test_srun.py has a real SLURM."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.errors import LaunchError
from autotune.workers import srun
from autotune.workers.srun import SRUN_VARIABLE, SrunLauncher
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
    with pytest.raises(LaunchError, match="must be an `entry`"):
        launcher(JOB, command())
