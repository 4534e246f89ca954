"""Loss checks: rounding of number formats, comparison step by step, and comparison at equal work.

Names of formats are those of JAX and its users, such as ``bf16``, ``nanoo_fp8`` and, forward /
backward, ``float8_e4m3fn/float8_e5m2``. Of several the coarsest counts.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from autotune.stats.estimates import error_of_mean, half_width


class Format(NamedTuple):
    """One floating-point format, by the explicit bits of its mantissa."""

    name: str
    mantissa: int
    rounding: float  # Relative difference of the loss that its rounding may cause at the first step


_KNOWN = tomllib.loads(
    (resources.files("autotune") / "data" / "number_formats.toml").read_text("utf-8")
)
FORMATS = {
    n: Format(n, table["mantissa"], 2.0 ** table["rounding_exponent"])
    for n, table in _KNOWN.items()
}

_NUMBERED = re.compile(
    r"(?<![a-z])(?:mx|nv)?(bfloat|bf|tensorfloat|tf|float|fp|f|complex|c|u?int|[su])_?(\d+)(?:_?e\d+m(\d+))?"
)
_PLAIN = {"half": "float16", "single": "float32", "float": "float32", "double": "float64"}
_PREFIX = {"b": "bfloat", "t": "tensorfloat", "f": "float", "c": "float"}


def formats_of(dtype: str) -> list[Format]:
    """The floating-point formats that a name is made of; ValueError if it names none.

    Integers of up to 8 bits beside a float round like a float of as many; wider ones are exact.
    """
    refusal = ValueError(
        f"a dtype must be a floating-point one, such as {', '.join(FORMATS)}, for an integer has "
        f"no rounding, but is {dtype!r:.100}; name the one in which the loss is computed"
    )
    text = dtype.lower()
    for plain, full in _PLAIN.items():
        text = re.sub(rf"(?<![a-z\d]){plain}(?![a-z\d]|_\d)", full, text)
    formats = []
    narrow = []
    for kind, digits, mantissa in _NUMBERED.findall(text):
        bits = int(digits)
        if kind[0] not in _PREFIX:
            if bits <= 8:
                narrow.append(FORMATS["float8" if bits > 4 else "float4"])
            continue
        if kind[0] == "c":
            bits //= 2
        variant = FORMATS.get(f"{_PREFIX[kind[0]]}{bits}")
        if variant is None:
            raise refusal
        if mantissa:
            variant = variant._replace(mantissa=int(mantissa))
        formats.append(variant)
    if not formats:
        raise refusal
    return formats + narrow


@functools.cache
def rounding_of(dtype: str) -> float:
    """Relative rounding error of the first step's loss in a format; raises as `formats_of`."""
    return max(f.rounding for f in formats_of(dtype))


@functools.cache
def spacing_of(dtype: str) -> float:
    """Relative distance of neighbours in a format: what storing loses; raises as `formats_of`."""
    return max(2.0**-f.mantissa for f in formats_of(dtype))


LOSS = "loss"
GRAD_NORM = "gradient norm"


class Mismatch(NamedTuple):
    """The first step, counted from 0, at which a candidate is not within tolerance."""

    step: int
    quantity: str
    expected: float
    actual: float | None  # None when the candidate's trace ends before
    tolerance: float


_GRAD_NORM_FACTOR = 4.0
# How many times the largest difference among references, which are few, a candidate may be off.
MARGIN = 4.0
# References are looked at up to this many times the step.
#
# With 1, 2 to 11 % of simulated sets in another rounding were called wrong, with 2 at most 0.2 %.
AHEAD = 2
# Past this, a difference is no rounding, unless references themselves were seen so far apart.
MOST_TOLERANCE = 0.25
# Steps within which rounding that no reference shows grows with the step; later with its cube.
#
# Seen on XLA:CPU (jax 0.10.2, llama-tiny in float32, with optimizations and without): 1e-7 at the
# first step, 4e-7 within 20, 7e-4 and 9e-3 after 219 and 230 in two runs.
FEW_STEPS = 20
# A loss below this share of the first one may be off as one of that size is, if roundings hide.
SMALL = 0.2
# Largest difference of losses, within `FEW_STEPS`, of runs that see the same data in one order.
#
# On an H100 in bfloat16 (benchmarks/results/gpu): 0.01 % in five steps, 4.0 % at step 27.
EQUAL_RUNS = 0.05
# Largest power of the step with which differences grow past the last step of references.
_STEEPEST = 2.0


