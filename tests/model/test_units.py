"""Figures in words."""

from __future__ import annotations

import math

from autotune.model.units import format_interval


def test_an_interval_that_excludes_nothing_is_none() -> None:
    assert format_interval(0.951, 0.984) == "[0.951, 0.984]"
    assert format_interval(0.0, math.inf) == "-"
    assert format_interval(0.5, math.inf) == "[0.500, -]"
