"""Figures in words."""

from __future__ import annotations

import math

from autotune.model.proofs import format_growth
from autotune.model.units import format_interval


def test_an_interval_that_excludes_nothing_is_none() -> None:
    assert format_interval(0.951, 0.984) == "[0.951, 0.984]"
    assert format_interval(0.0, math.inf) == "-"
    assert format_interval(0.5, math.inf) == "[0.500, -]"


def test_no_growth_has_no_sign() -> None:
    assert format_growth(-3.0, -1.0) == "0.0 kB a step (reference 0.0)"
    assert format_growth(2e6, -2e4) == "2.0 MB a step (reference 0.0)"
    assert format_growth(-2000.0, 0.0) == "-2.0 kB a step (reference 0.0)"
