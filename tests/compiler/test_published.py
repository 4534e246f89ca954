"""What stands beside every prediction, and the published rows that it is made of."""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from autotune.compiler.predict import PublishedError, published_error
from autotune.compiler.targets import parse_topology, target_names
from autotune.model.flags import parse_set

ROOT = Path(__file__).parents[2]
ROWS: dict[str, Any] = tomllib.loads((ROOT / "benchmarks/published/rows.toml").read_text(encoding="utf-8"))
(RESULTS,) = sorted((ROOT / "benchmarks/results").glob("published_0*.json"))
FOUND: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))


def is_dense(name: str) -> bool:
    row = ROWS["rows"][name]
    return row["options"].get("dtype") != "float8" and not row["entry"].startswith("mixtral")


def test_every_row_names_what_is_needed_to_compile_it_and_where_it_is_from() -> None:
    assert len(ROWS["rows"]) >= 25
    for name, row in ROWS["rows"].items():
        topology = parse_topology(row["topology"])
        assert row["target"] in target_names(), name
        assert row["measured_s"] > 0, name
        assert row["source"], name
        assert parse_set(ROWS["flags"][row["flags"]]), name
        assert math.prod(row["options"]["mesh"].values()) == topology.device_count, name
        assert row["options"]["batch"] % topology.device_count == 0, name


def test_results_are_of_the_rows_of_today() -> None:
    assert FOUND.keys() == ROWS["rows"].keys()
    for name, row in FOUND.items():
        assert row["ratio"] == pytest.approx(row["step_s"] / ROWS["rows"][name]["measured_s"]), name


def test_what_predictions_carry_is_what_the_results_say() -> None:
    expected = {n: pytest.approx(row["ratio"], abs=1e-3) for n, row in FOUND.items() if is_dense(n)}
    assert dict(published_error().ratios) == expected


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


def test_interval_covers_the_runs_that_it_is_made_of_and_grows_with_their_spread() -> None:
    near = PublishedError({str(i): r for i, r in enumerate((0.95, 1.0, 1.05, 1.02, 0.98))})
    far = PublishedError({str(i): r for i, r in enumerate((0.5, 1.0, 2.0, 1.5, 0.7))})
    assert (near.within, far.within) == (5, 1)
    (a, b), (c, d) = near.interval(2.0), far.interval(2.0)
    assert c < a < 2.0 < b < d
    # What is always predicted at half of what was published is expected at twice of what is predicted.
    low, high = PublishedError({"x": 0.5, "y": 0.5, "z": 0.5}).interval(1.0)
    assert (low, high) == pytest.approx((2.0, 2.0))
