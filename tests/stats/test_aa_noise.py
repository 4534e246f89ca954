"""The A/A run over several processes: spreads that are right on average, and a trial's interval that holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autotune.stats.aa_noise import AaNoise, read_aa_noise, settling, spread_of
from autotune.stats.estimates import REFERENCE, Estimate, Floats, SequentialPlan, reason_to_stop, widen
from harness.noise import NOISE_MODELS, Machine, NoiseModel, Process, log_ratios, run_pairs

PLAN = SequentialPlan(cap=40)
PROCESSES, PAIRS = 4, 8


def aa_runs(
    rng: np.random.Generator, *, process_sd: float, within_sd: float, repeats: int, pairs: int = PAIRS
) -> list[tuple[AaNoise, float]]:
    """A/A runs of many machines, each with the deviation of its living process."""
    found = []
    for _ in range(repeats):
        living = process_sd * rng.standard_normal()
        seconds = process_sd * rng.standard_normal((PROCESSES, 1)) - living
        blocks = seconds + within_sd * rng.standard_normal((PROCESSES, pairs))
        found.append((read_aa_noise(list(blocks)), living))
    return found


@pytest.mark.parametrize(("process_sd", "within_sd"), [(0.013, 0.006), (0.005, 0.004), (0.0025, 0.0025)])
def test_both_spreads_are_right_on_average(process_sd: float, within_sd: float) -> None:
    found = [f for f, _ in aa_runs(np.random.default_rng(3), process_sd=process_sd, within_sd=within_sd, repeats=300)]
    variances = np.asarray([f.process_sd**2 for f in found])
    # With 4 degrees of freedom a variance has the standard deviation sqrt(2 / 4) of itself; 4 sigma of the mean.
    allowed = 4 * math.sqrt(2 / PROCESSES / len(found)) * (process_sd**2 + within_sd**2 / PAIRS)
    assert variances.mean() == pytest.approx(process_sd**2, abs=allowed)
    assert np.mean([f.within_sd for f in found]) == pytest.approx(within_sd, rel=0.1)


def test_noise_of_blocks_is_not_taken_for_processes() -> None:
    """Were it, every machine with noisy blocks would seem to have processes that differ."""
    found = [f for f, _ in aa_runs(np.random.default_rng(5), process_sd=0.0, within_sd=0.05, repeats=300)]
    each = 0.05 / math.sqrt(PAIRS)
    assert np.mean([f.process_sd == 0.0 for f in found]) > 0.4
    assert np.mean([f.process_sd**2 for f in found]) < 0.4 * each**2
    raw = [np.var([0.0, *np.random.default_rng(i).normal(0, each, PROCESSES)], ddof=1) for i in range(300)]
    assert np.mean(raw) > 0.7 * each**2  # what it would be if the noise were not taken off


def hold(process_sd: float, *, within_sd: float, is_widened: bool, repeats: int = 400) -> tuple[float, float]:
    """Share of trials of an equal candidate whose interval holds 1, and how many pairs they took on average."""
    rng = np.random.default_rng(7)
    held, used = 0, 0
    for noise, living in aa_runs(rng, process_sd=process_sd, within_sd=within_sd, repeats=repeats):
        centre = process_sd * rng.standard_normal() - living  # the same living process as in the A/A run
        blocks = centre + within_sd * rng.standard_normal(PLAN.cap)
        spread = noise.spread if is_widened else 0.0
        for count in PLAN.looks:
            found = widen(PLAN.estimate(blocks[:count]), spread)
            if reason_to_stop(found, PLAN, min_effect=0.005, incumbent=REFERENCE, spread=spread):
                break
        held += found.low <= 1.0 <= found.high
        used += found.pair_count
    return held / repeats, used / repeats


@pytest.mark.parametrize("process_sd", [0.0025, 0.005, 0.013])
@pytest.mark.parametrize("within_sd", [0.003, 0.01])
def test_a_trial_s_interval_holds_the_settings_ratio(process_sd: float, within_sd: float) -> None:
    share, _ = hold(process_sd, within_sd=within_sd, is_widened=True)
    assert share >= 0.93


def test_the_spread_of_processes_makes_intervals_hold_and_saves_pairs() -> None:
    """What the interval was before: about its two processes only."""
    assert hold(0.005, within_sd=0.003, is_widened=False)[0] < 0.5
    _, plain = hold(0.013, within_sd=0.003, is_widened=False)
    _, widened = hold(0.013, within_sd=0.003, is_widened=True)
    assert widened <= plain
    assert widened < 12
    _, noisy = hold(0.001, within_sd=0.03, is_widened=True)
    assert noisy > 30  # blocks are what is noisy here, and more of them help


def test_the_reason_for_an_early_end_is_named() -> None:
    blocks = [0.001 * (-1) ** i for i in range(8)]
    found = widen(PLAN.estimate(blocks), 0.04)
    said = reason_to_stop(found, PLAN, min_effect=0.005, incumbent=REFERENCE, spread=0.04)
    assert str(said).endswith("up to 4.0%")
    wide = [0.05 * (-1) ** i for i in range(8)]
    found = widen(PLAN.estimate(wide), 0.04)
    assert reason_to_stop(found, PLAN, min_effect=0.005, incumbent=REFERENCE, spread=0.04) is None  # here they can


def test_widening_adds_in_squares_the_spread_of_two_processes() -> None:
    plain = Estimate(ratio=0.9, low=0.9 * math.exp(-0.03), high=0.9 * math.exp(0.03), level=0.95, pair_count=8)
    wide = widen(plain, 0.04)
    assert (wide.ratio, wide.level, wide.pair_count) == (0.9, 0.95, 8)
    assert math.log(wide.high / 0.9) == pytest.approx(0.05)
    assert math.log(wide.low / 0.9) == pytest.approx(-0.05)
    assert widen(plain, 0.0) is plain
    unknown = Estimate(ratio=0.9, low=0.0, high=math.inf, level=0.95, pair_count=3)
    assert widen(unknown, 0.04) == unknown
    assert spread_of(1e-4, 4) == pytest.approx(2.77645 * math.sqrt(2) * 0.01, rel=1e-4)
    assert spread_of(1e-4, 3) > spread_of(1e-4, 4)
    assert spread_of(1e-4, 4, noise=1e-4) == pytest.approx(math.sqrt(2 * (2.77645**2 - 1.64485**2)) * 0.01, rel=1e-4)
    assert spread_of(3e-5, 4, noise=1e-4) == 0.0


def test_a_cautious_spread_is_an_upper_limit() -> None:
    """At 80 %: above the truth in four cases of five, whether processes or blocks make the noise."""
    for process_sd, within_sd in ((0.01, 0.005), (0.003, 0.003), (0.001, 0.01)):
        found = aa_runs(np.random.default_rng(11), process_sd=process_sd, within_sd=within_sd, repeats=400)
        assert np.mean([f.cautious_process_sd() >= process_sd for f, _ in found]) > 0.8 - 4 * math.sqrt(0.16 / 400)


def same_centres(values: Floats, count: int) -> list[Floats]:
    """Pairs shared out to processes whose centres are all 0."""
    return [part - np.median([(a + b) / 2 for a in part for b in part]) for part in np.array_split(values, count)]


def test_what_differs_is_told_apart_from_noise() -> None:
    machine = Machine(NoiseModel(white_sd=0.06), np.random.default_rng(3), (1,))
    reference_s, candidate_s, _ = run_pairs(Process(machine), Process(machine), pairs=400, block_steps=3)
    small = read_aa_noise(same_centres(log_ratios(reference_s, candidate_s)[0], 5))
    # Blocks of 3 steps of 6 %: a pair spreads by 6 % * sqrt(2 / 3).
    assert small.within_sd == pytest.approx(0.049, rel=0.15)
    assert small.process_sd == 0.0
    quiet = same_centres(np.random.default_rng(1).normal(0, 0.002, 32), 4)
    apart = [q + d for q, d in zip(quiet, (0.01, -0.01, 0.01, -0.01), strict=True)]
    assert read_aa_noise(apart).process_sd == pytest.approx(0.01, rel=0.02)  # the root of 4 (1 %)^2 / 4 degrees


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quiet", "processes", "everything", "bursts"])
def test_it_holds_on_machines_with_drift_and_bursts(name: str) -> None:
    """The same as above on the machines of the benchmarks, blocks of 3 steps."""
    model, rng, held = NOISE_MODELS[name], np.random.default_rng(17), []
    for _ in range(600):
        machine = Machine(model, rng)
        living = Process(machine)
        groups = [log_ratios(*run_pairs(living, Process(machine), pairs=8, block_steps=3)[:2]) for _ in range(4)]
        spread = read_aa_noise(groups).spread
        blocks = log_ratios(*run_pairs(living, Process(machine), pairs=40, block_steps=3)[:2])
        found = widen(PLAN.estimate(blocks), spread)
        held.append(found.low <= 1.0 <= found.high)
    assert np.mean(held) >= 0.93


STEPS = 3
"""In a block."""


def a_a_run(noise: str, *, slow: int = 0, cost: float = 0.05, seed: int = 0, pairs: int = 20) -> tuple[Any, Any]:
    """Log ratios and ages of an A/A run with four processes that are slower by `cost` in their first `slow` steps."""
    machine = Machine(NOISE_MODELS[noise], np.random.default_rng(seed))
    living, ratios, ages = Process(machine), [], []
    for number in range(4):
        reference, second, _ = run_pairs(living, Process(machine), pairs=pairs, block_steps=STEPS)
        own = 10 + STEPS * np.arange(1, pairs + 1)
        age = np.asarray([own, own + number * pairs * STEPS])
        young = (age <= slow).astype(float)
        ratios.append(log_ratios(reference, second) + cost * (young[0] - young[1]))
        ages.append(age)
    return ratios, ages


@pytest.mark.parametrize(("slow", "cost"), [(40, 0.02), (100, 0.05), (200, 0.05), (200, 0.03), (160, 0.1)])
def test_the_age_at_which_processes_settle_is_found(slow: int, cost: float) -> None:
    ratios, ages = a_a_run("quiet", slow=slow, cost=cost)
    found = settling(ratios, ages)
    assert abs(found.steps - slow) <= 2 * STEPS
    assert np.std([np.mean(r) for r in found.log_ratios]) < 0.003  # and it is no deviation of processes


@pytest.mark.parametrize("noise", ["quiet", "white", "bursts", "processes", "thermal ramp", "drift"])
def test_where_processes_are_as_fast_from_the_start_nothing_is_left_out(noise: str) -> None:
    found = [settling(*a_a_run(noise, seed=seed, pairs=8)).steps for seed in range(60)]
    assert np.mean([steps > 0 for steps in found]) <= 0.05


def test_one_pair_that_something_else_met_is_no_age_of_processes() -> None:
    """Of a real program on two cores: its steps took 27 ms for half a block, and were 16 ms else."""
    ratios = [
        np.asarray([-0.082, -0.09, -0.116, -0.113, -0.086]),
        np.asarray([-0.302, -0.063, -0.034, -0.045, 0.018]),
        np.asarray([-0.084, -0.058, -0.101, 0.012, -0.026]),
    ]
    own = 34 * np.arange(1, 6) + 10
    found = settling(ratios, [np.asarray([own, own + before]) for before in (0, 272, 442)])
    assert found.steps == 0
    assert read_aa_noise(found.log_ratios).process_sd < 0.03  # 0.158 as an age
