"""A disk that gives EIO in the middle of a study, by a file system in user space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.rundir.damage import damages
from autotune.rundir.store import Store
from harness.disks import ROOT, FailingFolder, missing
from harness.kills import SIMULATED
from harness.sandbox import wait_for
from harness.simulated_machine import write_study
from harness.snapshots import command
from tests.runs import is_whole
from tests.tables import toml_beside

TRIALS = 12

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
FAULTS = toml_beside(__file__)["disk_faults"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingFolder]:
    (tmp_path / "below").mkdir()
    write_study(tmp_path / "study.toml", SIMULATED.format(trials=TRIALS, delay_s=0.01))
    with FailingFolder(tmp_path / "disk", tmp_path / "below") as disk:
        yield disk


def start(disk: FailingFolder) -> subprocess.Popen[str]:
    folder = disk.mount.parent
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env, pipe = {**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": str(folder)}, subprocess.PIPE
    run = command(folder / "study.toml", disk.mount / "run")
    return subprocess.Popen(run, text=True, stdout=pipe, stderr=pipe, env=env)


@pytest.mark.parametrize(
    "faults",
    [pytest.param(f, marks=pytest.mark.gate if f == FAULTS[2] else pytest.mark.slow, id=" ".join(f)) for f in FAULTS],
)
def test_a_disk_that_fails_ends_the_study_with_advice_and_harms_nothing(disk: FailingFolder, faults: list[str]) -> None:
    run_dir = disk.mount / "run"
    records = disk.mount.parent / "below/run/records.jsonl"
    with start(disk) as process:
        wait_for(lambda: records.exists() and records.read_text().count('"kind":"trial"') >= 2, "two trials are done")
        before = records.read_bytes().rpartition(b"\n")[0]
        disk.fail(*faults)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert "Traceback" not in errors
    assert "Input/output error" in errors
    assert "same command" in errors
    disk.fail()
    assert records.read_bytes().startswith(before)
    assert len(Store.open(run_dir).records()) >= before.count(b"\n") + 1
    assert damages(Store.open(run_dir)) == []
    with start(disk) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    is_whole(run_dir, TRIALS)
    assert damages(Store.open(run_dir)) == []
