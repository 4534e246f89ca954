from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.stats.estimates import (
    REFERENCE,
    Estimate,
    Floats,
    SequentialPlan,
    Verdict,
    estimate_aba,
    estimate_pairs,
    estimate_processes,
    finding_of,
    hodges_lehmann,
    judge,
    least_ratio,
    pocock_critical_value,
    reason_to_stop,
)
from harness.noise import EVEN_MODELS, NOISE_MODELS, Machine, NoiseModel, Process, log_ratios, run_pairs
from tests.tables import toml_beside

CASES = toml_beside(__file__)


def estimate(ratio: float, low: float, high: float) -> Estimate:
    return Estimate(ratio=ratio, low=low, high=high, level=0.95, pair_count=11)


def simulated_pairs(model: NoiseModel, *, seed: int, samples: int, pairs: int) -> Floats:
    machine = Machine(model, np.random.default_rng(seed), (samples,))
    reference_s, candidate_s, _ = run_pairs(Process(machine), Process(machine), pairs=pairs, block_steps=3)
    return log_ratios(reference_s, candidate_s)


def four_sigma(share: float, samples: int) -> float:
    """Widest that a simulated share strays from the true one but once in 16,000 runs."""
    return 4.0 * math.sqrt(share * (1.0 - share) / samples)


def test_few_pairs_give_no_interval_and_six_their_range() -> None:
    found = estimate_pairs([0.0, 0.02, 0.10])
    assert math.log(found.ratio) == pytest.approx(0.035)  # averages 0 .01 .02 | .05 .06 .10
    assert (found.low, found.high) == (0.0, math.inf)
    assert judge(found) is Verdict.UNRESOLVED
    found = estimate_pairs([0.05, -0.03, 0.11, 0.01, 0.07, 0.02])
    assert math.log(found.low) == pytest.approx(-0.03)
    assert math.log(found.high) == pytest.approx(0.11)


@pytest.mark.parametrize(("pairs", "table"), [(8, 3), (12, 13), (20, 52), (30, 137)])
def test_interval_ends_are_those_of_the_printed_signed_rank_table(pairs: int, table: int) -> None:
    # Wilcoxon's critical value T at 5 % two-sided: the interval starts at the (T + 1)-th smallest average.
    values = np.random.default_rng(pairs).normal(size=pairs)
    averages = sorted((values[i] + values[j]) / 2 for i in range(pairs) for j in range(i, pairs))
    _, low, high = hodges_lehmann(values, level=0.95)
    assert low == averages[table]
    assert high == averages[-1 - table]


@given(st.lists(st.floats(-0.5, 0.5), min_size=6, max_size=23), st.floats(-0.3, 0.3))
def test_swapping_the_arms_inverts_and_a_true_factor_shifts_the_estimate(values: list[float], shift: float) -> None:
    plain = estimate_pairs(values)
    swapped = estimate_pairs([-v for v in values])
    moved = estimate_pairs([v + shift for v in values])
    assert plain.low <= plain.ratio <= plain.high
    assert (swapped.ratio, swapped.low, swapped.high) == pytest.approx((1 / plain.ratio, 1 / plain.high, 1 / plain.low))
    assert moved.ratio == pytest.approx(plain.ratio * math.exp(shift))


@pytest.mark.parametrize(("low", "high", "verdict"), CASES["verdicts"])
def test_verdict_needs_the_interval_clear_of_the_band(low: float, high: float, verdict: str) -> None:
    assert judge(estimate((low + high) / 2, low, high), min_effect=0.005) == verdict


def test_looks_grow_by_half_and_end_at_the_cap() -> None:
    assert SequentialPlan(cap=60).looks == (8, 12, 18, 27, 40, 60)
    assert SequentialPlan(cap=30).looks == (8, 12, 18, 30)  # 27 would save three pairs at most
    assert SequentialPlan(cap=6).looks == (6,)


