"""What the committed results of `benchmarks.published_fit` say, and that the page says the same."""

from __future__ import annotations

import json

import pytest

from benchmarks.published_fit import HERE, configurations, page

(FILE,) = sorted((HERE / "results").glob("published_fit_*.json"))
FOUND = json.loads(FILE.read_text(encoding="utf-8"))
JAXLIB = FILE.stem.removeprefix("published_fit_")


def test_the_page_is_that_of_the_results() -> None:
    assert (HERE / "results/published_fit.md").read_text(encoding="utf-8") == page(FOUND, JAXLIB)


@pytest.mark.parametrize("name", FOUND)
def test_results_are_of_what_is_published_and_studied_today(name: str) -> None:
    known = configurations()[name]
    assert {key: FOUND[name][key] for key in known} == known


def test_whatever_was_compiled_fits_with_the_attention_that_presets_choose() -> None:
    chosen = {name: row["compiled"]["auto"] for name, row in FOUND.items() if "auto" in row["compiled"]}
    assert {row["attention"] for row in chosen.values()} <= {"cudnn", None}  # None: a model without attention
    assert [name for name, row in chosen.items() if not row["fits"]] == []


def test_a_published_configuration_does_not_fit_without_fused_attention() -> None:
    assert not FOUND["maxtext_llama2_7b_1vm"]["compiled"]["xla"]["fits"]
