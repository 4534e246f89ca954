"""What a block of steps takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.model.measurement import Pair

TURNS = "turns"
"""Mode of a comparison whose blocks are in pairs; the other one is `autotune.study.alone.MODE`."""


def block_step_s(step_times_s: Sequence[float]) -> float:
    """A block's step time, in seconds: its whole duration over its steps, for training pays for slow steps too."""
    return sum(step_times_s) / len(step_times_s)


def log_ratio(pair: Pair) -> float:
    """Logarithm of candidate over reference step time of one pair."""
    return math.log(block_step_s(pair.candidate_s) / block_step_s(pair.reference_s))
