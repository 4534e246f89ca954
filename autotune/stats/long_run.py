"""Total time, stalls, late slow-downs and memory leaks: what the typical step of a comparison hides.

The middle of many pairs of blocks is not moved by a stall that comes once in forty steps, but training pays for it: a
set that is slower in total is no winner.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from autotune.stats.estimates import NORMAL, Counted, Estimate, estimate_processes, student_quantile

STALL = 3.0
"""A step that takes more than this many times what nine of ten steps take, of either arm, is a stall."""

USUAL = 0.9
"""Share of an arm's steps that its usual step is not shorter than."""

SEGMENTS = 10
"""Parts into which a long run is cut: enough for an interval, each long against a burst of the machine."""

SOAK_LOOKS, LEAK_LOOKS = 5, 2
"""How often a long run is looked at, at most, each time in new processes; memory does not depend on what else the
machine does. Until the last look, stalls are counted as many as might well have come instead: a look that holds few of
them does not clear a set."""

ALPHA_STALLS = (0.25, 0.01)
"""Share of honest sets in whose long run stalls may be called more than the reference's, in one look (two to none) and
in two or more together (seven to none)."""

ALPHA_SOAK = 0.005
"""One-sided error with which the last look must say that a long run is slower, by all runs together."""

LEAST_LOSS, LOSS_SHARE = 0.005, 0.25
"""What a long run may be slower than the proof says: so much, or so large a share of a larger gain."""

ALPHA_PROOF = 0.02
"""Share of honest sets whose stalls may be called more than the reference's, over all processes of a proof."""

