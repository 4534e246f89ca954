"""The sampler in studies of Optuna that know nothing of autotune."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from autotune.search.acquisition import propose
from autotune.search.additive import GREEDY
from autotune.search.failures import FailureModel
from autotune.search.models import Models
from autotune.search.posterior import BURN_IN
from autotune.search.sampler import DUPLICATE_KEY, MANY_JUMPS, MEMORY_KEY, MOST_PAIRS, SD_KEY, AdditiveFlagSampler
from autotune.search.space import Codes, Flag

SETTINGS = [f"flag_{i:02d}" for i in range(30)]
SPACE: dict[str, BaseDistribution] = {n: CategoricalDistribution(["false", "true"]) for n in SETTINGS}
FLAGS = {n: Flag(default="false", group=f"group {i // 5}") for i, n in enumerate(SETTINGS)}
GOOD = {"flag_03": -0.05, "flag_11": -0.03, "flag_16": -0.02, "flag_20": -0.02, "flag_29": -0.02}
BAD = {"flag_07": 0.06}
OPTIMUM = sum(GOOD.values())


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def effect(params: Mapping[str, Any]) -> float:
    return sum(change for name, change in {**GOOD, **BAD}.items() if params[name] == "true")


def sampler(seed: int = 0, **more: Any) -> AdditiveFlagSampler:
    return AdditiveFlagSampler(SPACE, FLAGS, seed=seed, is_log_ratio=True, **more)


def search(
    sampler: AdditiveFlagSampler, measure: Callable[[Mapping[str, Any]], float], trials: int, seed: int = 0
) -> optuna.Study:
    """A study whose trials are measured with a noise of 1 %; what raises `ValueError` fails."""
    study, rng = optuna.create_study(sampler=sampler), np.random.default_rng(seed)

    def objective(trial: optuna.Trial) -> float:
        params = {n: trial.suggest_categorical(n, ["false", "true"]) for n in SETTINGS}
        trial.set_user_attr(SD_KEY, 0.01)
        return measure(params) + 0.01 * float(rng.standard_normal())

    study.optimize(objective, n_trials=trials, catch=(ValueError,))
    return study


@functools.cache
def _searched(seed: int) -> tuple[optuna.trial.FrozenTrial, ...]:
    return tuple(search(sampler(seed), effect, 50, seed).trials)


def searched(trials: int, seed: int = 0) -> optuna.Study:
    """The study that `search(sampler(seed), effect, trials, seed)` makes; the longest is made once for all tests."""
    study = optuna.create_study(sampler=sampler(seed))
    study.add_trials(_searched(seed)[:trials])
    return study


def chances(made: AdditiveFlagSampler, trials: Sequence[optuna.trial.FrozenTrial]) -> dict[str, float]:
    """What is believed of each setting after some trials."""
    fitted = made.fit(trials)
    coded, model = fitted.coded, fitted.effects
    return dict(zip(coded.names, map(float, model.p_active()), strict=True))


def best_true(study: optuna.Study) -> float:
    return min(effect(t.params) for t in study.trials if t.state is TrialState.COMPLETE)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_five_settings_of_thirty_that_act_are_found(seed: int) -> None:
    assert best_true(searched(20, seed=seed)) <= 0.9 * OPTIMUM


def test_what_trials_taught_names_what_acts_and_what_does_not() -> None:
    chance = chances(sampler(), searched(50).trials)
    assert all(chance[n] > (0.9 if abs(change) > 0.02 else 0.5) for n, change in GOOD.items())
    inert = [chance[n] for n in SETTINGS if n not in GOOD and n not in BAD]
    assert np.mean(inert) < 0.15


class Learned(NamedTuple):
    """What was learned of some trials, and the sets that ran."""

    fitted: Models
    ran: Codes


def learned(trials: int) -> Learned:
    study = searched(trials)
    fitted = sampler().fit(study.trials)
    coded = fitted.coded
    return Learned(fitted, coded.table(coded.ran.codes))


def test_equal_seeds_and_histories_give_equal_proposals() -> None:
    study = search(sampler(), effect, 12)
    again = optuna.create_study(sampler=sampler())
    again.add_trials(study.trials)
    study.sampler = sampler()
    assert study.ask(SPACE).params == again.ask(SPACE).params
    other = optuna.create_study(sampler=sampler(seed=1))
    other.add_trials(study.trials[:12])
    assert other.ask(SPACE).params != again.trials[-1].params


def test_sets_being_tried_are_not_proposed_again() -> None:
    study = optuna.create_study(sampler=sampler())
    study.add_trials(searched(40).trials)
    asked = [tuple(study.ask(SPACE).params.items()) for _ in range(10)]
    assert len(set(asked)) == 10
    assert not set(asked) & {tuple(t.params.items()) for t in study.trials[:40]}


@pytest.mark.parametrize(
    ("culprits", "seed", "late", "most"), [([{"flag_05"}, {"flag_13"}], 0, 25, 2), ([{"flag_11", "flag_12"}], 1, 20, 1)]
)
def test_what_fails_alone_or_with_others_is_left_out(culprits: list[set[str]], seed: int, late: int, most: int) -> None:
    def measure(params: Mapping[str, Any]) -> float:
        if any(all(params[name] == "true" for name in culprit) for culprit in culprits):
            raise ValueError("it crashed")
        return effect(params)

    study = search(sampler(seed), measure, 35, seed)
    assert sum(t.state is TrialState.FAIL for t in study.trials[late:]) <= most
    assert best_true(study) <= 0.8 * OPTIMUM


def test_known_culprits_are_avoided() -> None:
    made = sampler()
    made.known_failing = [{"flag_03": "true"}, {"flag_00": "true", "flag_01": "true"}, {"of another space": "1"}]
    study = search(made, effect, 15)
    assert not any(t.params["flag_03"] == "true" for t in study.trials)
    assert not any(t.params["flag_00"] == t.params["flag_01"] == "true" for t in study.trials)


def told(params: Mapping[str, Any], value: float, **attrs: Any) -> optuna.trial.FrozenTrial:
    whole = {**dict.fromkeys(SETTINGS, "false"), **params}
    return optuna.trial.create_trial(params=whole, distributions=SPACE, value=value, user_attrs=attrs)


def test_a_trial_is_believed_by_its_own_width_and_without_one_not_at_all() -> None:
    for sd, low, high in ((0.005, 0.95, 1.0), (0.2, 0.0, 0.3), *((w, 0.0, 0.2) for w in (math.inf, math.nan, -1.0))):
        trials = [told({"flag_09": "true"}, -0.08, **{SD_KEY: sd}) for _ in range(2)]
        assert low <= chances(sampler(), trials)["flag_09"] <= high, sd


def test_a_duplicate_is_no_second_measurement_but_tells_what_does_nothing() -> None:
    one = told({"flag_09": "true"}, -0.02, **{SD_KEY: 0.01})
    same = told({"flag_09": "true", "flag_10": "true"}, -0.02, **{DUPLICATE_KEY: 0, SD_KEY: 0.01})
    found = {}
    for name, trials in {
        "one": [one],
        "duplicate": [one, same],
        "two": [one, told(same.params, -0.02, **{SD_KEY: 0.01})],
    }.items():
        study = optuna.create_study()
        study.add_trials(trials)
        chance = chances(sampler(), study.trials)
        found[name] = (chance["flag_09"], chance["flag_10"])
    assert abs(found["duplicate"][0] - found["one"][0]) < 0.05
    assert found["duplicate"][1] < found["one"][1] / 2
    assert found["two"][1] > found["duplicate"][1]


def test_priors_lead_until_data_wash_them_out() -> None:
    flags = {**FLAGS, "flag_02": Flag(default="false", p_active=0.8), "flag_03": Flag(default="false", p_active=0.01)}
    made = AdditiveFlagSampler(SPACE, flags, seed=0, is_log_ratio=True)
    chance = chances(made, [])
    assert chance["flag_02"] > 0.75
    assert chance["flag_03"] < 0.05
    fitted = made.fit(searched(50).trials)
    coded, model = fitted.coded, fitted.effects
    chance = chances(made, searched(50).trials)
    assert chance["flag_02"] < 0.75
    assert abs(model.mean.main[coded.names.index("flag_02")][1]) < 0.01  # it does nothing
    assert chance["flag_03"] > 0.9  # it acts


@pytest.mark.parametrize("direction", [pytest.param("minimize", marks=pytest.mark.slow), "maximize"])
def test_a_study_of_any_parameters_in_any_direction(direction: Literal["minimize", "maximize"]) -> None:
    sign = 1 if direction == "minimize" else -1
    study = optuna.create_study(sampler=AdditiveFlagSampler(seed=3), direction=direction)

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_int("x", 0, 10) / 10
        size = trial.suggest_int("size", 1, 1 << 30, log=True)
        kind = trial.suggest_categorical("kind", ["a", "b", None, 3])
        steps = trial.suggest_int("steps", 0, 100, step=5)
        time = 100 * math.exp(abs(x - 0.7) + 0.05 * abs(math.log2(size) - 20) - 0.3 * (kind == "b") + steps / 200)
        if steps == 5:
            raise optuna.TrialPruned
        return time if sign > 0 else 1 / time

    study.optimize(objective, n_trials=45)
    best = study.best_trial.params
    assert abs(best["x"] - 7) < 2
    assert best["kind"] == "b"
    assert abs(math.log2(best["size"]) - 20) < 5
    assert best["steps"] <= 20


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=m) for s, m in enumerate((pytest.mark.slow, pytest.mark.gate, pytest.mark.slow))]
)
def test_values_known_to_many_digits_are_searched(seed: int) -> None:
    """Like a kernel's whole space, as recorded: not additive, and known to a thousandth."""
    sizes = (16, 5, 4, 4, 2, 2, 2)
    tables = [np.exp(np.random.default_rng([seed, i]).normal(size=n)) for i, n in enumerate(sizes)]
    study = optuna.create_study(sampler=AdditiveFlagSampler(seed=seed))
    for _ in range(60):
        trial = study.ask()
        codes = [trial.suggest_categorical(f"f{i}", list(range(n))) for i, n in enumerate(sizes)]
        own = np.exp(0.3 * np.random.default_rng([seed, *codes]).normal())
        trial.set_user_attr(SD_KEY, 1e-3)
        study.tell(trial, float(math.prod(t[c] for t, c in zip(tables, codes, strict=True)) * own))
    values = [t.value for t in study.trials if t.value is not None]
    assert np.median(values[40:]) < 0.5 * np.median(values[:10])


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.gate), pytest.param(1, marks=pytest.mark.slow)])
def test_values_that_take_twice_the_time_do_not_hide_those_that_save_a_little(seed: int) -> None:
    study = search(
        sampler(seed), lambda p: effect(p) + 0.7 * ((p["flag_01"] == "true") + (p["flag_22"] == "true")), 50, seed
    )
    assert best_true(study) <= 0.9 * OPTIMUM
    slow = [t.params["flag_01"] == "true" or t.params["flag_22"] == "true" for t in study.trials]
    assert sum(slow[25:]) <= 8


