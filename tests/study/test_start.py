"""Studies that are run from Python: the checks, records and stops of the command line.

The build that is asked is the build that is measured: the interpreter of a command.
"""

from __future__ import annotations

import re
import sys
import threading
import tomllib
import venv
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import optuna
import pytest

import autotune
from autotune.machine.environment import driver_python
from autotune.model.errors import StudyFileError
from autotune.model.records import AnyRecord, ConclusionRecord, TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.programs.look import program_python, refuse_other_build
from autotune.results.live import LineView
from autotune.rundir.lock import is_held
from autotune.rundir.store import Store
from autotune.study import driver
from harness.simulated_machine import write_study
from tests.console import autotune as command_line
from tests.runs import TYPED, there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

STUDY = TYPED.replace('"typed"', '"small"').replace("trials = 5", "trials = 4")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a study for a simulated machine."""
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "small.toml", STUDY)
    return tmp_path


def test_a_study_runs_as_on_the_command_line(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    found = autotune.run("small.toml")
    assert found.store.path == here / "runs" / "small"
    assert there(found.winner).settings["xla_backend_optimization_level"] == "1"
    assert "trial 1 of 4" in capsys.readouterr().out
    assert "A new study created" not in caplog.text  # Optuna's own words are not the user's
    assert command_line("run", "small.toml", "--run-dir", "typed", cwd=here).returncode == 0
    typed = autotune.load("typed")
    assert typed.store.spec.identity == found.store.spec.identity
    assert list(typed.trials["settings"]) == list(found.trials["settings"])


def test_the_default_and_the_winner_are_traced_if_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[tuple[str, str]] = []
    monkeypatch.setattr(driver, "profile_once", lambda run, names, sets: traced.append(names))
    winner = there(autotune.run("small.toml", progress=False).winner)
    assert traced == []
    autotune.run("small.toml", progress=False, profile=True)
    assert traced == [("the default", str(winner.settings))]


def test_a_mapping_is_the_same_study_as_its_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tomllib.loads(Path("small.toml").read_text(encoding="utf-8"))
    first = autotune.run(study, "own", trials=3, progress=False)
    assert len(first.trials) == 3
    more = autotune.run("small.toml", "own", progress=False)  # goes on with it: else it would be refused
    assert len(more.trials) == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("wrong", "arguments"), CASES["illegal_calls"])
def test_what_is_not_legal_starts_nothing(here: Path, wrong: str, arguments: dict[str, object]) -> None:
    before = sorted(here.rglob("*"))
    with pytest.raises(StudyFileError, match=wrong):
        autotune.run(**{"study": "small.toml", **arguments})  # type: ignore[arg-type]
    assert sorted(here.rglob("*")) == before


def test_an_interrupted_run_continues(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = LineView.result

    def interrupt(view: LineView, record: AnyRecord) -> None:
        end(view, record)
        if isinstance(record, TrialResult) and record.number == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LineView, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            autotune.run("small.toml")
    run, kept = Path("runs/small"), Path("runs/small/records.jsonl").read_text(encoding="utf-8")
    assert not is_held(run)
    assert Store.open(run).last(ConclusionRecord) is None
    assert len(autotune.run("small.toml").trials) == 4
    assert (run / "records.jsonl").read_text(encoding="utf-8").startswith(kept)


def test_it_runs_in_a_thread_which_gets_no_signals(here: Path) -> None:
    thread = threading.Thread(target=autotune.run, args=("small.toml",), kwargs={"progress": False})
    thread.start()
    thread.join(60)
    assert autotune.load("runs/small").winner is not None


def test_a_process_that_imported_jax_is_told_of_its_memory(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tomllib.loads(Path("small.toml").read_text(encoding="utf-8"))
    study["device"] = {"platform": "cuda", "count": 1}
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    autotune.run(study, trials=1)
    assert "imported jax" in capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "jax")
    autotune.run(study, trials=1)
    assert "imported jax" not in capsys.readouterr().out


def test_the_lines_of_the_page_run(here: Path) -> None:
    (here / "small.toml").rename(here / "study.toml")
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["seed-1", "seed-2", "small"]


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
    with pytest.raises(StudyFileError, match=rf"jaxlib 0.1.0 .*jaxlib {VERSION}.*\[workload\] python ="):
        refuse_other_build("0.1.0", "/some/python", spec, facts)
    refuse_other_build(VERSION, str(other), spec, facts)
    refuse_other_build("0.1.0", str(other), spec, None)
    refuse_other_build("0.1.0", str(other), spec, SimpleNamespace(versions={}))
