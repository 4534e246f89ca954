from __future__ import annotations

from autotune.results.screen_words import describe_screen, screen_lines
from tests.compiler.rules import DECOMPOSE, GRAPHS, P2P, Rules, screen


def test_a_study_is_told_what_acts_with_what() -> None:
    report = screen(Rules()).run({P2P: ["true"], DECOMPOSE: ["0"], GRAPHS: ["FUSION,CUSTOM_CALL"]}, {})
    assert f"{P2P} acts only together with {DECOMPOSE}" in describe_screen(report)
    assert f"{GRAPHS} acts only with cuBLAS GEMMs" in describe_screen(report)
    assert f"  {DECOMPOSE} (only together with {P2P})" in screen_lines(report)
