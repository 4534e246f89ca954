"""Studies as users run them on the cluster of these tests, and what must hold when they are over."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.model.records import IncidentRecord
from autotune.rundir.store import Store
from harness.sandbox import Slurm, wait_for
from harness.simulated_machine import write_study
from tests.cluster.conftest import ROOT, autotune, copy_programs

SIMULATED, REAL = (
    Path(__file__).with_name(f"{kind}_study.txt").read_text(encoding="utf-8") for kind in ("simulated", "real")
)


def write(folder: Path, text: str = SIMULATED, **values: object) -> Path:
    """Writes a study into a folder, with the programs that it may need beside it."""
    folder.mkdir(exist_ok=True)
    file = folder / "study.toml"
    values = {"node_count": 1, "count": 2, "trials": 12, "delay_s": 0.01, "search": "", **values}
    write_study(file, text.format(**values))
    copy_programs(folder)
    return file


def submit(slurm: Slurm, folder: Path, *arguments: str) -> str:
    """Submits the study of a folder; gives the job's number."""
    command = ["submit", "study.toml", "--partition", "gpu", "--run-dir", "run", *arguments]
    done = autotune(*command, cwd=folder, env={**slurm.env, "MARK": str(folder)})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1]


def logs(folder: Path) -> str:
    """What the jobs and drivers of a folder have printed."""
    files = sorted([*folder.glob("run.slurm-*.log"), *folder.glob("driver.log")])
    return "\n".join(p.read_text(errors="replace") for p in files)


def ended(slurm: Slurm, job: str, *, limit_s: float = 150.0) -> str:
    """Waits for the end of a job; gives how it ended."""
    over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
    wait_for(lambda: set(slurm.job_state(job).split()) <= over, f"job {job} is over", limit_s=limit_s)
    return " ".join(sorted(set(slurm.job_state(job).split())))


@contextlib.contextmanager
def driving(folder: Path, env: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`autotune run` of a folder's study in the background, killed at the end if it still runs."""
    start = [sys.executable, "-m", "harness.simulated_machine"]
    command = [*start, "run", "study.toml", "--run-dir", "run", *arguments]
    env = {"PYTHONPATH": str(ROOT), "MARK": str(folder), **env}  # lanes get it, too: by the mark they are found
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


def trials_of(run: Path) -> int:
    """Trials that are recorded by now."""
    return sum(f.read_bytes().count(b'"kind":"trial"') for f in run.glob("records.jsonl"))


def wait_for_trials(folder: Path, count: int, *, driver: subprocess.Popen[bytes] | None = None) -> None:
    """Waits until a study has recorded so many trials; if it does not, what was printed is told."""

    def are_done() -> bool:
        assert driver is None or driver.poll() is None, "the driver has ended"
        return trials_of(folder / "run") >= count

    try:
        wait_for(are_done, f"{count} trials are done", limit_s=90)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{logs(folder)}") from error


def incidents(run: Path) -> list[str]:
    """What happened to the tuner."""
    return [i.what for i in Store.open(run).of(IncidentRecord)]
