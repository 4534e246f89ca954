"""Total time, stalls, late slow-downs and memory leaks: what the typical step of a comparison
hides.

The middle of many pairs of blocks is not moved by a stall that comes once in forty steps, but
training pays for it: a set that is slower in total is no winner.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from autotune.stats.estimates import (
    LEVEL,
    Counted,
    Estimate,
    Floats,
    estimate_processes,
    from_logs,
    is_surely_positive,
    student_quantile,
)

STALL = 3.0
"""A step that takes more than this many times what nine of ten steps take, of either arm, is a
stall.
"""

USUAL = 0.9
"""Share of an arm's steps that its usual step is not shorter than."""

SEGMENTS = 20
"""Parts into which a long run is cut: enough for an interval, each long against a burst of the
machine.
"""

SEGMENT_DEGREES = 7
"""Degrees of freedom of the noise of one long run: half of its segments tell it."""

LEAST_DEGREES = 5
"""Likewise of what processes differ by: a proof has six pairs of them at least."""

SOAK_LOOKS, MOST_LOOKS, LEAK_LOOKS = 5, 100, 2
"""How often long runs are looked at, at most, each time in new processes, and how often a study may
ask for; memory does not depend on what else the machine does.
"""

MEDIAN_ERROR = 1.25
"""Standard error of a median over that of a mean."""

ALPHA_STAYS = 0.001
"""One-sided error of each of two figures in each look, by which a gain may be said to stay that is
gone.
"""

GOES_ON = 20.0
"""Quarters of a long run for which a gain that shrinks in its last half is taken to go on shrinking
as fast.
"""

LEAST_LOSS, LOSS_SHARE = 0.005, 0.25
"""What a long run may be slower than the proof says: so much, or so large a share of a larger
gain.
"""

ALPHA_PROOF = 0.02
"""Share of honest sets whose stalls may be called more than the reference's, over all processes of
a proof.
"""

ALPHA_GAP = 0.001
"""Likewise of total times that are above typical steps: few processes, and stalls make what they
differ by skew.
"""


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
    limit = STALL * max(
        float(np.quantile(times, USUAL)) for times in (step_times_s, beside_s) if len(times)
    )
    found = [t for t in step_times_s if t > limit]
    return Stalls(
        steps=len(step_times_s),
        count=len(found),
        typical_s=typical,
        lost_s=sum(t - typical for t in found),
    )


def add_stalls(parts: Sequence[Stalls]) -> Stalls:
    """Stalls of one arm over several processes, at least one."""
    return Stalls(
        steps=sum(p.steps for p in parts),
        count=sum(p.count for p in parts),
        typical_s=statistics.median(p.typical_s for p in parts),
        lost_s=sum(p.lost_s for p in parts),
    )


def all_stalls(totals: Sequence[TotalTime]) -> tuple[Stalls, Stalls]:
    """Stalls of candidate and reference over all pairs of processes."""
    return add_stalls([t.candidate for t in totals]), add_stalls([t.reference for t in totals])


def compare_totals(
    reference_s: Sequence[float], candidate_s: Sequence[float], *, work_ratio: float = 1.0
) -> TotalTime:
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


def slower_total(
    totals: Sequence[TotalTime], log_ratios: Sequence[float], typical: Estimate
) -> Estimate | None:
    """The estimate of total time over pairs of processes, if it takes the gain back that the
    typical step promises.

    That is so if the total is not below the reference's and the candidate has more stalls, or its
    total is above its typical step in process after process; or if the total is an `apart_total`
    that is not surely below the reference's.

    Args:
        totals: Of each pair of processes, at least two.
        log_ratios: log of the typical step, candidate over reference, of the same pairs of
            processes.
        typical: What the proof makes of them.
    """
    if (apart := apart_total(totals, log_ratios, typical)) is not None and apart.high >= 1.0:
        return apart
    total = estimate_processes([t.log_ratio for t in totals])
    if total.ratio < 1.0:
        return None
    return total if _goes_on(totals, log_ratios) or _has_more(*all_stalls(totals)) else None


