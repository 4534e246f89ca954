"""Figures in words."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h30m", 5400.0), ("250 ms", 0.25), (90, 90.0), ("08:00:00", 28800.0), ("1-12:00:30", 129630.0)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "08:00", "1-12", "-5m", "00:00:00", ""])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration must"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"), [("72GiB", 72 << 30), ("80GB", 80 * 10**9), ("1.5 MiB", 3 << 19), (1024, 1024), ("7B", 7)]
)
def test_sizes(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "72 gigs", "1e9", "nan", True, "9999999TiB", "1GiBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size must"):
        parse_bytes(text)
