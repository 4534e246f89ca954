"""Total time, stalls and growth against simulated machines: honest winners pass, planted losses are found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from autotune.model.proofs import SoakVerdict, judge_soak
from autotune.model.records import SoakArm, SoakArms, SoakLook
from autotune.stats.estimates import Estimate, Floats, Verdict, estimate_processes, hodges_lehmann, judge
from autotune.stats.long_run import (
    SOAK_LOOKS,
    Stalls,
    TotalTime,
    add_stalls,
    apart_total,
    compare_totals,
    find_stalls,
    segments,
    slower_total,
)
from harness.noise import NOISE_MODELS, Machine, Process, log_ratios, run_pairs
from tests.runs import there

CASES = 1000
EARLY_STEPS = 60
NONE = Stalls(steps=100, count=0, typical_s=1.0, lost_s=0.0)


def soaks(noise: str, gain: float, steps: int, *, seed: int, cases: int = CASES) -> list[Floats]:
    """Candidate, reference, and both twice again, one after the other on one machine: `[cases, steps]` seconds each."""
    machine = Machine(NOISE_MODELS[noise], np.random.default_rng(seed), (cases,))
    return [Process(machine, step_s=step_s).run_block(steps) for step_s in (1 - gain, 1.0) * SOAK_LOOKS]


def arm(mine: list[float], beside: list[float]) -> SoakArm:
    """One long run beside another, as a soak keeps it."""
    early = mine[: min(EARLY_STEPS, len(mine) // 2)]
    return SoakArm(
        step_count=len(mine),
        steps_s=sum(mine),
        stalls=find_stalls(mine, beside),
        segment_s=segments(mine),
        early_steps=len(early),
        early_s=float(np.median(early)),
    )


def judged(runs: list[list[float]], gain: float, process_sd: float) -> SoakVerdict:
    """What looks at a set, one after the other, come to."""
    pairs = zip(runs[::2], runs[1::2], strict=True)
    ratio = 1 - gain
    proven = Estimate(ratio=ratio, low=ratio**1.5, high=ratio**0.5, level=0.97, pair_count=8)
    looks = tuple(SoakLook(candidate=arm(c, r), reference=arm(r, c)) for c, r in pairs)
    return judge_soak(SoakArms(looks=looks, proven=proven, process_sd=process_sd))


def verdicts(runs: list[Floats], gain: float, noise: str) -> list[SoakVerdict]:
    """What each of many cases comes to."""
    process_sd = math.sqrt(2) * NOISE_MODELS[noise].process_sd
    return [judged([run.tolist() for run in case], gain, process_sd) for case in zip(*runs, strict=True)]


def vetoed(runs: list[Floats], gain: float, noise: str) -> float:
    """Share of cases that are refused, whatever is not settled."""
    found = verdicts(runs, gain, noise)
    return sum(v.failure is not None for v in found) / len(found)


def passed(runs: list[Floats], gain: float, noise: str) -> float:
    """Share of cases that pass."""
    found = verdicts(runs, gain, noise)
    return sum(v.is_passed for v in found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [200, 1000])
@pytest.mark.parametrize("noise", NOISE_MODELS)
def test_honest_winners_survive_their_soak_on_every_machine(noise: str, steps: int) -> None:
    all_runs = soaks(noise, 0.01, steps, seed=steps)
    assert vetoed(all_runs, 0.01, noise) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["quiet", "white", "bursts", "outliers"])
@pytest.mark.parametrize(("gain", "share", "size"), [(0.2, 1 / 40, 18.0), (0.05, 1 / 60, 12.0), (0.02, 1 / 20, 4.0)])
def test_stalls_that_cost_over_5_percent_are_found_in_a_soak_that_holds_thirty(
    noise: str, gain: float, share: float, size: float
) -> None:
    steps, rng = round(30 / share), np.random.default_rng(11)
    all_runs = soaks(noise, gain, steps, seed=12, cases=300)
    for arm in all_runs[::2]:
        arm += size * (rng.random(arm.shape) < share)
    assert 1 - gain + size * share > 1.05
    assert passed(all_runs, gain, noise) <= 0.01


@pytest.mark.slow
def test_stalls_that_a_soak_holds_ten_of_are_found() -> None:
    """On average: a look that happens to hold few of them must not clear the set."""
    steps, rng = 2000, np.random.default_rng(13)
    all_runs = soaks("quiet", 0.05, steps, seed=14, cases=400)
    for arm in all_runs[::2]:
        arm += 20.0 * (rng.random(arm.shape) < 10 / steps)
    assert passed(all_runs, 0.05, "quiet") <= 0.01


def test_stalls_that_come_like_clockwork_are_found_when_a_soak_holds_four() -> None:
    all_runs = soaks("quiet", 0.2, 160, seed=5, cases=80)
    for arm in all_runs[::2]:
        arm[:, 39::40] += 18.0
    assert passed(all_runs, 0.2, "quiet") == 0.0


LOADS: dict[str, tuple[str, float, Callable[[Floats, np.random.Generator], Floats]]] = {
    "stalls of the machine": ("quiet", 0.02, lambda run, rng: run + 5.0 * (rng.random(run.shape) < 1 / 50)),
    "minutes of load": ("quiet", 0.05, lambda run, rng: run * np.exp(0.3 * rng.standard_normal((len(run), 1)))),
    # As on two processors under eight loads: the share of steps that wait for one changes from run to run.
    "shared processors": (
        "white",
        0.05,
        lambda run, rng: run * np.where(rng.random(run.shape) < rng.uniform(0, 0.8, (len(run), 1)), 3.5, 1.0),
    ),
    "slowing machine": ("quiet", 0.05, lambda run, rng: run * np.linspace(1.0, 1.5, run.shape[1])),
}


@pytest.mark.parametrize("load", LOADS)
def test_what_a_machine_does_to_both_is_no_fault_of_the_set(load: str) -> None:
    noise, gain, loaded = LOADS[load]
    rng, all_runs = np.random.default_rng(3), soaks(noise, gain, 400, seed=6, cases=200)
    assert vetoed([loaded(run, rng) for run in all_runs], gain, noise) <= 0.01


def test_a_busy_minute_that_only_the_first_process_meets_settles_nothing() -> None:
    all_runs = soaks("quiet", 0.05, 200, seed=8, cases=50)
    slow = [run * (1.0 if number % 2 else 2.0) for number, run in enumerate(all_runs)]
    for count in (2, 4):
        busy = [*slow[:count], *all_runs[count:]]
        assert vetoed(busy, 0.05, "quiet") == 0.0
        assert passed(busy, 0.05, "quiet") == 0.0  # what the first one left may make later ones faster
    assert vetoed(slow, 0.05, "quiet") == 1.0


def changing(kind: str, size: float, onset: float, steps: int) -> Floats:
    """Factors of the steps of a run that become `size` times as long after a share `onset` of it."""
    at = np.arange(steps) / steps
    return np.where(at < onset, 1.0, size) if kind == "step" else 1.0 + (size - 1.0) * np.clip(at - onset, 0.0, 1.0)


@pytest.mark.parametrize("kind", ["step", "ramp"])
@pytest.mark.parametrize("size", [1.1, 1.2, 1.5])
@pytest.mark.parametrize("onset", [0.0, 0.1, 0.3])
def test_a_set_is_not_excused_by_its_own_slowing(kind: str, size: float, onset: float) -> None:
    """A set that is 8 % faster until it becomes slower: what is left in the second half decides."""
    mine = changing(kind, size, onset, 1000)
    all_runs = soaks("quiet", 0.08, 1000, seed=9, cases=8)
    changed = [run * (1.0 if number % 2 else mine) for number, run in enumerate(all_runs)]
    left = math.log(0.92 * np.mean(mine[500:]))
    if left > -0.05:
        assert passed(changed, 0.08, "quiet") == 0.0
    elif left < -0.07:
        assert vetoed(changed, 0.08, "quiet") == 0.0


def proofs(
    noise: str, gain: float, *, stalls: tuple[float, float] = (0.0, 0.0), cases: int = CASES, processes: int = 5
) -> tuple[int, int]:
    """How many proofs find a set faster, and how many of those its total time refuses."""
    rng = np.random.default_rng(21)
    machine = Machine(NOISE_MODELS[noise], rng, (cases,))
    typical, totals = [], []
    for _ in range(processes):
        one, other = Process(machine), Process(machine, step_s=1 - gain)
        reference, candidate, _ = run_pairs(one, other, pairs=20, block_steps=5)
        candidate = candidate + stalls[0] * (rng.random(candidate.shape) < stalls[1])
        typical.append(hodges_lehmann(log_ratios(reference, candidate), level=0.95)[0])
        arms = zip(reference, candidate, strict=True)
        totals.append([compare_totals(list(r.ravel()), list(c.ravel())) for r, c in arms])
    faster = refused = 0
    for ratios, of_each in zip(np.array(typical).T, zip(*totals, strict=True), strict=True):
        estimate = estimate_processes(ratios)
        if judge(estimate) is Verdict.FASTER:
            faster += 1
            refused += slower_total(of_each, list(ratios), estimate) is not None
    return faster, refused


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE_MODELS)
@pytest.mark.parametrize("gain", [0.02, 0.05])
def test_honest_winners_keep_their_proof_on_every_machine(noise: str, gain: float) -> None:
    faster, refused = proofs(noise, gain)
    assert faster > 100
    assert refused <= 0.01 * CASES


@pytest.mark.parametrize("noise", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("quiet", "bursts")), "outliers"])
def test_a_stall_in_forty_steps_costs_a_proof_of_twelve_processes(noise: str) -> None:
    faster, refused = proofs(noise, 0.2, stalls=(18.0, 1 / 40), cases=150, processes=12)
    assert faster > 125
    assert refused >= 0.99 * faster


def test_a_total_apart_from_the_typical_step_counts() -> None:
    totals = [TotalTime(log_ratio=math.log(r), reference=NONE, candidate=NONE) for r in (0.77, 0.775, 0.768, 0.772)]
    typical = [math.log(r) for r in (0.7, 0.701, 0.699, 0.7)]
    estimate = estimate_processes(typical)
    assert slower_total(totals, typical, estimate) is None
    found = there(apart_total(totals, typical, estimate))
    assert found.low < 0.771 < found.high < 1.0
    assert apart_total(totals, [t.log_ratio for t in totals], estimate_processes([t.log_ratio for t in totals])) is None
    totals = [TotalTime(log_ratio=math.log(r), reference=NONE, candidate=NONE) for r in (0.95, 1.0, 1.01, 0.97, 0.99)]
    typical = [math.log(0.8)] * 5
    found = there(slower_total(totals, typical, estimate_processes(typical)))
    assert found.ratio < 1.0 < found.high


def test_figures_of_stalls_totals_and_segments_by_hand() -> None:
    found = find_stalls([0.02] * 38 + [0.04, 0.5])
    assert (found.steps, found.count, found.typical_s) == (40, 1, 0.02)
    assert found.lost_s == pytest.approx(0.48)
    both = add_stalls([found, find_stalls([0.02] * 40)])
    assert (both.steps, both.count) == (80, 1)
    assert compare_totals([1.0, 1.0], [2.0], work_ratio=2.0).log_ratio == pytest.approx(0.0)
    assert segments([1.0, 3.0]) == (1.0, 3.0)
    assert segments([1.0, 3.0] * 10 + [5.0, 7.0] * 10) == (2.0,) * 10 + (6.0,) * 10


STALLED = {"steps": 40, "count": 1, "typical_s": 0.1, "lost_s": 1.0}
ESTIMATED = {"ratio": 1.0, "low": 0.0, "high": math.inf, "level": 0.95, "pair_count": 3}
WRONG_STALLS = [("steps", 0), ("count", -1), ("typical_s", 0.0), ("lost_s", math.nan), ("lost_s", math.inf)]
WRONG_ESTIMATES = [("ratio", 0.0), ("low", math.inf), ("high", math.nan), ("level", 1.1)]


@pytest.mark.parametrize(
    ("kind", "good", "wrong"), [(Stalls, STALLED, WRONG_STALLS), (Estimate, ESTIMATED, WRONG_ESTIMATES)]
)
def test_figures_that_no_run_gives_are_refused_in_a_record(
    kind: type, good: dict[str, float], wrong: list[tuple[str, float]]
) -> None:
    TypeAdapter(kind).validate_python(good)
    for name, value in wrong:
        with pytest.raises(ValidationError):
            TypeAdapter(kind).validate_python({**good, name: value})
