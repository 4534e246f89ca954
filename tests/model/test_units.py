"""Figures in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from autotune.model.proofs import format_growth
from autotune.model.units import (
    format_bytes,
    format_count,
    format_interval,
    format_joules,
    format_seconds,
    parse_bytes,
    parse_duration,
)
from tests.tables import toml_beside


def test_figures_in_words() -> None:
    assert format_interval(0.951, 0.984) == "[0.951, 0.984]"
    assert format_interval(0.0, math.inf) == "-"
    assert format_interval(0.5, math.inf) == "[0.500, -]"
    assert format_growth(-3.0, -1.0) == "0.0 kB a step (reference 0.0)"
    assert format_growth(2e6, -2e4) == "2.0 MB a step (reference 0.0)"
    assert format_growth(-2000.0, 0.0) == "-2.0 kB a step (reference 0.0)"
    told = ["12.3 ms", "1.5 s", "4 min 10 s", "0.3 µs", "-2 s"]
    assert [format_seconds(s) for s in (0.0123, 1.5, 250, 3e-7, -2)] == told
    assert [format_bytes(b) for b in (7, 436 << 20, 1010 << 20, None)] == ["7 B", "436 MiB", "1010 MiB", "-"]
    assert [format_count(c) for c in (6.74e9, 12.5e3, 7)] == ["6.74 G", "12.5 k", "7"]
    assert [format_joules(j) for j in (12.5, 3100, math.inf)] == ["12.5 J", "3.1 kJ", "-"]


CASES = toml_beside(__file__)
REFUSED = [*product([parse_duration], CASES["no_durations"]), *product([parse_bytes], CASES["no_sizes"])]


def test_durations_and_sizes_are_read() -> None:
    assert [[text, parse_duration(text)] for text, _ in CASES["durations"]] == CASES["durations"]
    assert [[text, parse_bytes(text)] for text, _ in CASES["sizes"]] == CASES["sizes"]


@pytest.mark.parametrize(("parse", "text"), REFUSED)
def test_what_is_no_duration_or_size_is_refused(parse: Callable[[Any], float], text: str | bool) -> None:
    with pytest.raises(ValueError, match=r"a (duration|size) must"):
        parse(text)
