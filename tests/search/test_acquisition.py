"""What is proposed: draws, the most promising of them, and what comes when a set is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autotune.search.acquisition import propose
from autotune.search.failures import FailureModel
from autotune.search.space import Codes
from tests.search.test_sampler import effect, sampler, search, searched


@pytest.mark.parametrize("is_risky", [False, True])
def test_what_is_proposed_is_expected_to_improve_more_than_draws_are(
    is_risky: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the definition of expected improvement, over draws that the proposals did not see."""
    made = sampler()
    study = searched(14, made)
    coded, model, failures = made.fit(study.trials)
    ran = coded.table([c for c, _ in coded.split(study.trials)[0]])
    if is_risky:  # one of two settings that pay, or of three that do nothing, made two sets fail
        suspects = [coded.names.index(n) for n in ("flag_00", "flag_03", "flag_04", "flag_11", "flag_21")]
        cleared, failed = ran.copy(), np.zeros((2, len(coded.names)), dtype=np.int64)
        cleared[:, suspects], failed[:, suspects] = 0, 1
        failures = FailureModel(model.design, cleared, failed, [])
    draws = model.draws(np.random.default_rng(1), 600)
    least = np.minimum(draws.totals(ran).min(axis=1), 0.0)

    def improvement(share: float) -> float:
        monkeypatch.setattr("autotune.search.acquisition.IMPROVING_SHARE", share)
        rngs = [np.random.default_rng(seed) for seed in range(40)]
        codes = np.array([propose(model, failures, rng, tried=ran) for rng in rngs])
        gains = np.maximum(least[:, None] - draws.totals(codes), 0.0).mean(axis=0)
        return float((gains * np.exp(failures.log_survivals(codes))).mean())

    assert improvement(1.0) > 1.2 * improvement(0.0)


def test_totals_of_samples_are_on_average_what_is_expected() -> None:
    made = sampler()
    study = searched(25, made)
    coded, model, _ = made.fit(study.trials)
    codes = coded.table([c for c, _ in coded.split(study.trials)[0]])
    many = model.draws(np.random.default_rng(0), 4000).totals(codes)
    expected = np.array([model.mean.total(c) for c in codes])
    errors = many.std(axis=0) / math.sqrt(len(many))
    assert (np.abs(many.mean(axis=0) - expected) < 5 * errors).all()


def test_no_set_that_is_known_or_being_tried_counts_as_an_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker tries is known to the next one: the same belief then proposes another set."""
    monkeypatch.setattr("autotune.search.acquisition.IMPROVING_SHARE", 1.0)
    made = sampler()
    study = searched(25, made)
    coded, model, failures = made.fit(study.trials)
    ran = coded.table([c for c, _ in coded.split(study.trials)[0]])
    first = propose(model, failures, np.random.default_rng(3), tried=ran)
    draws = model.draws(np.random.default_rng(1), 2000)

    def improvement(codes: Codes, known: Codes) -> float:
        least = draws.totals(known).min(axis=1)
        return float(np.maximum(least - draws.totals(codes[None])[:, 0], 0.0).mean())

    assert improvement(first, ran) > 0
    assert improvement(first, np.concatenate([ran, first[None]])) == pytest.approx(0)
    second = propose(model, failures, np.random.default_rng(3), tried=np.concatenate([ran, first[None]]))
    assert improvement(second, np.concatenate([ran, first[None]])) > 0


def test_chances_to_run_of_many_sets_are_those_of_each() -> None:
    def measure(params: Mapping[str, Any]) -> float:
        if params["flag_05"] == "true":
            raise ValueError("it crashed")
        return effect(params)

    made = sampler()
    made.known_failing = [{"flag_13": "true"}]
    study = search(made, measure, 12)
    coded, _, failures = made.fit(study.trials)
    rows = np.random.default_rng(0).integers(2, size=(40, len(coded.names)))
    together = failures.log_survivals(rows)
    np.testing.assert_allclose(together, [float(failures.log_survivals(row[None])[0]) for row in rows])
    assert len(set(together.round(6))) > 3