@pytest.mark.parametrize(("looks", "constant"), [(1, 1.960), (2, 2.178), (5, 2.413), (10, 2.555)])
def test_critical_value_is_pococks_for_equal_steps(looks: int, constant: float) -> None:
    assert pocock_critical_value(tuple(range(1, looks + 1)), 0.95) == pytest.approx(constant, abs=6e-4)


@pytest.mark.parametrize(("ratio", "low", "high", "provable", "finding"), CASES["findings"])
def test_a_trial_promises_what_proofs_find(ratio: float, low: float, high: float, provable: Any, finding: str) -> None:
    assert finding_of(estimate(ratio, low, high), min_effect=0.005, provable=provable or None) == finding


def test_blocks_of_two_processes_prove_nothing_of_their_settings() -> None:
    """Identical sets; processes differ by 1 %, pairs of blocks by as much: what docs/inconclusive.md says of trials."""
    rng = np.random.default_rng(20)
    trials = [estimate_pairs(rng.normal(0, 0.01) + rng.normal(0, 0.01, 20)) for _ in range(1000)]
    missed = sum(not e.low <= 1.0 <= e.high for e in trials) / len(trials)
    called = sum(judge(e) in (Verdict.FASTER, Verdict.SLOWER) for e in trials) / len(trials)
    print(f"the interval misses 1 in {missed:.0%}, {called:.0%} would be called faster or slower")
    assert 0.60 < missed < 0.72
    assert 0.28 < called < 0.40


def why(values: list[float], plan: SequentialPlan, incumbent: Estimate | None = None) -> str | None:
    return reason_to_stop(plan.estimate(values), plan, min_effect=0.005, incumbent=incumbent)


def test_a_trial_stops_once_it_is_narrow_capped_or_cannot_win() -> None:
    fast = [math.log(0.9) + 0.001 * i for i in range(8)]
    assert "narrow enough" in str(why(fast, SequentialPlan(cap=40)))
    assert SequentialPlan(cap=40).estimate(fast).level == 0.95
    plan, noisy = SequentialPlan(cap=12), [0.1 * (-1) ** i * (1 + i / 10) for i in range(12)]
    assert why(noisy[:8], plan) is None
    assert "cap of 12 " in str(why(noisy, plan))
    plan = SequentialPlan(cap=40)
    slowish = [0.002 + 0.002 * i for i in range(8)]  # [1.002, 1.016]: slower than the band or inside, never faster
    assert why(slowish, plan) is None
    assert "the reference" in (why(slowish, plan, REFERENCE) or "")
    hardly = [-0.001 - 0.004 * i for i in range(8)]  # [0.971, 0.999]
    assert why(hardly, plan, REFERENCE) is None
    assert "so far" in (why(hardly, plan, estimate(0.90, 0.89, 0.91)) or "")
    # An incumbent that may well be worse than it looks drops nobody.
    assert why(hardly, plan, estimate(0.90, 0.80, 1.01)) is None


def test_quotient_of_two_estimates_adds_their_half_widths_in_squares() -> None:
    candidate, other = estimate(1.0, math.exp(-0.03), 2.0), estimate(1.0, 0.5, math.exp(0.04))
    assert math.log(least_ratio(candidate, other)) == pytest.approx(-0.05)
    assert least_ratio(estimate(1.0, 0.0, math.inf), other) == 0.0


def test_the_interval_over_processes_is_students() -> None:
    found = estimate_processes([-0.03, -0.02, -0.025, -0.035, -0.04])
    assert math.log(found.ratio) == pytest.approx(-0.03)
    assert math.log(found.high) == pytest.approx(-0.03 + 2.77645 * 0.0035355, rel=1e-4)
    assert found.pair_count == 5


def of_aba_runs(*runs: tuple[float, float, float]) -> list[float]:
    """Log ratios of step times of reference, candidate and reference again."""
    return [math.log(candidate / reference) for before, candidate, after in runs for reference in (before, after)]


