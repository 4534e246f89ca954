"""Does a long run keep taking memory? Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SAMPLES = 6
"""In the second half of a run, for its growth to be judged."""

PARTS = 3
"""A leak goes on: from each of so many parts of the second half to the next, by `PART_SHARE` of its least slope."""

PART_SHARE = 0.5

LEAST_GROWTH = 16 << 20
"""Bytes by which a process must have grown over the second half: heaps of an honest one come and go by less."""

LEAST_PER_STEP = 4096
"""Bytes a step that matter however fast the steps are: a page."""

PER_DAY = 4 << 30
"""Bytes a day that matter: a job of a week would take 28 GiB, what a rank of a large machine has to spare. At a step of
0.1 s that is 5 KB a step, at one of 10 s 0.5 MB."""

LEVEL = 0.99
DAY_S = 86_400.0

Samples = Sequence[tuple[int, int]]
"""Steps so far and bytes in use then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that both arms take for each step, in bytes, over the second half of their runs."""

    candidate: float
    reference: float


def find_leak(candidate: Samples, reference: Samples, *, step_s: float) -> Leak | None:
    """Whether a candidate takes memory step by step, beyond what the reference takes, and so much that it matters.

    The slope is Theil and Sen's, over the second half of the run: what is allocated while a program warms up, or once,
    does not count.

    Args:
        candidate: Samples in order.
        reference: Likewise; too few of them count as no growth.
        step_s: A step of the candidate, in seconds: what matters is what a day of such steps takes.
    """
    if not _goes_on(candidate, 0.0):  # which is nearly always so, and known sooner than a slope
        return None
    mine, base = _slope(candidate), _slope(reference) or (0.0, 0.0, 0.0)
    if mine is None or not _goes_on(candidate, mine[1]):
        return None
    surely = mine[1] - (base[2] if _goes_on(reference, base[1]) else 0.0)
    if surely <= max(LEAST_PER_STEP, PER_DAY / DAY_S * step_s):
        return None
    return Leak(candidate=mine[0], reference=base[0])


def memory_growth(samples: Samples) -> float | None:
    """Bytes a step over the second half of a run; None where there are too few samples."""
    half = _second_half(samples)
    if len(half) < LEAST_SAMPLES:
        return None
    # The slope of `_slope`, to the bit: without its interval it needs no import of half a second.
    later, sooner = np.nonzero(half[:, 0, np.newaxis] > half[:, 0])
    steps, grown = (half[later] - half[sooner]).T
    return float(np.median(grown / steps))


def _second_half(samples: Samples) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Samples after half of the steps."""
    array = np.asarray(samples, dtype=np.float64).reshape(-1, 2)
    return array[array[:, 0] > array[-1, 0] / 2.0] if len(array) else array


def _slope(samples: Samples) -> tuple[float, float, float] | None:
    """Bytes a step over the second half, with its interval; None where there are too few samples."""
    half = _second_half(samples)
    if len(half) < LEAST_SAMPLES:
        return None
    from scipy.stats import theilslopes  # half a second to import, so not before it is needed

    found = theilslopes(half[:, 1], half[:, 0], LEVEL)
    return float(found.slope), float(found.low_slope), float(found.high_slope)


def _goes_on(samples: Samples, slope: float) -> bool:
    """Whether memory grows in every part of a run, and by more than heaps do: one that was enlarged once is no leak."""
    half = _second_half(samples)
    if len(half) < LEAST_SAMPLES:
        return False
    marks = np.asarray([np.median(part, axis=0) for part in np.array_split(half, PARTS + 1)])
    steps, grown = np.diff(marks[:, 0]), np.diff(marks[:, 1])
    return float(np.sum(grown)) >= LEAST_GROWTH and bool(np.all(grown >= PART_SHARE * slope * steps))