class StepLoss(NamedTuple):
    """Loss and global gradient norm of one step, as a process reports them."""

    loss: float
    grad_norm: float | None = None

    @property
    def values(self) -> dict[str, float]:
        """By quantity."""
        if self.grad_norm is None:
            return {LOSS: self.loss}
        return {LOSS: self.loss, GRAD_NORM: self.grad_norm}


Trace = Mapping[int, StepLoss]  # What one process reports by step, counted from 0 since it began
# Losses of first steps; and of a long run, each with the steps or the work done so far.
Losses = Sequence[float]
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpread:
    """Spread of the loss between processes of the reference, by step."""

    steps: tuple[int, ...] = ()
    # Largest relative difference of their losses at or before each of these steps.
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()  # Likewise of their gradient norms
    # Whether one in another rounding differed; else the tolerance follows from the arithmetic.
    is_rounded: bool = False

    def __post_init__(self) -> None:
        """Refuses, by a ValueError, what no references show; a record may have been edited."""
        is_valid = len(self.steps) == len(self.losses) == len(self.norms)
        is_valid &= all(a < b for a, b in itertools.pairwise((-1, *self.steps)))
        for values in (self.losses, self.norms):
            bounded = (0.0, *values, sys.float_info.max)
            is_valid &= all(a <= b for a, b in itertools.pairwise(bounded))
        if not is_valid:
            raise ValueError(
                "steps and differences of a spread of losses must be finite and never fall but "
                f"are {self}"
            )

    @property
    def has_other_data(self) -> bool:
        """Whether equal runs differ too much in their first steps to have seen the same data."""
        early = zip(self.steps, self.losses, strict=True)
        return any(loss > EQUAL_RUNS for step, loss in early if step < FEW_STEPS)

    def seen(self, step: int, quantity: str = LOSS) -> float:
        """The largest relative difference among references at or before a step, interpolated.

        Past their last step it grows on as over the last half of them: at least in proportion to
        the step, at most with its square.
        """
        values = self.losses if quantity == LOSS else self.norms
        if not values:
            return 0.0
        end = self.steps[-1]
        if step <= end or end == 0:
            return float(np.interp(step, self.steps, values))
        middle = float(np.interp(end / 2, self.steps, values))
        power = math.log2(values[-1] / middle) if middle > 0 else 1.0
        return values[-1] * math.pow(step / end, min(max(power, 1.0), _STEEPEST))

    def tolerance(self, step: int, *, dtype: str, quantity: str = LOSS) -> float:
        """Largest relative difference from the reference allowed at a step; always finite.

        At least what one rounding in `dtype` may cause at the first step; where no reference in
        another rounding was seen, that is taken to grow with the steps.
        """
        factor = _GRAD_NORM_FACTOR if quantity == GRAD_NORM else 1.0
        rounding = rounding_of(dtype) * factor
        expected = MARGIN * self.seen(AHEAD * step, quantity)
        allowed = max(rounding, expected)
        if not self.is_rounded:
            steps = step + 1
            allowed = expected + steps * max(1.0, steps / FEW_STEPS) ** 2 * rounding
        observed = MARGIN * self.seen(min([AHEAD * step, *self.steps[-1:]]), quantity)
        return min(allowed, max(MOST_TOLERANCE * factor, observed))

    def joined(self, other: LossSpread) -> LossSpread:
        """Both together."""
        steps = self.steps + other.steps
        differences = zip(steps, self.losses + other.losses, self.norms + other.norms, strict=True)
        return _spread(differences, is_rounded=self.is_rounded or other.is_rounded)


