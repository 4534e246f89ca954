"""What `--json` prints is JSON and nothing else: every command that has the option, in one process."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import compile as compile_commands
from autotune.cli.app import app
from autotune.model.spec import load_study
from autotune.results.export import render_winner
from autotune.results.library import add_to_library
from harness.simulated_machine import write_study
from tests.compiler.rules import Rules, screen
from tests.console import commands
from tests.runs import TYPED, make_winner
from tests.tables import toml_beside

STUDY = TYPED + 'failures = { "xla_cpu_prefer_vector_width=128" = "compile_error" }\n'

CALLS = toml_beside(__file__, "json_calls.toml")


def with_json() -> set[str]:
    """Names of the commands that have the option."""
    tree = commands(typer.main.get_command(app))
    return {name for name, command in tree if any("--json" in p.opts for p in command.params)}


def call(name: str) -> list[str]:
    """What is typed, the option before the rest: what follows a program belongs to the program."""
    count, words = len(command_of(name).split()), shlex.split(CALLS[name])
    return [*words[:count], "--json", *words[count:]]


def command_of(name: str) -> str:
    """The command of a call: its name without the argument in capitals."""
    return " ".join(word for word in name.split() if not word.isupper())


def test_every_command_with_json_is_called_here() -> None:
    elsewhere = {"ab"}  # it measures a program: tests/study/test_ab.py and test_builds.py
    assert {command_of(name) for name in CALLS} == with_json() - elsewhere


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, a run that cannot be read, a library and an exported file."""
    folder = tmp_path_factory.mktemp("shapes")
    write_study(folder / "shapes.toml", STUDY)
    (folder / "train.log").write_text("".join(f"step {i}: {9 + i % 2} ms loss=0.5\n" for i in range(20)))
    study, runs = str(folder / "shapes.toml"), folder / "runs"
    assert CliRunner().invoke(app, ["run", study, "--run-dir", str(runs / "shapes"), "--json"]).exit_code == 0
    shutil.copytree(runs / "shapes", runs / "again")
    (runs / "broken").mkdir()
    (runs / "broken/study.json").write_text("{", encoding="utf-8")
    winner = make_winner({"xla_gpu_a": "1"})
    (folder / "winner.env").write_text(render_winner(winner, "env"), encoding="utf-8")
    add_to_library(winner, folder / "library")
    return folder


@pytest.fixture
def simulated_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be compiled for GPUs follows rules instead, so that no plugin is needed."""

    @contextlib.contextmanager
    def opened(study: Path, *_: object, **__: object) -> Iterator[tuple[Any, Any]]:
        yield load_study(study), screen(Rules())

    monkeypatch.setattr(compile_commands, "_open_screen", opened)


@pytest.mark.usefixtures("simulated_compiler")
@pytest.mark.parametrize("name", sorted(CALLS))
def test_json_is_printed_and_nothing_else(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, probed: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(probed))
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, call(name))
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert json.loads(result.stdout)
