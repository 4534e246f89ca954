"""Every sampler that can be named proposes in whole studies; each is asked as in a study of Optuna's own.

The records alone decide what is proposed. A set that somebody enqueues in the study's storage is run next.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.samplers import NSGAIISampler, QMCSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.records import TrialResult
from autotune.model.sections import SAMPLERS, SearchSpec
from autotune.rundir.optuna_study import JOURNAL, NUMBER_KEY
from autotune.rundir.store import Store
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.driver import run_study
from autotune.study.proposer import ENQUEUED, STARTUP_TRIALS
from autotune.study.samplers import Replay, check_sampler, distribution_of, suggest
from tests.rundir.test_optuna_study import trials_in
from tests.runs import SPACE, Run, replay_study
from tests.study.test_lanes import fair, study

ROOT = Path(__file__).parents[2]

MIXED = SearchSpace(
    (
        Parameter(name="xla_a", choices=("0", "1", "2"), default="0"),
        Parameter(name="xla_b", choices=("off", "on"), default="off", condition={"xla_a": ("0", "1")}),
        Parameter(name="xla_c", choices=("0", "3", "6", "9", "12"), is_range=True, default="6", type="int"),
        Parameter(name="xla_d", choices=("1", "2", "4", "8", "16", "32", "64"), default="4", type="int"),
        Parameter(name="xla_e", choices=("only",), default="only"),
    )
)
EFFECTS = {"xla_a=1": 0.9, "xla_c=9": 0.97, "xla_d=16": 0.95}
FAILURES = {"xla_a=2": "crash"}

NEEDS = {"CmaEsSampler": "cmaes", "GPSampler": "torch"}
"""Samplers of Optuna whose packages autotune does not install."""

BY_PATH = [
    f"optuna.samplers:{name}"
    for name in (
        "RandomSampler",
        "TPESampler",
        "NSGAIISampler",
        "NSGAIIISampler",
        "BruteForceSampler",
        "QMCSampler",
        *NEEDS,
    )
]


class Small(NSGAIISampler):
    """Optuna's genetic algorithm, with generations that end within a test."""

    def __init__(self, seed: int) -> None:
        super().__init__(population_size=4, seed=seed)


class Broken(optuna.samplers.RandomSampler):
    """A sampler whose code ends with an error when it is asked."""

    def before_trial(self, study: Any, trial: Any) -> None:
        raise KeyError("mine")


def with_sampler(sampler: str, failures: dict[str, str] | None = None) -> Any:
    """A study without noise, which would be another one in each session."""
    search = {"search": {"sampler": sampler}, "confirm": {"soak": 0}}
    return replay_study(effects=EFFECTS, failures=failures or {}, noise={"white_sd": 0.0}, study=search)


def tried(store: Store) -> list[FlagSet]:
    return [r.settings for r in store.of(TrialResult)]


@pytest.mark.parametrize("sampler", [*SAMPLERS, *BY_PATH, f"{__name__}:Small"])
def test_each_sampler_proposes_in_a_study_or_is_refused_with_what_it_lacks(run_replay: Run, sampler: str) -> None:
    package = NEEDS.get(sampler.partition(":")[2])
    if package is not None and importlib.util.find_spec(package) is None:
        with pytest.raises(StudyFileError, match=package):
            check_sampler(SearchSpec(sampler=sampler))
        return
    check_sampler(SearchSpec(sampler=sampler))
    _, store, _ = run_replay(with_sampler(sampler, FAILURES), trials=STARTUP_TRIALS + 5, space=MIXED)
    assert len(set(tried(store))) == STARTUP_TRIALS + 5
    origins = [r.origin for r in store.of(TrialResult)]
    assert sampler in origins[STARTUP_TRIALS:]
    assert sampler == "additive" or origins[:STARTUP_TRIALS] == ["random"] * STARTUP_TRIALS


def test_each_sampler_that_the_pages_name_is_tried_here() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    named = {n for page in pages for n in re.findall(r"optuna\.samplers:\w+", page.read_text(encoding="utf-8"))}
    assert named
    assert named <= set(BY_PATH)


@pytest.mark.parametrize("sampler", ["optuna.samplers:GridSampler", f"{__name__}:Broken"])
def test_a_sampler_that_cannot_be_asked_is_refused_before_anything_starts(sampler: str) -> None:
    with pytest.raises(StudyFileError, match=sampler):
        check_sampler(SearchSpec(sampler=sampler))


@pytest.mark.parametrize("sampler", ["optuna.samplers:QMCSampler", f"{__name__}:Small"])
def test_a_study_that_was_stopped_or_lost_its_storage_proposes_what_it_would_have(
    run_replay: Run, sampler: str
) -> None:
    spec, trials = with_sampler(sampler, FAILURES), STARTUP_TRIALS + 5
    _, whole, _ = run_replay(spec, trials=trials, space=MIXED)
    for reached in (3, STARTUP_TRIALS + 2, trials):
        _, resumed, _ = run_replay(spec, trials=reached, space=MIXED, folder="stopped")
        (resumed.path / JOURNAL).unlink()
    assert tried(resumed) == tried(whole)


def test_a_space_is_tried_to_its_end_by_a_sampler_that_stops_there(run_replay: Run) -> None:
    space = SearchSpace(SPACE.parameters[:3])
    _, store, _ = run_replay(with_sampler("optuna.samplers:BruteForceSampler"), trials=40, space=space)
    assert {*tried(store), FlagSet()} == set(space.points())  # all but the default


def recorded(number: int, values: dict[str, Any]) -> FrozenTrial:
    distributions = {p.name: distribution_of(p) for p in WIDE.parameters}
    marks = {NUMBER_KEY: number}
    return create_trial(value=float(number), params=values, distributions={**distributions}, user_attrs=marks)