def spread_between(first: Trace, second: Trace, *, is_rounded: bool = False) -> LossSpread:
    """Spread between two processes of the reference, the second perhaps in another rounding."""
    differences = []
    for step in set(first) & set(second):
        loss, norm = first[step]
        other_loss, other_norm = second[step]
        norm_difference = 0.0
        if norm is not None and other_norm is not None:
            norm_difference = relative_difference(norm, other_norm)
        differences.append((step, relative_difference(loss, other_loss), norm_difference))
    has_differed = any(loss for _, loss, _ in differences)
    return _spread(differences, is_rounded=is_rounded and has_differed)


def _spread(differences: Iterable[tuple[int, float, float]], *, is_rounded: bool) -> LossSpread:
    table = np.asarray(sorted(differences), dtype=np.float64).reshape(-1, 3)
    largest = np.maximum.accumulate(table).tolist()
    by_step = {int(step): (loss, norm) for step, loss, norm in largest}
    return LossSpread(
        steps=tuple(by_step),
        losses=tuple(loss for loss, _ in by_step.values()),
        norms=tuple(norm for _, norm in by_step.values()),
        is_rounded=is_rounded,
    )


def first_steps(losses: Losses, grad_norms: Sequence[float]) -> dict[int, StepLoss]:
    """The trace of a process's first steps."""
    norms = itertools.chain(grad_norms, itertools.repeat(None))
    return dict(enumerate(map(StepLoss, losses, norms)))


def compare_traces(
    reference: Trace,
    candidate: Trace,
    *,
    spread: LossSpread,
    dtype: str,
    spacing: Mapping[str, float] | None = None,
) -> Mismatch | None:
    """Compares loss and gradient norm at each step of the reference; None if all are close enough.

    A candidate that told less, or anything that is not finite, is wrong.

    Args:
        dtype: Arithmetic of the matrix products; on NVIDIA GPUs tensorfloat32 for float32.
        spacing: By quantity, how far neighbours are apart in the format in which it is told.
    """
    begins = dict[str, float]()
    for step in sorted(reference):
        candidates = candidate[step].values if step in candidate else {}
        for quantity, expected in reference[step].values.items():
            actual = candidates.get(quantity)
            tolerance = spread.tolerance(step, dtype=dtype, quantity=quantity)
            if not spread.is_rounded:
                small = SMALL * begins.setdefault(quantity, abs(expected))
                tolerance *= max(1.0, small / max(abs(expected), 1e-12))
            tolerance += (spacing or {}).get(quantity, 0.0)
            if actual is None or relative_difference(expected, actual) > tolerance:
                return Mismatch(step, quantity, expected, actual, tolerance)
    return None


def relative_difference(expected: float, actual: float) -> float:
    """Of two numbers, infinite when one is not finite."""
    if not (math.isfinite(expected) and math.isfinite(actual)):
        return math.inf
    return abs(actual - expected) / max(abs(expected), 1e-12)


# Global gradient norms of reference and candidate, as far as they are told.
Norms = tuple[Sequence[float], Sequence[float]]
# Relative difference below which two batches' losses and gradients are of the same rows.
SAME_ROWS = rounding_of("float32")
# How many times the largest change between neighbouring steps losses may be off.
SPREAD_MARGIN = 2.0
LEAST_POINTS = 4  # Losses of each arm in a soak without which they are not compared


class Comparability(NamedTuple):
    """Result of a comparison of losses at equal work; `is_ok` is None if that cannot be told."""

    is_ok: bool | None
    # Relative difference of the candidate, where it is largest; above 0 its loss is higher.
    difference: float = 0.0
    tolerance: float = 0.0
    points: int = 0  # At how many amounts of work both were compared
    reason: str = ""  # What is wrong, or why nothing can be told; empty if they agree


