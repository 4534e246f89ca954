"""Each term of a noise model, measured from simulated workers: interleaved, and where a process is alone."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autotune.measure.compare import fixed
from autotune.model.flags import FlagSet
from autotune.model.measurement import Pair, log_ratio
from autotune.stats.estimates import estimate_pairs
from autotune.workers.base import Worker
from harness.noise import Machine, NoiseModel, Process, log_ratios, run_pairs
from harness.simulated_machine import SimulatedLauncher
from tests.runs import interleaved_pairs, replay_study

REFERENCE, CANDIDATE = FlagSet(), FlagSet({"xla_effect": 1})
STEPS = 3


class Place:
    """A launcher on a machine whose only noise is what a test asks for; every start is in a folder of its own."""

    def __init__(self, effect: float = 1.0, **noise: float) -> None:
        spec = replay_study(step_s=1.0, effects={"xla_effect=1": effect}, noise={"white_sd": 0.0} | noise)
        self.launcher = SimulatedLauncher(spec, seed=1)
        self.starts = 0

    @contextlib.contextmanager
    def start(self, settings: FlagSet) -> Iterator[Worker]:
        self.starts += 1
        folder = Path(f"/simulated/{self.starts}")
        self.launcher.log = lambda settings, folder: folder  # type: ignore[method-assign]  # nothing is written
        with contextlib.closing(self.launcher.start(settings, folder, progress=lambda phase: None)) as worker:
            yield worker

    def interleaved(self, pairs: int, *, candidate: FlagSet = CANDIDATE) -> list[Pair]:
        with self.start(REFERENCE) as one, self.start(candidate) as other:
            return interleaved_pairs(one, other, fixed(pairs).stop, steps=STEPS, seed=7)[0]

    def alone(self, settings: FlagSet, steps: int = 60) -> list[float]:
        """Logs of the step times of a fresh process that is alone, in blocks."""
        with self.start(settings) as worker:
            return [math.log(t) for _ in range(steps // STEPS) for t in worker.run_block(STEPS)]


def mean_ratio(pairs: list[Pair]) -> float:
    return statistics.fmean(map(log_ratio, pairs))


def test_an_idle_neighbour_of_the_candidate_slows_whoever_runs_and_is_gone_alone() -> None:
    place = Place(idle_cost=0.02)
    assert mean_ratio(place.interleaved(20)) == pytest.approx(-0.02)
    assert place.alone(REFERENCE) == place.alone(CANDIDATE) == pytest.approx([0.0] * 60)
    assert mean_ratio(place.interleaved(20, candidate=REFERENCE)) == 0.0  # the A/A run cannot see it


def test_the_block_after_the_candidates_is_slowed_and_none_of_one_that_is_alone() -> None:
    place = Place(memory_cost=0.03)
    pairs = place.interleaved(400)
    reference = [math.log(p.reference_s[0]) for p in pairs]
    ended_with_it = [False, *(p.first.value == "reference" for p in pairs[:-1])]
    is_after = [p.first.value == "candidate" or ended for p, ended in zip(pairs, ended_with_it, strict=True)]
    assert reference == pytest.approx([0.03 * after for after in is_after])
    assert mean_ratio(pairs) == pytest.approx(-0.03 * 0.75, abs=0.003)
    assert place.alone(CANDIDATE) == place.alone(REFERENCE) == pytest.approx([0.0] * 60)


def test_stalls_of_the_candidate_are_rare_and_make_it_slower_in_total() -> None:
    place = Place(effect=0.95, candidate_stall_share=0.005, stall_steps=20.0)
    times = np.exp(place.alone(CANDIDATE, 60_000))
    assert np.median(times) == pytest.approx(0.95)
    assert np.mean(times > 2) == pytest.approx(0.005, abs=0.0012)
    assert times.mean() == pytest.approx(0.95 * 1.1, abs=0.03)
    assert max(place.alone(REFERENCE, 6000)) == 0.0
    ratios = [log_ratio(p) for p in place.interleaved(2000)]
    assert np.mean(np.asarray(ratios) > 1.0) == pytest.approx(0.015, abs=0.011)
    assert math.log(estimate_pairs(ratios[:40]).ratio) == pytest.approx(math.log(0.95))  # what trims does not see it


@pytest.mark.parametrize(
    "terms", [{"idle_cost": 0.02}, {"memory_cost": 0.03}, {"idle_cost": 0.01, "memory_cost": 0.02}]
)
def test_many_machines_at_once_tell_what_workers_tell(terms: dict[str, float]) -> None:
    machine = Machine(NoiseModel(white_sd=0.0, **terms), np.random.default_rng(5), (200,))
    process = Process(machine), Process(machine, is_candidate=True)
    reference_s, candidate_s, _ = run_pairs(*process, pairs=40, block_steps=STEPS)
    mine = mean_ratio(Place(**terms).interleaved(2000))
    assert log_ratios(reference_s, candidate_s).mean() == pytest.approx(mine, abs=0.002)
    assert mine < -0.01
