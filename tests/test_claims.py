"""Figures in README are those of the recorded benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_the_share_of_false_winners_is_the_recorded_one() -> None:
    told = re.search(r"of ([\d,]+) studies of identical candidates (\w+) names a winner", README)
    assert told is not None
    rows = json.loads((RESULTS / "truth.json").read_text())["results"]["null"]
    assert int(told[1].replace(",", "")) == sum(row["studies"] for row in rows)
    assert {"none": 0, "one": 1}[told[2]] == sum(row["false_winners"] for row in rows)


def test_the_coverage_of_the_proof_is_the_recorded_one() -> None:
    told = re.search(r"the confirmed interval holds the truth in (\d+) to (\d+) of 100 cases", README)
    assert told is not None
    shares = [row["confirmed"] for row in json.loads((RESULTS / "truth.json").read_text())["results"]["coverage"]]
    assert (int(told[1]), int(told[2])) == (round(100 * min(shares)), round(100 * max(shares)))
