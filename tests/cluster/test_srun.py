"""Trials over two nodes of a real SLURM: ranks as steps, and what happens when a rank, a step or a node is lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.spec import StudySpec, parse_study
from autotune.workers.base import WorkerFailed
from autotune.workers.local import LocalWorker
from autotune.workers.srun import SrunLauncher
from harness.sandbox import Slurm, wait_for
from tests.cluster.conftest import ROOT, Allocate, marked
from tests.tables import toml_beside

CASES = toml_beside(__file__)

pytestmark = pytest.mark.cluster

PROGRAMS = ROOT / "tests/workers/programs"
QUICK = {"start_limit_s": 120, "block_limit_s": 30}


def two_nodes(
    *, process_count: int = 2, count: int = 4, measure: dict[str, Any] | None = None, **options: object
) -> StudySpec:
    return parse_study(
        {
            "name": "spans",
            "workload": {"entry": "faulty:build", "options": options},
            "device": {"count": count, "process_count": process_count, "node_count": 2},
            "measure": {**QUICK, **(measure or {})},
        }
    )


Start = Callable[..., LocalWorker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    launchers = []

    def begin(spec: StudySpec, base: dict[str, str], settings: dict[str, Any] | None = None) -> LocalWorker:
        launcher = SrunLauncher(spec, study_dir=str(PROGRAMS), base=base)
        launchers.append(launcher)
        return launcher.start(FlagSet(settings or {}), tmp_path, progress=lambda phase: None)

    yield begin
    for launcher in launchers:
        launcher.close()
    wait_for(lambda: not marked(str(tmp_path)), "no process of a trial is left", limit_s=20)


def ranks(slurm: Slurm) -> dict[str, psutil.Process]:
    """The ranks that are alive, by the node on which they run; each has its guard for a parent."""
    found = [
        p for p in marked("'SLURMD_NODENAME'") if "autotune.child.measure" in p.cmdline() and "-I" not in p.cmdline()
    ]
    own = [p for p in found if p.parents()[0].environ().get("SLURM_CONF") == slurm.env["SLURM_CONF"]]
    return {p.environ()["SLURMD_NODENAME"]: p for p in own}


@pytest.mark.gate
def test_one_trial_runs_over_two_nodes_under_exactly_the_environment_of_its_settings(
    slurm: Slurm, allocate: Allocate, start: Start, tmp_path: Path
) -> None:
    own = {"SLURM_NTASKS": "7", "SLURM_EXPORT_ENV": "NONE", "XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    worker = start(two_nodes(), {**allocate(2), **own}, {"xla_cpu_prefer_vector_width": 256})
    assert (worker.report.process_count, worker.report.device_count) == (2, 4)
    assert len(worker.run_block(5)) == 5
    seen = ranks(slurm)
    assert sorted(seen) == ["127.0.0.1", "127.0.0.2"]
    for env in [p.environ() for p in seen.values()]:
        assert env["XLA_FLAGS"] == "--xla_cpu_prefer_vector_width=256"
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"  # the node's own
        assert not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST", "SLURM_LOCALID"} & set(env)
    worker.close()
    assert sorted(p.name for p in tmp_path.glob("*.log")) == ["worker.1.log", "worker.log"]


def test_faults_of_the_program_keep_their_names(allocate: Allocate, start: Start) -> None:
    base = allocate(2)
    with pytest.raises(WorkerFailed) as unknown:
        start(two_nodes(), base, {"xla_no_such_flag": "1"})
    assert (unknown.value.failure.kind, unknown.value.infrastructure) == (FailureKind.UNKNOWN_FLAG, False)
    worker = start(two_nodes(fault="crash"), base)
    with pytest.raises(WorkerFailed) as crash:
        worker.run_block(9)
    assert (crash.value.failure.kind, crash.value.infrastructure) == (FailureKind.CRASH, False)
    assert crash.value.failure.signal == "SIGABRT"
    worker = start(two_nodes(fault="hang", measure={"block_limit_s": 4}), base)
    with pytest.raises(WorkerFailed) as hang:
        worker.run_block(9)
    assert (hang.value.failure.kind, hang.value.infrastructure) == (FailureKind.HANG, False)


@pytest.mark.parametrize("victim", [pytest.param("driver", marks=pytest.mark.gate), "srun", "guard"])
def test_no_rank_outlives_driver_step_or_guard(slurm: Slurm, allocate: Allocate, tmp_path: Path, victim: str) -> None:
    command = [sys.executable, "-c", toml_beside(__file__, "programs.toml")["trial_on_two_nodes"], str(tmp_path)]
    env = {**allocate(2), "PYTHONPATH": str(ROOT), "MARK": str(tmp_path)}
    driver = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "ready").exists, "the trial runs")
        both = list(ranks(slurm).values())
        assert len(both) == 2
        if victim == "driver":
            driver.kill()
        else:
            for process in marked("-I"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    words = process.cmdline()  # srun has those of the guard in its own
                    if f"{tmp_path}/" in " ".join(words) and (victim == "srun") == (words[0] == "srun"):
                        process.kill()
        wait_for(lambda: not any(p.is_running() for p in both), "no rank is left", limit_s=30)
    finally:
        driver.kill()
        driver.wait()


def test_a_node_that_loses_power_is_no_fault_of_the_settings(slurm: Slurm, allocate: Allocate, start: Start) -> None:
    worker = start(two_nodes(measure={"block_limit_s": 5}), allocate(2))
    worker.run_block(2)
    try:
        slurm.kill_node("127.0.0.2")
        with pytest.raises(WorkerFailed) as error:
            worker.run_block(50)
        assert error.value.failure.kind is FailureKind.NODE_LOST
        assert error.value.infrastructure
        assert "127.0.0.2" in error.value.failure.message
    finally:
        slurm.start_node("127.0.0.2")
        slurm.wait_until_back("127.0.0.2")


@pytest.mark.parametrize(("base", "words"), CASES["places_without_nodes"])
def test_a_place_without_nodes_says_what_to_do(slurm: Slurm, base: dict[str, str], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        SrunLauncher(two_nodes(), study_dir=".", base={**slurm.env, **base})


def test_two_trials_of_two_ranks_a_node_take_turns_on_the_same_nodes(allocate: Allocate, start: Start) -> None:
    base, spec = allocate(2), two_nodes(process_count=4, count=4)
    reference, candidate = start(spec, base), start(spec, base, {"xla_cpu_enable_fast_math": True})
    assert (reference.report.process_count, reference.report.device_count) == (4, 4)
    for _ in range(3):
        assert len(reference.run_block(2)) == len(candidate.run_block(2)) == 2
    assert reference.report.losses == pytest.approx(candidate.report.losses)
