"""Runs alone against turns that lie: brute force over machines on which a neighbour, or the block before, tells."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.stats.proof import AloneLook, look_alone

STUDIES = 400


def looks(*, bias: float, gain: float, pair_sd: float, alone_sd: float, most: int = 12) -> list[AloneLook]:
    """A set of this gain that turns see as better by `bias`, measured by 6 pairs in turns and then alone."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(STUDIES):
        turns = -gain - bias + pair_sd * rng.standard_normal(6)
        alone: list[float] = []
        while not (found_now := look_alone(alone, turns.tolist(), most=most)).stop:
            alone.append(float(-gain + alone_sd * rng.standard_normal()))
        found.append(found_now)
    return found


@pytest.mark.parametrize("bias", [0.02, 0.03])
@pytest.mark.parametrize("sd", [0.002, 0.004])
def test_a_gain_that_only_turns_see_hardly_ever_passes(bias: float, sd: float) -> None:
    found = looks(bias=bias, gain=0.0, pair_sd=sd, alone_sd=sd)
    assert np.mean([not f.is_apart for f in found]) <= 0.01


@pytest.mark.parametrize(
    ("gain", "pair_sd", "alone_sd"), [(0.03, 0.004, 0.004), (0.08, 0.01, 0.02), (0.02, 0.018, 0.1)]
)
def test_an_honest_gain_is_hardly_ever_vetoed(gain: float, pair_sd: float, alone_sd: float) -> None:
    found = looks(bias=0.0, gain=gain, pair_sd=pair_sd, alone_sd=alone_sd)
    assert np.mean([f.is_apart for f in found]) <= 0.01


def test_where_runs_alone_cannot_tell_they_say_so_soon() -> None:
    found = looks(bias=0.0, gain=0.02, pair_sd=0.01, alone_sd=0.2)
    assert all(f.used == 4 for f in found if not f.is_apart)
    assert any("differ too much" in f.reason for f in found)


def test_equal_gains_are_seen_alone_too() -> None:
    found = looks(bias=0.0, gain=0.05, pair_sd=0.004, alone_sd=0.006)
    assert np.mean([f.reason == "faster in isolated runs, too" for f in found]) >= 0.95
    assert np.mean([f.used for f in found]) < 7
