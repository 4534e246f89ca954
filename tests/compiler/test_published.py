"""What stands beside every prediction, and the published rows that it is made of."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from autotune.compiler.predict import PublishedError, predict_step, published_error
from autotune.compiler.program import CompiledProgram, Op, OpKind
from autotune.compiler.targets import Topology, load_target, parse_topology, target_names
from autotune.model import parse_set
from autotune.results.screen_words import predicted_lines

ROOT = Path(__file__).parents[2]
ROWS: dict[str, Any] = tomllib.loads((ROOT / "benchmarks/published/rows.toml").read_text(encoding="utf-8"))
(RESULTS,) = sorted((ROOT / "benchmarks/results").glob("published_0*.json"))
FOUND: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))


def is_dense(name: str) -> bool:
    row = ROWS["rows"][name]
    return row["options"].get("dtype") != "float8" and not row["entry"].startswith("mixtral")


def program() -> CompiledProgram:
    kernel = Op(kind=OpKind.KERNEL, name="k", bytes=1e9)
    return CompiledProgram(fingerprint="f", versions={}, compile_s=0.0, memory=None, schedule=(kernel,))


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


def test_about_a_third_of_the_rows_is_kept_and_their_names_alone_decide() -> None:
    for name, row in FOUND.items():
        assert row["held_out"] == (int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0)
    assert 0.2 < sum(row["held_out"] for row in FOUND.values()) / len(FOUND) < 0.5


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


def test_picture_has_the_figures_of_the_results() -> None:
    picture = (ROOT / "docs/predictions.svg").read_text(encoding="utf-8")
    for name, row in FOUND.items():
        assert f"{name}: {row['ratio']:.3f}" in picture


def test_what_is_told_of_frameworks_follows_from_the_results() -> None:
    page = " ".join((ROOT / "docs/predictions.md").read_text(encoding="utf-8").split())

    def longer(pattern: str) -> list[float]:
        """By how many per cent runs took longer than predicted, the least first."""
        return sorted(100 / row["ratio"] - 100 for name, row in FOUND.items() if re.fullmatch(pattern, name))

    pax = longer(r"dgxc_gpt3_5b_\d+|pax_gpt3_\d+b_h100_\d+")
    assert len(pax) == 6
    assert f"Pax of early 2024 on H100 took {pax[0]:.0f} to {pax[-1]:.0f} % longer" in page
    on_a100 = longer(r"pax_gpt3_\d+b_a100_\d+")
    assert f"on A100 is met within {math.ceil(max(map(abs, on_a100)))} %" in page
    maxtext, gcp = longer(r"dgxc_llama\d_70b_\d+"), longer(r"a3_llama2_7b_\d+")
    assert f"on DGX H100 took up to {-maxtext[0]:.0f} % less than predicted, on GCP's A3 up to {gcp[-1]:.0f} %" in page
    off = {name: abs(100 * row["ratio"] - 100) for name, row in FOUND.items()}
    dgx, large = (math.ceil(max(o for n, o in off.items() if part in n)) for part in ("70b_fp8", "175b_fp8"))
    small = longer(r"dgxc_gpt3_5b_fp8_\d+")
    assert f"MaxText's rows are met within {dgx} %, Pax's at 175B within {large} %" in page
    assert f"small model took {small[0]:.0f} to {small[-1]:.0f} % longer than predicted" in page


def test_interval_covers_the_runs_that_it_is_made_of_and_grows_with_their_spread() -> None:
    near = PublishedError({str(i): r for i, r in enumerate((0.95, 1.0, 1.05, 1.02, 0.98))})
    far = PublishedError({str(i): r for i, r in enumerate((0.5, 1.0, 2.0, 1.5, 0.7))})
    assert (near.within, far.within) == (5, 1)
    (a, b), (c, d) = near.interval(2.0), far.interval(2.0)
    assert c < a < 2.0 < b < d
    # What is always predicted at half of what was published is expected at twice of what is predicted.
    low, high = PublishedError({"x": 0.5, "y": 0.5, "z": 0.5}).interval(1.0)
    assert (low, high) == pytest.approx((2.0, 2.0))


def test_every_prediction_has_an_interval() -> None:
    target, topology = load_target("h100-sxm"), Topology(1, 1)
    plain = predict_step(program(), target, topology)
    assert plain.interval_s is not None
    assert plain.interval_s[0] < plain.interval_s[1]
    row = {"settings": {}, **plain.to_json()}
    text = "\n".join(predicted_lines([row]))
    assert "measured 95 % between" in text
    assert f"in {published_error().within} of {len(published_error().ratios)} published runs" in text
