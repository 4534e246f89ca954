"""Whether long runs show that a gain stays: simulated looks at gains that stay, halve or vanish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from autotune.stats.estimates import Estimate, Floats, Verdict, clock_resolution
from autotune.stats.long_run import SEGMENTS, SOAK_LOOKS, Lasting, LongRunRatio, lasting_gain, long_run_ratio
from autotune.stats.proof import LEAST_PAIRS, ProofPlan

STEPS, PROVEN_STEPS, STEP_SD, ONSET = 2000, 60, 0.01, 300
CASES = 100
PLAN = ProofPlan(base=40, error=0.005 / 3, least=LEAST_PAIRS)

Change = Callable[[Floats, float], Floats]
"""By how much a gain, in log, is less at some steps."""


def stays(steps: Floats, gain: float) -> Floats:
    return np.zeros(len(steps))


def vanishes(steps: Floats, gain: float) -> Floats:
    return np.where(steps >= ONSET, gain, 0.0)


def halves(steps: Floats, gain: float) -> Floats:
    return np.where(steps >= ONSET, gain / 2, 0.0)


def both_warm_up(steps: Floats, gain: float) -> Floats:
    """The reference's start is slower, and it comes as far as the set in the end."""
    return np.asarray(gain * -np.expm1(-steps / 1500.0), dtype=np.float64)


def prove(gain: float, pair_sd: float, rng: np.random.Generator) -> Estimate | None:
    """A proof that says that a set is faster; None where it does not."""
    ratios = -gain + pair_sd * rng.standard_normal(40)
    for count in range(LEAST_PAIRS, 41):
        if PLAN.verdict(ratios[:count], min_effect=0.005) is Verdict.FASTER:
            return PLAN.estimate(ratios[:count])
    return None


def look(gain: float, change: Change, pair_sd: float, rng: np.random.Generator, step_sd: float) -> LongRunRatio:
    """One long run of each arm, by the means of its segments and of its first steps."""
    steps = np.arange(STEPS, dtype=np.float64)
    mine = -gain + change(steps, gain) + pair_sd * rng.standard_normal()
    arms = [np.exp(level + step_sd * rng.standard_normal(STEPS)) for level in (mine, 0.0)]
    early = float(np.median(arms[0][:PROVEN_STEPS]) / np.median(arms[1][:PROVEN_STEPS]))
    parts = [[float(np.mean(part)) for part in np.array_split(arm, SEGMENTS)] for arm in arms]
    return long_run_ratio(*parts, work_ratio=1.0, early=early, early_share=PROVEN_STEPS / STEPS)


def findings(
    gain: float, pair_sd: float, change: Change, *, cases: int = CASES, seed: int = 1, step_sd: float = STEP_SD
) -> Counter[Lasting]:
    """How many proven sets end in which way, with as many looks as a study has by itself."""
    rng, found = np.random.default_rng(seed), Counter[Lasting]()
    while found.total() < cases:
        if (proven := prove(gain, pair_sd, rng)) is None:
            continue
        looks: list[LongRunRatio] = []
        finding = Lasting.OPEN
        while len(looks) < SOAK_LOOKS and finding is not Lasting.STAYS:
            looks.append(look(gain, change, pair_sd, rng, step_sd))
            finding = lasting_gain(looks, proven=proven, process_sd=pair_sd).finding
        found[finding] += 1
    return found


AGREEING = (0.002, 0.01)
"""Standard deviations between pairs of processes at which no honest set may be refused, nor left open."""


@pytest.mark.parametrize("pair_sd", [*AGREEING, 0.02, 0.03])
@pytest.mark.parametrize("gain", [0.01, 0.02, 0.05, 0.1])
def test_a_gain_that_stays_is_not_refused(gain: float, pair_sd: float) -> None:
    found = findings(gain, pair_sd, stays, cases=40 if pair_sd < 2 * gain else 5)
    assert found[Lasting.LOST] == 0
    assert found[Lasting.STAYS] == found.total() or pair_sd not in AGREEING


@pytest.mark.slow
@pytest.mark.parametrize("pair_sd", AGREEING)
@pytest.mark.parametrize("gain", [0.01, 0.02, 0.05])
def test_at_most_one_honest_set_in_a_hundred_is_not_named(gain: float, pair_sd: float) -> None:
    found = findings(gain, pair_sd, stays, cases=1000)
    assert found[Lasting.STAYS] >= 990


@pytest.mark.parametrize("pair_sd", [0.002, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("gain", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("change", [vanishes, both_warm_up], ids=["vanishes", "both warm up"])
def test_a_gain_that_goes_is_never_consented_to(change: Change, gain: float, pair_sd: float) -> None:
    assert findings(gain, pair_sd, change, cases=20)[Lasting.STAYS] == 0


@pytest.mark.slow
@pytest.mark.parametrize("pair_sd", [0.002, 0.01, 0.02, 0.03])
@pytest.mark.parametrize("gain", [0.02, 0.05, 0.1])
def test_a_gain_that_goes_is_consented_to_in_one_of_a_hundred_at_most(gain: float, pair_sd: float) -> None:
    assert findings(gain, pair_sd, vanishes, cases=500)[Lasting.STAYS] <= 5


@pytest.mark.parametrize(("pair_sd", "least", "most"), [(0.002, 20, 0), (0.03, 0, 3)])
def test_a_gain_that_halves_is_lost_where_that_can_be_seen(pair_sd: float, least: int, most: int) -> None:
    found = findings(0.1, pair_sd, halves, cases=20)
    assert found[Lasting.LOST] >= least
    assert found[Lasting.STAYS] <= most


@pytest.mark.parametrize("pair_sd", [0.005, 0.01, 0.02])
@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 30, 30), (0.25, 0, 9), (0.5, 0, 0)])
def test_a_gain_that_shrinks_in_the_last_quarter_is_seen_by_what_was_before(
    share: float, least: int, most: int, pair_sd: float
) -> None:
    """A drift is no noise of its own; one of a tenth of the gain passes in 19 of 20, and is not claimed."""

    def drifts(steps: Floats, gain: float) -> Floats:
        return gain * share * np.clip(4.0 * steps / STEPS - 3.0, 0.0, 1.0)

    found = findings(0.05, pair_sd, drifts, cases=30)
    assert least <= found[Lasting.STAYS] <= most
    assert found[Lasting.SHRINKING] == (30 - found[Lasting.STAYS])


def test_without_first_steps_and_with_processes_that_differ_nothing_is_settled_by_one_look() -> None:
    rng = np.random.default_rng(2)
    first = look(0.05, stays, 0.0, rng, STEP_SD)._replace(early=None)
    proven = Estimate(ratio=0.95, low=0.93, high=0.97, level=0.97, pair_count=8)
    found = lasting_gain([first], proven=proven, process_sd=0.02)
    assert found.finding is Lasting.OPEN
    assert found.unseen > 0.05
    assert found.looks > SOAK_LOOKS
    assert lasting_gain([first], proven=proven, process_sd=0.001).finding is Lasting.STAYS


@pytest.mark.parametrize(
    ("times", "share"),
    [
        ([0.032] * 30, 0.5),
        ([0.032] * 27 + [0.016] * 3, 0.5),
        ([0.03 + 0.0003 * n for n in range(30)], 0.0),
        ([0.03, 0.04] * 20, 0.0),
        ([0.032] * 5, 0.0),
    ],
    ids=["one tick", "two ticks", "fine", "noise averages it out", "too few"],
)
def test_a_clock_that_is_too_coarse_is_told_by_its_times(times: list[float], share: float) -> None:
    assert clock_resolution(times) == pytest.approx(share)
