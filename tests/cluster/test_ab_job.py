"""`autotune ab` in a job script of a real SLURM, of a program over two nodes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sandbox import Slurm
from tests.cluster.conftest import ROOT
from tests.cluster.jobs import ended

pytestmark = pytest.mark.cluster

JOB = """#!/bin/bash
#SBATCH --nodes=2 --ntasks=2 --gres=gpu:8 --partition=gpu --nodelist=127.0.0.[1-2] --output=ab.log
python=$1
"$python" -m autotune ab --platform cpu --pairs 6 --max-slowdown 20% --b-args "--work 64" -- \\
    srun -N2 -n2 "$python" two_nodes.py
echo "status $?"
"""


def test_both_arms_of_a_program_over_two_nodes_take_turns_in_one_job(slurm: Slurm, tmp_path: Path) -> None:
    """Eight times the work is slower, whatever else the machine does."""
    shutil.copy(Path(__file__).parent / "programs/two_nodes.py", tmp_path)
    (tmp_path / "job.sh").write_text(JOB)
    command = ["sbatch", "--parsable", "job.sh", sys.executable]
    env = {**slurm.env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    state = ended(slurm, done.stdout.strip(), limit_s=380)
    log = (tmp_path / "ab.log").read_text(encoding="utf-8")
    assert state == "COMPLETED", log
    assert "slower than A" in log
    assert log.splitlines()[-1] == "status 1", log
    assert "step by step" in log
