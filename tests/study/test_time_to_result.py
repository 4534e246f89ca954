"""`benchmarks/time_to_result.py` and its virtual time: one study or way of each machine."""

from __future__ import annotations

import importlib
import json
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, Outcome, TrialResult
from autotune.workers.base import Progress, Worker
from harness.simulated import MemoryStore
from harness.virtual_time import VirtualClock, VirtualLauncher, VirtualPool, VirtualWorker, virtual_study

BENCHMARK: Any = importlib.import_module("benchmarks.time_to_result")
MACHINES, WAYS = BENCHMARK.MACHINES, BENCHMARK.WAYS


def study(name: str, *, trials: int, seed: int = 1) -> MemoryStore:
    """A short study on a machine on which a cache saves nothing."""
    machine, effects = MACHINES[name], BENCHMARK.effects_of(seed)
    spec, space = BENCHMARK.study_of(machine, effects, seed, trials=trials), BENCHMARK.space_of(effects)
    return virtual_study(spec, space, replace(machine.times, compile_s=0.0))


def test_a_trial_takes_its_start_and_its_blocks_and_nothing_is_lost_between() -> None:
    name = "8 GPUs, start 90 s"  # whose starts are longer than the pauses that a stopwatch leaves out
    store, machine = study(name, trials=2), MACHINES[name]
    start_s = machine.times.host_s + machine.times.device_s
    trials = store.of(TrialResult)
    for trial in trials:
        assert trial.comparison is not None
        pair_s = 2 * store.spec.block_sizes.steps(machine.step_s) * machine.step_s
        assert trial.duration_s == pytest.approx(start_s + trial.comparison.pair_count * pair_s, rel=0.1)
    last, first = trials[-1], store.of(AaRecord)[0]
    assert last.at_s - first.at_s == pytest.approx(sum(t.duration_s or 0.0 for t in trials), abs=0.1)
    assert store.of(ConclusionRecord)[-1].at_s >= last.at_s


def test_a_device_that_shows_how_soon_it_settles_is_waited_for_no_longer() -> None:
    store, machine = study("H100", trials=2), MACHINES["H100"]
    noise, planned = store.of(AaRecord)[0].noise, store.spec.block_sizes
    sizes = planned.learned(noise)
    assert sizes.block_s < planned.block_s
    assert machine.times.fast_s < sizes.settle_s < planned.settle_s
    pair_s = 2 * sizes.steps(machine.step_s) * machine.step_s
    assert noise.pair_s == pytest.approx(pair_s, rel=0.15)  # in whole steps
    start_s = machine.times.host_s + machine.times.device_s
    for number, trial in enumerate(store.of(TrialResult)):
        assert trial.comparison is not None
        imported_s = machine.times.import_s if number else 0.0  # beside the start of the trial before
        lasts_s = start_s - imported_s + trial.comparison.pair_count * pair_s
        assert trial.duration_s == pytest.approx(lasts_s, rel=0.05)


class Boosted(VirtualLauncher):
    """Any candidate is 5 % faster for 2.5 s after each pause, and no faster after that."""

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> Worker:
        worker = super().start(settings, folder, progress=progress)
        if "true" in settings.values() and isinstance(worker, VirtualWorker):
            worker.times = replace(worker.times, fast_share=0.05, fast_s=2.5, fast_sd_s=0.0)
        return worker


def test_a_candidate_that_is_fast_while_the_default_has_settled_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.virtual_time.VirtualLauncher", Boosted)
    machine = MACHINES["H100"]
    effects = {f"xla_switch_{number:02d}=true": 1.0 for number in range(3)}
    spec = BENCHMARK.study_of(machine, effects, 1, trials=4)
    store = virtual_study(spec, BENCHMARK.space_of(effects), machine.times)
    (aa_run,) = store.of(AaRecord)
    assert aa_run.noise.settle_s is not None
    assert aa_run.noise.settle_s < 2.5
    assert any(run.is_isolated for run in store.of(ConfirmRun)), "interleaved pairs alone are fooled"
    assert store.of(ConclusionRecord)[-1].outcome is not Outcome.WINNER


def test_what_is_started_at_once_is_ready_at_once_and_the_same_twice() -> None:
    name = "2 CPU cores"
    store, again = study(name, trials=4), study(name, trials=4)
    runs = [run for run in store.of(ConfirmRun) if not run.is_isolated]
    times, pair_s = MACHINES[name].times, store.of(AaRecord)[0].noise.pair_s
    start_s = times.together * (times.host_s + times.device_s)
    assert runs
    for run in runs:
        assert run.duration_s == pytest.approx(start_s + run.pair_count * pair_s, rel=0.1)
    assert [r.at_s for r in again.records()] == [r.at_s for r in store.records()]


def test_what_a_pool_does_is_over_when_somebody_waits_for_it() -> None:
    clock = VirtualClock()
    for workers, takes_s in ((1, 80.0), (2, 40.0)):
        begun_s = clock()
        with VirtualPool(clock, workers) as pool:
            futures = [pool.submit(clock.take, 40.0) for _ in range(2)]
            assert clock() == begun_s
            wait(futures)
            for future in futures:
                future.result()
        assert clock() == clock.watch.session_s == begun_s + takes_s


def test_a_plain_loop_finds_the_optimum_on_a_quiet_machine_and_nothing_where_nothing_gains() -> None:
    came = BENCHMARK.one(("H100", "plain loop", 3, True))
    assert came.lost == pytest.approx(0.0, abs=0.01)
    assert came.found is not None
    assert came.searched < came.found < came.end
    assert BENCHMARK.one(("H100", "plain loop", 3, False)).winner is None


def test_a_wrong_winner_is_counted_as_one() -> None:
    machine = MACHINES["H100"]
    noisy = replace(machine, noise=replace(machine.noise, process_sd=0.5))
    came = [
        BENCHMARK.plain(BENCHMARK.PLAIN_WAYS["plain loop"], noisy, BENCHMARK.effects_of(seed, gains=()), seed)
        for seed in range(3)
    ]
    row = BENCHMARK.summary("H100", "plain loop", came, came)
    assert row["wrong"] == row["null_winners"] > 0


def test_rows_take_the_place_of_older_ones_in_order(tmp_path: Path) -> None:
    came = BENCHMARK.Came(sets=1, sets_per_hour=2.0, answered_per_hour=2.0, searched=3.0, end=4.0)
    file = tmp_path / "rows.json"
    for way in (WAYS[1], WAYS[0], WAYS[1]):
        BENCHMARK.keep(file, BENCHMARK.summary("H100", way, [came], []))
    assert [row["way"] for row in json.loads(file.read_text())] == [WAYS[0], WAYS[1]]
