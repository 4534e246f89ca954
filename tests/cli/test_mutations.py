"""Runs and winners' files in which something was changed at random: named or harmless, never another export."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.results.export import FORMATS, parse_winner, read_winner, render_winner
from autotune.results.winner import Winner, winner_of
from autotune.rundir.store import Store
from tests.cli.test_crafted import SMALL, cli

pytestmark = pytest.mark.timeout(900)
WINNER = read_winner(SMALL)
TAKEN_AS_RECORDED = ("ended", "conditions", "versions", "machine", "run", "study")
"""What no raw sample can show (`docs/results.md`)."""


def proven(winner: Winner) -> dict[str, Any]:
    """What a winner says of its proof."""
    return winner.model_dump(mode="json", exclude={*TAKEN_AS_RECORDED})


# ---------------------------------------------------------------------- what may happen to bytes


def flip(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def other_digit(data: bytes, rng: random.Random) -> bytes:
    places = [m.start() for m in re.finditer(rb"\d", data)]
    if not places:
        return data + b"7"
    at = rng.choice(places)
    return data[:at] + str((int(data[at : at + 1]) + rng.randrange(1, 10)) % 10).encode() + data[at + 1 :]


def other_word(data: bytes, rng: random.Random) -> bytes:
    words = re.findall(rb'"[^"]*"|true|false|null', data) or [b""]
    return data.replace(rng.choice(words), rng.choice(words), 1)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def zeros(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.choices(range(len(data) + 1), k=2))
    return data[:a] + b"\0" * (b - a) + data[b:]


def other_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    a, b = rng.choices(range(len(lines)), k=2)
    return b"".join(
        rng.choice(
            [
                [*lines[:a], *lines[a + 1 :]],
                [*lines[:a], lines[b], *lines[a:]],
                [*lines[:a], lines[b], *lines[a + 1 :]],
                rng.sample(lines, len(lines)),
            ]
        )
    )


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    other_digit,
    other_digit,
    other_word,
    cut,
    zeros,
    other_lines,
    lambda data, rng: b"",
)


# ---------------------------------------------------------------------- runs


def mutate(run: Path, rng: random.Random) -> str:
    """Changes one thing in a run directory; says what."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name != "worker.log")
    file, other = rng.choice([run / "records.jsonl", run / "study.json", *files]), rng.choice(files)
    kind = rng.choice(["content"] * 12 + ["missing", "folder", "pipe", "link", "other content", "other folder"])
    if kind == "content":
        file.write_bytes(rng.choice(CHANGES)(file.read_bytes() or b" ", rng))
    elif kind == "other content":
        file.write_bytes(other.read_bytes())
    elif kind == "other folder":
        shutil.rmtree(other.parent) if other.parent != run else other.unlink()
    else:
        file.unlink()
        make = {
            "folder": file.mkdir,
            "pipe": lambda: os.mkfifo(file),
            "link": lambda: file.symlink_to(SMALL / "study.json"),
        }
        make.get(kind, lambda: None)()
    return f"{kind} of {file.relative_to(run)}"


@pytest.mark.parametrize(("seed", "count"), [(1, 4), pytest.param(2, 200, marks=pytest.mark.slow)])
def test_a_run_in_which_something_changed_gives_the_same_winner_or_none(
    tmp_path: Path, started: list[Any], seed: int, count: int
) -> None:
    rng, refused, library = random.Random(seed), 0, tmp_path / "library"
    for number in range(count):
        run = Path(shutil.copytree(SMALL, tmp_path / f"{number}" / "run"))
        what = mutate(run, rng)
        shown = cli("export", run, "--format", "json")
        if shown.exit_code == 0:
            assert proven(parse_winner(shown.stdout, source=what)) == proven(WINNER), what
        refused += shown.exit_code != 0
        for command in (
            ("verify", run),
            ("exec", run, "--force", "--", "true"),
            ("library", "add", run, "--library", library),
            ("best", "--library", library),
            ("report", run, "--md"),
            ("show", run),
            ("status", run),
        ):
            cli(*command)
        shutil.rmtree(tmp_path / f"{number}")
    assert {environment["XLA_FLAGS"] for _, environment in started} <= {WINNER.environment["XLA_FLAGS"]}
    assert 0 < refused < count


# ---------------------------------------------------------------------- files


def differing(file: Path) -> set[str]:
    """The fields in which `verify` finds a file to differ from its run or this machine from its own."""
    found = cli("verify", file, "--json")
    return {d["field"] for d in json.loads(found.stdout)["differences"]} if found.stdout else {"refused"}


@pytest.mark.parametrize(("seed", "count"), [(1, 12), pytest.param(2, 100, marks=pytest.mark.slow)])
def test_a_file_in_which_something_changed_is_not_used_as_if_it_had_not(
    tmp_path: Path, started: list[Any], seed: int, count: int
) -> None:
    shutil.copytree(SMALL, tmp_path / SMALL.name)
    rng, elsewhere = random.Random(seed), differing(SMALL)
    for _ in range(count):
        form = rng.choice(list(FORMATS))
        text = render_winner(winner_of(Store.open(SMALL)), form)
        file = tmp_path / f"winner.{form}"
        file.write_bytes(rng.choice(CHANGES)(text.encode(), rng))
        changed = file.read_bytes() != text.encode()
        assert not changed or differing(file) - elsewhere, (form, file.read_bytes())
        cli("exec", file, "--force", "--", "true")
        cli("library", "add", file, "--library", tmp_path / "l")
    assert {environment["XLA_FLAGS"] for _, environment in started} <= {WINNER.environment["XLA_FLAGS"]}
    kept = [parse_winner(p.read_text(), source="l") for p in (tmp_path / "l").rglob("*.json")]
    assert all(proven(winner) == proven(WINNER) for winner in kept)
