"""A spare process: it imports beside a start, gets the variables of a set that are read late, and no proof has one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.child.fingerprint import CACHE_FOLDER
from autotune.measure import context
from autotune.measure.tasks import AaTask, AblationTask, Assignment, PairTask, TrialTask
from autotune.model.flags import FlagSet
from autotune.model.records import TrialConfig
from autotune.rundir.store import Folders
from autotune.workers.local import LocalLauncher, LocalWorker
from autotune.workers.spare import LATE, LOG_NAME
from harness.simulated_machine import SimulatedLauncher, Simulation
from tests.runs import Told
from tests.workers.conftest import PROGRAMS, study

SET = FlagSet({"NCCL_PROTO": "LL"})
SPEC = study({"entry": "llama"})
TASKS = {
    "A/A run": AaTask(),
    "trial": TrialTask(config=TrialConfig(number=1, settings=SET, origin="first")),
    "ablation": AblationTask(settings=SET, left_out="NCCL_PROTO"),
    "proof": PairTask(stage="finalist", trial=1, settings=SET, repeat=0),
}


class Asked(SimulatedLauncher):
    """Notes whether a spare is wanted."""

    wanted = False

    def keep_spare(self, wanted: bool) -> None:
        self.wanted = wanted


@pytest.mark.parametrize(
    ("task", "cores", "wanted"),
    [("trial", 4, True), ("ablation", 8, True), ("trial", 3, False), ("A/A run", 8, False), ("proof", 8, False)],
)
def test_only_a_search_with_free_cores_keeps_one(
    task: str, cores: int, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    launcher = Asked(SPEC, Simulation())
    launcher.wanted = not wanted
    context.MeasurementContext(SPEC, Folders(tmp_path), launcher, Told()).begin(Assignment(task=TASKS[task]))
    assert launcher.wanted is wanted


@pytest.mark.parametrize("name", ["JAX_ENABLE_X64", "LD_PRELOAD", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "PATH"])
def test_what_is_read_while_python_or_jax_begins_is_not_given_late(name: str) -> None:
    assert not LATE.fullmatch(name)


class Seen:
    """Workers of one launcher that keeps a spare, each with the process that was there before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = LocalLauncher(study({"entry": "faulty:build"}), study_dir=str(PROGRAMS), base=os.environ)
        self.launcher.caches.begin(programs=True, kernels=False, anew=False)
        self.launcher.keep_spare(True)

    @property
    def spare(self) -> Any:
        return self.launcher._spare._process

    def start(self, name: str, settings: dict[str, Any]) -> tuple[LocalWorker, bool]:
        """A worker, and whether it is what was the spare."""
        (self.folder / name).mkdir()
        before = self.spare
        worker = self.launcher.start(FlagSet(settings), self.folder / name, progress=lambda phase: None)
        return worker, worker._processes[0] is before


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Seen]:
    made = Seen(tmp_path)
    yield made
    made.launcher.close()
    made.launcher.caches.close()


@pytest.mark.gate
def test_a_spare_runs_the_set_that_it_is_given_and_a_set_that_is_read_early_gets_a_process_of_its_own(
    seen: Seen, tmp_path: Path
) -> None:
    plain, was_spare = seen.start("plain", {})
    assert not was_spare
    assert seen.spare is not None
    late = {"xla_cpu_max_isa": "SSE4_2", "NCCL_PROTO": "LL"}
    worker, was_spare = seen.start("late", late)
    assert was_spare
    assert worker.report.fingerprint != plain.report.fingerprint, "the flags reached the compiler"
    assert (tmp_path / "late/worker.log").exists()
    assert not (tmp_path / "plain" / LOG_NAME).exists()
    assert any((Path(seen.launcher._environment(FlagSet(late))[CACHE_FOLDER])).iterdir()), "kept under its own set"
    early, was_spare = seen.start("early", {"jax_default_matmul_precision": "highest"})
    assert not was_spare
    for one in (plain, worker, early):
        assert len(one.run_block(3)) == 3
    seen.launcher.keep_spare(False)
    assert seen.spare is None
    assert not list(tmp_path.glob(f"*/{LOG_NAME}"))


@pytest.mark.gate
def test_a_spare_that_dies_while_it_waits_is_not_missed(seen: Seen) -> None:
    seen.start("first", {})
    guard = psutil.Process(seen.spare.pid)
    for process in [*guard.children(recursive=True), guard]:
        process.kill()
    psutil.wait_procs([guard], timeout=10)
    worker, was_spare = seen.start("second", {"NCCL_PROTO": "LL"})
    assert not was_spare
    assert len(worker.run_block(3)) == 3
