"""Total time, stalls, late slow-downs and memory leaks: what a comparison's typical step hides.

The middle of many pairs of blocks is not moved by a stall that comes once in forty steps, but
training pays for it: a set that is slower in total is no winner.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from autotune.stats.estimates import (
    LEVEL,
    Estimate,
    Floats,
    Numbers,
    estimate_processes,
    from_logs,
    is_surely_positive,
    student_quantile,
)
from autotune.stats.numbers import AtLeastOne, Count, LogRatio, Total, TotalAboveZero

# A stall takes more than `STALL` times what a share `USUAL` of the steps of any arm take.
STALL = 3.0
USUAL = 0.9
# Parts of a long run: enough for an interval, each long against a burst of the machine.
SEGMENTS = 20
# Degrees of freedom of the noise of one long run (half of its segments), and of processes.
SEGMENT_DEGREES = 7
LEAST_DEGREES = 5
# How often long runs are looked at in new processes, at most; a study may ask for more.
SOAK_LOOKS = 5
MOST_LOOKS = 100
LEAK_LOOKS = 2  # How often memory is looked at: it does not depend on what else the machine does
MEDIAN_ERROR = 1.25  # Standard error of a median over that of a mean
# One-sided error of each figure of a look in saying that a gain stays which is gone.
ALPHA_STAYS = 0.001
# Quarters of a long run for which a gain that shrinks at its end is taken to go on shrinking.
GOES_ON = 20.0
# What a long run may be slower than the proof says, and likewise as a share of a larger gain.
LEAST_LOSS = 0.005
LOSS_SHARE = 0.25
# Share of honest sets whose stalls may be called more than the reference's, in a whole proof.
ALPHA_PROOF = 0.02
ALPHA_GAP = 0.001  # Likewise of total times above typical steps, whose differences stalls make skew


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """The stalls of one arm."""

    steps: AtLeastOne
    count: Count  # Steps that took more than `STALL` times the usual one of either arm
    typical_s: TotalAboveZero  # The median step, in seconds
    # What the stalls took beyond a typical step each, in seconds.
    lost_s: Total


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalTime:
    """Total times of both arms of one pair of processes, nothing trimmed."""

    # log(total time of the candidate / that of the reference), per unit of work.
    log_ratio: LogRatio
    reference: Stalls
    candidate: Stalls


def find_stalls(step_times_s: Sequence[float], beside_s: Sequence[float] = ()) -> Stalls:
    """Counts the stalls of one arm; what is usual of the other arm (`beside_s`) is none."""
    typical_s = statistics.median(step_times_s)
    usual_s = [np.quantile(times, USUAL) for times in (step_times_s, beside_s) if len(times)]
    stalls = [t for t in step_times_s if t > STALL * max(usual_s)]
    return Stalls(
        steps=len(step_times_s),
        count=len(stalls),
        typical_s=typical_s,
        lost_s=sum(t - typical_s for t in stalls),
    )


def add_stalls(processes: Sequence[Stalls]) -> Stalls:
    """Stalls of one arm over several processes, at least one."""
    return Stalls(
        steps=sum(p.steps for p in processes),
        count=sum(p.count for p in processes),
        typical_s=statistics.median(p.typical_s for p in processes),
        lost_s=sum(p.lost_s for p in processes),
    )


def all_stalls(totals: Sequence[TotalTime]) -> tuple[Stalls, Stalls]:
    """Stalls of candidate and reference over all pairs of processes."""
    return add_stalls([t.candidate for t in totals]), add_stalls([t.reference for t in totals])


def compare_totals(
    reference_s: Sequence[float], candidate_s: Sequence[float], *, work_ratio: float = 1.0
) -> TotalTime:
    """Total times of one pair of processes; `work_ratio` is of a step, candidate over reference."""
    candidate_mean_s = sum(candidate_s) / len(candidate_s)
    reference_mean_s = sum(reference_s) / len(reference_s)
    return TotalTime(
        log_ratio=math.log(candidate_mean_s / reference_mean_s) - math.log(work_ratio),
        reference=find_stalls(reference_s, candidate_s),
        candidate=find_stalls(candidate_s, reference_s),
    )


def slower_total(
    totals: Sequence[TotalTime], log_ratios: Numbers, typical: Estimate
) -> Estimate | None:
    """The estimate of total time over pairs of processes, if it takes back the typical step's gain.

    That is so if the total is not below the reference's and the candidate has more stalls, or its
    total is above its typical step in process after process; or if the total is an `apart_total`
    that is not surely below the reference's. Of the typical step are `log_ratios`, by pair of
    processes, and the proof's estimate.
    """
    total = estimate_processes([t.log_ratio for t in totals])
    if total.high < 1.0:
        return None
    is_apart = apart_total(totals, log_ratios, typical) is not None
    is_slower = total.ratio >= 1.0 and (
        _goes_on(totals, log_ratios) or _has_more(*all_stalls(totals))
    )
    return total if is_apart or is_slower else None


def apart_total(
    totals: Sequence[TotalTime], log_ratios: Numbers, typical: Estimate
) -> Estimate | None:
    """The estimate of total time, if above the typical step's interval, process after process."""
    total = estimate_processes([t.log_ratio for t in totals])
    return total if total.low > typical.high and _goes_on(totals, log_ratios) else None


