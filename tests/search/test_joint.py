"""The model of whole sets: where settings act all together it finds what a sum cannot, elsewhere it is silent."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState
from scipy.stats import multivariate_normal

from autotune.search import SD_KEY, AdditiveFlagSampler, joint
from autotune.search.additive import AdditiveModel, Observations, chances_before
from autotune.search.coded import CodedSpace
from autotune.search.factors import Codes, Design, Floats
from autotune.search.joint import FARTHEST, JointModel, Tried, joint_model
from autotune.search.posterior import SHARES, SIZES
from tests.search.test_sampler import effect, sampler, search

BLOCKS: dict[str, BaseDistribution] = {
    "block_x": CategoricalDistribution([16, 32, 64, 128, 256, 512]),
    "block_y": CategoricalDistribution([1, 2, 4, 8, 16, 32]),
    "tile_x": CategoricalDistribution([1, 2, 4, 8]),
    "tile_y": CategoricalDistribution([1, 2, 4, 8]),
    "unroll": CategoricalDistribution([False, True]),
    "cache": CategoricalDistribution(["none", "l1", "shared"]),
}
SETS = [dict(zip(BLOCKS, values, strict=True)) for values in itertools.product(*(d.choices for d in BLOCKS.values()))]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    joint._FITS.clear()


def kernel_time(params: Mapping[str, Any], seed: int) -> float:
    """A log time as a GPU kernel's may be: fast where both, threads and what each does, fit the device."""
    rng = np.random.default_rng(seed)
    best_threads, best_work = rng.uniform(6, 9), rng.uniform(2, 5)
    threads = math.log2(params["block_x"] * params["block_y"])
    work = math.log2(params["tile_x"] * params["tile_y"]) + (0.7 if params["unroll"] else 0.0)
    narrow = 0.05 * max(0.0, 6 - math.log2(params["block_x"] * params["tile_x"]))
    away = (threads - best_threads) ** 2 + (work - best_work) ** 2
    missed = {"none": 0.04 * work, "l1": 0.06, "shared": 0.1 if threads + work > 10 else 0.0}[params["cache"]]
    return narrow + missed - 0.6 * math.exp(-away / 2)


def tuned(made: AdditiveFlagSampler, seed: int, trials: int, **more: Any) -> list[float]:
    """Log times of a study's trials."""
    study, rng = optuna.create_study(sampler=made), np.random.default_rng(seed)

    def objective(trial: optuna.Trial) -> float:
        params = {n: trial.suggest_categorical(n, d.choices) for n, d in BLOCKS.items()}  # type: ignore[attr-defined]
        trial.set_user_attr(SD_KEY, 0.003)
        return math.exp(kernel_time(params, seed) + 0.003 * float(rng.standard_normal()))

    study.optimize(objective, n_trials=trials, **more)
    return [kernel_time(t.params, seed) for t in study.trials]


@pytest.mark.slow
def test_what_settings_do_all_together_is_found_in_fewer_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(trials: int) -> float:
        """What the best set found is slower than the best there is; the mean of some spaces."""
        least = [min(kernel_time(s, seed) for s in SETS) for seed in range(8)]
        found = [min(tuned(AdditiveFlagSampler(BLOCKS, seed=seed), seed, trials)) for seed in range(8)]
        return float(np.mean(np.array(found) - least))

    together = lost(40)
    monkeypatch.setattr("autotune.search.sampler.joint_model", lambda *_, **__: None)
    alone = lost(40)
    assert together < 0.03
    assert together < 0.5 * alone


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s else pytest.mark.gate) for s in range(4)])
def test_where_effects_add_up_it_is_silent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def asked(*arguments: Any, **more: Any) -> JointModel | None:
        told.append(joint_model(*arguments, **more))
        return told[-1]

    monkeypatch.setattr("autotune.search.sampler.joint_model", asked)
    search(sampler(seed), effect, 50, seed)
    assert len(told) >= 40
    assert not any(told)


