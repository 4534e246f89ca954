"""The plan of a proof against brute force: simulated proofs, however often looked at, and attackers who choose caps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import ProofRecord
from autotune.stats import proof
from autotune.stats.estimates import DEFAULT_MIN_EFFECT, student_quantile
from autotune.stats.proof import (
    EQUAL_SIDES,
    ERROR,
    ISOLATED_ERROR,
    LEAST_PAIRS,
    OTHER_SIDE,
    ProofPlan,
    allot,
    alone_plan,
    look,
    share_spent,
    smallest_gain,
)
from harness.proofs import looks_of, study_power
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

BOUND = math.log1p(-DEFAULT_MIN_EFFECT)
"""The log ratio at which a wrong `faster` is most likely to be said."""

REPEATS = 20_000


def made_up(most: int, *, tails: float | None = None, seed: int = 1) -> npt.NDArray[np.float64]:
    """Log ratios of many proofs whose truth lies just where `faster` would be wrong."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((REPEATS, most)) if tails is None else rng.standard_t(tails, (REPEATS, most))
    return BOUND + 0.01 * noise


@pytest.fixture
def relentless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives up: giving up only lowers the error, so the bound must hold without it."""
    monkeypatch.setattr(proof, "HOPELESS", -1.0)


@pytest.mark.usefixtures("relentless")
@pytest.mark.parametrize(
    ("base", "most", "error"), [(4, 4, 0.05), (20, 60, 0.025), pytest.param(60, 60, 0.005, marks=pytest.mark.slow)]
)
def test_the_error_over_all_looks_is_no_more_than_planned(base: int, most: int, error: float) -> None:
    plan = ProofPlan(base=base, error=error)
    for tails in (None, 3.0):
        holds, _ = looks_of(made_up(most, tails=tails), plan, min_effect=DEFAULT_MIN_EFFECT)
        assert holds.mean() <= error * share_spent(base, most) + 3 * math.sqrt(error / REPEATS)
        if tails is None:  # and it is spent, or power would be given away
            assert holds.mean() >= 0.6 * error * share_spent(base, most)


@pytest.mark.usefixtures("relentless")
def test_whoever_raises_the_cap_when_it_looks_well_gains_nothing() -> None:
    plan, data, most = ProofPlan(base=8, error=0.025), made_up(96), 96
    # Each cap from 8 to 96, one more pair whenever it is not yet proven: the same as every look there is.
    holds, _ = looks_of(data, plan, min_effect=DEFAULT_MIN_EFFECT)
    assert holds.mean() <= plan.error + 3 * math.sqrt(plan.error / REPEATS)
    # What the same attacker wins where each cap is judged at the plain level of a fixed proof.
    sums, squares = np.cumsum(data, axis=1), np.cumsum(data**2, axis=1)
    naive = np.zeros(REPEATS, bool)
    for n in range(8, most + 1):
        mean = sums[:, n - 1] / n
        sd = np.sqrt((squares[:, n - 1] - n * mean**2) / (n - 1))
        naive |= mean + student_quantile(0.05, n - 1) * sd / math.sqrt(n) < BOUND
    assert naive.mean() > 3 * plan.error


def test_levels_do_not_depend_on_the_cap() -> None:
    plan = ProofPlan(base=20, error=0.0125)
    before = [plan.nominal(n) for n in range(4, 25)]
    plan.nominal(90)
    assert [plan.nominal(n) for n in range(4, 25)] == before
    assert plan.nominal(3) == share_spent(20, 3) == 0.0
    assert all(share_spent(20, n) < share_spent(20, n + 1) < 1.0 for n in range(4, 300))


def test_intervals_of_all_looks_hold_together() -> None:
    plan, data = ProofPlan(base=20, error=0.01), made_up(20)
    missed = np.zeros(REPEATS, bool)
    for n, low, high in zip(range(4, 21), plan.lower(range(4, 21)), plan.upper(range(4, 21)), strict=True):
        seen = data[:, :n]
        away = (seen.mean(axis=1) - BOUND) / (seen.std(axis=1, ddof=1) / math.sqrt(n))
        missed |= (away > low) | (away < -high)
    assert missed.mean() <= (1 + OTHER_SIDE) * plan.error


def test_of_two_variants_either_is_called_faster_as_seldom() -> None:
    """Each side spends its own error over all looks, and what is found 9 times in 10 is found on either side."""
    most, pair_sd = 20, 0.01
    plan, looks = ProofPlan(base=most, error=allot(ERROR, 0.0, 1), other_side=EQUAL_SIDES), range(4, most + 1)
    assert plan.lower(looks).tolist() == plan.upper(looks).tolist()
    least = there(smallest_gain(pair_sd, most=most, finalists=1, min_effect=0.0))
    data = made_up(most) - BOUND
    for truth, fewest, largest in ((0.0, 0.0, plan.error + 3 * math.sqrt(plan.error / REPEATS)), (least, 0.89, 1.0)):
        slower, faster = (np.zeros(REPEATS, bool) for _ in range(2))
        for n, distance in zip(looks, plan.upper(looks), strict=True):
            seen = data[:, :n]
            half = distance * seen.std(axis=1, ddof=1) / math.sqrt(n)
            slower |= seen.mean(axis=1) + math.log1p(truth) - half > 0.0
            faster |= seen.mean(axis=1) + math.log1p(-truth) + half < 0.0
        assert fewest <= slower.mean() <= largest
        assert fewest <= faster.mean() <= largest


def test_one_proof_and_many_at_once_follow_the_same_rule() -> None:
    rng, plan = np.random.default_rng(5), ProofPlan(base=12, error=0.02)
    for centre in (0.0, -0.01, -0.02, 0.03):
        for values in centre + 0.01 * rng.standard_normal((60, 12)):
            one, many = look(values, plan, most=12), looks_of(values[None], plan, min_effect=DEFAULT_MIN_EFFECT)
            assert (one.holds, one.used) == (bool(many[0][0]), int(many[1][0]))
            assert one.stop


@pytest.mark.parametrize(("ratio", "apart", "holds", "reason", "used"), CASES["ends_of_proofs"])
def test_a_proof_ends_where_it_is_settled(ratio: float, apart: float, holds: bool, reason: str, used: int) -> None:
    plan, values = ProofPlan(base=20, error=0.025), [math.log(ratio) + apart * (-1) ** i for i in range(20)]
    assert look(values[:3], plan, most=20).stop is False
    found = look(values, plan, most=20)
    assert (found.stop, found.holds) == (True, holds)
    assert reason in found.reason
    assert found.used <= used
    assert look(values, plan, most=20, ends_without_gain=False).used == (20 if reason == "hardly" else found.used)


def test_past_a_hopeless_look_a_larger_cap_goes_on() -> None:
    plan, values = ProofPlan(base=8, error=0.025), [math.log(0.985) + 0.02 * (-1) ** i for i in range(8)]
    ended = look(values, plan, most=8)
    assert (ended.stop, ended.holds) == (True, False)
    assert not look(values, plan, most=200).stop


def test_a_study_never_gives_away_more_error_than_it_has() -> None:
    used = 0.0
    for round_ in range(200):
        count = 1 + round_ % 3
        used += count * allot(ERROR, used, count)
        assert used < ERROR or math.isclose(used, ERROR)
    assert 2 * allot(ERROR, 0.0, 2) == pytest.approx(0.9 * ERROR)


def test_no_set_is_called_faster_before_rare_slow_processes_can_show() -> None:
    """One process in five is slow by half: pairs that end after four often see none."""
    plan, loose = (ProofPlan(base=40, error=ERROR / 3, least=least) for least in (LEAST_PAIRS, 4))
    rng = np.random.default_rng(2)
    data = np.where(rng.random((2000, 40)) < 0.2, 0.5, -0.1) + 0.003 * rng.standard_normal((2000, 40))
    won, early = (looks_of(data, p, min_effect=DEFAULT_MIN_EFFECT)[0].mean() for p in (plan, loose))
    assert won < 0.3 < 0.36 < early
    clear = [math.log(0.8) + 0.0005 * (-1) ** i for i in range(40)]
    assert not look(clear[: LEAST_PAIRS - 1], plan, most=40).stop
    assert look(clear, plan, most=40).used == LEAST_PAIRS
    assert look(clear, plan, most=5).holds, "a smaller cap is the user's own choice"


@pytest.mark.parametrize("sd", [0.004, 0.02])
def test_a_gain_that_only_turns_see_is_shown_in_isolation_as_seldom_as_planned(sd: float) -> None:
    rng = np.random.default_rng(7)
    holds, _ = looks_of(sd * rng.standard_normal((REPEATS, 40)), alone_plan(40), min_effect=0.0)
    assert holds.mean() <= ISOLATED_ERROR + 3 * math.sqrt(ISOLATED_ERROR / REPEATS)
    holds, ended = looks_of(math.log(0.98) + 0.018 * rng.standard_normal((2000, 40)), alone_plan(40), min_effect=0.0)
    assert holds.mean() >= 0.97
    assert ended.mean() < 30


@pytest.mark.parametrize(
    ("pair_sd", "effect", "found"), [(0.007, 0.01, 0.8), (0.007, 0.02, 0.99), (0.018, 0.02, 0.92), (0.018, 0.03, 0.99)]
)
def test_power_is_at_least_what_the_issue_s_prototype_had(pair_sd: float, effect: float, found: float) -> None:
    assert study_power(effect, pair_sd, most=40) >= found


def test_the_smallest_gain_is_one_that_is_found() -> None:
    """9 times in 10, and not so often that a much smaller one would be, too."""
    for most, finalists, isolated in itertools.product((6, 12, 100), (1, 8), (0, 40)):
        how = {"most": most, "finalists": finalists, "isolated": isolated}
        for pair_sd in (0.001, 0.007, 0.018, 0.05):
            least = there(smallest_gain(pair_sd, **how))
            assert study_power(least, pair_sd, **how) >= 0.89, (how, pair_sd)
            assert study_power(0.85 * least - 0.001, pair_sd, **how) < 0.9, (how, pair_sd)
    assert smallest_gain(2.0, most=40) is None


@pytest.mark.parametrize(("base", "error"), [(3, 0.01), (20, 0.0), (20, 0.1)])
def test_what_is_no_plan_is_no_record(base: int, error: float) -> None:
    with pytest.raises(ValueError, match="base" if base < 4 else "error"):
        ProofRecord(stage="confirm", settings=FlagSet(), base=base, error=error, least=6)


def test_the_reported_interval_holds_although_a_set_is_only_named_when_it_was_lucky() -> None:
    """A true gain of 1 % where pairs of processes differ by 1.8 %: one study in ten or so names it."""
    rng, truth = np.random.default_rng(3), math.log1p(-0.01)
    plan = ProofPlan(base=40, error=allot(ERROR, 0.0, 3), least=LEAST_PAIRS)
    data = truth + 0.018 * rng.standard_normal((REPEATS, 40))
    holds, ended = looks_of(data, plan, min_effect=DEFAULT_MIN_EFFECT)
    named = [plan.estimate(data[i, : ended[i]]) for i in np.flatnonzero(holds)]
    assert 300 < len(named) < REPEATS / 4
    assert np.mean([e.low <= math.exp(truth) <= e.high for e in named]) >= 0.95
    assert np.mean([math.log(e.ratio) for e in named]) - truth < -0.005  # its middle is lucky; the page says so
