"""Programs that are read take turns by being paused; where that changes what they do, they run one at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.measure.compare import Compared, Interleaved
from autotune.measure.context import MeasurementContext
from autotune.measure.pausing import refuse_dishonest, refuse_long_pause
from autotune.measure.tasks import Assignment
from autotune.model.errors import LaunchError
from autotune.model.measurement import ABA, INTERLEAVED, Arm, Pair
from autotune.model.records import AaRecord, AblationResult, ConfirmRun, Outcome, TrialResult
from autotune.rundir.store import Folders
from autotune.workers.base import CannotPause
from autotune.workers.command import CommandLauncher
from harness.sandbox import wait_for
from tests.runs import Told, there, worker_report
from tests.workers.conftest import PROGRAMS, Start, command, study, whole_study

READ = {"pattern": r"step (?P<step>\d+)", "loss": r"loss (?P<loss>\S+)"}


def pausable(*arguments: str, **workload: Any) -> dict[str, Any]:
    return command(*arguments, program="pausable.py", **{"read": READ, **workload})


def processes_of(program: str = "pausable.py") -> list[psutil.Process]:
    """The program's processes, and those below them."""
    mine = psutil.Process().children(recursive=True)
    tops = [p for p in mine if any(program in word for word in p.cmdline()[1:3]) and "-c" not in p.cmdline()]
    return [*tops, *(child for top in tops for child in top.children(recursive=True))]


def wait_until_stopped(count: int) -> None:
    def are_stopped() -> bool:
        return [p.status() for p in processes_of()] == [psutil.STATUS_STOPPED] * count

    wait_for(are_stopped, f"{count} processes are stopped", limit_s=20)


# ---------------------------------------------------------------------- one process


def test_a_block_has_neither_the_pause_nor_a_step_next_to_it(start: Start, tmp_path: Path) -> None:
    worker = start(study(pausable()))
    worker.pause()
    done = 5  # steps are the times between lines: the first line ends none
    for steps in (7, 1, 12):
        wait_until_stopped(1)
        time.sleep(0.3)  # until the guard has written what came before
        written = (tmp_path / "worker.log").stat().st_size
        time.sleep(0.6)
        assert (tmp_path / "worker.log").stat().st_size == written
        assert len(times := worker.run_block(steps)) == steps
        assert max(times) < 0.6
        assert worker.dropped_steps >= 2
        done += worker.dropped_steps + steps
        assert there(worker.last_loss) == pytest.approx(1 / (1 + done - worker.loss_lag), rel=1e-6)
        assert all(loss == pytest.approx(1 / (2 + step), rel=1e-6) for step, loss in worker.passed_losses)


def test_all_that_a_program_started_is_paused_and_ends_with_it(start: Start) -> None:
    worker = start(study(pausable("children")))
    worker.pause()
    worker.run_block(3)
    wait_until_stopped(3)
    worker.close()  # the fixture looks for what is left


def test_a_paused_program_still_cleans_up(start: Start, tmp_path: Path) -> None:
    worker = start(study(pausable()))
    worker.pause()
    wait_until_stopped(1)
    worker.close()
    assert "ended as it should" in (tmp_path / "worker.log").read_text()