def made_up(seed: int, trials: int) -> tuple[Design, Tried]:
    coded = CodedSpace(BLOCKS, {})
    rng = np.random.default_rng(seed)
    sets = [SETS[int(i)] for i in rng.permutation(len(SETS))[:trials]]
    codes = coded.table([c for s in sets if (c := coded.codes(s)) is not None])
    values = np.array([kernel_time(s, seed) for s in sets]) + 0.003 * rng.standard_normal(trials)
    return Design(coded.factors, []), Tried(codes, values, np.full(trials, 0.003))


def expected_directly(model: JointModel, tried: Tried, others: Codes) -> tuple[Floats, Floats]:
    """By the formula of a textbook, set by set."""
    *logs, log_noise = model._logs
    values, unit = tried.values, float(tried.values.std())

    def alike(a: Codes, b: Codes) -> float:
        far = 0.0
        for i, log in enumerate(logs):
            if (scale := model.design.factors[i].scale) is not None:
                apart = abs(scale[a[i]] - scale[b[i]]) / (max(scale) - min(scale))
            else:
                apart = FARTHEST * (a[i] != b[i])
            far += math.exp(log) * apart
        return math.exp(-far)

    own = np.array([[alike(a, b) for b in tried.codes] for a in tried.codes])
    own += np.diag(math.exp(log_noise) + (tried.sds / unit) ** 2)
    cross = np.array([[alike(a, b) for b in tried.codes] for a in others])
    scaled = (values - values.mean()) / unit
    variance = scaled @ np.linalg.solve(own, scaled) / len(values)
    mean = values.mean() + unit * cross @ np.linalg.solve(own, scaled)
    left = 1.0 - np.einsum("ij,ji->i", cross, np.linalg.solve(own, cross.T))
    return mean, unit * np.sqrt(left * variance)


def test_what_it_expects_is_what_the_formula_gives_set_by_set() -> None:
    design, tried = made_up(3, 30)
    model = JointModel(design, tried, range(len(design.factors)))
    others = np.array([[i % size for size in design.sizes] for i in range(20)])
    mean, sd = model.expect(others)
    direct_mean, direct_sd = expected_directly(model, tried, others)
    np.testing.assert_allclose(mean, direct_mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sd, direct_sd, rtol=1e-3, atol=1e-4)


def test_intervals_of_what_it_expects_hold_what_is_true() -> None:
    inside = []
    for seed in range(8):
        design, tried = made_up(seed, 60)
        coded = CodedSpace(BLOCKS, {})
        known = {c.tobytes() for c in tried.codes}
        rest = [
            (c, kernel_time(s, seed)) for s in SETS if (c := coded.codes(s)) is not None and c.tobytes() not in known
        ]
        mean, sd = JointModel(design, tried, range(len(design.factors))).expect(np.array([c for c, _ in rest]))
        inside.append(float(np.mean(np.abs(mean - np.array([v for _, v in rest])) < 2 * sd)))
    assert 0.8 < np.mean(inside) <= 1.0


@pytest.mark.parametrize("has_origin", [True, False])
def test_how_likely_a_sum_makes_the_trials_is_what_the_formula_gives(has_origin: bool) -> None:
    """The density of a normal distribution, less what choosing the effects and fitting spread and scale costs."""
    design, tried = made_up(3, 30)
    sums = AdditiveModel(
        design, Observations(tried.codes, tried.values, tried.sds), seed=0, has_origin=has_origin
    )  # fmt: skip
    state, chances = sums.likeliest, chances_before(design)
    widths = np.concatenate([
        np.full(sums.design.starts[b + 1] - sums.design.starts[b], SIZES[size]) for b, size in state.sizes.items()
    ] or [np.zeros(0)])  # fmt: skip
    rows = sums.scale * design.features(tried.codes)[:, state.columns] * widths
    far = 0.0 if has_origin else (joint.FAR_ORIGIN * sums.scale) ** 2
    cov = rows @ rows.T + far + np.diag(tried.sds**2 + sums.spread**2)
    values = tried.values - (0.0 if has_origin else np.median(tried.values))
    density = multivariate_normal(np.zeros(30), cov).logpdf(values)
    chosen: float = sum(
        math.log(chances[b] * SHARES[state.sizes[b]] if b in state.sizes else 1 - chances[b])
        for b in range(len(chances))
    )
    expected = density + chosen - math.log(30)
    assert joint._log_evidence(sums, tried, has_origin=has_origin) == pytest.approx(expected, rel=1e-6)


