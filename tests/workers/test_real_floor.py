"""The noise floor of real processes: each second one is a process of its own, and the study says what it can prove."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from autotune.measure.durations import power_analysis
from autotune.model.clock import Stopwatch
from autotune.model.measurement import log_ratio
from autotune.model.records import FloorResult
from autotune.model.spec import parse_study
from autotune.results.format import format_begin
from autotune.stats.noise_floor import MOST, moments, read_noise_floor
from autotune.study.stages import new_run, run_study
from tests.runs import Diary


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_floor_of_several_real_processes(tmp_path: Path) -> None:
    spec = parse_study(
        {
            "name": "floor",
            "workload": {"entry": "harness.slow_unoptimised:build"},
            "device": {"count": 1},
            "search": {"trials": 1, "settings": {"xla_backend_optimization_level": [3, 1]}},
            "measure": {"block_s": 0.01, "pairs_cap": 12, "start_limit_s": 170},
            "confirm": {"finalists": 1, "processes": 4, "soak": 0, "minimise": False},
        }
    )
    study = new_run(spec, tmp_path / "run", study_dir=tmp_path, view=Diary(), watch=Stopwatch())
    run_study(study)
    store, floor = study.store, study.store.of(FloorResult)[0]
    logs = sorted(str(p.parent.relative_to(store.path)) for p in (store.path / "floor").rglob("worker.log"))
    assert logs == ["floor", "floor/reference", "floor/rounding", "floor/second-2", "floor/second-3"]
    pairs = list(store.pairs("floor"))
    each = len(pairs) // 3
    assert [p.index for p in pairs] == list(range(3 * each))
    moment = moments(floor.floor.start_s, floor.floor.pair_s)  # by medians of all, not by the first warm-up's
    assert 8 <= each <= max(20, min(MOST, 2 * moment))
    gaps = [later.at_s - pair.at_s for pair, later in itertools.pairwise(pairs)]
    started = sorted(range(len(gaps)), key=lambda i: gaps[i])[-2:]
    assert sorted(started) == [each - 1, 2 * each - 1]  # a start lies between the pairs of two processes
    figures = floor.floor
    assert figures.degrees == 3
    assert figures.start_s > 0.5
    assert min(gaps[i] for i in started) > 0.5 * figures.start_s
    assert 0 < figures.pair_s < figures.start_s
    ratios = [log_ratio(p) for p in pairs]
    again = read_noise_floor(
        [ratios[i : i + each] for i in range(0, 3 * each, each)], start_s=figures.start_s, pair_s=figures.pair_s,
    )  # fmt: skip
    assert again == figures
    assert floor.power is not None
    assert floor.power == power_analysis(spec, floor)
    said = [line for line in format_begin(store) if "pairs of processes in each proof" in line]
    assert len(said) == 1