def apart_total(
    totals: Sequence[TotalTime], log_ratios: Sequence[float], typical: Estimate
) -> Estimate | None:
    """The estimate of total time, if its interval lies above that of the typical step, in process
    after process.
    """
    total = estimate_processes([t.log_ratio for t in totals])
    return total if total.low > typical.high and _goes_on(totals, log_ratios) else None


def _goes_on(totals: Sequence[TotalTime], log_ratios: Sequence[float]) -> bool:
    """Returns whether total times are surely above typical steps, in process after process."""
    gaps = [t.log_ratio - r for t, r in zip(totals, log_ratios, strict=True)]
    return is_surely_positive(gaps, alpha=ALPHA_GAP)


# ---------------------------------------------------------------------- long runs, one arm after
# the other


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRunRatio:
    """Total times of one long run of each arm, per unit of work, as logs of candidate over
    reference.
    """

    whole: float
    """Of all steps."""
    late: float
    """Of the second half of the steps."""
    rise: float
    """By how much the last quarter of the steps is above the one before."""
    whole_error: float
    """Standard error of the first, from all segments of both runs."""
    late_error: float
    """Likewise of the second, from those of the second half."""
    early: float | None = None
    """Of first steps, as many as a process of the proof ran; None where they were not kept."""
    early_error: float = 0.0
    """Standard error of that."""
    processes: int = 1
    """Processes that each run took, one after the other."""


def long_run_ratio(
    candidate: Sequence[float],
    reference: Sequence[float],
    *,
    work_ratio: float,
    early: float | None = None,
    early_share: float = 1.0,
    processes: int = 1,
) -> LongRunRatio:
    """Compares long runs that followed each other.

    Args:
        candidate: Mean step of each of its segments, in seconds, as many of both, at least four.
        work_ratio: What a step of the candidate does over what one of the reference does.
        early: Ratio of the medians of first steps, candidate over reference; None where they were
            not kept.
        early_share: How large a share of a run's steps those are.
        processes: Fewest processes that either run took.
    """
    arms = np.asarray([candidate, reference])
    shift = math.log(work_ratio)
    ratios = np.log(arms[0] / arms[1])
    half = len(ratios) // 2
    quarter = len(ratios) // 4
    later = ratios[half:]

    def total(segments: slice) -> float:
        """Log ratio of both arms' time over some segments, per unit of work."""
        means = np.mean(arms[:, segments], axis=1)
        return math.log(means[0] / means[1]) - shift

    # The second half tells the noise: its neighbouring segments whatever changes, those about a
    # line how it wanders.
    at = np.arange(len(later))
    residuals = later - np.polyval(np.polyfit(at, later, 1), at)
    # Where neighbours deviate alike, a mean is less certain than as many independent segments would
    # make it.
    alike = float(residuals[1:] @ residuals[:-1])
    about = (float(residuals @ residuals) + 2.0 * max(0.0, alike)) / max(1, len(later) - 2)
    late_error = math.sqrt(max(_variance_of_neighbours(later), about) / len(later))
    whole_error = math.sqrt(_variance_of_neighbours(ratios) / len(ratios))
    return LongRunRatio(
        whole=total(slice(None)),
        late=total(slice(half, None)),
        rise=total(slice(-quarter, None)) - total(slice(-2 * quarter, -quarter)),
        whole_error=max(whole_error, late_error / math.sqrt(2.0)),
        late_error=late_error,
        early=math.log(early) - shift if early is not None else None,
        early_error=MEDIAN_ERROR * late_error / math.sqrt(2.0 * early_share),
        processes=processes,
    )


def _variance_of_neighbours(values: Floats) -> float:
    """Variance of values, from what neighbours differ by."""
    return float(np.mean(np.diff(values) ** 2)) / 2.0


