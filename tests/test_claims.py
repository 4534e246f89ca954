"""Figures in README and docs are those of the recorded benchmarks, and the benchmarks hold what is promised."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.runs import there

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """`docs/write_figures.py`."""
    spec = there(importlib.util.spec_from_file_location("write_figures", ROOT / "docs" / "write_figures.py"))
    sys.modules["write_figures"] = module = importlib.util.module_from_spec(spec)
    there(spec.loader).exec_module(module)
    return module


def test_every_figure_of_the_pages_is_the_recorded_one(figures: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--check"]) == 0, capsys.readouterr().out


def test_another_figure_is_seen_and_written(figures: ModuleType) -> None:
    claim = figures.Claim("page.md", r"of (\d+) and ([\d.]+) %", ["7", "0.3"])
    assert figures.written("It is 9 of 8\nand 0.25 % now.", claim) == "It is 9 of 7\nand 0.3 % now."
    with pytest.raises(LookupError, match=r"page\.md .*sentence"):
        figures.written("Nothing of it.", claim)


def test_the_recorded_benchmarks_hold_what_is_promised(figures: ModuleType) -> None:
    truth = json.loads((RESULTS / "truth.json").read_text())["results"]
    held = [row for row in truth["null"] if row["machine"] not in figures.UNSHOWN]
    assert max(row["false_winner_rate"] for row in held) <= 0.01
    assert min(row["typical_coverage"] for row in truth["power"]) >= 0.95
    for file in RESULTS.glob("soundness_[0-9]*.json"):
        assert all(found["points_lost"] == [] for found in json.loads(file.read_text()).values())
    certain = [r for r in json.loads((RESULTS / "soundness_orders.json").read_text()).values() if r["guaranteed"]]
    assert len(certain) == 4
    assert all(row[where]["with_a_lost_program"] == 0 for row in certain for where in row if where != "guaranteed")
    equal = json.loads((RESULTS / "real_truth_identical.json").read_text())["runs"]
    assert all(run["outcome"] == "inconclusive" and len(run["trials"]) == 12 for run in equal)
