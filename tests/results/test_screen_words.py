from __future__ import annotations

import re

import pytest

from autotune.model.texts import text_lines
from autotune.results.screen_words import describe_screen
from tests.compiler.rules import DECOMPOSE, GRAPHS, P2P, Rules, screen


def test_a_study_is_told_what_acts_with_what() -> None:
    report = screen(Rules()).run({P2P: ["true"], DECOMPOSE: ["0"], GRAPHS: ["FUSION,CUSTOM_CALL"]})
    lines = "\n".join(describe_screen(report, has_values=True))
    assert re.search(f"{P2P} acts .* {DECOMPOSE}\n", lines)
    assert re.search(f"{GRAPHS} acts .* cuBLAS", lines)
    assert re.search(f"  {DECOMPOSE} .* {P2P}\\)", lines)


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\x1c", "\x85", "\u2028", "\x1b[2J"])
def test_a_value_stays_on_its_line(end: str) -> None:
    row = {"settings": {"a": f"1{end}PROVEN"}, "failure": f"no{end}PROVEN"}
    lines = text_lines("predict.txt.j2", rows=[row], agreement="good")
    assert len(lines) == 3
    assert end not in lines[0]
