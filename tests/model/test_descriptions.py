"""Every key of a study says what it is for, in the schema, in the page made from it, and for editors."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from autotune.model.spec import StudySpec
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ROOT = Path(__file__).parents[2]
SCHEMA = StudySpec.model_json_schema()
STUDIES = sorted(ROOT.glob("studies/*.toml"))


def tables() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "StudySpec", SCHEMA
    yield from ((name, table) for name, table in SCHEMA["$defs"].items() if "properties" in table)


def test_no_key_is_without_a_description() -> None:
    keys = [(name, key, told) for name, table in tables() for key, told in table["properties"].items()]
    assert len(keys) > 50
    assert [(name, key) for name, key, row in keys if len(row.get("description", "")) < 5 and "$ref" not in row] == []


@pytest.mark.parametrize("file", STUDIES, ids=lambda p: p.stem)
def test_the_example_studies_are_legal_by_the_schema_that_editors_read(file: Path) -> None:
    schema = json.loads((ROOT / "autotune" / "data" / "study.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(tomllib.loads(file.read_text()))


@pytest.mark.parametrize(("section", "key", "value"), CASES["refused_keys"])
def test_what_is_refused_is_refused_by_the_schema_too(section: str, key: str, value: Any) -> None:
    study: dict[str, Any] = {"name": "x", "workload": {"entry": "llama"}, section: {key: value}}
    with pytest.raises(ValueError, match=key):
        StudySpec.model_validate(study)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(study)


def test_the_page_and_the_schema_for_editors_are_of_todays_keys() -> None:
    command = [sys.executable, str(ROOT / "docs" / "write_study_file.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
