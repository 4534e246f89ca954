"""Every command line that the pages show is one that the command takes: its words and its options are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from autotune.cli.app import app
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md")))]
COMMAND: Any = get_command(app)  # click's, or the one that newer typer brings


def shown(page: str) -> list[str]:
    """What a page says to type: lines of consoles, and code spans that begin with the command's name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^\$ (autotune [^#\n]*)", text, re.MULTILINE)
    return [*lines, *re.findall(r"`(autotune [a-z][^`]*)`", text)]


def problem(line: str) -> str | None:
    """What the command would not take of a line; None if all of it is known."""
    line = re.sub(r"\s[;|>&].*|;.*", "", line).replace("...", " ")
    words = shlex.split(re.sub(r"\[(-[^\]]*)\]", r" \1 ", line))[1:]
    command = COMMAND
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command = command.commands[words.pop(0)]
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
    own = words[: words.index("--")] if "--" in words else words
    options = [part for w in own if w.startswith("-") for part in w.split("|") if part.startswith("-")]
    options = [o for o in options if not o.startswith("--xla_")]  # what is asked about
    return next((f"no option {o}" for o in options if o.split("=")[0] not in known), None)


def test_every_command_of_the_pages_is_one() -> None:
    wrong = {(page, line): why for page in PAGES for line in shown(page) if (why := problem(line)) is not None}
    assert wrong == {}


@pytest.mark.parametrize(("line", "why"), CASES["documented_lines"])
def test_what_is_wrong_is_seen(line: str, why: str) -> None:
    assert (problem(line) or "") == why


def test_the_pages_show_most_commands() -> None:
    text = "\n".join(line for page in PAGES for line in shown(page))
    assert [name for name, c in COMMAND.commands.items() if not c.hidden and f"autotune {name}" not in text] == []
