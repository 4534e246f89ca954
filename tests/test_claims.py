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


def test_the_table_of_soundness_is_what_was_recorded_and_no_program_was_lost() -> None:
    text = (ROOT / "docs" / "screening.md").read_text()
    files = sorted(RESULTS.glob("soundness_[0-9]*.json"))
    assert {f.stem for f in files} == {"soundness_0.10.2", "soundness_0.12.0.1"}
    for file in files:
        for name, found in json.loads(file.read_text()).items():
            assert found["points_lost"] == found["points_changed_by_dead"] == []
            row = (
                f"| {name} | {file.stem.partition('_')[2]} | {found['points']} | {found['distinct_programs']} | "
                f"{len(found['dead'])} of {len(found['settings'])} | {found['compilations_of_the_screen']} of "
                f"{found['compilations_of_brute_force']} | 0 |"
            )
            assert row in text, row


def test_what_the_search_for_company_guarantees_was_never_missed() -> None:
    orders = json.loads((RESULTS / "soundness_orders.json").read_text())
    certain = [row for row in orders.values() if row["guaranteed"]]
    assert len(certain) == 4
    assert all(row[where]["with_a_lost_program"] == 0 for row in certain for where in row if where != "guaranteed")
