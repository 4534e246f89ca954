"""What a block of steps takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.model.measurement import Arm, Pair, WorkPerStep
from autotune.model.turn_sizes import TurnSizes

TURNS = "turns"
"""Mode of a comparison whose blocks are in pairs; the other one is `autotune.study.compare.SANDWICH`."""


def block_step_s(step_times_s: Sequence[float]) -> float:
    """A block's step time, in seconds: its whole duration over its steps, for training pays for slow steps too."""
    return sum(step_times_s) / len(step_times_s)


def log_ratio(pair: Pair, work: WorkPerStep | None = None) -> float:
    """Logarithm of candidate over reference of one pair: of step time, or of time per unit where `work` differs."""
    shift = math.log(work.ratio) if work is not None else 0.0
    return math.log(block_step_s(pair.candidate_s) / block_step_s(pair.reference_s)) - shift


def is_divided_as_told(pair: Pair, sizes: TurnSizes, *, is_alone: bool = False) -> bool:
    """Whether a pair counts the steps that the study's sizes say, no more and no fewer: it follows from their times.

    Args:
        pair: With all steps of its blocks.
        sizes: Of the study.
        is_alone: Whether it is known to hold runs alone; if not, it may: a study may come to measure one at a time.
    """
    counted = (pair.reference_s, pair.candidate_s)
    ways = (sizes.split_alone,) if is_alone else (sizes.split, sizes.split_alone)
    return any(tuple(way(pair.ran_s(arm))[1] for arm in Arm) == counted for way in ways)