DRIVER = """
import os, pathlib, sys, time
sys.path[:0] = {paths!r}
from autotune.model.flags import FlagSet
from tests.workers.test_pausing import *
launcher = CommandLauncher(study(pausable("children")), study_dir=str(PROGRAMS), base=os.environ)
worker = launcher.start(FlagSet(), pathlib.Path({folder!r}), progress=lambda phase: None)
worker.pause()
worker.run_block(3)
wait_until_stopped(3)
print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["driver", "reader"])
def test_nothing_stays_paused_when_driver_or_reader_are_killed(tmp_path: Path, victim: str) -> None:
    code = DRIVER.format(paths=sys.path, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as driver:
        try:
            guard, reader, *others = map(int, there(driver.stdout).readline().split())
            assert len(others) == 3
            os.kill(driver.pid if victim == "driver" else reader, signal.SIGKILL)
            wait_for(lambda: not any(map(is_alive, (guard, reader, *others))), "no process is left", limit_s=20)
        finally:
            driver.kill()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("kind", ["own-clock", "file", "docker"])
def test_a_program_that_cannot_be_timed_or_reached_is_not_paused(start: Start, tmp_path: Path, kind: str) -> None:
    workload = pausable()
    if kind == "own-clock":
        workload = pausable(kind, read={"pattern": r"took (?P<step_ms>\S+) ms"})
    if kind == "file":
        python, *rest = workload["command"]
        workload["command"] = ["sh", "-c", f"{python} {rest[0]} > {tmp_path}/steps.txt"]
        workload["read"] = {**READ, "file": f"{tmp_path}/steps.txt"}
    if kind == "docker":
        client = tmp_path / "docker"
        client.write_text('#!/bin/sh\n"$@"\nexit $?\n')
        client.chmod(0o755)
        workload["command"] = [str(client), *workload["command"]]
    worker = start(study(workload))
    with pytest.raises(CannotPause):
        worker.pause()


# ---------------------------------------------------------------------- whether it is honest


def test_a_program_whose_printed_durations_have_numbers_is_timed_by_the_reader(start: Start) -> None:
    code = "import time\nfor n in range(10**6): time.sleep(.01); print(f'step {3 * n} 777 ms', flush=True)"
    read = {"pattern": r"step (?P<step>\d+) (?P<step_ms>\d+) ms"}
    worker = start(study({"command": [sys.executable, "-c", code], "read": read}))
    assert set(worker.run_block(3)) == {0.777}
    worker.pause()
    assert sum(worker.run_block(9)) == pytest.approx(there(worker.last_clock_s) / 3)


def pairs_of(first_s: float, later_s: float, count: int = 12) -> list[Pair]:
    """Pairs of blocks of six steps, the first half and the second of which take so long."""
    blocks = []
    for n in range(count):
        first, later = (s * (1.0 + 0.01 * (7 * n % 5 - 2)) for s in (first_s, later_s))
        blocks.append((first,) * 3 + (later,) * 3)
    return [
        Pair(index=n, first=Arm.REFERENCE, reference_s=block, candidate_s=block, at_s=float(n))
        for n, block in enumerate(blocks)
    ]


@pytest.mark.parametrize(
    ("first_s", "later_s", "end_s", "is_honest"),
    [
        (0.1, 0.1, 0.1, True),
        (0.102, 0.1, 0.1, True),
        (0.13, 0.1, 0.1, False),
        (0.08, 0.1, 0.1, False),
        (1e-5, 1e-5, 1e-5, False),
        (0.13, 0.13, 0.1, False),
    ],
)
def test_steps_after_a_pause_must_be_like_later_ones(
    first_s: float, later_s: float, end_s: float, is_honest: bool
) -> None:
    report = worker_report(warmup_step_times_s=(0.1,) * 5, line_s=0.1)
    doubt = contextlib.nullcontext() if is_honest else pytest.raises(CannotPause)
    with doubt:
        refuse_dishonest(report, pairs_of(first_s, later_s), (*(later_s,) * 12, *(end_s,) * 6))


def test_a_line_every_ten_seconds_is_too_seldom() -> None:
    with pytest.raises(CannotPause):
        refuse_long_pause(worker_report(line_s=10.0), 5)


@pytest.fixture
def aa_run(tmp_path: Path) -> Iterator[Callable[..., tuple[Compared, Told]]]:
    """The A/A run of a program that is paused where it can be: `aa_run(workload, mode=...)`."""
    made: list[MeasurementContext] = []

    def run(workload: dict[str, Any], **measure: Any) -> tuple[Compared, Told]:
        spec = study(workload, measure={"run_steps": 10, **measure})
        launcher = CommandLauncher(spec, study_dir=str(PROGRAMS), base=os.environ)
        made.append(MeasurementContext(spec, Folders(tmp_path / "run"), launcher, sink := Told()))
        made[-1].assignment = Assignment(folder=("aa",))
        return Interleaved(made[-1]).aa_run(), sink

    yield run
    for context in made:
        context.close()


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("", INTERLEAVED),
        ("children", INTERLEAVED),
        ("watchdog", ABA),
        ("catches-up", ABA),
        ("elsewhere", ABA),
        ("short", ABA),
        ("in-bursts", ABA),
    ],
)
def test_an_aa_run_finds_out_whether_a_program_bears_pauses(aa_run: Any, tmp_path: Path, kind: str, mode: str) -> None:
    found, sink = aa_run(pausable(kind, str(tmp_path / "starts")))
    assert found.comparison.mode == mode, sink.incidents
    assert len(sink.incidents) == (mode == ABA), sink.incidents
    assert all("not paused" in what for what in sink.incidents)
    if mode == INTERLEAVED:
        assert len((tmp_path / "starts").read_text().splitlines()) == len(found.reports)
        assert all(p.loss is not None for p in found.pairs)
        assert {there(p.loss).reference == there(p.loss).candidate for p in found.pairs} == {True}


@pytest.mark.gate
def test_a_study_that_insists_on_pauses_is_told_why_they_are_wrong(aa_run: Any) -> None:
    with pytest.raises(LaunchError, match="as before"):
        aa_run(pausable("watchdog"), mode=INTERLEAVED)


@pytest.mark.slow
def test_a_study_of_a_program_that_is_paused_ends_with_a_winner_and_starts_it_seldom(tmp_path: Path) -> None:
    settings = {"xla_cpu_enable_fast_math": [True], "xla_cpu_enable_fast_min_max": [True]}
    conclusion, store = whole_study(
        tmp_path,
        pausable("", str(starts := tmp_path / "starts")),
        soak="0s",
        search={"settings": settings, "trials": 3},
        measure={"pairs_cap": 12},
    )
    assert conclusion.outcome is Outcome.WINNER, conclusion
    trials, (aa_run,) = store.of(TrialResult), store.of(AaRecord)
    assert {there(r.comparison).mode for r in trials if r.comparison is not None} == {INTERLEAVED}
    assert aa_run.comparison.mode == INTERLEAVED
    of_aa_run = 2 + aa_run.noise.degrees  # the living one, and one in another rounding
    in_pairs = 2 * len([*store.of(ConfirmRun), *store.of(AblationResult)])
    started = len(starts.read_text().splitlines())
    assert started <= of_aa_run + len(trials) + in_pairs, "a trial starts its candidate once"