ALPHA_GAP = 0.001
"""Likewise of total times that are above typical steps: few processes, and stalls make what they differ by skew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """The stalls of one arm."""

    steps: Annotated[int, Field(ge=1, le=2**53)]
    count: Counted
    """Steps that took more than `STALL` times the usual one of either arm."""
    typical_s: Annotated[float, Field(ge=1e-12, le=1e15)]
    """The median step, in seconds."""
    lost_s: Annotated[float, Field(ge=0, le=1e15)]
    """What the stalls took beyond a typical step each, in seconds."""

    @property
    def excess(self) -> float:
        """Time lost in stalls over the time of as many typical steps."""
        return self.lost_s / (self.steps * self.typical_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalTime:
    """Total times of both arms of one pair of processes, nothing trimmed."""

    log_ratio: Annotated[float, Field(ge=-20.7, le=20.7)]
    """log(total time of the candidate / that of the reference), per unit of work."""
    reference: Stalls
    candidate: Stalls


def find_stalls(step_times_s: Sequence[float], beside_s: Sequence[float] = ()) -> Stalls:
    """Counts the stalls of one arm.

    Args:
        step_times_s: Duration of each step in seconds, in any order, at least one.
        beside_s: Those of the other arm: what is usual there is no stall here.
    """
    typical = statistics.median(step_times_s)
    limit = STALL * max(float(np.quantile(times, USUAL)) for times in (step_times_s, beside_s) if len(times))
    found = [t for t in step_times_s if t > limit]
    return Stalls(steps=len(step_times_s), count=len(found), typical_s=typical, lost_s=sum(t - typical for t in found))


def add_stalls(parts: Sequence[Stalls]) -> Stalls:
    """Stalls of one arm over several processes, at least one."""
    return Stalls(
        steps=sum(p.steps for p in parts),
        count=sum(p.count for p in parts),
        typical_s=statistics.median(p.typical_s for p in parts),
        lost_s=sum(p.lost_s for p in parts),
    )


def compare_totals(reference_s: Sequence[float], candidate_s: Sequence[float], *, work_ratio: float = 1.0) -> TotalTime:
    """Total times of one pair of processes.

    Args:
        candidate_s: Duration of every step of the candidate.
        work_ratio: What a step of the candidate does over what one of the reference does.
    """
    means = [sum(times) / len(times) for times in (candidate_s, reference_s)]
    return TotalTime(
        log_ratio=math.log(means[0] / means[1]) - math.log(work_ratio),
        reference=find_stalls(reference_s, candidate_s),
        candidate=find_stalls(candidate_s, reference_s),
    )


def slower_total(totals: Sequence[TotalTime], log_ratios: Sequence[float], typical: Estimate) -> Estimate | None:
    """The estimate of total time over pairs of processes, if it takes the gain back that the typical step promises.

    That is so if the total is not below the reference's and the candidate has more stalls, or its total is above its
    typical step in process after process; or if the total is an `apart_total` that is not surely below the reference's.

    Args:
        totals: Of each pair of processes, at least two.
        log_ratios: log of the typical step, candidate over reference, of the same pairs of processes.
        typical: What the proof makes of them.
    """
    if (apart := apart_total(totals, log_ratios, typical)) is not None and apart.high >= 1.0:
        return apart
    total = estimate_processes([t.log_ratio for t in totals])
    if total.ratio < 1.0:
        return None
    mine, base = (add_stalls([getattr(t, arm) for t in totals]) for arm in ("candidate", "reference"))
    return total if _goes_on(totals, log_ratios) or _has_more(mine, base, alpha=ALPHA_PROOF) else None


def apart_total(totals: Sequence[TotalTime], log_ratios: Sequence[float], typical: Estimate) -> Estimate | None:
    """The estimate of total time, if its interval lies above that of the typical step, in process after process."""
    total = estimate_processes([t.log_ratio for t in totals])
    return total if total.low > typical.high and _goes_on(totals, log_ratios) else None


def _goes_on(totals: Sequence[TotalTime], log_ratios: Sequence[float]) -> bool:
    """Whether total times are surely above typical steps, in process after process."""
    gaps = np.asarray([t.log_ratio - r for t, r in zip(totals, log_ratios, strict=True)])
    error = float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps))
    return float(np.mean(gaps)) > student_quantile(2 * ALPHA_GAP, len(gaps) - 1) * error


# ---------------------------------------------------------------------- long runs, one arm after the other


def stalled_total(candidate: Sequence[Stalls], reference: Sequence[Stalls], *, log_ratio: float) -> float | None:
    """Ratio of total times with the stalls of long runs, if they are the candidate's own and take its gain back.

    What a stall costs is counted against its own arm's typical step, so a machine that is slower in one of the two runs
    does not matter.

    Args:
        candidate: Stalls of its long run, or of several: then they must show in the last one, and be sure in all.
        log_ratio: log of the typical step, candidate over reference, per unit of work.
    """
    mine, base = add_stalls(candidate), add_stalls(reference)
    if not _has_more(candidate[-1], reference[-1], alpha=ALPHA_STALLS[0]):
        return None
    if len(candidate) > 1 and not _has_more(mine, base, alpha=ALPHA_STALLS[1]):
        return None
    doubt = 2.0 / math.sqrt(mine.count) if len(candidate) < SOAK_LOOKS else 0.0
    ratio = math.exp(log_ratio) * (1.0 + (1.0 + doubt) * mine.excess) / (1.0 + base.excess)
    return ratio if ratio >= 1.0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRunRatio:
    """Total times of one long run of each arm, per unit of work, as logs of candidate over reference."""

    whole: float
    """Of all steps."""
    late: float
    """Of the second half of the steps."""
    error: float
    """Standard error of the first, from the segments of both runs."""


def long_run_ratio(candidate: Sequence[float], reference: Sequence[float], *, work_ratio: float) -> LongRunRatio:
    """Compares long runs that followed each other.

    Args:
        candidate: Mean step of each of its segments, in seconds, at least three.
        work_ratio: What a step of the candidate does over what one of the reference does.
    """
    arms = [np.asarray(candidate), np.asarray(reference)]
    shift = math.log(work_ratio)
    whole, late = (
        math.log(np.mean(arms[0][part]) / np.mean(arms[1][part])) - shift
        for part in (slice(None), slice(len(arms[0]) // 2, None))
    )
    error = math.sqrt(sum(float(np.var(np.log(x), ddof=1)) / len(x) for x in arms))
    return LongRunRatio(whole=whole, late=late, error=error)


def lost_gain(looks: Sequence[LongRunRatio], *, log_ratio: float | None, process_sd: float) -> float | None:
    """Ratio of total times of long runs, or of their second halves, if the gain is not there; None if it is.

    It is not there if a set is not faster in total, or slower than its proof says by more than `LEAST_LOSS` and
    `LOSS_SHARE` of the gain. The last look and the mean of all must say so, and at the last possible one that must be
    sure by the segments and by the runs.

    Args:
        log_ratio: log of the ratio that was proven, candidate over reference; None where none was.
        process_sd: Standard deviation of the log ratio from one pair of processes to the next.
    """
    gain = -min(0.0, log_ratio or 0.0)
    bound = min(0.0, max(LEAST_LOSS, LOSS_SHARE * gain) - gain)
    errors = [x.error for x in looks]
    for found, error in (
        ([x.whole for x in looks], errors),
        ([x.late for x in looks], [math.sqrt(2) * e for e in errors]),
    ):
        mean = float(np.mean(found))
        if found[-1] <= bound or mean <= bound:
            continue
        if len(looks) < SOAK_LOOKS or mean - bound > _sure_distance(found, error, process_sd=process_sd):
            return math.exp(mean)
    return None


def _sure_distance(found: Sequence[float], errors: Sequence[float], *, process_sd: float) -> float:
    """By how much a mean over looks must be above a bound to be surely so."""
    inside = math.sqrt(sum(error**2 + process_sd**2 for error in errors)) / len(errors)
    between = float(np.std(found, ddof=1)) / math.sqrt(len(found))
    return max(NORMAL.inv_cdf(1.0 - ALPHA_SOAK) * inside, student_quantile(2 * ALPHA_SOAK, len(found) - 1) * between)


def segments(step_times_s: Sequence[float]) -> tuple[float, ...]:
    """Mean step time of each of `SEGMENTS` equal parts of a run, in seconds; fewer where there are too few steps."""
    parts = np.array_split(np.asarray(step_times_s, dtype=np.float64), max(1, min(SEGMENTS, len(step_times_s))))
    return tuple(float(np.mean(part)) for part in parts)


def _has_more(candidate: Stalls, reference: Stalls, *, alpha: float) -> bool:
    """Whether so many stalls more than the reference's would come by chance with probability `alpha` at most."""
    from scipy.special import bdtrc  # 0.2 s to import, so not before it is needed

    if candidate.count == 0:
        return False
    share = candidate.steps / (candidate.steps + reference.steps)
    return float(bdtrc(candidate.count - 1, candidate.count + reference.count, share)) <= alpha


