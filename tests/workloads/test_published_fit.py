"""What the committed results of the benchmark `published_fit` say; it writes the page from them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
(FILE,) = sorted((BENCHMARKS / "results").glob("published_fit_*.json"))
FOUND = json.loads(FILE.read_text(encoding="utf-8"))
PUBLISHED = tomllib.loads((BENCHMARKS / "published_fit.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FOUND)
def test_results_are_of_what_is_published_and_studied_today(name: str) -> None:
    if name in PUBLISHED:
        options = PUBLISHED[name]["options"]
    else:
        study = BENCHMARKS.parent / "studies" / f"{name.removeprefix('study_')}.toml"
        options = tomllib.loads(study.read_text(encoding="utf-8"))["workload"].get("options", {})
    assert FOUND[name]["options"] == options


def test_whatever_was_compiled_fits_with_the_attention_that_presets_choose() -> None:
    chosen = {name: row["compiled"]["auto"] for name, row in FOUND.items() if "auto" in row["compiled"]}
    assert {row["attention"] for row in chosen.values()} <= {"cudnn", None}  # None: a model without attention
    assert [name for name, row in chosen.items() if not row["fits"]] == []
