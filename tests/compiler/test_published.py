"""What stands beside every prediction, and the published rows that it is made of."""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from autotune.compiler.predict import published, why_no_interval
from autotune.compiler.targets import parse_topology, target_names
from autotune.model.flags import parse_set
from benchmarks.published.report import interval

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
    """The interval is of one more framework: wider than that of rows of the same ones, and it holds every mean."""
    logs = [math.log(row["ratio"]) for name, row in FOUND.items() if is_dense(name)]
    low, high = (math.log(end) for end in published()["interval"])
    assert (high - low) / 2 > 2 * 1.96 * statistics.stdev(logs)
    assert all(low < -x < high for x in logs)
    near = sum(abs(x) <= math.log(1.2) for x in logs)
    assert f"{near} of {len(logs)} published runs" in published()["words"]


@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_the_interval_holds_for_a_framework_that_was_not_compared(spread: float) -> None:
    rng, inside = np.random.default_rng(1), 0
    for _ in range(400):
        *known, other = 0.05 + spread * rng.standard_normal(4)
        low, high = interval([np.exp(mean + 0.01 * rng.standard_normal(9)) for mean in known])
        inside += low < math.exp(-other) < high
    assert 366 <= inside <= 394  # 95 in 100, within 3 standard errors


@pytest.mark.parametrize(
    ("entry", "options", "why"),
    [
        ("llama3-8b", {}, None),
        ("llama3-70b", {"seq": 8192}, None),
        ("gpt2-124m", {"seq": 2048, "attention": "xla"}, None),
        ("gpt2-124m", {"seq": 4096, "attention": "xla"}, "attention xla"),
        ("llama3-8b", {"attention": "xla"}, "attention xla"),
        ("llama3-8b", {"seq": 131072}, "attention by default"),
        ("llama3-8b", {"dtype": "float8"}, "float8"),
        ("mixtral-8x7b", {}, "mixtral"),
        ("train:build", {}, "your own"),
    ],
)
def test_what_was_not_compared_has_no_interval(entry: str, options: dict[str, Any], why: str | None) -> None:
    found = why_no_interval(entry, options)
    assert found is None if why is None else why in (found or "")


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