def compare_first_steps(
    reference: Losses,
    candidate: Losses,
    norms: Norms,
    *,
    work: tuple[int, int],
    least_tolerance: float,
) -> Comparability:
    """Holds a candidate's first losses against the reference's, wherever both have seen as much.

    After the first step a candidate with another batch has made other updates, so its loss must lie
    in the range of the reference's between as many updates and as much work, widened by the largest
    relative change between two of its neighbouring steps (after the first step twice that), more
    for a smaller batch.

    Args:
        work: What a step of reference and candidate does.
        least_tolerance: Relative difference that arithmetic alone may make at the first step.
    """
    if not reference or not candidate or not all(map(math.isfinite, reference)):
        return Comparability(is_ok=None, reason="one of them reports no loss")
    if not all(map(math.isfinite, (*candidate, *norms[1]))):
        return Comparability(
            is_ok=False, difference=math.inf, reason="its loss or gradient norm is not finite"
        )
    scatter = math.sqrt(max(1.0, work[0] / work[1]))  # a mean over fewer rows scatters more
    spread = neighbour_spread(reference) * scatter
    tolerance = max(least_tolerance, spread)  # at the first step: weights are the same there
    reason = _tell_tale(reference, candidate, norms, is_other_batch=work[0] != work[1])
    if reason:
        return Comparability(is_ok=False, tolerance=tolerance, reason=reason)
    largest = 0.0
    points = 0
    for updates, loss in enumerate(candidate):
        steps, remainder = divmod(updates * work[1], work[0])
        if remainder or steps >= len(reference):
            continue
        points += 1
        if updates:
            tolerance = max(least_tolerance, spread * SPREAD_MARGIN)
        between = reference[min(updates, steps) : max(updates, steps) + 1]
        nearest = min(max(loss, min(between)), max(between))
        difference = math.copysign(relative_difference(nearest, loss), loss - nearest)
        largest = max(largest, difference, key=abs)
        if abs(largest) > tolerance:
            reason = (
                f"its loss after {updates} updates is {loss:.6g}, the reference's after as much "
                f"work and as many updates lie between {min(between):.6g} and {max(between):.6g}"
            )
            break
    return Comparability(
        is_ok=not reason, difference=largest, tolerance=tolerance, points=points, reason=reason
    )


def neighbour_spread(losses: Losses) -> float:
    """Largest relative change between neighbouring steps, as another batch may make."""
    return max((relative_difference(a, b) for a, b in itertools.pairwise(losses)), default=0.0)


def _tell_tale(reference: Losses, candidate: Losses, norms: Norms, *, is_other_batch: bool) -> str:
    """Sign of a program that only pretends to train; empty if the reference would look the same."""
    if len(candidate) > 1 and _stands_still(candidate, reference):
        return "its loss does not change from step to step, the reference's does"
    # Weights may start such that every batch has the same loss, so the norm has to be told.
    if (
        is_other_batch
        and all(norms)
        and norms[0][0] > 0
        and relative_difference(reference[0], candidate[0]) <= SAME_ROWS
        and relative_difference(norms[0][0], norms[1][0]) <= SAME_ROWS
    ):
        return (
            "its first loss and gradient norm are the reference's: it trains the same rows, "
            "not another batch"
        )
    return ""


def _stands_still(candidate: Losses, reference: Losses) -> bool:
    """Whether a candidate's loss does not change though the reference's does."""
    return neighbour_spread(candidate) <= SAME_ROWS < neighbour_spread(reference)


# Share by which the mean loss of a run may miss the reference's, beside what steps scatter.
CURVE_TOLERANCE = 0.005
# Share of honest runs of which the scatter of single steps may make one part look off.
CURVE_ALPHA = 0.002
# The whole curve, its last half and its last quarter count: late faults hide in the whole.
CURVE_PARTS = (1, 2, 4)
# The last eighth is looked at by itself: a fault within the last quarter makes that scatter.
END_PART = 8
# Times `least_scale` below which a loss is small: honest runs are `MOST_TOLERANCE` of it apart.
END_SCALE = 4.0