def test_aba_runs_have_the_drift_between_their_references_in_their_interval() -> None:
    found = estimate_aba(of_aba_runs((1.0, 1.1, 1.21)))
    assert found.ratio == pytest.approx(1.0)  # the drift is even, so its middle is where the candidate ran
    assert math.log(found.high) == pytest.approx(12.7062 * math.sqrt(0.75) * math.log(1.21), rel=1e-4)
    middles = [1.02 + d for d in (0.001, -0.001, 0.002)]
    quiet = estimate_aba(of_aba_runs(*((1.0, middle, 1.0) for middle in middles)))
    noisy = estimate_aba(of_aba_runs(*((1.0, middle * 1.1, 1.21) for middle in middles)))
    assert quiet.ratio == pytest.approx(noisy.ratio)
    assert noisy.high / noisy.low > quiet.high / quiet.low


@pytest.mark.parametrize("machine", [name for name in EVEN_MODELS if name != "own wander"])
def test_one_process_pair_covers_on_every_machine_that_hits_both_arms_alike(machine: str) -> None:
    equal = replace(NOISE_MODELS[machine], process_sd=0.0, tail_share=0.0)
    pairs = simulated_pairs(equal, seed=7, samples=997, pairs=20)
    _, low, high = hodges_lehmann(pairs, level=0.95)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(0.95, abs=four_sigma(0.95, 997))


def test_looking_often_keeps_the_level() -> None:
    plan, samples = SequentialPlan(cap=40), 1499
    pairs = simulated_pairs(NOISE_MODELS["white"], seed=11, samples=samples, pairs=40)
    ends = [hodges_lehmann(pairs[:, :n], level=plan.nominal_level) for n in plan.looks]
    assert np.mean(np.all([(e[1] <= 0) & (e[2] >= 0) for e in ends], axis=0)) > 0.95 - four_sigma(0.95, samples)
    # What the correction is for: the same looks at the plain level.
    plain = [hodges_lehmann(pairs[:, :n], level=0.95) for n in plan.looks]
    assert np.mean(np.all([(e[1] <= 0) & (e[2] >= 0) for e in plain], axis=0)) < 0.90


def test_processes_that_differ_are_covered_by_the_confirmation_only() -> None:
    samples, model = 601, NoiseModel(white_sd=0.01, process_sd=0.01)
    pairs = simulated_pairs(model, seed=13, samples=samples * 5, pairs=12).reshape(samples, 5, 12)
    centre, low, high = hodges_lehmann(pairs, level=0.95)
    assert np.mean((low <= 0) & (high >= 0)) < 0.6
    held = [c.low <= 1.0 <= c.high for c in map(estimate_processes, centre)]
    assert np.mean(held) == pytest.approx(0.95, abs=four_sigma(0.95, samples))


def test_a_simulated_machine_slows_whoever_runs_by_its_drift_bursts_and_wander() -> None:
    machine = Machine(NoiseModel(white_sd=0.0, drift=10.0), np.random.default_rng(17))
    process = Process(machine, step_s=0.02)
    first, later = process.run_block(3), process.run_block(3)
    assert first == pytest.approx(0.02 * np.exp([0.0, 0.01, 0.02]))
    assert later == pytest.approx(first * math.exp(0.03))
    reference_s, candidate_s, is_first = run_pairs(process, Process(machine, step_s=0.01), pairs=7, block_steps=3)
    expected = math.log(0.5) + np.where(is_first, -0.03, 0.03)
    assert log_ratios(reference_s, candidate_s) == pytest.approx(expected)
    rng = np.random.default_rng(19)
    bursts = Machine(NoiseModel(white_sd=0.0, burst_share=0.3, burst_steps=5.0, burst_cost=1.0), rng, (211,))
    assert bursts.slowness(500).mean() == pytest.approx(0.3, abs=0.01)
    wander = Machine(NoiseModel(white_sd=0.0, wander_sd=0.1, wander_steps=5.0), rng, (211,)).slowness(500)
    assert wander.std() == pytest.approx(0.1, rel=0.03)
    neighbours = np.mean(wander[:, 1:] * wander[:, :-1]) / np.mean(wander**2)
    assert neighbours == pytest.approx(math.exp(-1 / 5), abs=0.02)
