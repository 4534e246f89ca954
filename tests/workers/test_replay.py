"""Each term of a noise model, measured from replayed workers: in turns, and where a process is alone."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import Pair, log_ratio
from autotune.model.replay import ReplaySpec
from autotune.stats.estimates import Decision, estimate_pairs, judge
from autotune.stats.noise_models import NoiseModel
from autotune.stats.simulate import Machine, Process, log_ratios, run_pairs
from autotune.study.turns import measure_pairs
from autotune.workers.base import Worker
from autotune.workers.replay import ReplayLauncher

REFERENCE, CANDIDATE = FlagSet(), FlagSet({"xla_effect": 1})
STEPS = 3


class Place:
    """A launcher on a machine whose only noise is what a test asks for; every start is in a folder of its own."""

    def __init__(self, effect: float = 1.0, **noise: float) -> None:
        replay = ReplaySpec(step_s=1.0, effects={"xla_effect=1": effect}, noise={"white_sd": 0.0} | noise)
        self.launcher = ReplayLauncher(replay, seed=1, platform="cpu")
        self.starts = 0

    @contextlib.contextmanager
    def start(self, settings: FlagSet) -> Iterator[Worker]:
        self.starts += 1
        folder = Path(f"/replayed/{self.starts}")
        self.launcher.log = lambda settings, folder: folder  # type: ignore[method-assign]  # nothing is written
        with contextlib.closing(self.launcher.start(settings, folder, progress=lambda phase: None)) as worker:
            yield worker

    def in_turns(self, pairs: int, *, candidate: FlagSet = CANDIDATE) -> list[Pair]:
        with self.start(REFERENCE) as one, self.start(candidate) as other:
            return in_turns(one, other, pairs)

    def alone(self, settings: FlagSet, steps: int = 60) -> list[float]:
        """Logs of the step times of a fresh process that is alone, in blocks."""
        with self.start(settings) as worker:
            return [math.log(t) for _ in range(steps // STEPS) for t in worker.run_block(STEPS)]


def in_turns(reference: Worker, candidate: Worker, pairs: int) -> list[Pair]:
    def stop(ratios: list[float]) -> Decision | None:
        if len(ratios) < pairs:
            return None
        estimate = estimate_pairs(ratios[-2:])
        return Decision(stop=True, reason="enough", estimate=estimate, verdict=judge(estimate))

    rng = random.Random(7)
    return measure_pairs(
        reference, candidate, steps=STEPS, rng=rng, stop=stop, on_pair=lambda pair: None, clock=lambda: 0.0
    )[0]


def mean_ratio(pairs: list[Pair]) -> float:
    return statistics.fmean(map(log_ratio, pairs))


def test_an_idle_neighbour_of_the_candidate_slows_whoever_runs_and_is_gone_alone() -> None:
    place = Place(idle_cost=0.02)
    assert mean_ratio(place.in_turns(20)) == pytest.approx(-0.02)
    assert place.alone(REFERENCE) == place.alone(CANDIDATE) == pytest.approx([0.0] * 60)
    assert mean_ratio(place.in_turns(20, candidate=REFERENCE)) == 0.0  # the noise floor cannot see it


def test_of_two_candidates_each_slows_the_other() -> None:
    place = Place(idle_cost=0.02)
    with place.start(CANDIDATE) as one, place.start(CANDIDATE) as other:
        assert [math.log(t) for t in (*one.run_block(1), *other.run_block(1))] == pytest.approx([0.02, 0.02])


def test_a_closed_launcher_leaves_no_neighbour() -> None:
    place = Place(idle_cost=0.02)
    with place.start(REFERENCE) as reference, place.start(CANDIDATE):
        place.launcher.close()
        assert reference.run_block(1) == (1.0,)


def test_the_block_after_the_candidates_is_slowed_and_none_of_one_that_is_alone() -> None:
    place = Place(memory_cost=0.03)
    pairs = place.in_turns(400)
    reference = [math.log(p.reference_s[0]) for p in pairs]
    ended_with_it = [False, *(p.first.value == "reference" for p in pairs[:-1])]
    is_after = [p.first.value == "candidate" or ended for p, ended in zip(pairs, ended_with_it, strict=True)]
    assert reference == pytest.approx([0.03 * after for after in is_after])
    assert mean_ratio(pairs) == pytest.approx(-0.03 * 0.75, abs=0.003)
    assert place.alone(CANDIDATE) == place.alone(REFERENCE) == pytest.approx([0.0] * 60)


def test_the_second_block_of_a_pair_is_slower_whoever_runs_it() -> None:
    place = Place(position_cost=0.03)
    pairs = place.in_turns(20)
    assert [log_ratio(p) for p in pairs] == pytest.approx(
        [-0.03 if p.first.value == "candidate" else 0.03 for p in pairs]
    )
    assert {p.first.value for p in pairs} == {"candidate", "reference"}
    assert place.alone(CANDIDATE, 12) == place.alone(REFERENCE, 12) == pytest.approx(([0.0] * 3 + [0.03] * 3) * 2)


def test_a_machine_heats_up_to_a_limit_and_is_cool_again_at_each_start() -> None:
    place = Place(ramp_cost=0.15, ramp_steps=20.0)
    first, again = place.alone(CANDIDATE, 300), place.alone(REFERENCE, 300)
    assert first == again == pytest.approx([0.15 * (1 - math.exp(-i / 20)) for i in range(300)])
    pairs = place.in_turns(60)
    assert log_ratio(pairs[0]) != pytest.approx(0.0, abs=0.01)
    assert log_ratio(pairs[-1]) == pytest.approx(0.0, abs=1e-6)


def test_regular_bursts_come_at_their_period_from_a_phase_that_each_start_draws_anew() -> None:
    place = Place(period_steps=100.0, period_burst_steps=10.0, period_cost=0.4)
    runs = [np.asarray(place.alone(s, 600)) for s in (REFERENCE, CANDIDATE, REFERENCE)]
    starts = [np.flatnonzero(np.diff(run) > 0.2) for run in runs]
    assert all(len(s) in (5, 6, 7) and set(np.diff(s)) == {100} for s in starts)
    assert len({s[0] for s in starts}) == 3
    assert all(np.count_nonzero(run) == 60 for run in runs)
    in_bursts = [log_ratio(p) for p in place.in_turns(200)]
    # A pair of 6 steps sees one of a burst's two ends in 12 of 100 cases; else both of its arms are in it, or none.
    assert np.mean([abs(r) > 1e-9 for r in in_bursts]) == pytest.approx(0.12, abs=0.06)


def test_two_clock_states_dwell_and_turns_cancel_them() -> None:
    place = Place(burst_share=0.5, burst_steps=200.0, burst_cost=0.08)
    alone = np.asarray(place.alone(CANDIDATE, 60_000))
    assert set(np.round(alone, 9)) == {0.0, 0.08}
    assert np.mean(alone > 0) == pytest.approx(0.5, abs=0.1)
    dwells = np.diff(np.flatnonzero(np.diff(alone)))
    assert dwells.mean() == pytest.approx(200, rel=0.25)  # some 300 of them, each spread as much as it is long
    assert mean_ratio(place.in_turns(400)) == pytest.approx(0.0, abs=0.005)


def test_heavy_tails_are_of_processes_of_both_arms() -> None:
    place = Place(tail_share=0.15, tail_least=0.05, tail_most=0.15)
    for settings in (REFERENCE, CANDIDATE):
        runs = [place.alone(settings, 6) for _ in range(1000)]
        assert all(len(set(run)) == 1 for run in runs)
        slow = np.asarray([run[0] for run in runs if run[0] > 0])
        assert len(slow) / 1000 == pytest.approx(0.15, abs=0.045)  # four standard errors
        assert 0.05 <= slow.min() < 0.07
        assert 0.13 < slow.max() <= 0.15
    ratios = [mean_ratio(place.in_turns(2)) for _ in range(400)]
    assert np.mean(np.abs(ratios) > 0.04) == pytest.approx(2 * 0.15 * 0.85, abs=0.1)


def test_a_bad_kernel_is_of_a_tenth_of_the_candidates_processes_alone_too() -> None:
    place = Place(fault_share=0.1, fault_cost=0.05)
    faulty = [mean_ratio(place.in_turns(2)) for _ in range(1000)]
    assert np.mean(np.asarray(faulty) > 0.04) == pytest.approx(0.1, abs=0.038)
    assert {round(r, 9) for r in faulty} == {0.0, 0.05}
    alone = [statistics.fmean(place.alone(CANDIDATE, 3)) for _ in range(1000)]
    assert np.mean(np.asarray(alone) > 0.04) == pytest.approx(0.1, abs=0.038)
    assert all(place.alone(REFERENCE, 3) == [0.0] * 3 for _ in range(50))


def test_stalls_of_the_candidate_are_rare_and_make_it_slower_in_total() -> None:
    place = Place(effect=0.95, candidate_stall_share=0.005, stall_steps=20.0)
    times = np.exp(place.alone(CANDIDATE, 60_000))
    assert np.median(times) == pytest.approx(0.95)
    assert np.mean(times > 2) == pytest.approx(0.005, abs=0.0012)
    assert times.mean() == pytest.approx(0.95 * 1.1, abs=0.03)
    assert max(place.alone(REFERENCE, 6000)) == 0.0
    ratios = [log_ratio(p) for p in place.in_turns(2000)]
    assert np.mean(np.asarray(ratios) > 1.0) == pytest.approx(0.015, abs=0.011)
    assert math.log(estimate_pairs(ratios[:40]).ratio) == pytest.approx(math.log(0.95))  # what trims does not see it


def test_stalls_of_both_arms_are_alike() -> None:
    place = Place(stall_share=0.01, stall_steps=20.0)
    shares = [np.mean(np.exp(place.alone(s, 30_000)) > 2) for s in (REFERENCE, CANDIDATE)]
    assert shares == pytest.approx([0.01, 0.01], abs=0.0023)


def test_fresh_processes_in_the_same_folder_differ() -> None:
    place = Place(process_sd=0.01)
    place.alone(REFERENCE, 3)
    first = place.alone(REFERENCE, 3)
    place.starts = 1
    assert place.alone(REFERENCE, 3) != first


def test_two_that_are_started_at_once_draw_the_same_whichever_comes_first() -> None:
    noise = {"white_sd": 0.01, "process_sd": 0.01, "period_steps": 50.0, "period_burst_steps": 9.0, "period_cost": 1.0}
    found = []
    for order in ((REFERENCE, CANDIDATE), (CANDIDATE, REFERENCE)):
        launcher = Place(fault_share=0.5, fault_cost=0.1, **noise).launcher
        launcher.log = lambda settings, folder: folder  # type: ignore[method-assign]
        workers = {s: launcher.start(s, Path(f"/replayed/{len(s)}"), progress=lambda phase: None) for s in order}
        found.append([workers[s].run_block(STEPS) for s in (REFERENCE, CANDIDATE, REFERENCE)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "terms", [{"idle_cost": 0.02}, {"memory_cost": 0.03}, {"idle_cost": 0.01, "memory_cost": 0.02}]
)
def test_many_machines_at_once_tell_what_workers_tell(terms: dict[str, float]) -> None:
    machine = Machine(NoiseModel(white_sd=0.0, **terms), np.random.default_rng(5), (200,))
    process = Process(machine), Process(machine, is_candidate=True)
    reference_s, candidate_s, _ = run_pairs(*process, pairs=40, block_steps=STEPS)
    mine = mean_ratio(Place(**terms).in_turns(2000))
    assert log_ratios(reference_s, candidate_s).mean() == pytest.approx(mine, abs=0.002)
    assert mine < -0.01