def test_no_threshold_at_all_is_a_step_below_the_least_threshold() -> None:
    choices = [0, 1 << 20, 64 << 20]
    space: dict[str, BaseDistribution] = {"x": CategoricalDistribution(choices)}
    made = AdditiveFlagSampler(space, {"x": Flag(default=0)})
    coded = made.fit([]).coded
    assert coded.factors[0].scale == (14.0, 20.0, 26.0)
    made = AdditiveFlagSampler({"x": IntDistribution(1, 10**6)}, {"x": Flag(default=77)})
    coded = made.fit([]).coded
    assert {1, 77, 10**6} <= set(coded.choices[0])


def test_what_cannot_be_searched_is_refused() -> None:
    study = optuna.create_study(sampler=AdditiveFlagSampler(seed=3))
    with pytest.raises(ValueError, match="be positive"):
        study.optimize(lambda t: t.suggest_categorical("a", [-1.0, 0.0]), n_trials=3)
    study = optuna.create_study(sampler=sampler(), directions=["minimize", "minimize"])
    with pytest.raises(ValueError, match="multi-objective"):
        study.optimize(lambda t: (t.suggest_categorical("a", [1.0, 2.0]), 1.0), n_trials=3)
    flags = {"a": Flag(needs={"b": [1]}), "b": Flag(needs={"a": [1]})}
    space: dict[str, BaseDistribution] = {n: CategoricalDistribution([0, 1]) for n in "ab"}
    with pytest.raises(ValueError, match="nodes are in a cycle"):
        optuna.create_study(sampler=AdditiveFlagSampler(space, flags)).ask(space)


