"""Several processes of one trial, for real: gloo collectives, interleaving, and what happens when a rank is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from autotune.model.measurement import FailureKind
from autotune.model.spec import StudySpec
from autotune.workers.base import WorkerFailed
from tests.workers.conftest import Start, study


def several(count: int, *, devices: int | None = None, block_limit_s: float = 6) -> StudySpec:
    device = {"count": devices or count, "process_count": count}
    return study({"entry": "faulty:build"}, device=device, measure={"block_limit_s": block_limit_s})


def ranks() -> dict[int, psutil.Process]:
    """The worker processes that are alive, by rank, which the log that their guard writes tells."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        guard = process.parent()
        if guard is not None and "autotune.child.measure" in process.cmdline() and "-I" not in process.cmdline():
            log = next(part for part in guard.cmdline() if part.endswith(".log"))
            found[int(Path(log).stem.partition(".")[2] or 0)] = process
    return found


@pytest.mark.gate
@pytest.mark.parametrize(("count", "devices"), [(2, 6), (4, 4)])
def test_ranks_run_their_blocks_together(start: Start, tmp_path: Path, count: int, devices: int) -> None:
    worker = start(several(count, devices=devices))
    assert (worker.report.process_count, worker.report.device_count) == (count, devices)
    assert len(worker.run_block(5)) == 5
    assert len(worker.run_block(2)) == 2
    assert len(ranks()) == count
    worker.close()
    assert not ranks()
    assert len(list(tmp_path.glob("worker*.log"))) == count


def test_ranks_that_run_are_ended_where_a_later_one_cannot_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "worker.1.guard").mkdir()  # the name of a file of rank 1
    with pytest.raises(WorkerFailed, match="start a process") as error:
        start(several(2))
    assert not ranks(), error


@pytest.mark.slow
def test_two_workers_of_two_ranks_take_turns(start: Start, tmp_path: Path) -> None:
    reference, candidate = start(several(2)), start(several(2), {"xla_cpu_enable_fast_math": True})
    for _ in range(3):
        assert len(reference.run_block(3)) == len(candidate.run_block(3)) == 3
    assert reference.report.losses == pytest.approx(candidate.report.losses)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.gate)])
def test_a_rank_that_is_killed_ends_the_trial_at_once_with_its_log(start: Start, victim: int) -> None:
    worker = start(several(2))
    worker.run_block(2)
    os.kill(ranks()[victim].pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerFailed) as error:
        worker.run_block(5)
    assert time.monotonic() - began < 5
    assert error.value.failure.kind is FailureKind.CRASH
    assert error.value.failure.signal == "SIGKILL"
    assert Path(error.value.failure.log or "").name == ("worker.log", "worker.1.log")[victim]
    worker.close()
    assert not ranks()


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.gate)])
def test_a_rank_that_hangs_is_found_and_no_rank_survives(start: Start, victim: int) -> None:
    worker = start(several(2, block_limit_s=3))
    os.kill(ranks()[victim].pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match=r"within 3 s .*step \(ranks \[") as error:
        worker.run_block(19)
    assert error.value.failure.kind is FailureKind.HANG
    assert not ranks()
    assert time.monotonic() - began < 30