def compare_curves(
    reference: Curve,
    candidate: Curve,
    *,
    least_scale: float,
    tolerance: float = CURVE_TOLERANCE,
) -> Comparability:
    """Compares the losses of two long runs of the same work, step by step and over the whole.

    Rounding makes single steps differ, above and below; a program that computes something else is
    off in the mean. Differences are shares of the larger of both, and of `least_scale` at least:
    any two runs that have learned by heart differ by far.
    """
    losses = dict(candidate)
    apart = [
        (losses[step] - loss) / max(abs(loss), abs(losses[step]), least_scale, 1e-12)
        for step, loss in reference
        if step in losses
    ]
    count = len(apart)
    result = Comparability(
        is_ok=None, points=count, reason=f"only {count} losses are reported of equal steps"
    )
    if not all(map(math.isfinite, apart)):
        return _not_finite(result)
    if count < LEAST_POINTS:
        return result
    end = apart[-max(LEAST_POINTS, count // END_PART) :]
    largest = max(abs(reference[-1][1]), abs(candidate[-1][1]), least_scale, 1e-12)
    small = END_SCALE * least_scale / largest
    differences = [(len(end), median(end), MOST_TOLERANCE * max(1.0, small) + 2.0 * tolerance)]
    for divisor in CURVE_PARTS:
        steps = apart[-(count // divisor) :]
        if len(steps) >= LEAST_POINTS:
            allowed = tolerance + half_width(steps, alpha=CURVE_ALPHA)
            differences.append((len(steps), fmean(steps), allowed))
    for points, difference, allowed in differences:
        result = Comparability(is_ok=True, difference=difference, tolerance=allowed, points=points)
        if abs(difference) > allowed:
            over = f" over the last {points} steps that both reported"
            return result._replace(is_ok=False, reason=_off(difference) + over)
    return result


def _off(difference: float) -> str:
    return f"its loss is {'above' if difference > 0 else 'below'}"


def _not_finite(result: Comparability) -> Comparability:
    return result._replace(is_ok=False, difference=math.inf, reason="its loss is not finite")


def compare_long_runs(
    reference: Curve, candidate: Curve, *, tolerance: float, is_same_work: bool
) -> Comparability:
    """Compares the losses of two long runs over the second half of the work that both have done.

    Where steps do the same work a loss far below the reference's is as wrong as one above: only a
    smaller batch makes more updates in as much work.
    """
    if not reference or not candidate:
        return Comparability(is_ok=None, reason="one of them reports no loss")
    end = min(reference[-1][0], candidate[-1][0])
    expected, actual = (
        [loss for work, loss in run if end / 2 <= work <= end] for run in (reference, candidate)
    )
    points = min(len(expected), len(actual))
    result = Comparability(is_ok=None, points=points)
    if not all(map(math.isfinite, actual)):
        return _not_finite(result)
    if points < LEAST_POINTS:
        return result._replace(reason=f"only {points} losses are reported of as much work")
    if not any(expected):
        return result._replace(reason="the reference's loss is 0 throughout")
    scale = abs(fmean(expected))
    difference = (fmean(actual) - fmean(expected)) / scale
    scatter = 2.0 * math.hypot(error_of_mean(expected), error_of_mean(actual)) / scale
    allowed = tolerance + scatter
    result = result._replace(is_ok=False, difference=difference, tolerance=allowed)
    if _stands_still(actual, expected):
        return result._replace(reason="its loss does not change, the reference's does")
    if difference > allowed or (is_same_work and difference < -allowed):
        return result._replace(reason=_off(difference))
    if scatter > max(tolerance, 0.25):
        return result._replace(is_ok=None, reason="its losses scatter too much to be compared")
    return result._replace(is_ok=True)
