"""What a block of steps takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.model.measurement import Pair, WorkPerStep

TURNS = "turns"
"""Mode of a comparison whose blocks are in pairs; the other one is `autotune.study.alone.MODE`."""


def block_step_s(step_times_s: Sequence[float]) -> float:
    """A block's step time, in seconds: its whole duration over its steps, for training pays for slow steps too."""
    return sum(step_times_s) / len(step_times_s)


def log_ratio(pair: Pair, work: WorkPerStep | None = None) -> float:
    """Logarithm of candidate over reference of one pair: of step time, or of time per unit where `work` differs."""
    shift = math.log(work.ratio) if work is not None else 0.0
    return math.log(block_step_s(pair.candidate_s) / block_step_s(pair.reference_s)) - shift
