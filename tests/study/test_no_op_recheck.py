"""On a GPU that runs, what the screen calls dead is measured once, and returns to the space if it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import TrialResult, TrialStatus
from autotune.rundir.store import Store
from autotune.settings.space import Parameter, SearchSpace
from autotune.study import screen as stage
from autotune.study.screen import DEAD_TOGETHER, contradicts
from autotune.study.stages import run_study
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import parse_simulated
from tests.compiler.rules import COMBINE, SLOP, Rules, screen
from tests.runs import Diary, asking

MERGER = "xla_gpu_dot_merger_threshold_mb"
DEAD = FlagSet({SLOP: "17", MERGER: "0"})
Run = Callable[..., tuple[Store, Diary]]


def whole() -> SearchSpace:
    domains = {COMBINE: ("7", "11"), SLOP: ("95", "17", "19"), MERGER: ("64", "0")}
    return SearchSpace(tuple(Parameter(name=n, choices=c, default=c[0]) for n, c in domains.items()))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a simulated study on a GPU on which the screen's dead settings may do what `simulation` says."""

    def go(trials: int, platform: str = "cuda", **replay: Any) -> tuple[Store, Diary]:
        spec = parse_simulated(
            {
                "name": "doubted", "workload": {"entry": "llama"}, "device": {"platform": platform, "count": 8},
                "screen": {"enabled": True, "target": "h100-sxm" if platform == "cuda" else None},
                "confirm": {"processes": 3}, "simulation": {"noise": {"white_sd": 1e-4}, **replay},
            }
        )  # fmt: skip
        rules = Rules(target="h100-sxm" if platform == "cuda" else None)
        monkeypatch.setattr(stage, "open_screener", lambda *_, **__: contextlib.nullcontext((spec, screen(rules))))
        monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))
        diary = Diary()
        study = given_run(asking(spec, trials), tmp_path / "run", GivenSetup(given_space=whole()), diary)
        run_study(study)
        return study.store, diary

    return go


def test_dead_settings_that_do_nothing_here_are_tried_together_and_never_again(run: Run) -> None:
    store, diary = run(6)
    results = store.of(TrialResult)
    assert [(r.settings, r.origin, r.status) for r in results[:2]] == [
        (DEAD, DEAD_TOGETHER, TrialStatus.MEASURED),
        (DEAD.merge({SLOP: "19"}), DEAD_TOGETHER, TrialStatus.MEASURED),
    ]
    assert not any(SLOP in r.settings or MERGER in r.settings for r in results[2:])
    assert not any("after all" in note for note in diary.notes)


@pytest.mark.parametrize("effect", [0.9, 1.1])
def test_dead_setting_that_acts_here_returns_to_the_space_and_wins_if_it_can(run: Run, effect: float) -> None:
    store, diary = run(8, effects={f"{MERGER}=0": effect})
    results = store.of(TrialResult)
    assert contradicts(results, min_effect=0.005)
    assert sum("2 settings are searched after all" in note for note in diary.notes) == 1
    later = [r for r in results if r.origin != DEAD_TOGETHER]
    assert any(MERGER in r.settings for r in later)
    # The screen's word for what is equal does not count any more: nothing is a duplicate of a program.
    assert not any(r.status is TrialStatus.SAME_PROGRAM for r in later)


def test_dead_settings_that_fail_here_return(run: Run) -> None:
    store, _ = run(8, failures={f"{SLOP}=17": "crash"})
    assert any(SLOP in r.settings for r in store.of(TrialResult) if r.origin != DEAD_TOGETHER)


def test_study_that_goes_on_proposes_what_it_would_have_proposed(run: Run, tmp_path: Path) -> None:
    effects = {f"{MERGER}=0": 0.9}
    run(3, effects=effects)
    store, _ = run(6, effects=effects)
    resumed = [(r.settings, r.origin) for r in store.of(TrialResult)]
    (tmp_path / "run").rename(tmp_path / "stopped")
    store, _ = run(6, effects=effects)
    assert [(r.settings, r.origin) for r in store.of(TrialResult)] == resumed


def test_where_the_screen_compiled_for_what_runs_there_is_no_doubt(run: Run) -> None:
    store, _ = run(4, platform="cpu")
    assert not any(r.origin == DEAD_TOGETHER for r in store.of(TrialResult))