def _goes_on(totals: Sequence[TotalTime], log_ratios: Numbers) -> bool:
    """Whether total times are surely above typical steps, in process after process."""
    gaps = [t.log_ratio - r for t, r in zip(totals, log_ratios, strict=True)]
    return is_surely_positive(gaps, alpha=ALPHA_GAP)


class LongRunRatio(NamedTuple):
    """Total times of a long run of each arm per unit of work, as logs of candidate / reference."""

    total: _Figure
    late: _Figure  # Of the second half of the steps
    # Of first steps, as many as a process of the proof ran; None where they were not kept.
    early: _Figure | None
    # By how much the last quarter of the steps is above the one before; those before tell its noise
    rise: _Figure
    processes: int


class _Figure(NamedTuple):
    """A log ratio and its standard error, from the segments of both runs."""

    log_ratio: float
    error: float


def long_run_ratio(
    candidate: Numbers,
    reference: Numbers,
    *,
    work_ratio: float,
    early: float | None,
    early_share: float,
    processes: int = 1,
) -> LongRunRatio:
    """Compares long runs that followed each other, by the mean step of at least four segments.

    Args:
        early: Ratio of the medians of first steps, a share `early_share` of all; None if unknown.
        processes: Fewest processes that either run took.
    """
    arms = np.asarray([candidate, reference])
    shift = math.log(work_ratio)
    ratios = np.log(arms[0] / arms[1])
    half = len(ratios) // 2
    quarter = len(ratios) // 4
    later = ratios[half:]

    def total(segments: slice) -> float:
        means = np.mean(arms[:, segments], axis=1)
        return math.log(means[0] / means[1]) - shift

    late_error = math.sqrt(_variance(later) / len(later))
    rise = total(slice(-quarter, None)) - total(slice(-2 * quarter, -quarter))
    whole_error = math.sqrt(_variance_of_neighbours(ratios) / len(ratios))
    first_steps = None
    if early is not None:
        early_error = MEDIAN_ERROR * late_error / math.sqrt(2.0 * early_share)
        first_steps = _Figure(math.log(early) - shift, early_error)
    return LongRunRatio(
        total=_Figure(total(slice(None)), max(whole_error, late_error / math.sqrt(2.0))),
        late=_Figure(total(slice(half, None)), late_error),
        early=first_steps,
        rise=_Figure(rise, math.sqrt(2.0 * _variance(ratios[:-quarter]) / quarter)),
        processes=processes,
    )


def _variance(values: Floats) -> float:
    """Variance of segments: of neighbours, or about a line, more where neighbours deviate alike."""
    at = np.arange(len(values))
    residuals = values - np.polyval(np.polyfit(at, values, 1), at)
    alike = residuals[1:] @ residuals[:-1]
    about = (residuals @ residuals + 2.0 * max(0.0, float(alike))) / max(1, len(values) - 2)
    return max(_variance_of_neighbours(values), float(about))


def _variance_of_neighbours(values: Floats) -> float:
    return float(np.mean(np.diff(values) ** 2)) / 2.0


