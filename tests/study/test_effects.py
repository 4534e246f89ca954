"""What the trials taught, and its use: the last trial, finalists that differ, a winner made minimal by groups."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import (
    AblationResult,
    BestPredicted,
    ConclusionRecord,
    EffectsRecord,
    FinalistResult,
    SettingEffect,
    TrialResult,
    TrialStatus,
    ValueEffect,
)
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.search.sampler import NUMBER_KEY, SD_KEY, AdditiveFlagSampler
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.effects import StudyEffects
from autotune.study.plan import worth_proving
from autotune.study.proposer import PREDICTED_BEST, Proposer
from autotune.study.samplers import Points, distribution_of, from_text
from autotune.study.screen import LARGEST_PRIOR
from tests.runs import Run, record, replay_study, there
from tests.tables import toml_beside

WIDE = SearchSpace(
    tuple(Parameter(name=f"xla_{i:02d}", choices=("0", "1", "2"), default="0", group=f"g{i % 4}") for i in range(16))
)
PLANTED = {"xla_00=1": 0.96, "xla_01=2": 0.97, "xla_02=1": 1.05, "xla_03=1": 0.98}
BEST = FlagSet({"xla_00": 1, "xla_01": 2, "xla_03": 1})


def wide_study(**more: Any) -> StudySpec:
    replay = {"effects": PLANTED, "failures": {"xla_04=2": "crash"}, "noise": {"white_sd": 0.004}}
    return replay_study(**replay, **more)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study of sixteen settings of which four act; to be read only."""
    return record(tmp_path_factory.mktemp("wide") / "run", wide_study(study={"seed": 1}), trials=28, space=WIDE)


def taught(store: Store) -> EffectsRecord:
    return there(store.last(EffectsRecord))


def test_what_was_planted_acts_and_the_rest_is_inert(wide: Store) -> None:
    found = taught(wide)
    by_name = {s.name: s for s in found.settings}
    assert (found.trials, set(by_name)) == (len(wide.of(TrialResult)), {p.name for p in WIDE.parameters})
    assert found.measured == sum(r.failure is None for r in wide.of(TrialResult)) < found.trials
    for pair, ratio in PLANTED.items():
        name, _, value = pair.partition("=")
        (effect,) = (v for v in by_name[name].values if v.value == value)
        assert by_name[name].chance > 0.95
        assert effect.low <= ratio <= effect.high
        assert effect.trials == sum(r.settings.get(name) == value and r.failure is None for r in wide.of(TrialResult))
    acting = {p.partition("=")[0] for p in PLANTED}
    assert {s.name for s in found.settings if s.chance >= 0.2} == acting
    assert [s.chance for s in found.settings] == sorted((s.chance for s in found.settings), reverse=True)
    assert all(v.low <= 1 <= v.high for s in found.settings if s.name not in acting for v in s.values)
    assert found.best.settings == BEST
    assert found.best.low <= 0.96 * 0.97 * 0.98 <= found.best.high


@pytest.mark.parametrize(("ratio", "shown"), [(0.999, set()), (0.9, {"xla_0"})])
def test_a_setting_that_no_trial_shows_is_never_told_to_be_probably_active(ratio: float, shown: set[str]) -> None:
    space = SearchSpace(tuple(Parameter(name=f"xla_{i}", choices=("0", "1"), default="0", group="g") for i in range(4)))
    distributions = {p.name: distribution_of(p) for p in space.parameters}
    points = Points(space)
    flags = {p.name: points.flag(p.name, LARGEST_PRIOR) for p in space.parameters}
    trial = optuna.trial.create_trial(
        params={p.name: from_text(p, "1" if p.name == "xla_0" else "0") for p in space.parameters},
        distributions=distributions,
        value=math.log(ratio),
        user_attrs={SD_KEY: 0.01, NUMBER_KEY: 1},
    )
    sampler = AdditiveFlagSampler(distributions, flags, seed=0, is_log_ratio=True)
    assert min(sampler.fit([trial]).effects.p_active()[1:]) > 0.5  # the prior's, with that of pairs
    found = there(StudyEffects(points, sampler, [trial], least=0.0).record())
    assert {s.name for s in found.settings if s.chance > 0.5} == shown


def test_it_is_written_once_for_the_same_trials_and_anew_for_more(run_replay: Run) -> None:
    for trials in (2, 2, 3):
        _, store, _ = run_replay(wide_study(), trials=trials, space=WIDE)
    assert [e.trials for e in store.of(EffectsRecord)] == [2, 3]


