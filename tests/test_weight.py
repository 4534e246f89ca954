"""`harness/weight.py` on planted modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.weight import LIMITED, main

PLAIN = '"""Says what it is."""\nimport os\n\ntotal = 1\n'
DENSE = "found, told = 1, 2\nmine = found if told else (found,)  # fmt: skip\n"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    pytest.importorskip("ruff")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/plain.py").write_text(PLAIN)
    limits = {"nodes": 6, "lines_at_88": 9, "conditional": 0, "tuple_assignments": 0, "empty_names": 0}
    (tmp_path / "limits.json").write_text(json.dumps({"limits": limits, "modules": {}}))
    return tmp_path


def weighed(house: Path, *arguments: str) -> int:
    return main(arguments, house / "code", house / "limits.json")


def test_limits_fall_and_never_rise(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weighed(house, "--lower") == 0
    stored = json.loads((house / "limits.json").read_text())
    # Module, Assign, Name, Store, Constant; the formatter puts an empty line after the docstring.
    assert [stored["limits"][key] for key in LIMITED] == [5, 5, 0, 0, 0]
    (house / "code/dense.py").write_text(DENSE)
    assert weighed(house, "--lower") == 1
    assert json.loads((house / "limits.json").read_text()) == stored
    report = capsys.readouterr().out
    assert "29 nodes, 7 lines " in report
    assert "1 conditional expressions," in report
    assert "3 names without" in report
    assert "dense.py by 24" in report
