from __future__ import annotations

import pytest

from autotune.compiler.screen import Effect, SettingReport
from autotune.results.screen_words import describe_screen, format_interaction, screen_lines
from tests.compiler.rules import DECOMPOSE, GRAPHS, P2P, Rules, screen


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, ""),
        ({"interacts_with": ("b",)}, "only together with b"),
        ({"interacts_with": tuple("bcdefg")}, "only together with some of the others"),
        ({"under": "with cuBLAS GEMMs"}, "only with cuBLAS GEMMs"),
        ({"interacts_with": ("b", "c"), "under": "with X"}, "only together with b, c, only with X"),
    ],
)
def test_an_interaction_in_words(how: dict[str, object], said: str) -> None:
    setting = SettingReport.model_validate({"name": "a", "effect": Effect.ACTIVE, "stage": "program", **how})
    assert format_interaction(setting) == said


def test_a_study_is_told_what_acts_with_what() -> None:
    report = screen(Rules()).run({P2P: ["true"], DECOMPOSE: ["0"], GRAPHS: ["FUSION,CUSTOM_CALL"]}, {})
    assert f"{P2P} acts only together with {DECOMPOSE}" in describe_screen(report)
    assert f"{GRAPHS} acts only with cuBLAS GEMMs" in describe_screen(report)
    assert f"  {DECOMPOSE} (only together with {P2P})" in screen_lines(report)