def test_the_search_ends_with_the_best_predicted_set_and_finalists_differ_from_it_in_what_acts(wide: Store) -> None:
    *_, last = wide.of(TrialResult)
    assert (last.settings, last.origin) == (BEST, PREDICTED_BEST)
    assert last.number < 28  # no other set was expected to gain
    (proven,) = [f for f in wide.of(FinalistResult) if f.stage == "confirm"]
    assert proven.settings == BEST
    chosen = worth_proving(wide.of(TrialResult), taught(wide), count=3, min_effect=0.005)
    assert chosen[0].settings == BEST
    acting = [taught(wide).useful(trial.settings, least=0.005) for trial in chosen]
    assert len(set(acting)) == 3


def test_the_best_expected_set_is_not_first_where_its_own_trial_was_surely_slower(wide: Store) -> None:
    measured = next(r for r in wide.of(TrialResult) if r.status is TrialStatus.MEASURED)
    figures = there(measured.comparison)

    def first_of(half_width: float) -> FlagSet:
        results = []
        for settings, ratio in ((BEST, 0.91), (FlagSet({"xla_10": 1}), 0.9)):
            low, high = ratio - half_width, ratio + half_width
            estimate = dataclasses.replace(figures.estimate, ratio=ratio, low=low, high=high)
            comparison = figures.model_copy(update={"estimate": estimate})
            results.append(measured.model_copy(update={"settings": settings, "comparison": comparison}))
        return worth_proving(results, taught(wide), count=2, min_effect=0.005)[0].settings

    assert first_of(0.02) == BEST
    assert first_of(0.004) == FlagSet({"xla_10": 1})


GOOD, FAIR = FlagSet({"xla_00": 1}), FlagSet({"xla_01": 2})
LUCKY = FlagSet({"xla_10": 1})


@pytest.mark.parametrize(
    ("trials", "count", "chosen"),
    [
        pytest.param({LUCKY: (0.9, 0.99), GOOD: (0.91, 0.93)}, 1, [GOOD], id="a lucky trial is not the only one"),
        pytest.param({LUCKY: (0.9, 0.99), GOOD: (0.91, 0.93)}, 2, [GOOD, LUCKY], id="a lucky trial comes after"),
        pytest.param(
            {LUCKY: (0.9, 0.99), FlagSet({"xla_11": 1}): (0.92, 1.0), GOOD: (0.95, 0.93), FAIR: (0.97, 0.96)},
            3,
            [GOOD, FAIR, LUCKY],
            id="several lucky ones come after",
        ),
        pytest.param({LUCKY: (0.9, None), GOOD: (0.95, None)}, 1, [LUCKY], id="nothing was expected of them"),
    ],
)
def test_the_best_expected_sets_are_finalists_before_lucky_trials(
    wide: Store, trials: dict[FlagSet, tuple[float, float | None]], count: int, chosen: list[FlagSet]
) -> None:
    measured = next(r for r in wide.of(TrialResult) if r.status is TrialStatus.MEASURED)
    figures = there(measured.comparison)
    results, expected = [], []
    for number, (settings, (ratio, expectation)) in enumerate(trials.items()):
        estimate = dataclasses.replace(figures.estimate, ratio=ratio, low=ratio - 0.002, high=ratio + 0.002)
        told = {"number": number, "settings": settings, "comparison": figures.model_copy(update={"estimate": estimate})}
        results.append(measured.model_copy(update=told))
        expected += [(number, expectation)] if expectation is not None else []
    effects = taught(wide).model_copy(update={"expected": tuple(expected)})
    found = worth_proving(results, effects, count=count, min_effect=0.005)
    assert [r.settings for r in found] == chosen


def test_what_is_expected_of_a_trial_lies_between_the_model_and_the_trial(wide: Store) -> None:
    expected = dict(taught(wide).expected)
    for trial in wide.of(TrialResult):
        if trial.comparison is None:
            assert trial.number not in expected
        elif set(trial.settings) <= {name.partition("=")[0] for name in PLANTED}:
            truth = math.prod(PLANTED.get(f"{n}={v}", 1.0) for n, v in trial.settings.items())
            assert expected[trial.number] == pytest.approx(truth, abs=0.01)


