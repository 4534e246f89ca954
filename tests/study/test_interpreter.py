"""The build that is asked is the build that is measured: the interpreter of a command."""

from __future__ import annotations

import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.machine.environment import driver_python
from autotune.model.errors import StudyFileError
from autotune.model.spec import StudySpec, parse_study
from autotune.programs.look import program_python, refuse_other_build

VERSION = "9.9.9"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment of its own."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def study(*command: str, **workload: Any) -> StudySpec:
    read = {"pattern": r"step (?P<step>\d+)"}
    return parse_study({"name": "other", "workload": {"command": command, "read": read, **workload}})


def test_of_a_launcher_the_own_build_is_asked_and_that_is_said(tmp_path: Path) -> None:
    told: list[str] = []
    assert program_python(study("bash", "run.sh"), tmp_path, note=told.append) == driver_python()
    assert "[workload] python =" in told[0]
    assert program_python(study("bash", "run.sh"), tmp_path, note=None) == driver_python()


def test_a_named_interpreter_or_one_in_the_command_starts_nothing(tmp_path: Path, other: Path) -> None:
    (tmp_path / "env").symlink_to(other.parents[1])
    assert program_python(study("bash", "x.sh", python=str(other)), tmp_path, note=pytest.fail) == str(other)
    relative = program_python(study("env/bin/python", "train.py"), tmp_path, note=pytest.fail)
    assert Path(relative).parent.samefile(other.parent), "found from the study's folder, not from ours"
    assert program_python(study("bash", "x.sh", python="env/bin/python"), tmp_path, note=pytest.fail) == relative
    with pytest.raises(StudyFileError, match=r"workload\.python"):
        program_python(study("bash", "x.sh", python="no/such/python"), tmp_path, note=pytest.fail)


def test_a_reference_that_ran_on_another_build_ends_the_study_with_the_key_that_mends_it(other: Path) -> None:
    spec, packages = study("bash", "run.sh"), next(other.parents[1].glob("lib/python*/site-packages"))
    facts: Any = SimpleNamespace(versions={"jaxlib": VERSION}, packages=str(packages))
    with pytest.raises(
        StudyFileError, match=f'jaxlib 0.1.0 .*ran on jaxlib {VERSION}.*python = "{other.parent}/python'
    ):
        refuse_other_build("0.1.0", "/some/python", spec, facts)
    refuse_other_build(VERSION, str(other), spec, facts)
    refuse_other_build("0.1.0", str(other), spec, None)
    refuse_other_build("0.1.0", str(other), spec, SimpleNamespace(versions={}))