def test_histories_that_are_equal_are_told_alike_after_a_restart() -> None:
    design, tried = made_up(1, 57)
    factors = range(len(design.factors))
    # One that was there at each trial, and one that sees all at once.
    for count in range(10, 57):
        JointModel(design, Tried(tried.codes[:count], tried.values[:count], tried.sds[:count]), factors)
    grown = JointModel(design, tried, factors)
    joint._FITS.clear()
    fresh = JointModel(design, tried, factors)
    np.testing.assert_array_equal(grown._logs, fresh._logs)


def test_what_failed_counts_as_the_slowest_that_ran_and_nothing_is_told_of_failures_alone() -> None:
    design, tried = made_up(2, 30)
    values = tried.values.copy()
    fastest = int(np.argmin(values))
    values[fastest] = math.nan
    model = JointModel(design, Tried(tried.codes, values, tried.sds), range(len(design.factors)))
    mean, _ = model.expect(tried.codes)
    assert mean[fastest] > np.median(np.delete(tried.values, fastest))
    sums = AdditiveModel(design, Observations(tried.codes, tried.values, tried.sds), seed=0, has_origin=False)
    nothing = Tried(tried.codes, np.full(30, math.nan), tried.sds)
    assert joint_model(sums, nothing, has_origin=False) is None


def test_sets_under_way_count_as_what_is_expected_of_them() -> None:
    design, tried = made_up(5, 40)
    model = JointModel(design, tried, range(len(design.factors)))
    known = {c.tobytes() for c in tried.codes}

    def next_of(model: JointModel, more: list[Codes]) -> Codes:
        open_to = known | {c.tobytes() for c in more}
        found = model.promising(
            np.random.default_rng(0), chance=lambda _: 1.0, is_open=lambda c: c.tobytes() not in open_to
        )
        assert found is not None
        return found

    under_way: list[Codes] = []
    for _ in range(6):
        under_way.append(next_of(model.believing(np.array(under_way)) if under_way else model, under_way))
    assert len({c.tobytes() for c in under_way}) == 6
    # They spread further than those that are next to the first one.
    side_by_side = [under_way[0]]
    for _ in range(5):
        side_by_side.append(next_of(model, side_by_side))
    believed = model.believing(np.array(under_way[:1]))
    _, before = model.expect(np.array(under_way[:1]))
    _, after = believed.expect(np.array(under_way[:1]))
    assert after[0] < 0.5 * before[0]
    assert {c.tobytes() for c in under_way} != {c.tobytes() for c in side_by_side}


def test_rules_of_the_space_are_kept() -> None:
    made = AdditiveFlagSampler(BLOCKS, seed=0)
    made.is_allowed = lambda p: p["block_x"] * p["block_y"] <= 256 and p["block_x"] * p["tile_x"] >= 64
    study = optuna.create_study(sampler=made)
    for _ in range(30):
        trial = study.ask(BLOCKS)
        assert len(study.trials) == 1 or made.is_allowed(trial.params)  # Optuna asks for the first of all elsewhere
        trial.set_user_attr(SD_KEY, 0.003)
        study.tell(trial, math.exp(kernel_time(trial.params, 0)))
    params = [tuple(t.params.items()) for t in study.trials if t.state is TrialState.COMPLETE]
    assert len(set(params)) == 30


def test_a_space_that_allows_nothing_is_searched_all_the_same() -> None:
    """Who proposes cannot know that there is nothing; who asks tells it."""
    made = AdditiveFlagSampler(BLOCKS, seed=0)
    made.is_allowed = lambda _: False
    assert len(tuned(made, 0, 12)) == 12


def test_what_is_remembered_of_fits_is_small_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances of hundreds of trials take megabytes for each fit; numbers of its kernel are kept alone."""
    monkeypatch.setattr(joint, "MOST_FITS", 3)
    rng = np.random.default_rng(0)
    for _ in range(6):
        places = rng.random((2, 20))
        apart = np.abs(places[:, :, None] - places[:, None, :])
        joint._fit(joint._Data(apart, rng.random(20), np.full(20, 0.01)))
        assert len(joint._FITS) <= 3
    assert sum(logs.nbytes for logs in joint._FITS.values()) < 1000
