"""One real SLURM cluster for all tests of this folder; they skip with a reason where it is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.sandbox import Slurm, missing_slurm

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Four virtual nodes with eight fake GPUs each; the last one is for a job that waits for its time limit."""
    if missing := missing_slurm():
        pytest.skip(f"SLURM is not installed here ({', '.join(missing)}); `make test-cluster` as root installs it")
    # Short: SLURM's sockets have paths of at most 108 characters.
    root = tmp_path_factory.mktemp("slurm")
    with Slurm(root) as cluster:
        yield cluster


Allocate = Callable[..., dict[str, str]]


@pytest.fixture
def allocate(slurm: Slurm) -> Iterator[Allocate]:
    """Gives the environment of a job of some nodes; the job ends with the test."""
    jobs: list[str] = []

    def begin(nodes: int, *arguments: str) -> dict[str, str]:
        options = ["--no-shell", "--gres=gpu:8", "--no-kill", f"--nodes={nodes}", f"--nodelist=127.0.0.[1-{nodes}]"]
        command = ["salloc", *options, *arguments]
        done = subprocess.run(command, env=slurm.env, capture_output=True, text=True, check=True, timeout=60)
        job = next(w for w in done.stderr.split() if w.isdigit())
        jobs.append(job)
        listed = slurm.call("squeue", "-h", "-j", job, "-o", "%N").strip()
        return {**slurm.env, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": listed, "SLURM_JOB_NUM_NODES": str(nodes)}

    yield begin
    for job in jobs:
        slurm.call("scancel", job)


def autotune(*arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command as a user types it, on simulated machines where they are described."""
    command = [sys.executable, "-m", "harness.simulated_machine", *arguments]
    own = {**env, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=own, capture_output=True, text=True, check=False, timeout=170)


def marked(mark: str) -> list[psutil.Process]:
    """Living processes whose environment or command holds some text."""
    found = []
    for process in psutil.process_iter():
        try:
            text = f"{process.environ()} {process.cmdline()}"
            if mark in text and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def copy_programs(folder: Path) -> None:
    """Puts the workloads that go wrong on demand beside a study."""
    source = ROOT / "tests/workers/programs/faulty.py"
    shutil.copy(source, folder / source.name)