# ---------------------------------------------------------------------- memory

LEAST_SAMPLES = 6
"""In the second half of a run, for its growth to be judged."""

PARTS = 3
"""A leak goes on: from each of so many parts of the second half to the next, by `PART_SHARE` of its least slope."""

PART_SHARE = 0.5

LEAST_LEAK = 16 << 20
"""Bytes by which a process must have grown over the second half: heaps of an honest one come and go by less."""

LEAST_PER_STEP = 4096
"""Bytes a step that matter however fast the steps are: a page."""

PER_DAY = 4 << 30
"""Bytes a day that matter: a job of a week would take 28 GiB. At a step of 0.1 s that is 5 KB a step."""

SLOPE_LEVEL = 0.99
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

    The slope is Theil and Sen's, over the second half of the run: what is allocated once does not count.

    Args:
        step_s: A step of the candidate, in seconds: what matters is what a day of such steps takes.
    """
    if not _keeps_growing(candidate, 0.0):  # which is nearly always so, and known sooner than a slope
        return None
    mine, base = _slope(candidate), _slope(reference) or (0.0, 0.0, 0.0)
    if mine is None or not _keeps_growing(candidate, mine[1]):
        return None
    surely = mine[1] - (base[2] if _keeps_growing(reference, base[1]) else 0.0)
    if surely <= max(LEAST_PER_STEP, PER_DAY / DAY_S * step_s):
        return None
    return Leak(candidate=mine[0], reference=base[0])


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

    found = theilslopes(half[:, 1], half[:, 0], SLOPE_LEVEL)
    return float(found.slope), float(found.low_slope), float(found.high_slope)


def _keeps_growing(samples: Samples, slope: float) -> bool:
    """Whether memory grows in every part of a run, and by more than heaps do: one that was enlarged once is no leak."""
    half = _second_half(samples)
    if len(half) < LEAST_SAMPLES:
        return False
    marks = np.asarray([np.median(part, axis=0) for part in np.array_split(half, PARTS + 1)])
    steps, grown = np.diff(marks[:, 0]), np.diff(marks[:, 1])
    return float(np.sum(grown)) >= LEAST_LEAK and bool(np.all(grown >= PART_SHARE * slope * steps))
