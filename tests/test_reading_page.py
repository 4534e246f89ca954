"""docs/reading.md names every preset, group, key and unit, and its lines are read as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.child.steps import GROUPS, PRESETS, StepReader
from autotune.model.sections import ReadSpec

PAGE = (Path(__file__).parent.parent / "docs" / "reading.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", PAGE.partition("## Presets")[2], re.MULTILINE))


def test_all_names_are_told() -> None:
    assert set(ROWS) == set(PRESETS)
    for name in (*GROUPS, *ReadSpec.model_fields):
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("name", PRESETS)
def test_the_line_of_each_preset_is_read(name: str) -> None:
    line = ROWS[name].replace("\\|", "|")
    reader = StepReader({"preset": name})
    reader.read(re.sub(r"\b(12|7|100)(?=[:/. ])", lambda m: str(int(m[1]) - 1), line, count=1), 1.0)
    step = reader.read(line, 1.5)
    assert step is not None
    assert step.step_s == pytest.approx({"maxtext": 1.234, "clu": 1 / 3.1}.get(name, 0.5))
