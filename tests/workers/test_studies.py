"""Whole studies on real processes: each workload on eight virtual devices, and programs that know nothing of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.model.clock import Stopwatch
from autotune.model.measurement import FailureKind
from autotune.model.records import ConclusionRecord, FloorResult, Outcome, TrialResult
from autotune.model.spec import parse_study
from autotune.rundir.store import Store
from autotune.study.stages import new_run, run_study
from tests.runs import Diary
from tests.workers.conftest import PROGRAMS, command

ROOT = Path(__file__).parents[2]
SEARCH = {"trials": 2, "settings": {"xla_backend_optimization_level": [1, 3]}}
MEASURE = {
    "pairs_cap": 8,
    "block_s": 0.01,
    "start_limit_s": 170,
    "run_steps": 7,
}
CONFIRM = {"finalists": 1, "processes": 3, "alone": 0, "soak": "2s"}


def run(
    tmp_path: Path, workload: dict[str, Any], *, study_dir: Path = PROGRAMS, **more: Any
) -> tuple[ConclusionRecord, Store, Diary]:
    """A short study in a folder of the test."""
    data = {"name": "real", "workload": workload, "search": SEARCH, "measure": MEASURE, "confirm": CONFIRM}
    spec = parse_study({**data, **more})
    diary = Diary()
    study = new_run(spec, tmp_path / "run", study_dir=study_dir, view=diary, watch=Stopwatch())
    return run_study(study), study.store, diary


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("entry", "mesh"),
    [
        ("llama-tiny", {"data": 2, "fsdp": 2, "tensor": 2}),
        ("gpt-tiny", {"fsdp": 8}),
        ("moe-tiny", {"expert": 4, "data": 2}),
        ("long-tiny", {"context": 8}),
        ("rssm-tiny", {"data": 8}),
    ],
)
def test_a_study_of_each_workload_on_eight_devices(tmp_path: Path, entry: str, mesh: dict[str, int]) -> None:
    # What LLVM makes of it does not matter here, and takes half of the time of a start.
    soon = {"xla_backend_optimization_level": 0}
    search = {**SEARCH, "trials": 1, "settings": {"xla_cpu_prefer_vector_width": [128, 256]}}
    measure = {**MEASURE, "min_effect": 0.4}  # so large that noise alone brings about no proof
    more: dict[str, Any] = {"device": {"count": 8}, "baseline": soon, "search": search, "measure": measure}
    smallest = {"horizon": 2, "seq": 4} if entry == "rssm-tiny" else {"layers": 1}
    conclusion, store, _ = run(tmp_path, {"entry": entry, "options": {"mesh": mesh, **smallest}}, **more)
    assert conclusion.outcome in (Outcome.NOTHING_BEATS_THE_DEFAULT, Outcome.INCONCLUSIVE, Outcome.WINNER)
    results = store.of(TrialResult)
    assert [r.failure for r in results] == [None] * len(results)
    floor = store.last(FloorResult)
    assert floor is not None
    assert floor.reference.device_count == 8
    assert {k: v for k, v in floor.reference.mesh.items() if v > 1} == mesh


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_of_a_program_that_is_only_read(tmp_path: Path) -> None:
    search = {**SEARCH, "settings": {"xla_cpu_enable_fast_math": [False, True]}}
    conclusion, store, _ = run(tmp_path, command("flag-crash"), search=search)
    assert conclusion.outcome is Outcome.NOTHING_RAN
    (result,) = store.of(TrialResult)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.signal) == (FailureKind.CRASH, "SIGABRT")
    floor = store.last(FloorResult)
    assert floor is not None
    assert floor.comparison.mode == "aba"
    assert (floor.floor.degrees, floor.floor.within_sd) == (4, 0.0)
    assert len(list(store.pairs(floor.directory))) == 4


@pytest.mark.parametrize("name", ["command_read", "command_hook", "command_maxtext"])
def test_the_studies_that_are_shipped_are_legal(name: str) -> None:
    spec = parse_study(tomllib.loads((ROOT / "studies" / f"{name}.toml").read_text()))
    assert spec.workload.takes_turns == (name == "command_hook")
