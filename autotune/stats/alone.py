"""Alone as well as in turns: a neighbour that idles, or the block before, may slow one arm and not the other.

Turns cancel what hits both arms alike, and nothing else. Where a set's idle process slows the reference beside it, or
its blocks heat what the next one runs on, turns are wrong however often they are repeated, and only runs without a
neighbour show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.stats.estimates import finite
from autotune.stats.intervals import student_quantile
from autotune.stats.proof_plan import FIRST_LOOK, ProofPlan

ALONE_ERROR = 0.005
"""One-sided error, over all looks, of a veto; and of saying that a set is faster alone, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneLook:
    """What runs of each arm alone say of a gain that was measured in turns.

    Attributes:
        stop: Whether no more of them are needed.
        is_apart: Whether a set is slower alone, against the default alone, than in turns, beyond both intervals.
        is_seen: Whether it is surely faster alone as well.
        reason: In plain words.
        used: Pairs of runs alone on which that rests.
    """

    stop: bool
    is_apart: bool = False
    is_seen: bool = False
    reason: str
    used: int


def look_alone(alone: Sequence[float], turns: Sequence[float], *, most: int) -> AloneLook:
    """Goes through the looks at runs alone, up to the first at which the matter ends.

    Args:
        alone: Log ratio of each pair of runs, one arm after the other.
        turns: Log ratio of each pair of processes in turns that measured the gain.
        most: Pairs of runs alone after which it ends in any case.
    """
    ones, beside = finite(alone, least=0), finite(turns, least=2)
    plan = ProofPlan(base=max(most, FIRST_LOOK), error=ALONE_ERROR)
    gain = float(np.mean(beside))
    error = float(np.std(beside, ddof=1)) / math.sqrt(len(beside))
    of_turns = student_quantile(2 * ALONE_ERROR, len(beside) - 1) * error
    for count in range(FIRST_LOOK, len(ones) + 1):
        mean, sd = float(np.mean(ones[:count])), float(np.std(ones[:count], ddof=1))
        half = float(plan.half_widths([count])[0]) * sd / math.sqrt(count)
        if mean - gain > math.hypot(half, of_turns):
            return AloneLook(stop=True, is_apart=True, reason="alone and in turns differ beyond both", used=count)
        if mean + half < 0.0:
            return AloneLook(stop=True, is_seen=True, reason="faster alone, too", used=count)
        if count >= most:
            return AloneLook(stop=True, reason=f"not settled by {most} runs of each arm alone", used=count)
        at_most = math.hypot(float(plan.half_widths([most])[0]) * sd / math.sqrt(most), of_turns)
        if at_most > abs(gain):  # no gain at all could not be told from this one
            return AloneLook(stop=True, reason="runs alone differ too much here to tell", used=count)
    return AloneLook(stop=False, reason="not decided yet", used=len(ones))
