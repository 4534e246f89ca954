"""Sizes of blocks: what a platform needs, what a study file says, and which steps of a block count."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.model.block_sizes import BlockSizes, settle
from autotune.model.errors import StudyFileError
from autotune.model.measurement import Arm, Pair, is_divided_as_told
from autotune.model.spec import StudySpec, parse_study
from autotune.stats.aa_noise import UNKNOWN_NOISE, AaNoise, read_aa_noise

MANY = st.lists(st.floats(1e-4, 30.0), min_size=1, max_size=60)


def study(platform: str = "cpu", **measure: Any) -> StudySpec:
    device = {"platform": platform}
    return parse_study({"name": "s", "workload": {"entry": "llama"}, "device": device, "measure": measure})


def test_blocks_of_a_gpu_last_seconds_unless_a_study_says_otherwise() -> None:
    gpu, cpu = study("cuda").block_sizes, study("cpu").block_sizes
    assert (cpu.block_s, cpu.settle_s, cpu.steady_s, cpu.in_order) == (0.05, 0.0, 0.0, False)
    assert gpu.block_s >= 1.0
    assert gpu.settle_s >= 1.0
    assert gpu.steady_s > gpu.settle_s
    assert gpu.in_order
    assert study("cuda", block_s="60ms").block_sizes.block_s == 0.06
    with pytest.raises(StudyFileError, match=r"measure\.block_s"):
        study(block_s="long")


def test_a_program_of_its_own_and_an_arm_with_short_steps_keep_theirs() -> None:
    command = {"command": ["train"], "read": {"preset": "tqdm"}}
    spec = parse_study({"name": "s", "workload": command, "device": {"platform": "cuda"}})
    assert spec.block_sizes.isolated_steps(0.5, blocks=1, least=20) == 20
    assert spec.block_sizes.split_isolated([1.0] * 20) == ((), (1.0,) * 20)
    sizes = study("cuda").block_sizes
    steps = sizes.steps(0.85)  # of the reference; half the batch takes half of that
    assert len(sizes.split([0.42] * steps)[1]) >= sizes.block_steps


@pytest.mark.parametrize("step_s", [0.001, 0.05, 0.3, 0.85, 7.0])
def test_a_block_settles_for_seconds_and_counts_for_seconds(step_s: float) -> None:
    sizes = study("cuda").block_sizes
    steps = [step_s] * sizes.steps(step_s)
    settling, counted = sizes.split(steps)
    assert len(counted) >= sizes.block_steps
    if step_s >= 0.001 * 5:  # of shorter ones there are as many as a block may have
        assert sum(settling) >= sizes.settle_s - 1e-6 or len(counted) == sizes.block_steps
        assert sum(counted) >= sizes.block_s * 0.99


def aa_noise(settle_s: float | None) -> AaNoise:
    return replace(read_aa_noise([[0.001, -0.001] * 4] * 3), settle_s=settle_s)


@pytest.mark.parametrize(("shown_s", "settle_s", "steady_s"), [(None, 3.0, 10.0), (1.5, 1.5, 5.0), (9.0, 3.0, 10.0)])
def test_an_a_a_run_may_shorten_what_settles_and_nothing_else(
    shown_s: float | None, settle_s: float, steady_s: float
) -> None:
    planned = study("cuda").block_sizes
    sizes = planned.learned(aa_noise(shown_s))
    assert (sizes.settle_s, sizes.steady_s) == (settle_s, steady_s)
    assert sizes.counted_steps(0.2) == planned.counted_steps(0.2)
    assert planned.learned(UNKNOWN_NOISE) == planned
    assert study("cpu").block_sizes.learned(aa_noise(shown_s)) == study("cpu").block_sizes


@given(MANY, st.floats(0.0, 40.0), st.floats(0.0, 0.95))
def test_steps_are_divided_by_their_times_alone_and_none_is_lost(times: list[float], settle_s: float, m: float) -> None:
    settling, counted = settle(times, settle_s, most=m)
    assert [*settling, *counted] == times
    assert counted
    assert len(settling) <= m * len(times) + 1e-6
    begins = [0.0, *itertools.accumulate(times)]
    assert all(begin < settle_s for begin in begins[: len(settling)])
    full = len(settling) + 1 > m * len(times)
    assert full or not begins[len(settling)] < settle_s or settle_s == 0.0


def test_a_liar_who_leaves_out_a_slow_step_more_is_found() -> None:
    sizes = BlockSizes(block_s=1.0, block_steps=3, settle_s=1.0)
    times = (0.5, 0.5, 0.5, 0.9, 0.5)
    settling, counted = sizes.split(times)
    honest = Pair(
        index=0,
        first=Arm.REFERENCE,
        at_s=0,
        reference_s=counted,
        candidate_s=counted,
        reference_settling_s=settling,
        candidate_settling_s=settling,
    )
    lie = honest.model_copy(update={"candidate_settling_s": times[:4], "candidate_s": times[4:]})
    short = honest.model_copy(update={"candidate_settling_s": times[:1], "candidate_s": times[1:]})
    dropped = honest.model_copy(update={"candidate_settling_s": None})
    assert is_divided_as_told(honest, sizes)
    assert [is_divided_as_told(p, sizes) for p in (lie, short, dropped)] == [False] * 3
    assert not is_divided_as_told(honest, sizes, is_isolated=True)  # alone nothing is left out by these sizes


def test_runs_are_as_long_as_the_sizes_make_them() -> None:
    sizes = BlockSizes(block_s=2.0, block_steps=3, settle_s=3.0, steady_s=10.0, in_order=True)
    assert sizes.steps(0.5) == 6 + 4
    assert sizes.isolated_steps(0.5, blocks=2, least=20) == 20 + 20
    assert sizes.isolated_steps(0.5, blocks=2, least=20, start_s=45.0) == 20 + 20  # it settles first
    at_once = BlockSizes(block_s=0.05, block_steps=3)
    assert at_once.isolated_steps(0.05, blocks=4, least=2) == 4 * 3
    assert at_once.isolated_steps(0.05, blocks=4, least=2, start_s=10.0) == 200
    assert (sizes.starts, at_once.starts) == (2.0, 1.5)