class Lasting(StrEnum):
    """What long runs say of a proven gain."""

    STAYS = "stays"
    LOST = "lost"
    OPEN = "open"
    """They cannot tell."""
    FIRST = "first"
    """The first look is against it, later ones are not."""
    SHRINKING = "shrinking"
    """It was still becoming less at their end, so fast that nothing of it may be left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingGain:
    """What all looks at long runs together say of a proven gain."""

    finding: Lasting
    late: Estimate
    """Ratio of the second halves, with its 95 % interval."""
    unseen: float
    """A loss that these looks could not have told from none, as a share of the step time."""
    looks: int
    """As many looks would tell, about, if nothing of the gain is lost."""


class _Interval(NamedTuple):
    """A log ratio and both ends of its interval."""

    centre: float
    low: float
    high: float


def lasting_gain(
    looks: Sequence[LongRunRatio], *, proven: Estimate | None, process_sd: float
) -> LastingGain:
    """Says whether a proven gain stays in long runs: all looks together must show that the set is
    faster.

    They show it by the ratio of the runs, whose noise is that of processes, or by the change of
    that ratio along them, which has none of it and counts from what the proof has shown. Where the
    first look says that the gain is not there, later ones do not show it: what the first ones left
    behind may be what makes them faster.

    It is lost if a set is surely not faster in total, or slower than its proof says by more than
    `LEAST_LOSS` and `LOSS_SHARE` of the gain, by more than one look.

    Args:
        proven: Ratio with the interval that holds over all looks at the proof; None where there was
            none.
        process_sd: Standard deviation of the log ratio from one pair of processes to the next,
            alone or not.
    """
    gain = -min(0.0, math.log(proven.ratio)) if proven is not None else 0.0
    bound = min(0.0, max(LEAST_LOSS, LOSS_SHARE * gain) - gain)
    both_halves = _intervals(
        looks, late=False, proven=proven, process_sd=process_sd, alpha=ALPHA_STAYS
    )
    second_half = _intervals(
        looks, late=True, proven=proven, process_sd=process_sd, alpha=ALPHA_STAYS
    )
    is_against = any(
        half[0].centre > bound and max(x.low for x in half) > bound
        for half in (both_halves, second_half)
    )
    narrower = _narrower(second_half)
    unseen = narrower.high - narrower.centre
    reported = _intervals(
        looks, late=True, proven=proven, process_sd=process_sd, alpha=(1.0 - LEVEL) / 2.0
    )
    late = _narrower(reported)
    finding = Lasting.OPEN
    if is_against and len(looks) > 1:
        finding = Lasting.LOST
    elif _is_shrinking(looks, late.centre):
        finding = Lasting.SHRINKING
    elif max(narrower.high, _narrower(both_halves).high) < 0.0 and late.centre <= bound:
        first = _intervals(
            looks[:1], late=True, proven=None, process_sd=process_sd, alpha=ALPHA_STAYS
        )
        finding = Lasting.FIRST if first[0].low > bound else Lasting.STAYS
    needed = math.ceil(min(MOST_LOOKS, len(looks) * (unseen / max(gain, 1e-3)) ** 2))
    return LastingGain(
        finding=finding,
        late=from_logs(*late, count=len(looks)),
        unseen=math.expm1(unseen),
        looks=max(2 * len(looks), needed),
    )


def _intervals(
    looks: Sequence[LongRunRatio],
    *,
    late: bool,
    proven: Estimate | None,
    process_sd: float,
    alpha: float,
) -> list[_Interval]:
    """The ratio of long runs, or of their second halves: as it is, and from the proof on where
    first steps are known.

    Args:
        alpha: How often each end misses the truth.
    """
    count = len(looks)
    ratios = np.asarray([x.late if late else x.whole for x in looks])
    errors = np.asarray([x.late_error if late else x.whole_error for x in looks])
    processes = process_sd / np.sqrt([x.processes for x in looks])
    away = student_quantile(2 * alpha, LEAST_DEGREES + count - 1) * _mean_error(
        ratios, np.hypot(errors, processes)
    )
    centre = float(np.mean(ratios))
    intervals = [_Interval(centre, centre - away, centre + away)]
    early = [x.early for x in looks if x.early is not None]
    if proven is not None and len(early) == count:
        changes = ratios - np.asarray(early)
        errors = np.hypot(errors, [x.early_error for x in looks])
        away = student_quantile(2 * alpha, SEGMENT_DEGREES * count) * _mean_error(changes, errors)
        start, low, high = proven.logs
        centre = start + float(np.mean(changes))
        low = centre - math.hypot(start - low, away)
        intervals.append(_Interval(centre, low, centre + math.hypot(high - start, away)))
    return intervals


def _narrower(intervals: Sequence[_Interval]) -> _Interval:
    """The interval that excludes most."""
    return min(intervals, key=lambda interval: interval.high)


def _mean_error(values: Floats, errors: Floats) -> float:
    """Standard error of a mean, from the errors of its values; from their spread, too, if there are
    three at least.
    """
    sd = math.sqrt(float(np.mean(errors**2)))
    if len(values) > 2:
        sd = max(sd, float(np.std(values, ddof=1)))
    return sd / math.sqrt(len(values))


def _is_shrinking(looks: Sequence[LongRunRatio], late: float) -> bool:
    """Whether a gain surely becomes less in the last half of long runs, so fast that soon nothing
    of it may be left.
    """
    rises, errors = np.asarray([(x.rise, 2.0 * x.late_error) for x in looks]).T
    sure = student_quantile(2 * ALPHA_STAYS, SEGMENT_DEGREES * len(looks)) * _mean_error(
        rises, errors
    )
    rise = float(np.mean(rises))
    return rise > sure and late + rise * GOES_ON >= 0.0


def segments(step_times_s: Sequence[float]) -> tuple[float, ...]:
    """Mean step time of each of `SEGMENTS` equal parts of a run, in seconds; fewer where there are
    too few steps.
    """
    parts = np.array_split(
        np.asarray(step_times_s, dtype=np.float64), max(1, min(SEGMENTS, len(step_times_s)))
    )
    return tuple(float(np.mean(part)) for part in parts)


def _has_more(candidate: Stalls, reference: Stalls) -> bool:
    """Returns whether so many stalls more than the reference's would come by chance with
    `ALPHA_PROOF` at most.
    """
    from scipy.special import bdtrc  # 0.2 s to import, so not before it is needed

    if candidate.count == 0:
        return False
    share = candidate.steps / (candidate.steps + reference.steps)
    return (
        float(bdtrc(candidate.count - 1, candidate.count + reference.count, share)) <= ALPHA_PROOF
    )


# ---------------------------------------------------------------------- memory

LEAST_SAMPLES = 6
"""In the second half of a run, for its growth to be judged."""

PARTS = 3
"""A leak goes on: from each of so many parts of the second half to the next, by `PART_SHARE` of its
least slope.
"""

PART_SHARE = 0.5

LEAST_LEAK = 16 << 20
"""Bytes by which a process must have grown over the second half: heaps of an honest one come and go
by less.
"""

LEAST_PER_STEP = 4096
"""Bytes a step that matter however fast the steps are: a page."""

PER_DAY = 4 << 30
"""Bytes a day that matter: a job of a week would take 28 GiB. At a step of 0.1 s that is 5 KB a
step.
"""

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
    """Whether a candidate takes memory step by step, beyond what the reference takes, and so much
    that it matters.

    The slope is Theil and Sen's, over the second half of the run: what is allocated once does not
    count.

    Args:
        step_s: A step of the candidate, in seconds: what matters is what a day of such steps takes.
    """
    mine = _growth(candidate)
    base = _growth(reference)
    if mine.least - base.most <= max(LEAST_PER_STEP, PER_DAY / DAY_S * step_s):
        return None
    return Leak(candidate=mine.slope, reference=base.slope)


class _Growth(NamedTuple):
    """Bytes a step over the second half of a run, and the ends of their interval; 0 where memory
    does not grow on.
    """

    slope: float = 0.0
    least: float = 0.0
    most: float = 0.0


def _growth(samples: Samples) -> _Growth:
    array = np.asarray(samples, dtype=np.float64).reshape(-1, 2)
    half = array[array[:, 0] > array[-1:, 0] / 2.0]
    if len(half) < LEAST_SAMPLES:
        return _Growth()
    marks = np.asarray([np.median(part, axis=0) for part in np.array_split(half, PARTS + 1)])
    steps, grown = np.diff(marks, axis=0).T
    if float(np.sum(grown)) < LEAST_LEAK:
        return _Growth()
    from scipy.stats import theilslopes  # half a second to import, so not before it is needed

    found = theilslopes(half[:, 1], half[:, 0], SLOPE_LEVEL)
    if np.any(
        grown < PART_SHARE * found.low_slope * steps
    ):  # it was enlarged once, which is no leak
        return _Growth(slope=float(found.slope))
    return _Growth(float(found.slope), float(found.low_slope), float(found.high_slope))
