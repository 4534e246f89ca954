"""`--help`, `--version` and completion, as a person sees them."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import autotune
from autotune.cli.app import app
from autotune.cli.help import GROUPS
from tests.console import commands
from tests.runs import there

ROOT = Path(__file__).parents[2]


ALL = dict(commands(typer.main.get_command(app)))


@functools.cache
def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    assert done.exit_code == 0, done.output
    return done.output


def test_every_command_is_in_one_group_and_listed_there() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert len(set(named)) == len(named)
    top = {name for name in ALL if " " not in name}
    assert top - set(named) == set()
    text = shown()
    titles = [text.index(f"\n{title}:") for title in GROUPS]
    assert titles == sorted(titles)
    for name in top:
        assert re.search(rf"^  {name} ", text, re.MULTILINE), name


def test_the_list_of_commands_is_whole_at_80_columns_and_begins_with_the_ten_needed_first() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"^  .*\.\.\.$", text, re.MULTILINE)
    assert len([*next(iter(GROUPS.values()))]) == 10


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_help_ends_with_an_example_that_the_command_itself_would_take(name: str) -> None:
    text = shown(*name.split())
    found = there(re.search(r"Example: (.*)", text))
    words = shlex.split(found[1].split(" > ")[0])
    assert words[0] == "autotune"
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context(name, rest)  # parses, runs nothing


def test_the_version_is_told_once_and_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "autotune.__version__"}
    done = CliRunner().invoke(app, ["--version"])
    assert done.output == f"autotune {autotune.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", autotune.__version__)
    assert f"## {autotune.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> set[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "_AUTOTUNE_COMPLETE": "complete_bash", "COMP_WORDS": words}
        code = "from autotune.cli.app import main; import sys; sys.argv[0] = 'autotune'; main()"
        env["COMP_CWORD"] = str(words.count(" "))
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        return set(done.stdout.split())

    assert {"recheck", "recipes", "report"} <= completed("autotune re")
    assert {"--time-budget", "--trials"} <= completed("autotune tune --t")