class Lasting(StrEnum):
    """What long runs say of a proven gain."""

    STAYS = "stays"
    LOST = "lost"
    OPEN = "open"
    # The first look is against it, later ones are not.
    FIRST = "first"
    # It was still becoming less at their end, so fast that nothing of it may be left.
    SHRINKING = "shrinking"


class LastingGain(NamedTuple):
    """What all looks at long runs together say of a proven gain."""

    finding: Lasting
    late: Estimate  # Ratio of the second halves, with its 95 % interval
    # A loss that these looks could not have told from none, as a share of the step time.
    unseen: float
    looks: int  # As many looks would tell, about, if nothing of the gain is lost


class _Interval(NamedTuple):
    """A log ratio and both ends of its interval."""

    centre: float = 0.0
    low: float = 0.0
    high: float = 0.0


def lasting_gain(
    looks: Sequence[LongRunRatio], *, proven: Estimate | None, process_sd: float
) -> LastingGain:
    """Says whether a proven gain stays in long runs: all looks together must show a faster set.

    They show it by the ratio of the runs, whose noise is that of processes, or by the change of
    that ratio along them, which has none of it and counts from what the proof has shown. Where the
    first look says that the gain is not there, later ones do not show it: what the first ones left
    behind may be what makes them faster. It is lost if a set is surely not faster in total, or
    slower than its proof says by more than `LEAST_LOSS` and `LOSS_SHARE` of the gain, by more than
    one look.

    Args:
        proven: Ratio with the interval that holds over all looks at the proof, if there was one.
        process_sd: Standard deviation of the log ratio from one pair of processes to the next.
    """
    gain = -min(0.0, math.log(proven.ratio)) if proven is not None else 0.0
    bound = min(0.0, max(LEAST_LOSS, LOSS_SHARE * gain) - gain)
    intervals = functools.partial(_intervals, proven=proven, process_sd=process_sd)
    late = [x.late for x in looks]
    both_halves = intervals(looks, [x.total for x in looks])
    second_half = intervals(looks, late)
    is_against = any(
        half[0].centre > bound and max(x.low for x in half) > bound
        for half in (both_halves, second_half)
    )
    narrower = _narrower(second_half)
    unseen = narrower.high - narrower.centre
    reported = _narrower(intervals(looks, late, alpha=(1.0 - LEVEL) / 2.0))
    finding = Lasting.OPEN
    if is_against and len(looks) > 1:
        finding = Lasting.LOST
    elif _is_shrinking(looks, reported.centre):
        finding = Lasting.SHRINKING
    elif max(narrower.high, _narrower(both_halves).high) < 0.0 and reported.centre <= bound:
        first_look = intervals(looks[:1], late[:1])[0]
        finding = Lasting.FIRST if first_look.low > bound else Lasting.STAYS
    needed = math.ceil(min(MOST_LOOKS, len(looks) * (unseen / max(gain, 1e-3)) ** 2))
    return LastingGain(
        finding=finding,
        late=from_logs(*reported, count=len(looks)),
        unseen=math.expm1(unseen),
        looks=max(2 * len(looks), needed),
    )


def _intervals(
    looks: Sequence[LongRunRatio],
    figures: Sequence[_Figure],
    *,
    proven: Estimate | None,
    process_sd: float,
    alpha: float = ALPHA_STAYS,
) -> list[_Interval]:
    """The mean figure of long runs: as it is, and from the proof on if first steps are known."""
    count = len(looks)
    ratios, errors = np.asarray(figures).T
    processes = process_sd / np.sqrt([x.processes for x in looks])
    quantile = student_quantile(2 * alpha, LEAST_DEGREES + count - 1)
    away = quantile * _mean_error(ratios, np.hypot(errors, processes))
    centre = float(ratios.mean())
    intervals = [_Interval(centre, centre - away, centre + away)]
    early = [x.early for x in looks if x.early is not None]
    if proven is not None and len(early) == count:
        early_ratios, early_errors = np.asarray(early).T
        changes = ratios - early_ratios
        quantile = student_quantile(2 * alpha, SEGMENT_DEGREES * count)
        away = quantile * _mean_error(changes, np.hypot(errors, early_errors))
        start, low, high = proven.logs
        centre = start + float(changes.mean())
        low = centre - math.hypot(start - low, away)
        intervals.append(_Interval(centre, low, centre + math.hypot(high - start, away)))
    return intervals


