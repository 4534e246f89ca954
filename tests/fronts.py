"""A study by several objectives, for the tests of what it finds and of what is shown of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.model.measurement import Objective
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.study.stages import run_study
from harness.simulated import GivenSetup, given_run
from tests.runs import SPACE, Diary, asking, replay_study

TIME, MEMORY = Objective.STEP_TIME, Objective.MEMORY


def pareto_study(*wanted: str, **replay: Any) -> StudySpec:
    """`xla_a` trades memory for time, `xla_b` time for memory, `xla_d=2` harms both."""
    formula = {
        "effects": {"xla_a=1": 0.90, "xla_b=1": 1.05, "xla_d=2": 1.10},
        "memory_effects": {"xla_a=1": 1.25, "xla_b=1": 0.70, "xla_d=2": 1.10},
        "noise": {"white_sd": 1e-4},
        **replay,
    }
    study = {"search": {"objectives": ["step_time", *(wanted or ("memory",))]}, "confirm": {"finalists": 4}}
    return replay_study(**formula, study=study)


def run(path: Path, spec: StudySpec, *, trials: int, storage: str | None = None) -> tuple[Store, Diary]:
    assert spec.replay is not None
    diary = Diary()
    study = given_run(asking(spec, trials), path, GivenSetup(given_space=SPACE), diary, storage=storage)
    run_study(study)
    return study.store, diary


@pytest.fixture(scope="session")
def front_run(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study by step time and memory; to be read only."""
    return run(tmp_path_factory.mktemp("front") / "run", pareto_study(), trials=45)[0]
