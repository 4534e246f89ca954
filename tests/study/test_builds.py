"""Two builds as arms: which is slower, by how much, with whose settings; of simulated and of real builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import FinalistResult, Outcome, TrialResult
from autotune.model.spec import parse_study
from autotune.results.recompute import doubts
from autotune.settings.probe import ProbeReport
from autotune.settings.space import SearchSpace
from autotune.study.builds import Build, Builds, compare_builds, study_of_builds
from autotune.study.run import StudyRun
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import parse_simulated
from tests.runs import Diary, Noting

BASE = parse_study(
    {
        "name": "base",
        "workload": {"command": ["python", "train.py"], "read": {"pattern": r"step (?P<step>\d+)"}},
        "confirm": {"processes": 20},
    }
)


def build(python: str, jaxlib: str, **settings: str) -> Build:
    report = ProbeReport(
        platform="cpu", python="3.12.1", jax=jaxlib, jaxlib=jaxlib, plugin=None, flags={}, removed=frozenset(),
        jax_options={},
    )  # fmt: skip
    return Build(python=python, report=report, settings=FlagSet(settings))


BUILDS = Builds(build("/old/python", "0.10.2"), build("/new/python", "0.12.0"))
OLD = 'option.python="/old/python"'


def session(folder: Path, builds: Builds = BUILDS, *, budget_s: float | None = None, **simulation: Any) -> StudyRun:
    study = study_of_builds(BASE, "builds", ["train.py"], builds, pairs=None, budget_s=budget_s)
    spec = parse_simulated({**study.model_dump(mode="json"), "simulation": simulation})
    return given_run(spec, folder / "run", GivenSetup(given_space=SearchSpace(())), Diary())


@pytest.mark.parametrize(
    ("factor", "outcome", "words"),
    [
        (0.97, Outcome.WINNER, "jaxlib 0.12.0 is 3.1 % slower than jaxlib 0.10.2"),
        (1.05, Outcome.NOTHING_BEATS_THE_DEFAULT, "jaxlib 0.12.0 is 4.8 % faster than jaxlib 0.10.2"),
        (1.0, Outcome.NOTHING_BEATS_THE_DEFAULT, "no difference found between jaxlib 0.12.0 and jaxlib 0.10.2"),
    ],
)
def test_a_planted_difference_is_told_the_right_way_round(
    factor: float, outcome: Outcome, words: str, tmp_path: Path
) -> None:
    run = session(tmp_path, effects={OLD: factor})
    found = compare_builds(run, BUILDS)
    assert found.outcome is outcome, found.sentence
    print(found.sentence)
    assert found.sentence.startswith(words)
    result = run.store.of(FinalistResult)[-1]
    assert result.corrected is not None
    assert result.corrected.low <= factor <= result.corrected.high
    assert doubts(run.store) == []
