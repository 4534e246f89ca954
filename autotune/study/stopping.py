"""When the search has found what there is to find: by the model of its trials, and by what the rest is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.model import SearchSpec, Stopped, TrialResult

UNLIKELY = 0.05
"""Chance that there is a gain worth proving, below which nothing more is tried."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What the trials leave to gain over the set that promises most, by the model.

    Attributes:
        chance: That a set of the space is faster by more than the least gain worth proving.
        expected: How much of the step time knowing the fastest set of the space would save, gains that are not worth
            proving left out: one more trial cannot be expected to save more.
    """

    chance: float
    expected: float


def why_stop(search: SearchSpec, rest: Rest, results: Sequence[TrialResult], *, least: float, devices: int) -> Stopped:
    """What is known of another trial's worth; `Stopped.is_over` says whether the search ends by it.

    Args:
        search: What the study asks for.
        rest: What is left to gain.
        results: All trials.
        least: Least gain worth proving, as a share.
        devices: That a trial holds.
    """
    hours = sum(r.duration_s for r in results) / max(1, len(results)) * devices / 3600
    is_told = search.remaining_gpu_hours is not None
    return Stopped(
        asked=search.trials,
        least=least,
        chance=round(rest.chance, 4),
        expected=round(rest.expected, 6),
        unlikely=UNLIKELY,
        trial_hours=round(hours, 6) if is_told else None,
        remaining_hours=search.remaining_gpu_hours,
    )
