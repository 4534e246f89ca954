"""The house rules that no linter knows; see docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from autotune.model.spec import StudySpec

ROOT = Path(__file__).parent.parent
ROOMS = sorted(p.parent.name for p in ROOT.glob("autotune/*/__init__.py"))
DOC = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CODE = [p for folder in ("autotune", "harness", "benchmarks") for p in ROOT.glob(f"{folder}/**/*.py")]


@functools.cache
def imported(file: Path) -> set[tuple[str, str]]:
    """Module and name of each `from ... import ...` of a file, wherever in it."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {(n.module or "", alias.name) for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}


def test_rooms_and_their_tests_lie_where_their_names_say() -> None:
    files = {p.name for p in (ROOT / "autotune").iterdir() if p.is_file()}
    assert files == {"__init__.py", "__main__.py", "hook.py", "py.typed"}
    folders = {p.parent.name for p in ROOT.glob("tests/*/test_*.py")}
    assert folders <= {*ROOMS, "workloads"}


def test_the_rooms_in_the_documentation_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers" and "containers" in c)
    flat = [name.strip() for layer in layers for name in layer.split("|")]
    told = re.findall(r"^\| `(\w+)` \|", DOC, re.MULTILINE)
    assert told == [name for name in flat if name not in ("__main__", "hook")]
    assert sorted(told) == ROOMS


def test_tests_and_benchmarks_do_not_import_each_other() -> None:
    benchmarks = {m for p in ROOT.glob("benchmarks/*.py") for m, _ in imported(p)}
    tests = {m for p in ROOT.glob("tests/**/*.py") for m, _ in imported(p)}
    assert not [m for m in benchmarks if m.split(".")[0] == "tests"]
    assert not [m for m in tests if m.split(".")[0] == "benchmarks"]


PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_test_that_the_pages_name_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"`([\w./-]+\.(?:py|toml|md)(?:::\w+)?|[\w.-]+/[\w./-]*)`", text)
    assert names or page != "README.md"
    for name in names:
        path, _, test = name.partition("::")
        if re.search(r"\b[A-Z]{3,}\b", path.removeprefix("README")):  # stands for another name
            continue
        places = [ROOT / path, ROOT / "autotune" / path, ROOT / "tests" / path, *ROOT.glob(f"autotune/*/{path}")]
        found = [place for place in places if place.exists()]
        assert found, f"{page} names {path}"
        if test:
            assert f"def {test}(" in found[0].read_text(encoding="utf-8"), f"{page} names {name}"


def test_the_files_and_tests_of_planted_faults_are_there() -> None:
    for mutant in json.loads((ROOT / "benchmarks" / "mutants.json").read_text(encoding="utf-8")):
        test, _, name = mutant["test"].partition("::")
        assert (ROOT / mutant["file"]).exists(), mutant
        assert f"{name.partition('[')[0]}(" in (ROOT / test).read_text(encoding="utf-8"), mutant


def test_every_test_that_the_makefile_names_is_there() -> None:
    named = re.findall(r"\btests(?:/\w+)+(?:\.py)?", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def _messages(file: Path) -> list[str]:
    """The texts of a file that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return [str(n.value) for n in texts if id(n) not in docs]


def _keys_of(section: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The keys of a section of a study file, and those of them that are sections themselves."""
    inner = {n: f.annotation for n, f in section.model_fields.items()}
    return {n: a for n, a in inner.items() if isinstance(a, type) and issubclass(a, BaseModel)}


def test_every_study_key_that_a_message_names_is_there() -> None:
    sections = _keys_of(StudySpec)
    named = [
        (file.name, section, key)
        for file in (ROOT / "autotune").glob("**/*.py")
        for text in _messages(file)
        for section, key in re.findall(rf"(?<![\w./-])({'|'.join(sections)})\.([a-z]\w*)(?![\w(]*\()", text)
    ]
    assert len(named) > 30
    assert [found for found in named if found[2] not in sections[found[1]].model_fields] == []


def asserted(tree: ast.AST) -> list[str]:
    """Texts that asserts hold against what is printed, and patterns of `pytest.raises`."""
    asserts = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    patterns = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "match"]
    nodes = (part for node in (*asserts, *patterns) for part in ast.walk(node) if isinstance(part, ast.Constant))
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_few_asserts_are_on_prose() -> None:
    """On three words or more: a field, a status or a count says it whatever the sentence is; transcripts hold those."""
    texts = [t for p in ROOT.glob("tests/**/*.py") for t in asserted(ast.parse(p.read_text(encoding="utf-8")))]
    prose = [text for text in texts if " " in text and len(re.findall(r"\b[a-zA-Z]{2,}\b", text)) >= 3]
    assert 100 < len(prose) <= 200
