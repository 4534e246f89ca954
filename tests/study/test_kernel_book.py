"""Each process leaves what its autotuner chose, and what differs between equal processes is in the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.measure.context import MeasurementContext
from autotune.model.flags import FlagSet
from autotune.model.kernels import DUMP_FILE
from autotune.model.records import ConfirmRun, FloorResult, IncidentRecord, Outcome, TrialResult
from autotune.model.spec import StudySpec
from autotune.results.format import floor_lines, warning_lines
from autotune.rundir.store import Folders
from autotune.workers.base import Progress
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.runs import Run, replay_study
from tests.study.test_gpu_turns import Silent

RESULTS = (
    'results {{ device: "d" hlo: "gemm one" result {{ run_time {{ nanos: {time} }} gemm {{ algorithm: {one} }} }} }}'
)
QUICK = {"confirm": {"finalists": 1, "minimise": False, "soak": 0, "alone": 0}}


class Choosing(SimulatedLauncher):
    """Every third process of a set runs another kernel, which takes longer; each leaves what it chose."""

    def __init__(self, spec: StudySpec, *, text: str = RESULTS) -> None:
        super().__init__(spec)
        self._text = text
        self.started: dict[str, int] = {}

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        number = self.started[str(settings)] = self.started.get(str(settings), 0) + 1
        worker = super().start(settings, folder, progress=progress)
        is_other = number % 3 == 0
        (folder / DUMP_FILE).write_text(self._text.format(time=number, one=5 if is_other else 4))
        if is_other:
            worker._process._log_step += 0.02
        return worker


def study(**more: Any) -> StudySpec:
    return replay_study(
        effects={"xla_a=1": 0.9}, noise={"white_sd": 0.003, "process_sd": 0.0005},
        study={"device": {"platform": "cuda", "count": 1}, **QUICK, **more},
    )  # fmt: skip


def test_processes_that_chose_other_kernels_are_counted_and_timed(run_replay: Run) -> None:
    spec = study()
    launcher = Choosing(spec)
    conclusion, store, _ = run_replay(spec, trials=3, launcher=launcher)
    assert conclusion.outcome is Outcome.WINNER
    spread = store.of(FloorResult)[0].kernels
    assert spread is not None
    assert (spread.processes, spread.others) == (5, 1)
    assert spread.apart == pytest.approx(0.02, abs=0.004)  # the spread that it makes
    assert any("processes chose other kernels: 1 of 5 (they are 2" in line for line in floor_lines(store))
    for run in store.of(ConfirmRun):
        for kernels in (run.reference_kernels, run.candidate_kernels):
            assert kernels is not None
            assert kernels.count == 1
    assert {r.candidate_kernels.digest for r in store.of(ConfirmRun) if r.candidate_kernels} == {
        r.reference_kernels.digest for r in store.of(ConfirmRun) if r.reference_kernels
    }
    said = [line for line in warning_lines(store) if "processes chose other kernels" in line]
    assert any(line.startswith("of the default in proofs") for line in said)
    assert any(line.startswith(f"of trial {conclusion.trial} (") for line in said)
    assert all(r.worker is None or r.worker.kernels is not None for r in store.of(TrialResult))


def test_what_a_dead_process_left_is_not_said_of_the_next_one(tmp_path: Path) -> None:
    spec, folders = study(), Folders(tmp_path)
    leaves, folder = Choosing(spec), folders.folder("trials", "0001")
    assert MeasurementContext(spec, folders, leaves, Silent()).start(FlagSet(), folder).report.kernels is not None
    assert (folder / DUMP_FILE).exists()
    silent = SimulatedLauncher(spec)
    assert MeasurementContext(spec, folders, silent, Silent()).start(FlagSet(), folder).report.kernels is None


def test_results_that_cannot_be_read_are_an_incident_and_nothing_else(run_replay: Run) -> None:
    spec = study()
    _, store, _ = run_replay(spec, trials=2, launcher=Choosing(spec, text="torn {{"))
    assert all(r.comparison is not None for r in store.of(TrialResult))
    assert store.of(FloorResult)[0].kernels is None
    assert any("what the autotuner chose is not known" in r.what for r in store.of(IncidentRecord))