def test_more_settings_than_all_pairs_of_can_be_told_apart() -> None:
    space: dict[str, BaseDistribution] = {f"p{i}": IntDistribution(0, 7) for i in range(40)}
    made = AdditiveFlagSampler(space, seed=0)
    study, rng = optuna.create_study(), np.random.default_rng(0)
    for _ in range(25):
        params = {n: int(rng.integers(8)) for n in space}
        both = (params["p1"] > 3) and (params["p2"] > 3)
        value = math.exp(-0.3 * both - 0.1 * (params["p1"] > 3))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
    model = made.fit(study.trials).effects
    assert len(model.design.pairs) == MOST_PAIRS
    assert (1, 2) in model.design.pairs


def test_a_proposal_takes_no_longer_for_more_settings_in_a_group() -> None:
    looks, products = [], []
    for in_group in (4, 60):
        flags = {f"p{i}": Flag(default=0, group=f"group {i // in_group}") for i in range(60)}
        space: dict[str, BaseDistribution] = {n: IntDistribution(0, 10) for n in flags}
        made = AdditiveFlagSampler(space, flags, seed=0, is_log_ratio=True)
        study, rng = optuna.create_study(), np.random.default_rng(0)
        for _ in range(100):
            params = {n: int(rng.integers(11)) for n in space}
            value = -0.05 * (params["p3"] > 0) - 0.03 * (params["p7"] > 4) + 0.01 * float(rng.standard_normal())
            study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
        model = made.fit(study.trials).effects
        looks.append(len(model.design.blocks))
        # Products of all features with those of a block are taken for the few blocks that were ever in.
        products.append(len(model.chain._products))
    assert looks == [60 + 15 * 6, 60 + MOST_PAIRS]
    assert max(products) <= GREEDY + BURN_IN + MANY_JUMPS


