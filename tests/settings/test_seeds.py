"""`docs/seeds.md` lists what the five seed documents name, and every row of it is true."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from autotune.cli.app import app
from autotune.model.errors import SettingError
from autotune.settings.catalog import load_catalog, load_recipes, load_symptoms
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ROOT = Path(__file__).parents[2]
SEEDS = (ROOT / "docs" / "seeds.md").read_text("utf-8")
NAMED: dict[str, list[str]] = json.loads(Path(__file__).with_name("seed_settings.json").read_text("utf-8"))
TESTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("seed_tests.json").read_text("utf-8"))
SETTING = re.compile(r"(?:xla|jax)_[a-z0-9_]+|(?:NCCL|XLA|CUDA|JAX)_[A-Z0-9_]+")
LEAST_ROWS = 99
LEAST_WORDS_OF_A_REASON = 10


class Row(NamedTuple):
    item: str
    documents: str
    verdict: str
    where: str


def rows_of(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if line.count(" | ") == len(Row._fields) - 1]
    found = [Row(*(cell.strip() for cell in line.strip("| ").split(" | "))) for line in lines]
    return [row for row in found if row.documents != "documents" and set(row.item) != {"-"}]


def wrong_rows(text: str, tests: Mapping[str, list[str]] = TESTS) -> list[str]:
    """Rows of the table that are not true, and tests of rows that are not there."""
    rows = rows_of(text)
    wrong = [f"{row.item}: {what}" for row in rows for what in _wrong(row, tests.get(_key(row), []))]
    told = {_key(row): {*row.documents.split(", ")} for row in rows}
    wrong += [f"{item}: no such row" for item in tests if item not in told]
    for name in {n for names in NAMED.values() for n in names}:
        documents = {d for d, names in NAMED.items() if name in names}
        if not documents <= told.get(name, set()):
            wrong.append(f"{name}: named by {', '.join(sorted(documents))}")
    return wrong


def _key(row: Row) -> str:
    """The row's name in `seed_tests.json`: a setting without its quotes, an advice as it stands."""
    return row.item[1:-1] if re.fullmatch(r"`[^`]+`", row.item) else row.item


def _wrong(row: Row, proofs: list[str]) -> Iterator[str]:
    if not {*row.documents.split(", ")} <= {*NAMED}:
        yield f"document {row.documents!r}"
    if row.verdict == "N":
        if proofs or len(row.where.split()) < LEAST_WORDS_OF_A_REASON:
            yield "N needs a reason and no test"
    elif row.verdict != "Y" or not proofs:
        yield f"verdict {row.verdict!r}, tests {proofs}"
    yield from (f"there is no {proof}" for proof in proofs if not _exists(proof))
    yield from _wrong_words(row)


def _exists(proof: str) -> bool:
    file, _, test = proof.partition("::")
    path = ROOT / file
    return path.is_file() and (not test or f"\ndef {test}(" in path.read_text("utf-8"))


def _wrong_words(row: Row) -> Iterator[str]:
    """Settings, groups, symptoms, recipes and commands that a row names and that do not exist."""
    yield from _wrong_settings(row)
    for command in re.findall(r"`autotune ([a-z]+(?: [a-z]+)?)", row.where):
        if not _is_command(command.split()):
            yield f"there is no `autotune {command}`"
    recipes, symptoms = r"recipes? `(\w+)`", r"symptom `(\w+)`"
    for kind, pattern, legal in (("recipe", recipes, [*load_recipes()]), ("symptom", symptoms, [*load_symptoms()])):
        yield from (f"there is no {kind} {name}" for name in re.findall(pattern, row.where) if name not in legal)


def _wrong_settings(row: Row) -> Iterator[str]:
    catalog = load_catalog()
    for name in re.findall(r"`([a-z_]+|[A-Z_0-9]+)(?:=[^`]*)?`", f"{row.item} {row.where}"):
        if SETTING.fullmatch(name):
            try:
                setting = catalog.find(name)
            except SettingError:
                yield f"{name} is not in the catalogue"
                continue
            if len(setting.summary.split()) < 4 or "not yet described" in setting.summary:
                yield f"{name} has no meaning"
    entry = catalog.get(row.item.strip("`"))
    groups = {entry.group} if entry is not None else {g for s in catalog.values() for g in (s.group, *s.also_in)}
    told = re.match(r"group `(\w+)`", row.where)
    if told and told[1] not in groups:
        yield f"it is in another group than {told[1]}"


@functools.cache
def _commands() -> dict[str, Any]:
    return dict(getattr(typer.main.get_command(app), "commands", {}))


def _is_command(words: list[str]) -> bool:
    """Whether autotune has such a command; a second word may be its argument."""
    if words[0] not in _commands():
        return False
    below = getattr(_commands()[words[0]], "commands", None)
    return below is None or len(words) == 1 or words[1] in below


def test_every_thing_that_the_documents_name_has_a_true_row() -> None:
    assert wrong_rows(SEEDS) == []
    rows = rows_of(SEEDS)
    assert len(rows) >= LEAST_ROWS
    assert len({r.item for r in rows}) == len(rows)
    assert {d for r in rows for d in r.documents.split(", ")} == {*NAMED}
    assert sum(r.verdict == "N" for r in rows) <= 5


def test_the_counts_told_above_the_table_are_those_of_the_table() -> None:
    told = there(re.search(r"(\d+) settings and (\d+) pieces", " ".join(SEEDS.split())))
    settings, advice = SEEDS.split("## Settings")[1].split("## Advice")
    assert (len(rows_of(settings)), len(rows_of(advice))) == (int(told[1]), int(told[2]))


@pytest.mark.parametrize(("old", "new", "said"), CASES["false_rows"])
def test_a_row_that_is_not_true_is_found(old: str, new: str, said: str) -> None:
    changed = SEEDS.replace(old, new)
    assert changed != SEEDS
    assert any(said in wrong for wrong in wrong_rows(changed))


def test_a_missing_row_an_excuse_and_a_test_that_is_not_there_are_found() -> None:
    proofs = ["tests/settings/test_check.py::test_verdict", "studies/recurrence.toml"]
    found = wrong_rows(SEEDS, {**TESTS, "xla_gpu_graph_level": proofs})
    assert found == [f"`xla_gpu_graph_level`: there is no {proof}" for proof in proofs]
    line = next(line for line in SEEDS.splitlines() if line.startswith("| `xla_gpu_graph_level`"))
    assert wrong_rows(SEEDS.replace(f"{line}\n", "")) == [
        "xla_gpu_graph_level: no such row",
        "xla_gpu_graph_level: named by dreamer",
    ]
    excuse = "| Something | post | N | not yet |"
    assert wrong_rows(f"{SEEDS}\n{excuse}\n") == ["Something: N needs a reason and no test"]
