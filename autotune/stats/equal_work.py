"""Correctness where steps differ in batch or arithmetic: losses are compared where both arms have seen as much.

Nothing here is step by step. Where a candidate's step does other work, its losses meet the reference's only at the
ends of common multiples; in between, and beside, the reference's own neighbouring steps say how far losses of other
batches may lie apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from autotune.stats.dtypes import rounding_of
from autotune.stats.loss_check import relative_difference

SAME_ROWS = rounding_of("float32")
"""Relative difference below which two batches' losses and gradients are of the same rows."""

SPREAD_MARGIN = 2.0
"""How many times the largest change between neighbouring steps losses may be off: few steps show little of it."""

LEAST_POINTS = 4
"""Losses of each arm that a soak must have told for them to be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparability:
    """What losses at equal work say.

    Attributes:
        is_ok: Whether they agree; None if they cannot tell.
        difference: Relative difference of the candidate, where it is largest; above 0 its loss is higher.
        tolerance: What it is held to there.
        points: At how many amounts of work both were looked at.
        reason: What is wrong, or why nothing can be told; empty if they agree.
    """

    is_ok: bool | None
    difference: float = 0.0
    tolerance: float = 0.0
    points: int = 0
    reason: str = ""


def compare_first_steps(
    reference: Sequence[float],
    candidate: Sequence[float],
    norms: tuple[Sequence[float], Sequence[float]],
    *,
    work: tuple[int, int],
    least_tolerance: float,
) -> Comparability:
    """Holds a candidate's first losses against the reference's, wherever both have seen as much.

    The first step has the same initial weights. Later a candidate with another batch has made other updates, so its
    loss must lie in the range that the reference's losses have between as many updates and as much work. Ends of that
    range are widened by the largest relative change between two neighbouring steps of the reference (after the first
    step twice that), more for a smaller batch: of few steps no more can be told, and a long run has the last word.

    Args:
        reference: Loss at each of the reference's first steps, finite.
        candidate: Likewise of the candidate.
        norms: Global gradient norms of both, as far as they are told.
        work: What a step of reference and candidate does.
        least_tolerance: Relative difference that arithmetic alone may make at the first step.
    """
    if not reference or not candidate or not all(map(math.isfinite, reference)):
        return Comparability(is_ok=None, reason="one of them tells no loss")
    if not all(map(math.isfinite, (*candidate, *norms[1]))):
        return Comparability(is_ok=False, difference=math.inf, reason="its loss or gradient norm is not finite")
    scatter = math.sqrt(max(1.0, work[0] / work[1]))  # a mean over fewer rows scatters more
    spread = neighbour_spread(reference) * scatter
    tolerance = max(least_tolerance, spread)  # at the first step: weights are the same there
    if (reason := _tell_tale(reference, candidate, norms, is_other_batch=work[0] != work[1])) is not None:
        return Comparability(is_ok=False, tolerance=tolerance, reason=reason)
    largest, points = 0.0, 0
    for mine in range(len(candidate)):
        seen, rest = divmod(mine * work[1], work[0])
        if rest or seen >= len(reference):
            continue
        points += 1
        tolerance = max(least_tolerance, spread * (SPREAD_MARGIN if mine else 1.0))
        between = reference[min(mine, seen) : max(mine, seen) + 1]
        got = candidate[mine]
        nearest = min(max(got, min(between)), max(between))
        difference = math.copysign(relative_difference(nearest, got), got - nearest)
        largest = max(largest, difference, key=abs)
        if abs(difference) > tolerance:
            reason = (
                f"its loss after {mine} updates is {got:.6g}, the reference's after as much work and as many updates "
                f"lie between {min(between):.6g} and {max(between):.6g}"
            )
            return Comparability(is_ok=False, difference=difference, tolerance=tolerance, points=points, reason=reason)
    return Comparability(is_ok=True, difference=largest, tolerance=tolerance, points=points)


def neighbour_spread(losses: Sequence[float]) -> float:
    """Largest relative change between two neighbouring steps: what another batch, or one more update, may make."""
    return max((relative_difference(a, b) for a, b in itertools.pairwise(losses)), default=0.0)


def _tell_tale(
    reference: Sequence[float],
    candidate: Sequence[float],
    norms: tuple[Sequence[float], Sequence[float]],
    *,
    is_other_batch: bool,
) -> str | None:
    """What gives away a program that only pretends to train; None where the reference would look the same."""
    if len(candidate) > 1 and neighbour_spread(candidate) <= SAME_ROWS < neighbour_spread(reference):
        return "its loss does not change from step to step, the reference's does"
    first = [(reference[0], candidate[0]), *zip(*(n[:1] for n in norms), strict=False)]
    is_told = len(first) == 2 and first[1][0] > 0  # weights may start such that every batch has the same loss
    if is_other_batch and is_told and all(relative_difference(a, b) <= SAME_ROWS for a, b in first):
        return "its first loss and gradient norm are the reference's: it trains the same rows, not another batch"
    return None


def compare_long_runs(
    reference: Sequence[tuple[float, float]],
    candidate: Sequence[tuple[float, float]],
    *,
    tolerance: float,
    is_same_work: bool,
    least_scale: float = 0.0,
) -> Comparability:
    """Compares the losses of two long runs over the second half of the work that both have done.

    Args:
        reference: Work done so far, and the loss there; in order.
        candidate: Likewise, in the same unit.
        tolerance: Relative difference of the mean losses that is allowed, beside what scatter of the points makes.
        is_same_work: Their steps do the same, so that a loss far below the reference's is as wrong as one above: with
            a smaller batch there are more updates in as much work, and a lower loss is no fault.
        least_scale: Of what a difference is a share, at least: what is learned by heart has a loss near 0, and any two
            runs of it differ by far.
    """
    if not reference or not candidate:
        return Comparability(is_ok=None, reason="one of them tells no loss")
    end = min(reference[-1][0], candidate[-1][0])
    base, mine = ([loss for work, loss in run if end / 2 <= work <= end] for run in (reference, candidate))
    if not all(map(math.isfinite, mine)):
        return Comparability(is_ok=False, difference=math.inf, reason="its loss is not finite")
    points = min(len(base), len(mine))
    if points < LEAST_POINTS:
        return Comparability(is_ok=None, points=points, reason=f"only {points} losses are told of as much work")
    if not any(base):
        return Comparability(is_ok=None, points=points, reason="the reference's loss is 0 throughout")
    scale = max(abs(fmean(base)), least_scale)
    difference = (fmean(mine) - fmean(base)) / scale
    scatter = 2.0 * math.hypot(*(stdev(v) / math.sqrt(len(v)) for v in (base, mine))) / scale
    allowed = tolerance + scatter
    found = Comparability(is_ok=True, difference=difference, tolerance=allowed, points=points)
    if neighbour_spread(mine) <= SAME_ROWS < neighbour_spread(base):
        return replace(found, is_ok=False, reason="its loss does not change, the reference's does")
    if difference > allowed or (is_same_work and difference < -allowed):
        return replace(found, is_ok=False, reason=f"its loss is {'above' if difference > 0 else 'below'}")
    if scatter > max(tolerance, 0.25):
        return replace(found, is_ok=None, reason="its losses scatter too much to be compared")
    return found
