"""Correctness: does a candidate compute what the reference computes, step by step?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autotune.stats.dtypes import rounding_of

LOSS, GRAD_NORM = "loss", "gradient norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCheck:
    """Whether a candidate computes what the reference computes.

    Attributes:
        is_ok: True when every step of both traces is within tolerance.
        step: First step that is not, counted from 0.
        quantity: "loss" or "gradient norm" at that step.
        expected: What the reference had there.
        got: What the candidate had there, None when its trace ends before.
        tolerance: Largest relative difference allowed there.
        largest_difference: Largest relative difference over the steps up to there.
    """

    is_ok: bool
    step: int | None = None
    quantity: str | None = None
    expected: float | None = None
    got: float | None = None
    tolerance: float | None = None
    largest_difference: float = 0.0


_GRAD_NORM_FACTOR = 4.0
MARGIN = 4.0
"""How many times the largest difference seen among references a candidate may be off: they are few."""

AHEAD = 2
"""References are looked at up to this many times the step: their differences grow, now sooner, now later.

Of simulated sets in another rounding 2 to 11 % were called wrong with references up to the same step, at most 0.2 % so.
"""

MOST_TOLERANCE = 0.25
"""Past this, a difference is no rounding, unless references themselves were seen so far apart."""

FEW_STEPS = 20
"""Within so many steps, rounding that no reference shows is taken to grow with the step; later with its third power.

Seen on XLA:CPU (jax 0.10.2) over 230 steps of llama-tiny in float32, between a program without its optimizations and
one with them: 1e-7 at the first step, 4e-7 within 20, 7e-4 and 9e-3 after 219 and 230 in two runs.
"""

SMALL = 0.2
"""Where no reference shows what rounding does, a loss that has fallen below this share of the first one is allowed what
one of that size is: rounding moves large logits alike, however small the loss is that is left of them.

Seen on XLA:CPU (jax 0.10.2, llama-tiny in float32, without optimizations and with them): 0.350 and 0.465 at step 387.
"""

_STEEPEST = 2.0
"""Power of the step with which differences are taken to grow, at most, past the last step that references told."""


class StepLoss(NamedTuple):
    """What one process told of one step: its loss, and the global gradient norm if it is known."""

    loss: float
    grad_norm: float | None = None


Trace = Mapping[int, StepLoss]
"""What one process told, by step, counted from 0 since it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpread:
    """How far references that do the same lie apart, by step: several processes, and one in another rounding.

    Attributes:
        steps: Steps, ascending, at which they were compared.
        losses: Largest relative difference of their losses at or before each of these steps.
        norms: Likewise of their gradient norms.
        is_rounded: Whether one in another rounding was among them, and differed: if not, nothing was seen of what
            rounding does, and arithmetic alone says what it may.
    """

    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    is_rounded: bool = False

    def __post_init__(self) -> None:
        """Refuses what no references show; a record may have been edited.

        Raises:
            ValueError: If steps do not ascend, or differences are not finite, below 0, or fall.
        """
        if not len(self.steps) == len(self.losses) == len(self.norms):
            raise ValueError("a spread of losses must have a difference for each step")
        if list(self.steps) != sorted(set(self.steps)) or any(s < 0 for s in self.steps):
            raise ValueError(f"steps of a spread of losses must ascend from 0 on but are {self.steps}")
        for values in (self.losses, self.norms):
            rises = all(a <= b for a, b in itertools.pairwise((0.0, *values)))
            if not rises or not all(map(math.isfinite, values)):
                raise ValueError(f"differences of a spread of losses must be finite and never fall but are {values}")

    def seen(self, step: int, quantity: str = LOSS) -> float:
        """The largest relative difference among references at or before a step.

        Between two steps that they told it is interpolated. Past the last one it grows on as over the last half of
        them: at least in proportion to the step, at most with its square.
        """
        values = self.losses if quantity == LOSS else self.norms
        if not values:
            return 0.0
        last = self.steps[-1]
        if step <= last or last == 0:
            return float(np.interp(step, self.steps, values))
        middle = float(np.interp(last / 2, self.steps, values))
        power = math.log2(values[-1] / middle) if middle > 0 else 1.0
        return values[-1] * math.pow(step / last, min(max(power, 1.0), _STEEPEST))

    def tolerance(self, step: int, *, dtype: str, quantity: str = LOSS) -> float:
        """How far a candidate may be off at a step, relative to the reference; always finite.

        `MARGIN` times what was seen up to `AHEAD` times the step, and at least what one rounding in `dtype` may cause
        at the first step. Where no reference in another rounding was seen, that is taken to grow with the steps.
        """
        factor = _GRAD_NORM_FACTOR if quantity == GRAD_NORM else 1.0
        rounding = rounding_of(dtype) * factor
        seen = MARGIN * self.seen(AHEAD * step, quantity)
        found = max(rounding, seen) if self.is_rounded else seen + _unseen_growth(step) * rounding
        told = MARGIN * self.seen(min(AHEAD * step, self.steps[-1]), quantity) if self.steps else 0.0
        return min(found, max(MOST_TOLERANCE * factor, told))

    def joined(self, other: LossSpread) -> LossSpread:
        """Both together."""
        found = dict.fromkeys((*self.steps, *other.steps), (0.0, 0.0))
        for spread in (self, other):
            for step, loss, norm in zip(spread.steps, spread.losses, spread.norms, strict=True):
                found[step] = (max(found[step][0], loss), max(found[step][1], norm))
        return _spread(found, is_rounded=self.is_rounded or other.is_rounded)