def _narrower(intervals: Sequence[_Interval]) -> _Interval:
    """The interval that excludes most."""
    return min(intervals, key=lambda interval: interval.high)


def _mean_error(values: Floats, errors: Floats) -> float:
    """Standard error of a mean, from the errors of its values and the spread of three or more."""
    sd = math.sqrt(np.mean(errors**2))
    if len(values) > 2:
        sd = max(sd, float(values.std(ddof=1)))
    return sd / math.sqrt(len(values))


def _is_shrinking(looks: Sequence[LongRunRatio], late: float) -> bool:
    """Whether a gain surely shrinks at the end, so fast that soon nothing of it may be left."""
    rises, errors = np.asarray([x.rise for x in looks]).T
    quantile = student_quantile(2 * ALPHA_STAYS, SEGMENT_DEGREES * len(looks))
    rise = float(np.mean(rises))
    return rise > quantile * _mean_error(rises, errors) and late + rise * GOES_ON >= 0.0


def segments(step_times_s: Numbers) -> tuple[float, ...]:
    """Mean step time of each of `SEGMENTS` equal parts of a run; fewer where steps are too few."""
    steps_s = np.asarray(step_times_s, dtype=np.float64)
    count = max(1, min(SEGMENTS, len(steps_s)))
    return tuple(float(np.mean(segment)) for segment in np.array_split(steps_s, count))


def _has_more(candidate: Stalls, reference: Stalls) -> bool:
    """Whether so many stalls beyond the reference's come by chance with `ALPHA_PROOF` at most."""
    from scipy.special import bdtrc

    if candidate.count == 0:
        return False
    count = candidate.count + reference.count
    share = candidate.steps / (candidate.steps + reference.steps)
    return float(bdtrc(candidate.count - 1, count, share)) <= ALPHA_PROOF


LEAST_SAMPLES = 6  # In the second half of a run, for its growth to be judged
# Parts of the second half over each of which a leak grows by this share of its least slope.
PARTS = 3
PART_SHARE = 0.5
# Bytes by which a process must have grown over the second half; honest heaps vary by less.
LEAST_LEAK = 16 << 20
LEAST_PER_STEP = 4096  # Bytes a step that matter however fast the steps are: a page
PER_DAY = 4 << 30  # Bytes a day that matter: a job of a week would take 28 GiB
SLOPE_LEVEL = 0.99
DAY_S = 86_400.0

Samples = Sequence[tuple[int, int]]  # Steps so far and bytes in use then


def find_leak(
    candidate: Samples, reference: Samples, *, step_s: float
) -> tuple[float, float] | None:
    """Bytes a step that candidate and reference grow by; None where the excess does not matter.

    By Theil and Sen's slope over the second half of the run: what is allocated once is no leak.
    """
    growth = _growth(candidate)
    reference_growth = _growth(reference)
    if growth.low - reference_growth.high <= max(LEAST_PER_STEP, PER_DAY / DAY_S * step_s):
        return None
    return growth.centre, reference_growth.centre


def _growth(samples: Samples) -> _Interval:
    """Bytes a step over the second half of a run; all 0 where memory does not grow on."""
    array = np.asarray(samples, dtype=np.float64).reshape(-1, 2)
    half = array[array[:, 0] > array[-1:, 0] / 2.0]
    if len(half) < LEAST_SAMPLES:
        return _Interval()
    marks = np.asarray([np.median(piece, axis=0) for piece in np.array_split(half, PARTS + 1)])
    steps, grown = np.diff(marks, axis=0).T
    if grown.sum() < LEAST_LEAK:
        return _Interval()
    from scipy.stats import theilslopes  # half a second to import

    slopes = theilslopes(half[:, 1], half[:, 0], SLOPE_LEVEL)
    if np.any(grown < PART_SHARE * slopes.low_slope * steps):
        return _Interval(float(slopes.slope))  # it was enlarged once, which is no leak
    return _Interval(float(slopes.slope), float(slopes.low_slope), float(slopes.high_slope))