def test_a_trial_of_nothing_that_acts_is_no_finalist_unless_it_was_faster_all_the_same(wide: Store) -> None:
    measured = next(r for r in wide.of(TrialResult) if r.status is TrialStatus.MEASURED)
    figures = there(measured.comparison)

    def result(settings: FlagSet, ratio: float) -> TrialResult:
        estimate = dataclasses.replace(figures.estimate, ratio=ratio, low=0.9, high=1.1)
        comparison = figures.model_copy(update={"estimate": estimate})
        return measured.model_copy(update={"number": 1000, "settings": settings, "comparison": comparison})

    inert, lucky, good = FlagSet({"xla_09": 1}), FlagSet({"xla_10": 1}), FlagSet({"xla_00": 1, "xla_09": 1})
    results = [result(inert, 0.999), result(lucky, 0.98), result(good, 0.99)]
    found = worth_proving(results, taught(wide), count=3, min_effect=0.005)
    assert [r.settings for r in found] == [lucky, good]


def test_the_minimal_set_is_proven_after_as_many_measurements_as_it_has_settings(wide: Store) -> None:
    conclusion = there(wide.last(ConclusionRecord))
    assert conclusion.settings == BEST
    assert len(wide.of(AblationResult)) <= 1 + len(BEST)  # of the finalist that held, no other


NO_BEST = BestPredicted(settings=FlagSet(), ratio=1.0, low=1.0, high=1.0)


def believing(chances: dict[str, float]) -> Callable[[Proposer], EffectsRecord]:
    """A model that believes this of the settings of `WIDE`, and that the rest is inert."""
    settings = tuple(
        SettingEffect(
            name=p.name,
            chance=chances.get(p.name, 0.01),
            values=(ValueEffect(value="1", ratio=1.0, low=0.9, high=1.1, trials=1),),
        )
        for p in WIDE.parameters
    )
    made = EffectsRecord(trials=0, measured=0, settings=tuple(sorted(settings, key=lambda s: -s.chance)), best=NO_BEST)
    return lambda proposer: made.model_copy(update={"trials": len(proposer._history)})


LONG = FlagSet({"xla_00": 1, "xla_01": 2, **{f"xla_{i:02d}": 1 for i in range(5, 15)}})


@pytest.fixture
def minimised(run_replay: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], list[AblationResult]]:
    """What a study of one set of twelve settings leaves out, of which two act; its model believes what it is told."""

    def run(chances: dict[str, float]) -> list[AblationResult]:
        monkeypatch.setattr(Proposer, "effects", believing(chances))
        conclusion, store, _ = run_replay(wide_study(), trials=1, first=(("long", LONG),), space=WIDE)
        assert conclusion.settings == FlagSet({"xla_00": 1, "xla_01": 2})
        return store.of(AblationResult)

    return run


def test_what_is_inert_is_left_out_by_one_measurement(minimised: Any) -> None:
    group, *others = minimised({"xla_00": 0.99, "xla_01": 0.9})
    assert (group.left_out, group.kept) == (tuple(f"xla_{i:02d}" for i in range(5, 15)), False)
    assert [(a.left_out, a.kept) for a in others] == [("xla_00", True), ("xla_01", True)]


def test_a_group_that_pays_after_all_is_taken_apart(minimised: Any) -> None:
    group, *others = minimised({"xla_00": 0.99, "xla_01": 0.01})
    assert ("xla_01" in group.left_out, group.kept) == (True, True)
    assert {a.left_out for a in others} == set(LONG)


def test_of_nothing_but_inert_settings_the_likeliest_stays_to_be_measured(minimised: Any) -> None:
    group, *_ = minimised({"xla_00": 0.1})
    assert (set(group.left_out), group.kept) == (set(LONG) - {"xla_00"}, True)  # for xla_01 pays


@pytest.mark.parametrize("case", toml_beside(__file__)["useful"], ids=lambda case: str(case["why"]))
def test_what_is_of_use_in_a_set(case: dict[str, Any]) -> None:
    settings = []
    for name, known in case["settings"].items():
        value = ValueEffect(value="1", ratio=1.0, low=known.get("low", 0.9), high=1.1, trials=3)
        needs = tuple(known.get("needs", ()))
        settings.append(SettingEffect(name=name, chance=known["chance"], values=(value,), needs=needs))
    told = {"trials": 1, "measured": 1, "settings": settings, "pairs": case.get("pairs", ()), "best": NO_BEST}
    whole = FlagSet(dict.fromkeys(("xla_a", "xla_b", "xla_z"), 1))
    assert list(EffectsRecord.model_validate(told).useful(whole, least=0.005)) == case["useful"]