def _unseen_growth(step: int) -> float:
    """How many times the rounding of the first step a later one may show."""
    steps = step + 1
    return steps * max(1.0, steps / FEW_STEPS) ** 2


def spread_between(first: Trace, second: Trace, *, is_rounded: bool = False) -> LossSpread:
    """What two references say of each other.

    Args:
        first: Of one reference.
        second: Of another process of it.
        is_rounded: The second one ran in another rounding; if it never differs, nothing was seen of that.

    Raises:
        ValueError: If something told is not finite.
    """
    found = {}
    for step in set(first) & set(second):
        one, other = first[step], second[step]
        norm = 0.0
        if one.grad_norm is not None and other.grad_norm is not None:
            norm = relative_difference(one.grad_norm, other.grad_norm)
        found[step] = (relative_difference(one.loss, other.loss), norm)
    return _spread(found, is_rounded=is_rounded and any(loss > 0 for loss, _ in found.values()))


def _spread(found: Mapping[int, tuple[float, float]], *, is_rounded: bool) -> LossSpread:
    """A spread from the differences of loss and gradient norm by step."""
    steps = sorted(found)
    losses, norms = (tuple(itertools.accumulate((found[s][i] for s in steps), max)) for i in (0, 1))
    return LossSpread(steps=tuple(steps), losses=losses, norms=norms, is_rounded=is_rounded)


def first_steps(losses: Sequence[float], grad_norms: Sequence[float]) -> dict[int, StepLoss]:
    """The trace of a process's first steps."""
    norms = itertools.chain(grad_norms, itertools.repeat(None))
    return {step: StepLoss(loss, norm) for step, (loss, norm) in enumerate(zip(losses, norms, strict=False))}


def compare_traces(
    reference: Trace, candidate: Trace, *, spread: LossSpread, dtype: str, spacing: Mapping[str, float] | None = None
) -> TraceCheck:
    """Compares loss and global gradient norm at every step that the reference tells; same seed and data.

    Args:
        reference: Finite at every step.
        candidate: What it told: it must have told as much, and any NaN or infinity is a failure.
        spread: How far references are apart.
        dtype: Arithmetic of the matrix products; see `dtypes.formats_of`. On NVIDIA GPUs float32 products are
            tensorfloat32 by default.
        spacing: By quantity, how far neighbours are apart in the format in which it is told, if that is narrow.

    Raises:
        ValueError: If the reference tells something that is not finite, or `dtype` is not known.
    """
    rounding_of(dtype)
    largest, begins = 0.0, dict[str, float]()
    for step in sorted(reference):
        for quantity, expected, got in _told(reference[step], candidate.get(step)):
            if not math.isfinite(expected):
                raise ValueError(f"a reference's {quantity} must be finite but is {expected} at step {step}")
            tolerance = spread.tolerance(step, dtype=dtype, quantity=quantity)
            stored = (spacing or {}).get(quantity, 0.0)
            if not spread.is_rounded:
                small = SMALL * begins.setdefault(quantity, abs(expected))
                tolerance *= max(1.0, small / max(abs(expected), 1e-12))
            difference = math.inf if got is None else relative_difference(expected, got)
            largest = max(largest, difference)
            if difference > (tolerance := tolerance + stored):
                return TraceCheck(
                    is_ok=False,
                    step=step,
                    quantity=quantity,
                    expected=expected,
                    got=got,
                    tolerance=tolerance,
                    largest_difference=largest,
                )
    return TraceCheck(is_ok=True, largest_difference=largest)


def _told(reference: StepLoss, candidate: StepLoss | None) -> Iterator[tuple[str, float, float | None]]:
    """What is to be compared at one step: the quantity, and what both had there."""
    yield LOSS, reference.loss, candidate.loss if candidate is not None else None
    if reference.grad_norm is not None:
        yield GRAD_NORM, reference.grad_norm, candidate.grad_norm if candidate is not None else None


def largest_drift(first: Sequence[float], second: Sequence[float]) -> float:
    """Largest relative difference between two traces of the same length, infinite when one is not finite."""
    return max((relative_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def relative_difference(expected: float, got: float) -> float:
    """Of two numbers, infinite when one is not finite."""
    if not (math.isfinite(expected) and math.isfinite(got)):
        return math.inf
    return abs(got - expected) / max(abs(expected), 1e-12)