THOUSAND = tuple(map(str, range(1000)))
WIDE = SearchSpace(
    tuple(Parameter(name=f"xla_{n}", choices=THOUSAND, is_range=True, default="0", type="int") for n in "abc")
)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_what_a_sampler_keeps_in_trials_is_there_again() -> None:
    replay = Replay(lambda number: Small(number))
    trials: list[FrozenTrial] = []
    generations = []
    for number in range(10):
        trial = replay.up_to(trials, number).ask()
        values = {p.name: int(suggest(trial, p)) for p in WIDE.parameters}
        generations.append(trial.study.trials[-1].system_attrs["Small:generation"])
        trials.append(recorded(number, values))
    assert generations == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sequence_goes_on_where_it_was() -> None:
    replay = Replay(lambda _: QMCSampler(seed=0))
    plain = optuna.create_study(sampler=QMCSampler(seed=0))
    trials = [recorded(0, {p.name: 0 for p in WIDE.parameters})]
    plain.add_trials(trials)
    expected = [plain.ask(trials[0].distributions).params for _ in range(6)]
    proposed = []
    for number in range(1, 7):
        trial = replay.up_to(trials, number).ask()
        proposed.append({p.name: int(suggest(trial, p)) for p in WIDE.parameters})
        trials.append(recorded(number, proposed[-1]))
    assert proposed == expected


# ---------------------------------------------------------------------- enqueued trials


def opened(store: Store) -> optuna.Study:
    """The study in a run directory, as anybody opens it."""
    journal = JournalStorage(JournalFileBackend(str(store.path / JOURNAL)))
    (name,) = optuna.get_all_study_names(journal)
    return optuna.load_study(study_name=name, storage=journal)


def begun(run_replay: Run, trials: int = 2) -> Store:
    _, store, _ = run_replay(with_sampler("random"), trials=trials, space=MIXED)
    return store


ENQUEUED_VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"xla_a": "1", "xla_b": "on", "xla_c": 9, "xla_d": 64}, {"xla_a": 1, "xla_b": "on", "xla_c": 9, "xla_d": 64}),
    ({"xla_a": 1, "xla_d": "32"}, {"xla_a": 1, "xla_d": 32}),  # as the setting has it; others are at their defaults
    ({"xla_b": "on", "xla_c": 12.0}, {"xla_b": "on", "xla_c": 12}),
]


@pytest.mark.parametrize(("values", "settings"), ENQUEUED_VALUES)
def test_an_enqueued_set_is_run_next(run_replay: Run, values: dict[str, Any], settings: dict[str, Any]) -> None:
    store = begun(run_replay)
    opened(store).enqueue_trial(values, user_attrs={"by": "me"})
    _, store, diary = run_replay(with_sampler("random"), trials=4, space=MIXED)
    run = store.of(TrialResult)[2]
    assert (run.settings, run.origin) == (FlagSet(settings), ENQUEUED)
    assert diary.notes == []
    found = trials_in(store.path / JOURNAL)
    assert [t.state for t in found] == [TrialState.COMPLETE] * 4
    assert (found[2].user_attrs[NUMBER_KEY], found[2].user_attrs["by"]) == (3, "me")
    assert len(set(tried(store))) == 4


WRONG_VALUES: list[dict[str, Any]] = [
    {"xla_nothing": "1"},
    {"xla_a": "9"},
    {"xla_a": ["0"]},
    {"xla_c": 4},
    {"xla_c": "much"},
    {"xla_c": None},
    {"xla_d": 10**30},
    {"xla_d": "²"},
    {"xla_a": "2", "xla_b": "on"},
    {},
    {"xla_e": "only"},
]


def test_enqueued_values_that_are_not_in_the_space_are_refused_with_a_note(run_replay: Run) -> None:
    store = begun(run_replay)
    expected = begun(lambda *args, **more: run_replay(*args, **{**more, "folder": "other"}), trials=3)
    for values in (*WRONG_VALUES, opened(store).trials[0].params):
        opened(store).enqueue_trial(values)
    _, store, diary = run_replay(with_sampler("random"), trials=3, space=MIXED)
    assert len(diary.notes) == len(WRONG_VALUES) + 1
    states = [t.state for t in trials_in(store.path / JOURNAL) if "fixed_params" in t.system_attrs]
    assert states == [TrialState.FAIL] * (len(WRONG_VALUES) + 1)
    assert tried(store) == tried(expected)
    _, _, diary = run_replay(with_sampler("random"), trials=4, space=MIXED)
    assert diary.notes == []


def test_an_enqueued_trial_whose_driver_died_is_run_by_the_next(run_replay: Run) -> None:
    store = begun(run_replay)
    mine = opened(store)
    mine.enqueue_trial({"xla_b": "on", "xla_c": 12})
    mine.ask()  # begun, and never told
    _, store, _ = run_replay(with_sampler("random"), trials=3, space=MIXED)
    assert tried(store)[2] == FlagSet({"xla_b": "on", "xla_c": "12"})


def test_two_lanes_run_each_enqueued_set_once(tmp_path: Path) -> None:
    first, _ = study(tmp_path, fair, lanes=["a", "b"], trials=2)
    run_study(first)
    for values in ({"xla_a": "1"}, {"xla_a": "1", "xla_d": "2"}, {"xla_a": "1"}):
        opened(first.store).enqueue_trial(values)
    again, diary = study(tmp_path, fair, lanes=["a", "b"], trials=6)
    run_study(again)
    origins = [r.origin for r in again.store.of(TrialResult)]
    assert origins.count(ENQUEUED) == 2
    assert len(set(tried(again.store))) == 6
    assert sum("enqueued" in n for n in diary.notes) == 1
