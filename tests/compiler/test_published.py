"""What stands beside every prediction, and the published rows that it is made of."""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr, t

from autotune.compiler.predict import PUBLISHED, why_no_interval
from autotune.compiler.targets import parse_topology, target_names
from autotune.model.flags import parse_set
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ROOT = Path(__file__).parents[2]
ROWS: dict[str, Any] = tomllib.loads((ROOT / "benchmarks/published/rows.toml").read_text(encoding="utf-8"))
(RESULTS,) = sorted((ROOT / "benchmarks/results").glob("published_0*.json"))
FOUND: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))


def is_dense(name: str) -> bool:
    row = ROWS["rows"][name]
    return row["options"].get("dtype") != "float8" and not row["entry"].startswith("mixtral")


def test_every_row_names_what_is_needed_to_compile_it_and_where_it_is_from_and_has_a_result() -> None:
    assert FOUND.keys() == ROWS["rows"].keys()
    for name, row in ROWS["rows"].items():
        topology = parse_topology(row["topology"])
        assert row["target"] in target_names(), name
        assert row["source"], name
        assert parse_set(ROWS["flags"][row["flags"]]), name
        assert math.prod(row["options"]["mesh"].values()) == topology.device_count, name
        assert row["options"]["batch"] % topology.device_count == 0, name
        assert FOUND[name]["ratio"] == pytest.approx(FOUND[name]["step_s"] / row["measured_s"]), name


def test_what_predictions_carry_is_what_the_results_say() -> None:
    """The interval is of one more framework: wider than that of rows of the same ones, and it holds every mean."""
    of_frameworks = defaultdict(list)
    for name in filter(is_dense, FOUND):
        source = ROWS["rows"][name]["source"].lower()
        of_frameworks[next((f for f in ("axlearn", "pax") if f in source), "")].append(math.log(FOUND[name]["ratio"]))
    logs, means = (
        [x for found in of_frameworks.values() for x in found],
        [*map(statistics.fmean, of_frameworks.values())],
    )
    low, high = (math.log(end) for end in PUBLISHED["interval"])
    half = t.ppf(0.975, len(means) - 1) * statistics.stdev(means) * math.sqrt(1 + 1 / len(means))
    assert (low, high) == pytest.approx((-statistics.fmean(means) - half, -statistics.fmean(means) + half), abs=1e-3)
    assert all(low < -x < high for x in logs)
    near = sum(abs(x) <= math.log(1.2) for x in logs)
    assert f"{near} of {len(logs)} published runs" in PUBLISHED["words"]


@pytest.mark.parametrize(("entry", "options", "why"), CASES["intervals"])
def test_what_was_not_compared_has_no_interval(entry: str, options: dict[str, Any], why: str) -> None:
    found = why_no_interval(entry, options)
    assert found is None if not why else why in (found or "")


def test_predictions_meet_what_was_published() -> None:
    logs = [math.log(row["ratio"]) for name, row in FOUND.items() if is_dense(name)]
    assert len(logs) >= 25
    assert abs(statistics.fmean(logs)) < 0.05
    assert statistics.stdev(logs) < 0.12
    late = [math.log(row["ratio"]) for name, row in FOUND.items() if ROWS["rows"][name].get("came_late")]
    assert len(late) == 20
    assert abs(statistics.fmean(late)) < 0.05
    assert statistics.stdev(late) < 0.12
    # Of MFU: a rank by step time mostly follows the size of the model.
    predicted = [row["mfu"] for name, row in FOUND.items() if is_dense(name)]
    measured = [row["mfu"] * row["ratio"] for name, row in FOUND.items() if is_dense(name)]
    assert spearmanr(predicted, measured).statistic > 0.85
