"""What is proposed: draws, the set of which most is expected, and what comes when a set is refused."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from autotune.search.additive import AdditiveModel
from autotune.search.policy import EXPECTED_FROM, propose
from tests.search.test_sampler import SETTINGS, SPACE, effect, sampler, search


def test_asked_again_it_draws_anew_from_what_it_has_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that breaks a rule of the study is asked for again, in the middle of a small space a hundred times."""
    fits = 0

    class Counted(AdditiveModel):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            nonlocal fits
            fits += 1
            super().__init__(*arguments, **more)

    monkeypatch.setattr("autotune.search.sampler.AdditiveModel", Counted)
    made = sampler()
    study = search(made, effect, 12)

    def ask() -> tuple[Any, ...]:
        trial = optuna.trial.create_trial(state=TrialState.RUNNING)
        trial.number = 12
        return tuple(made.sample_relative(study, trial, SPACE).values())

    fits = 0
    assert len({ask() for _ in range(10)}) > 8  # not again and again the set of which most is expected
    assert fits == 1
    made.culprits.append({"flag_07": "true"})
    first = SETTINGS.index("flag_07")
    assert all(ask()[first] == "false" for _ in range(5))  # what it was told in between counts
    assert fits == 2
    study.add_trial(optuna.trial.create_trial(value=0.0, params=dict.fromkeys(SETTINGS, "true"), distributions=SPACE))
    ask()
    assert fits == 3


def test_one_proposal_in_three_is_the_set_of_which_most_is_expected() -> None:
    made = sampler()
    study = search(made, effect, 12)
    _, model, hazards = made.learn(study)
    rngs = [np.random.default_rng(seed) for seed in range(90)]
    proposed = [tuple(propose([model], hazards, rng)) for rng in rngs]
    most, count = Counter(proposed).most_common(1)[0]
    assert 15 <= count <= 45
    # No set one setting away is expected to be faster, and what fails costs nothing where all ran.
    for i, size in enumerate(model.design.sizes):
        for value in range(size):
            other = np.array(most)
            other[i] = value
            assert model.mean.total(other) >= model.mean.total(np.array(most)) - 0.01 * model.scale


def test_after_few_trials_every_proposal_is_a_draw() -> None:
    made = sampler()
    _, model, hazards = made.learn(search(made, effect, EXPECTED_FROM - 1))
    proposed = {tuple(propose([model], hazards, np.random.default_rng(seed))) for seed in range(30)}
    assert len(proposed) == 30


def test_a_share_that_is_none_is_refused_and_none_at_all_draws_every_time() -> None:
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="expected_share must be from 0 to 1 but got"):
            sampler(expected_share=share)
    made = sampler(expected_share=0.0)
    _, model, hazards = made.learn(search(made, effect, 12))
    rngs = [np.random.default_rng(seed) for seed in range(30)]
    assert len({tuple(propose([model], hazards, rng, expected_share=0.0)) for rng in rngs}) == 30
    assert len({tuple(propose([model], hazards, rng, expected_share=1.0)) for rng in rngs}) == 1