def test_a_conditional_setting_is_searched_where_it_acts() -> None:
    flags = {"on": Flag(default="no"), "depth": Flag(default=0, needs={"on": ["yes"]})}
    space: dict[str, BaseDistribution] = {"depth": IntDistribution(0, 3), "on": CategoricalDistribution(["no", "yes"])}
    study = optuna.create_study(sampler=AdditiveFlagSampler(space, flags, seed=0, is_log_ratio=True))
    for _ in range(7):
        trial = study.ask(space)
        assert trial.params["on"] == "yes" or trial.params["depth"] == 0
        study.tell(trial, -0.1 * trial.params["depth"])
    assert study.best_params == {"on": "yes", "depth": 3}


@pytest.mark.parametrize("is_risky", [False, True])
def test_what_is_proposed_is_expected_to_improve_more_than_draws_are(
    is_risky: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the definition of expected improvement, over draws that the proposals did not see."""
    fitted, ran = learned(14)
    coded, model = fitted.coded, fitted.effects
    if is_risky:  # one of two settings that pay, or of three that do nothing, made two sets fail
        suspects = [coded.names.index(n) for n in ("flag_00", "flag_03", "flag_04", "flag_11", "flag_21")]
        cleared, failed = ran.copy(), np.zeros((2, len(coded.names)), dtype=np.int64)
        cleared[:, suspects], failed[:, suspects] = 0, 1
        fitted = fitted._replace(failures=FailureModel(model.design, cleared, failed, []))
    draws = model.draws(np.random.default_rng(1), 600)
    least = np.minimum(draws.totals(ran).min(axis=1), 0.0)

    def improvement(share: float) -> float:
        monkeypatch.setattr("autotune.search.acquisition.IMPROVING_SHARE", share)
        rngs = [np.random.default_rng(seed) for seed in range(40)]
        codes = np.array([propose(fitted, rng, tried=ran) for rng in rngs])
        gains = np.maximum(least[:, None] - draws.totals(codes), 0.0).mean(axis=0)
        return float((gains * np.exp(fitted.failures.log_survivals(codes))).mean())

    assert improvement(1.0) > 1.2 * improvement(0.0)


def test_totals_of_samples_are_on_average_what_is_expected() -> None:
    found = learned(25)
    model, codes = found.fitted.effects, found.ran
    many = model.draws(np.random.default_rng(0), 4000).totals(codes)
    expected = np.array([model.mean.total(c) for c in codes])
    errors = many.std(axis=0) / math.sqrt(len(many))
    assert (np.abs(many.mean(axis=0) - expected) < 5 * errors).all()


def test_no_set_that_is_known_or_being_tried_counts_as_an_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker tries is known to the next one: the same belief then proposes another set."""
    monkeypatch.setattr("autotune.search.acquisition.IMPROVING_SHARE", 1.0)
    fitted, ran = learned(25)
    first = propose(fitted, np.random.default_rng(3), tried=ran)
    draws = fitted.effects.draws(np.random.default_rng(1), 2000)

    def improvement(codes: Codes, known: Codes) -> float:
        least = draws.totals(known).min(axis=1)
        return float(np.maximum(least - draws.totals(codes[None])[:, 0], 0.0).mean())

    assert improvement(first, ran) > 0
    assert improvement(first, np.concatenate([ran, first[None]])) == pytest.approx(0)
    second = propose(fitted, np.random.default_rng(3), tried=np.concatenate([ran, first[None]]))
    assert improvement(second, np.concatenate([ran, first[None]])) > 0


def test_chances_to_run_of_many_sets_are_those_of_each() -> None:
    def measure(params: Mapping[str, Any]) -> float:
        if params["flag_05"] == "true":
            raise ValueError("it crashed")
        return effect(params)

    made = sampler()
    made.known_failing = [{"flag_13": "true"}]
    study = search(made, measure, 12)
    fitted = made.fit(study.trials)
    coded, failures = fitted.coded, fitted.failures
    rows = np.random.default_rng(0).integers(2, size=(40, len(coded.names)))
    together = failures.log_survivals(rows)
    np.testing.assert_allclose(together, [float(failures.log_survivals(row[None])[0]) for row in rows])
    assert len(set(together.round(6))) > 3


# ---------------------------------------------------------------------- memory

BATCHES, REMATS, MESHES = ("1", "2", "4", "8"), ("full", "dots", "none"), ("sharded", "whole")
ROOM: dict[str, BaseDistribution] = {
    "batch": CategoricalDistribution(BATCHES),
    "remat": CategoricalDistribution(REMATS),
    "mesh": CategoricalDistribution(MESHES),
    **{n: SPACE[n] for n in SETTINGS[:12]},
}
ROOM_FLAGS = {
    "batch": Flag(default="1", group="options", moves_memory=True),
    "remat": Flag(default="full", group="options", moves_memory=True),
    "mesh": Flag(default="sharded", group="options", moves_memory=True),
    **{n: FLAGS[n] for n in SETTINGS[:12]},
}
LIMIT = 2.0
"""Over the default's peak."""


def peak(params: Mapping[str, Any]) -> float:
    """State and activations, as programs have them: 1 for the default; two flags add a buffer."""
    kept = {"full": 1.0, "dots": 2.0, "none": 4.0}[params["remat"]]
    state = 0.6 if params["mesh"] == "sharded" else 1.8
    buffers = 0.15 * (params["flag_02"] == "true") + 0.1 * (params["flag_05"] == "true")
    return float(state + 0.2 * int(params["batch"]) * kept + 0.2 + buffers)


def per_token(params: Mapping[str, Any]) -> float:
    """What a larger batch and less recomputation save, and what flags do."""
    again = {"full": 0.25, "dots": 0.08, "none": 0.0}[params["remat"]]
    flags = sum(change for n, change in {**GOOD, **BAD}.items() if params.get(n) == "true")
    return math.log((1 + 0.3 / int(params["batch"])) * (1 + again) / 1.625) + flags


def search_in_memory(seed: int, trials: int, *, is_told: bool) -> list[optuna.trial.FrozenTrial]:
    """A search in which sets above the limit fail, and peaks are told or not."""
    made = AdditiveFlagSampler(ROOM, ROOM_FLAGS, seed=seed, is_log_ratio=True)
    made.memory_limit = LIMIT if is_told else None
    study, rng = optuna.create_study(sampler=made), np.random.default_rng(seed)
    for _ in range(trials):
        trial = study.ask(ROOM)
        fits = peak(trial.params) <= LIMIT
        trial.set_user_attr(SD_KEY, 0.01)
        trial.set_user_attr(MEMORY_KEY, min(peak(trial.params), LIMIT))
        value = per_token(trial.params) + 0.01 * float(rng.standard_normal())
        study.tell(trial, value if fits else None, state=TrialState.COMPLETE if fits else TrialState.FAIL)
    return study.get_trials()


def test_sets_that_do_not_fit_are_seldom_tried_where_peaks_are_told() -> None:
    failed = {
        told: sum(t.state is TrialState.FAIL for seed in range(2) for t in search_in_memory(seed, 25, is_told=told))
        for told in (True, False)
    }
    assert failed[True] < 0.75 * failed[False]


def test_what_fits_is_told_from_peaks_and_from_sets_that_ran_out_of_memory() -> None:
    """Held against all sets of the options, with flags drawn."""
    trials = search_in_memory(0, 30, is_told=True)
    made = AdditiveFlagSampler(ROOM, ROOM_FLAGS, seed=0, is_log_ratio=True)
    made.memory_limit = LIMIT
    fitted = made.fit(trials)
    coded, memory = fitted.coded, fitted.memory
    rng = np.random.default_rng(0)
    drawn = [{n: ("false", "true")[rng.integers(2)] for n in SETTINGS[:12]} for _ in range(24)]
    options = [
        {"batch": batch, "remat": remat, "mesh": mesh} for batch in BATCHES for remat in REMATS for mesh in MESHES
    ]
    sets = [{**own, **flags} for own, flags in zip(options, drawn, strict=True)]
    codes = coded.table([c for s in sets if (c := coded.codes(s)) is not None])
    fits = np.array([peak(s) <= LIMIT for s in sets])
    likely = memory.log_chances(codes) > math.log(0.5)
    assert 4 < fits.sum() < 20
    assert (likely == fits).mean() >= 0.85
    clear = np.array([abs(math.log(peak(s) / LIMIT)) > 0.5 for s in sets])
    assert (likely == fits)[clear].all()


def test_a_peak_that_compiling_tells_needs_no_trial_to_be_avoided() -> None:
    made = AdditiveFlagSampler(ROOM, ROOM_FLAGS, seed=0, is_log_ratio=True)
    made.memory_limit = LIMIT
    made.known_peaks = [({"mesh": "whole"}, 2.2), ({"remat": "dots"}, 1.2), ({"batch": "8"}, 2.4)]
    fitted = made.fit([])
    coded, memory = fitted.coded, fitted.memory
    whole, dots = (coded.table([c]) for v in ("whole", "dots") if (c := coded.codes({_of(v): v})) is not None)
    assert memory.log_chances(whole)[0] < math.log(0.2)
    assert memory.log_chances(dots)[0] > math.log(0.9)


def _of(value: str) -> str:
    return "mesh" if value in MESHES else "remat"


def test_without_a_limit_all_fits() -> None:
    made = AdditiveFlagSampler(ROOM, ROOM_FLAGS, seed=0, is_log_ratio=True)
    memory = made.fit(search_in_memory(0, 6, is_told=False)).memory
    assert not memory.is_known
    assert (memory.log_chances(np.zeros((3, len(ROOM)), dtype=np.int64)) == 0).all()
