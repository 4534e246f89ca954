"""Which variables a text sets, by the language that it is written in."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.settings.assignments import read_assignments

CASES = tomllib.loads((Path(__file__).parent / "assignments.toml").read_text())["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"][:30])
def test_assignments_are_read_as_their_language_makes_them(case: dict[str, Any]) -> None:
    assert dict(read_assignments(case["text"])) == case["sets"]
