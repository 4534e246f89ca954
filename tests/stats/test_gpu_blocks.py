"""A GPU whose clock follows power: short blocks hide what a set costs by it, blocks of a GPU's size show it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.measure.compare import sequential
from autotune.model.block_sizes import CPU_SIZES as CPU
from autotune.model.block_sizes import GPU_SIZES as GPU
from autotune.model.block_sizes import BlockSizes
from autotune.stats.aa_noise import UNKNOWN_NOISE, read_aa_noise, trial_plan
from autotune.stats.estimates import SequentialPlan, estimate_pairs
from harness.noise import Floats, Machine, NoiseModel, Process, log_ratios, run_pairs

COST = 0.03
"""What a candidate costs alone, in log, by the power that it draws."""


def blocks(
    sizes: BlockSizes, *, clock_s: float, cost: float, step_s: float, pairs: int = 8, count: int = 200, seed: int = 3
) -> Floats:
    """Log ratios of pairs on many machines, `[count, pairs]`, measured as `sizes` say."""
    model = NoiseModel(white_sd=0.004, clock_s=clock_s, power_cost=0.1, candidate_power_cost=cost)
    machine = Machine(model, np.random.default_rng(seed), (count,))
    reference, candidate = Process(machine, step_s=step_s), Process(machine, step_s=step_s, is_candidate=True)
    steps = sizes.steps(step_s)
    found = run_pairs(reference, candidate, pairs=pairs, block_steps=steps)[:2]
    first = len(sizes.split([step_s * math.exp(0.1)] * steps)[0])
    return log_ratios(found[0][..., first:], found[1][..., first:])


def held(ratios: Floats, truth: float) -> float:
    """Share of machines whose interval of their pairs holds the truth."""
    found = [estimate_pairs(row) for row in ratios]
    return float(np.mean([e.low <= math.exp(truth) <= e.high for e in found]))


@pytest.mark.parametrize("clock_s", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("step_s", [0.05, 0.3])
def test_in_turns_of_a_processor_s_size_most_of_it_is_hidden(clock_s: float, step_s: float) -> None:
    ratios = blocks(CPU, clock_s=clock_s, cost=COST, step_s=step_s)
    assert abs(float(ratios.mean())) < 0.45 * COST  # towards 1
    assert held(ratios, COST) < 0.6 if step_s > 0.1 else held(ratios, COST) < 0.2


@pytest.mark.parametrize("clock_s", [0.5, 1.0])
@pytest.mark.parametrize("step_s", [0.05, 0.3, 0.85])
def test_in_turns_of_a_gpu_s_size_it_is_seen_whole(clock_s: float, step_s: float) -> None:
    ratios = blocks(GPU, clock_s=clock_s, cost=COST, step_s=step_s)
    assert float(ratios.mean()) == pytest.approx(COST, rel=0.05)


@pytest.mark.parametrize("step_s", [0.05, 0.3, 0.85])
def test_of_a_slower_clock_three_quarters_are_seen_and_the_steps_left_out_do_most_of_it(step_s: float) -> None:
    ratios = blocks(GPU, clock_s=2.0, cost=COST, step_s=step_s)
    assert 0.75 * COST < float(ratios.mean()) < COST
    every = BlockSizes(block_s=GPU.block_s, block_steps=3)
    assert float(blocks(every, clock_s=2.0, cost=COST, step_s=step_s).mean()) < 0.5 * COST


@pytest.mark.parametrize("clock_s", [0.5, 1.0, 2.0])
def test_alone_at_steady_state_it_is_seen_whole_however_slow_the_clock_is(clock_s: float) -> None:
    model = NoiseModel(white_sd=0.004, clock_s=clock_s, power_cost=0.1, candidate_power_cost=COST)
    totals, step_s = [], 0.3
    for is_candidate in (False, True):
        machine = Machine(model, np.random.default_rng(5), (200,))
        process = Process(machine, step_s=step_s, is_candidate=is_candidate)
        times = process.run_block(GPU.isolated_steps(step_s, blocks=2, least=20))
        totals.append([np.mean(GPU.split_isolated(row)[1]) for row in times])
    assert float(np.mean(np.log(np.divide(totals[1], totals[0])))) == pytest.approx(COST, abs=0.0005)


@pytest.mark.parametrize("clock_s", [0.5, 2.0])
@pytest.mark.parametrize(
    "sizes",
    [*(BlockSizes(block_s=block_s, block_steps=1) for block_s in (0.06, 0.5, 3.0)), GPU],
    ids=["0.06", "0.5", "3", "gpu"],
)
def test_equal_arms_stay_equal_at_every_length_of_a_block(sizes: BlockSizes, clock_s: float) -> None:
    ratios = blocks(sizes, clock_s=clock_s, cost=0.0, step_s=0.05, count=400, seed=11)
    assert abs(float(ratios.mean())) < 0.001
    assert held(ratios, 0.0) > 0.92


@pytest.mark.parametrize("within_sd", [0.0003, 0.001, 0.004])
@pytest.mark.parametrize("process_sd", [0.0005, 0.003])
def test_one_long_pair_is_read_by_the_noise_of_an_aa_run_of_two_from_each_process(
    within_sd: float, process_sd: float
) -> None:
    """Trials end at their first look, or where more pairs of blocks tell less than another process."""
    rng, held_by, ended = np.random.default_rng(2), list[bool](), list[int]()
    for _ in range(500):
        living = process_sd * rng.standard_normal()
        centres = process_sd * rng.standard_normal(5) - living
        groups = [c + within_sd * rng.standard_normal(2) for c in centres[:4]]
        noise = read_aa_noise(groups, start_s=14.0, pair_s=10.0)
        rule = sequential(trial_plan(noise, most=40), min_effect=0.005, incumbent=None, spread=noise.spread)
        ratios = list[float]()
        while not ratios or rule.stop(ratios) is None:
            ratios.append(centres[4] + within_sd * rng.standard_normal())
        estimate = rule.estimate(ratios)
        held_by.append(estimate.low <= 1.0 <= estimate.high)
        ended.append(len(ratios))
    assert np.mean(held_by) >= 0.95
    assert np.mean(ended) < 1.5


def test_a_candidate_that_is_noisier_than_the_reference_widens_its_own_interval() -> None:
    noise = read_aa_noise([[0.0003, -0.0003]] * 4, start_s=90.0, pair_s=10.0)
    plan = trial_plan(noise, most=40)
    calm, wild = (plan.estimate([-0.02 - sd, -0.02 + sd]) for sd in (0.0002, 0.02))
    assert calm.high < 0.985
    assert wild.high > 1.0


def test_where_nothing_is_known_of_a_pair_ranks_alone_decide() -> None:
    assert trial_plan(UNKNOWN_NOISE, most=40) == SequentialPlan(cap=40)
    silent = read_aa_noise([[0.001 * (i % 5 - 2) for i in range(20)]])  # it does not say what a start takes
    assert trial_plan(silent, most=40) == SequentialPlan(cap=40)
    assert math.isinf(SequentialPlan(cap=40).estimate([0.1, 0.2, 0.1]).high)
