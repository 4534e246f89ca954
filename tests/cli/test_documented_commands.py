"""Every command line that the pages show is one that the command takes, and what needs no GPU or cluster runs."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from autotune.cli.app import app
from autotune.cli.help import EXAMPLES
from autotune.compiler.targets import target_names
from harness.simulated_machine import FILE, write_study
from tests.console import autotune
from tests.runs import TYPED
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md")))]
PAGES += [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("studies/*.toml"))]
COMMAND: Any = get_command(app)  # click's, or the one that newer typer brings
IN_PART = ("MissingParameter", "BadOptionUsage")
"""What a sentence may leave out where it speaks of a command or of an option."""


def shown(page: str) -> tuple[list[str], list[str]]:
    """What a page says to type: whole lines, and code spans that begin with the command's name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"(?:^\$ |^#   |-m |bin/)(autotune [a-z][^#;`\n]*)", text, re.MULTILINE)
    return [line.strip() for line in lines], re.findall(r"`(autotune [a-z][^`]*)`", text)


def words_of(line: str) -> list[str]:
    """The arguments of a line: the first of alternatives, all that is optional, and something for each placeholder."""
    line = re.sub(r"\s[;|>&].*|;.*|\.\.\.|(?<=\w)\|[\w-]+", "", line)
    words = shlex.split(re.sub(r"\[([^\]]*)\]", r" \1 ", line))[1:]
    stand_ins = CASES["stand_ins"].items()
    return [next((s for name, s in stand_ins if re.fullmatch(name, word)), word) for word in words]


def command_of(line: str) -> tuple[Any, list[str]]:
    """The command of a line, a group of commands if it names none of the group's, and the words behind its name."""
    command, words = COMMAND, words_of(line)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    return command, words


def problem(line: str) -> str:
    """What the command would not take of a line; nothing if it takes all."""
    command, words = command_of(line)
    if hasattr(command, "commands"):
        return f"no command {words[0]}" if words else IN_PART[0]
    try:
        command.make_context(command.name, words)
    except Exception as error:
        return type(error).__name__
    return ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the lines speak of: studies on a simulated machine, recorded runs, a program, its log."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(ROOT / "studies", folder / "studies", ignore=shutil.ignore_patterns("recorded"))
    (folder / "studies" / FILE).touch()
    write_study(folder / "study.toml", TYPED)
    for name in ("NAME", "OTHER"):
        shutil.copytree(ROOT / "studies/recorded/example", folder / "runs" / name)
    steps = "".join(f"step {step} dt=0.0{step}\n" for step in range(1, 30))
    (folder / "train.log").write_text(steps)
    (folder / "train.py").write_text(f"print({steps!r}, flush=True)\n")
    shutil.copy(ROOT / "tests/settings/train_script.txt", folder / "train.sh")
    for line in ("export runs/NAME --format env -o winner.env", "library add runs/NAME"):
        assert autotune(*line.split(), cwd=folder).returncode == 0
    return folder


def whole_lines() -> Iterator[str]:
    """Every line that is more than the name of a command."""
    for page in PAGES:
        lines, spans = shown(page)
        yield from lines
        yield from (span for span in spans if command_of(span)[1] and not problem(span))
    yield from EXAMPLES.values()


def executed(line: str) -> bool:
    """Whether a line can run here."""
    return not any(re.match(f"autotune ({rule})", line) for rule in CASES["not_executed"])


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_pages_is_one(page: str) -> None:
    lines, spans = shown(page)
    assert {line: why for line in lines if (why := problem(line))} == {}
    in_spans = {span: why for span in spans if (why := problem(span))}
    assert {span: why for span, why in in_spans.items() if why not in IN_PART} == {}


@pytest.mark.parametrize("line", [line for line in dict.fromkeys(whole_lines()) if executed(line)])
def test_a_line_of_the_pages_runs(line: str, place: Path, tmp_path: Path, started: list[object]) -> None:
    here, words = tmp_path / "place", words_of(line)
    shutil.copytree(place, here)
    words[1:1] = CASES["added"].get(words[0], [])
    done = autotune(*words, cwd=here, PATH=str(Path(sys.executable).parent))
    assert done.returncode in (0, 1), done.stderr


def test_every_gpu_that_a_line_names_is_known() -> None:
    named = {gpu for line in whole_lines() for gpu in re.findall(r"--target (\S+)", line)}
    assert named
    assert named <= set(target_names())


@pytest.mark.parametrize("rule", CASES["not_executed"])
def test_every_line_that_does_not_run_is_still_there(rule: str) -> None:
    assert any(re.match(f"autotune ({rule})", line) for line in whole_lines())


@pytest.mark.parametrize(("line", "why"), CASES["documented_lines"])
def test_what_is_wrong_is_seen(line: str, why: str) -> None:
    assert problem(line) == why


def test_the_pages_show_most_commands() -> None:
    text = "\n".join(line for page in PAGES for lines in shown(page) for line in lines)
    assert [name for name, c in COMMAND.commands.items() if not c.hidden and f"autotune {name}" not in text] == []
