from __future__ import annotations

import pytest

from autotune.compiler.reports import Effect, SettingReport
from autotune.results.screen_words import describe_company, describe_screen, screen_lines
from tests.compiler.rules import DECOMPOSE, GRAPHS, P2P, Rules, screen


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, ""),
        ({"together": True, "company": ("b",)}, "only together with b"),
        ({"together": True, "company": tuple("bcdefg")}, "only together with some of the others"),
        ({"together": True}, "only together with some of the others"),  # as older records have it
        ({"under": "with cuBLAS GEMMs"}, "only with cuBLAS GEMMs"),
        ({"together": True, "company": ("b", "c"), "under": "with X"}, "only together with b, c, only with X"),
    ],
)
def test_company_in_words(how: dict[str, object], said: str) -> None:
    setting = SettingReport.model_validate({"name": "a", "effect": Effect.LIVE, "stage": "program", **how})
    assert describe_company(setting) == said


def test_a_study_is_told_what_acts_with_what() -> None:
    report = screen(Rules()).run({P2P: ["true"], DECOMPOSE: ["0"], GRAPHS: ["FUSION,CUSTOM_CALL"]}, {})
    assert f"{P2P} acts only together with {DECOMPOSE}" in describe_screen(report)
    assert f"{GRAPHS} acts only with cuBLAS GEMMs" in describe_screen(report)
    assert f"  {DECOMPOSE} (only together with {P2P})" in screen_lines(report)
