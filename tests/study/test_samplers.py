"""Which sampler proposes: each that can be named does, goes on after a stop, or is refused in words."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.records import TrialResult
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.proposer import STARTUP_TRIALS
from autotune.study.samplers import check_sampler
from tests.runs import Run, replay_study

SPACE = SearchSpace(tuple(Parameter(name=f"xla_{c}", choices=("0", "1", "2"), default="0") for c in "abcdef"))
EFFECTS = {"xla_a=1": 0.9, "xla_d=2": 0.95}


def study(sampler: str, noise: float = 1e-3) -> Any:
    search = {"sampler": sampler}
    return replay_study(effects=EFFECTS, noise={"white_sd": noise}, study={"search": search})


class OfMyOwn(optuna.samplers.RandomSampler):
    """A sampler that a user brings."""

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        if param_name == "xla_a":
            return "1"
        return super().sample_independent(study, trial, param_name, param_distribution)


def test_the_additive_sampler_is_the_default_and_finds_the_optimum_soon(run_replay: Run) -> None:
    spec = replay_study(effects=EFFECTS, noise={"white_sd": 1e-3})
    assert spec.search.sampler == "additive"
    _, store, _ = run_replay(spec, trials=14, space=SPACE)
    tried = [r.settings for r in store.of(TrialResult)]
    assert any(
        FlagSet({"xla_a": 1, "xla_d": 2}) == FlagSet({n: v for n, v in s.items() if n in "xla_a xla_d"}) for s in tried
    )
    assert {r.origin for r in store.of(TrialResult)} <= {"additive", "predicted best"}


def test_what_the_baseline_sets_already_is_not_tried_first(run_replay: Run) -> None:
    spec = replay_study(effects=EFFECTS, study={"baseline": {"xla_a": 2}})
    space = SearchSpace((Parameter(name="xla_a", choices=("2", "1"), default="0"),))
    _, store, _ = run_replay(spec, trials=1, space=space)
    assert [r.settings for r in store.of(TrialResult)] == [FlagSet({"xla_a": 1})]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_each_sampler_proposes_distinct_points(run_replay: Run, sampler: str) -> None:
    _, store, _ = run_replay(study(sampler), trials=12, space=SPACE)
    results = store.of(TrialResult)
    assert len({r.settings for r in results}) == 12
    assert sampler in {r.origin for r in results}
    origins = [r.origin for r in results]
    assert origins[:STARTUP_TRIALS] == ["random"] * STARTUP_TRIALS
    assert set(origins[STARTUP_TRIALS:]) == {sampler}


def test_a_sampler_of_the_user_s_own_proposes(run_replay: Run) -> None:
    _, store, _ = run_replay(study(f"{__name__}:OfMyOwn"), trials=10, space=SPACE)
    asked = [r.settings for r in store.of(TrialResult) if r.origin.endswith("OfMyOwn")]
    assert asked
    assert {s["xla_a"] for s in asked} == {"1"}


@pytest.mark.parametrize("sampler", [pytest.param("tpe", marks=pytest.mark.gate), "random"])
def test_a_study_that_was_stopped_proposes_what_it_would_have(run_replay: Run, sampler: str) -> None:
    spec = study(sampler, noise=0.0)  # a simulated machine's noise is another one in each session
    _, whole, _ = run_replay(spec, trials=8, space=SPACE)
    run_replay(spec, trials=5, space=SPACE, folder="stopped")
    _, resumed, _ = run_replay(spec, trials=8, space=SPACE, folder="stopped")
    assert [r.settings for r in resumed.of(TrialResult)] == [r.settings for r in whole.of(TrialResult)]


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ("best", "one of additive, tpe"),
        ("no.such.module:Class", "must be importable as MODULE:CLASS"),
        ("optuna.samplers:NoSuch", "must be importable as MODULE:CLASS"),
        ("builtins:dict", "must name a sampler of Optuna"),
        ("optuna.samplers:GridSampler", "must take `seed` alone"),
    ],
)
def test_what_is_no_sampler_is_refused_before_anything_starts(sampler: str, words: str) -> None:
    with pytest.raises(StudyFileError, match=words):
        check_sampler(study(sampler).search)
