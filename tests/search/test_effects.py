"""What the model tells at the end: intervals hold what was planted, and what cannot be told apart is told so."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from autotune.search.additive import AdditiveModel, Observations
from autotune.search.effects import Effects
from autotune.search.failures import FailureModel
from autotune.search.space import Codes, Design, Factor, Floats

SETTINGS, TRIALS, NOISE = 16, 40, 0.004


class Planted(NamedTuple):
    """A space of settings of three values, of which three act, and what was learned of it."""

    truth: Floats
    acting: list[int]
    codes: Codes
    found: Effects

    def true(self, codes: Codes) -> float:
        return float(sum(self.truth[i, c] for i, c in enumerate(codes)))


def learn(
    codes: Codes,
    values: Floats,
    *,
    sizes: int = 3,
    seed: int = 0,
    failed: Codes | None = None,
    design: Design | None = None,
) -> Effects:
    count = codes.shape[1]
    design = design or Design([Factor(size=sizes, group=f"g{i % 4}") for i in range(count)])
    seen = Observations(codes, values, np.full(len(codes), NOISE))
    bad = failed if failed is not None else np.zeros((0, count), dtype=np.int64)
    return Effects(AdditiveModel(design, seen, seed=seed, jumps=200), FailureModel(design, codes, bad, []), seed=seed)


def plant(seed: int) -> Planted:
    rng = np.random.default_rng(seed)
    effects = np.zeros((SETTINGS, 4))
    acting = sorted(rng.choice(SETTINGS, 3, replace=False).tolist())
    effects[acting, 1:3] = rng.choice([-1.0, 1.0], (3, 2)) * rng.uniform(0.02, 0.06, (3, 2))
    codes = rng.integers(0, 3, (TRIALS, SETTINGS))
    values = effects[np.arange(SETTINGS), codes].sum(axis=1) + rng.normal(0, NOISE, TRIALS)
    return Planted(effects, acting, codes, learn(codes, values, seed=seed))


@pytest.fixture(scope="module")
def planted() -> list[Planted]:
    return [plant(seed) for seed in range(10)]


def test_intervals_hold_the_planted_effects_in_ten_studies(planted: list[Planted]) -> None:
    held = {True: [0, 0], False: [0, 0]}
    for study in planted:
        for i in range(SETTINGS):
            for value, change in enumerate(study.found.of(i)[1:3], start=1):
                tally = held[i in study.acting]
                tally[0] += change.low <= study.truth[i, value] <= change.high
                tally[1] += 1
    acting, inert = (held[k][0] / held[k][1] for k in (True, False))
    assert (held[True][1], held[False][1]) == (60, 260)
    # Of 60 intervals of 95 % fewer than 51 hold in one case of a thousand.
    assert acting >= 51 / 60
    assert inert >= 0.95


def test_what_acts_is_told_from_what_does_not(planted: list[Planted]) -> None:
    acting = [s.found.p_active[i] for s in planted for i in s.acting]
    inert = [s.found.p_active[i] for s in planted for i in range(SETTINGS) if i not in s.acting]
    assert np.mean(np.array(acting) > 0.9) > 0.9
    assert np.mean(np.array(inert) < 0.2) > 0.95


def test_the_best_set_is_what_acts_alone_and_its_interval_holds(planted: list[Planted]) -> None:
    regrets, held, needless = [], 0, 0
    for study in planted:
        best = study.found.best(list(study.codes))
        forecast = study.found.forecast(best)
        optimum = float(study.truth[:, :3].min(axis=1).sum())
        regrets.append(study.true(best) - optimum)
        held += forecast.low <= study.true(best) <= forecast.high
        needless += sum(i not in study.acting for i in np.flatnonzero(best))
    assert np.mean(regrets) < 0.003
    assert held >= 8
    assert needless <= 2


def test_two_settings_that_are_always_on_together_are_both_in_doubt() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, 2, (TRIALS, SETTINGS))
        codes[:, 7] = codes[:, 3]
        values = -0.05 * codes[:, 3] + 0.03 * codes[:, 10] + rng.normal(0, NOISE, TRIALS)
        found = learn(codes, values, sizes=2, seed=seed)
        chances = [float(found.p_active[i]) for i in (3, 7, 10)]
        assert max(chances[:2]) < 0.8, seed
        assert min(chances[:2]) > 0.3, seed
        assert chances[2] > 0.99
        for i in (3, 7):
            change = found.of(i)[1]
            assert change.low < -0.05 < 0.0 <= change.high
        # Which of the two it is does not matter to a set that has both, or either.
        best = found.best(list(codes))
        assert best[3] or best[7]
        assert not best[10]


def test_a_value_that_fails_is_in_no_recommended_set() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 3, (60, SETTINGS))
    crashes = drawn[:, 4] == 2
    codes = drawn[~crashes]
    values = np.where(codes[:, 4] == 1, -0.03, 0.0) + rng.normal(0, NOISE, len(codes))
    found = learn(codes, values, failed=drawn[crashes])
    assert found.best(list(codes))[4] == 1


def test_a_set_that_the_rules_forbid_is_not_recommended() -> None:
    study = plant(1)
    best = study.found.best(list(study.codes))
    assert best.any()
    other = study.found.best(list(study.codes), is_allowed=lambda codes: bool((codes != best).any()))
    assert (other != best).any()


def test_what_betters_a_set_by_less_than_is_of_interest_is_left_out() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 2, (200, 6))
    values = -0.05 * codes[:, 0] - 0.006 * codes[:, 1] + rng.normal(0, NOISE, 200)
    found = learn(codes, values, sizes=2)
    assert np.flatnonzero(found.best(list(codes))).tolist() == [0, 1]
    assert np.flatnonzero(found.best(list(codes), least=0.01)).tolist() == [0]


def test_nothing_that_acts_recommends_the_default() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 3, (TRIALS, SETTINGS))
    found = learn(codes, rng.normal(0, NOISE, TRIALS))
    best = found.best(list(codes))
    assert not best.any()
    assert found.forecast(best).mean == 0.0


def test_a_setting_without_another_value_than_the_default_cannot_act() -> None:
    rng = np.random.default_rng(6)
    design = Design([Factor(size=1), Factor(size=2), Factor(size=2)])
    codes = rng.integers(0, 2, (30, 3)) * np.array([0, 1, 1])
    values = -0.03 * codes[:, 1] + rng.normal(0, NOISE, 30)
    found = learn(codes, values, design=design)
    assert found.p_active[0] == 0.0
    assert found.p_active[1] > 0.95
    best = found.best(list(codes))
    assert best.tolist() == [0, 1, 0]


def test_a_setting_that_another_switches_on_is_opened_where_that_pays() -> None:
    rng = np.random.default_rng(2)
    factors = [Factor(size=2), Factor(size=2, needs={0: frozenset({1})})]
    factors += [Factor(size=2, group="g") for i in range(4)]
    design = Design(factors)
    codes = np.array([design.settle(c) for c in rng.integers(0, 2, (60, 6))])
    values = 0.002 * codes[:, 0] - 0.04 * codes[:, 1] + rng.normal(0, NOISE, 60)
    found = learn(codes, values, design=design)
    assert found.best(list(codes))[:2].tolist() == [1, 1]
