"""A search that ends by itself: early where there is nothing to find, and seldom while there is."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from autotune.model.effects import EffectsRecord, Stopped
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Comparison
from autotune.model.spec import StudySpec, parse_study
from autotune.model.trial import Measured, TrialResult
from autotune.rundir.store import Store
from autotune.settings.parameters import Parameter, SearchSpace
from autotune.stats.estimates import Estimate
from autotune.study.proposer import Proposer
from autotune.study.stopping import UNLIKELY
from tests.runs import Run, replay_study

SETTINGS, VALUES, IN_GROUP = 8, 3, 4
SMALL = SearchSpace(
    tuple(
        Parameter(name=f"xla_{i}", choices=("0", "1", "2"), default="0", group=f"group {i // IN_GROUP}")
        for i in range(SETTINGS)
    )
)
UNGROUPED = SearchSpace(tuple(dataclasses.replace(p, group=f"group {p.name}") for p in SMALL.parameters))
"""Without pairs of settings that may act only together: those that no trial had keep a search going."""

NOISE, LEAST, ASKED = 0.004, 0.01, 60

Mains = np.ndarray
Pairs = dict[tuple[int, int], np.ndarray]


def auto(**more: Any) -> dict[str, Any]:
    return {"search": {"stop": "auto", **more}}


# ---------------------------------------------------------------------- the rule


def world(seed: int) -> tuple[Mains, Pairs]:
    """Effects of some settings, and of a pair: what only acts together is what is found late."""
    rng = np.random.default_rng(seed)
    mains, pairs = np.zeros((SETTINGS, VALUES)), Pairs()
    for i in rng.permutation(SETTINGS)[: rng.integers(0, 4)]:
        mains[i, rng.integers(1, VALUES)] = rng.choice([-1.0, -1.0, 1.0]) * rng.uniform(0.02, 0.06)
    if seed % 2:
        i = IN_GROUP * int(rng.integers(2))
        pairs[i, i + 1] = np.zeros((VALUES, VALUES))
        pairs[i, i + 1][1, 1] = -0.05
    return mains, pairs


def change(codes: tuple[int, ...], mains: Mains, pairs: Pairs) -> float:
    own = sum(float(mains[i, c]) for i, c in enumerate(codes))
    return own + sum(float(table[codes[i], codes[j]]) for (i, j), table in pairs.items())


def optimum(mains: Mains, pairs: Pairs) -> float:
    """The best of all sets."""
    return min(change(codes, mains, pairs) for codes in itertools.product(range(VALUES), repeat=SETTINGS))


def codes_of(settings: FlagSet) -> tuple[int, ...]:
    return tuple(int(settings.get(p.name, "0")) for p in SMALL.parameters)


def measured(number: int, settings: FlagSet, value: float) -> TrialResult:
    ratio, low, high = (math.exp(value + k * 1.96 * NOISE) for k in (0, -1, 1))
    estimate = Estimate(ratio=ratio, low=low, high=high, level=0.95, pair_count=8)
    comparison = Comparison(
        estimate=estimate, reference_step_s=1.0, candidate_step_s=ratio, pair_count=8, mode="turns", stopped="simulated"
    )
    return TrialResult(
        number=number, settings=settings, origin="search", params=SMALL.locate(settings) or {},
        outcome=Measured(comparison=comparison),
    )  # fmt: skip


def search(seed: int) -> tuple[int, float, float]:
    """Trials until the search ends, the regret of what it hands on, and its bound of that."""
    mains, pairs = world(seed)
    rng, proposer = np.random.default_rng([seed, 1]), Proposer(replay_study(), SMALL, first=(), storage=None)
    for number in range(1, ASKED + 1):
        config = proposer.ask(number)
        assert config is not None
        value = change(codes_of(config.settings), mains, pairs) + NOISE * float(rng.standard_normal())
        proposer.tell(measured(number, config.settings, value))
        if number >= 12 and number % 3 == 0:
            rest = proposer.rest(LEAST)
            assert rest is not None
            if rest.chance < UNLIKELY:
                break
    found = proposer.effects()
    assert found is not None
    regret = 1 - math.exp(optimum(mains, pairs) - change(codes_of(found.best.settings), mains, pairs))
    return number, regret, 1 - found.left


@pytest.mark.gate
def test_where_settings_act_all_together_no_bound_is_told_of_what_is_left() -> None:
    """Eight settings that save something only as far as all of them are what they should be."""
    rng, hidden = np.random.default_rng(0), (1, 2, 0, 1, 2, 2, 1, 0)
    proposer = Proposer(replay_study(), SMALL, first=(), storage=None)
    for number in range(1, 61):
        config = proposer.ask(number)
        assert config is not None
        wrong = sum(a != b for a, b in zip(codes_of(config.settings), hidden, strict=True))
        value = 0.4 * math.exp(-8 / 3) - 0.4 * math.exp(-wrong / 3) + NOISE * float(rng.standard_normal())
        proposer.tell(measured(number, config.settings, value))
    found = proposer.effects()
    assert found is not None
    assert found.together
    assert proposer.rest(LEAST) is None


STUDIES = 16
"""Of which a few go through all trials: combinations that none of them had may hold a gain."""


@pytest.fixture(scope="module")
def searched() -> list[tuple[int, float, float]]:
    return [search(seed) for seed in range(STUDIES)]


@pytest.mark.slow
def test_searches_that_end_by_themselves_seldom_leave_a_gain_worth_proving(
    searched: list[tuple[int, float, float]],
) -> None:
    ended = [regret for trials, regret, _ in searched if trials < ASKED]
    assert len(ended) >= STUDIES / 2  # it does end
    assert sum(regret > LEAST for regret in ended) <= 2  # 5 % of 16 are 0.8


@pytest.mark.slow
def test_what_is_said_to_be_left_is_seldom_exceeded(searched: list[tuple[int, float, float]]) -> None:
    assert sum(regret > left + 1e-4 for _, regret, left in searched) <= 2


def test_hours_that_remain_are_weighed_with_those_of_a_trial() -> None:
    def stopped(**more: float) -> Stopped:
        terms = {"asked": 60, "least": 0.01, "chance": 0.3, "expected": 0.002, "unlikely": 0.05, **more}
        return Stopped.model_validate(terms)

    assert not stopped().is_over
    assert stopped(chance=0.04).is_over
    assert stopped(trial_hours=1.0, remaining_hours=400.0).is_over  # 0.8 of these could be saved
    assert not stopped(trial_hours=1.0, remaining_hours=600.0).is_over
    assert not stopped(trial_hours=1.0, remaining_hours=600.0, chance=0.01).is_over  # the hours alone decide


# ---------------------------------------------------------------------- in a study


def effects_of(store: Store) -> EffectsRecord:
    found = store.last(EffectsRecord)
    assert found is not None
    return found


def study(**more: Any) -> StudySpec:
    return replay_study(effects=more.pop("effects", {}), noise={"white_sd": 0.002}, study=auto(**more))


@pytest.mark.gate
def test_where_there_is_nothing_to_find_the_search_ends_early_and_says_so(run_replay: Run) -> None:
    _, store, diary = run_replay(study(), trials=ASKED, space=SMALL)
    found = effects_of(store)
    trials = len(store.of(TrialResult))
    assert trials <= ASKED // 2
    assert found.stopped is not None
    assert (found.trials, found.stopped.asked) == (trials, ASKED)
    assert found.stopped.chance < found.stopped.unlikely
    told = f"the search stopped after {trials} of {ASKED} trials: what is left to gain is at most "
    assert any(n.startswith(told) and "% (95 %)" in n for n in diary.notes)

    _, store, diary = run_replay(study(), trials=ASKED, space=SMALL)  # it has ended, and stays so
    assert len(store.of(TrialResult)) == trials
    assert len(store.of(EffectsRecord)) == 1
    assert any(n.startswith(told) for n in diary.notes)

    plain = replay_study(noise={"white_sd": 0.002})  # the rule is withdrawn: the same run goes on
    _, store, _ = run_replay(plain, trials=trials + 4, space=SMALL)
    assert len(store.of(TrialResult)) == trials + 4
    assert effects_of(store).stopped is None


def test_what_promises_most_is_tried_before_the_search_ends(run_replay: Run) -> None:
    _, store, _ = run_replay(study(effects={"xla_1=2": 0.95, "xla_6=1": 0.96}), trials=ASKED, space=UNGROUPED)
    found = effects_of(store)
    assert found.stopped is not None
    assert found.best.settings == FlagSet({"xla_1": 2, "xla_6": 1})
    assert found.best.settings in [r.settings for r in store.of(TrialResult)]


# ---------------------------------------------------------------------- in a study file


def test_the_rule_may_change_when_a_study_goes_on() -> None:
    assert (
        study().identity == study(remaining_gpu_hours=9.0).identity == replay_study(noise={"white_sd": 0.002}).identity
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"remaining_gpu_hours": 5.0}, 'counts only with `search.stop = "auto"`'),
        ({"stop": "auto", "objectives": ["step_time", "memory"]}, "needs a model of measured step times"),
        ({"stop": "auto", "step_time": "predicted"}, "needs a model of measured step times"),
        ({"stop": "never"}, "search.stop"),
    ],
)
def test_terms_that_mean_nothing_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyFileError, match=message.replace("(", r"\(")):
        parse_study({"name": "x", "workload": {"entry": "llama"}, "search": more})
