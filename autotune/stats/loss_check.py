"""Correctness: does a candidate compute what the reference computes, step by step?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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


_LOSS_TOLERANCE = {
    "float64": 32 * 2.0**-53,
    "float32": 32 * 2.0**-24,
    "tensorfloat32": 2.0**-10,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-8,
    "float8": 2.0**-6,
}
"""Relative difference of the loss that rounding may cause at the first step, by arithmetic.

Narrow products are summed in float32 and their errors average out; float32's own sums do not. Seen on XLA:CPU
(jax 0.10.2, llama-tiny, 20 steps, nine flag sets against none): float32 at most 1e-7 at the first step and 4e-7
later, bfloat16 1.2e-4, 1.1e-3 within 5 steps and 7e-3 within 20; gradient norms 2 to 10 times that.
"""
_GRAD_NORM_FACTOR = 4.0
_AA_MARGIN = 4.0


def rounding_of(dtype: str) -> float:
    """Relative difference of the loss that rounding may cause at the first step.

    Raises:
        ValueError: If the arithmetic is not known.
    """
    if dtype.startswith("float8"):  # in its several forms; products are scaled and summed wider, errors average out
        return _LOSS_TOLERANCE["float8"]
    if dtype not in _LOSS_TOLERANCE:
        raise ValueError(f"`dtype` must be one of {', '.join(_LOSS_TOLERANCE)} but got {dtype!r}")
    return _LOSS_TOLERANCE[dtype]


def compare_traces(
    reference_losses: Sequence[float],
    candidate_losses: Sequence[float],
    reference_grad_norms: Sequence[float],
    candidate_grad_norms: Sequence[float],
    *,
    aa_tolerance: float,
    dtype: str,
) -> TraceCheck:
    """Compares loss and global gradient norm over the first steps, same seed and data.

    The tolerance at step i is 4 * `aa_tolerance` + (i + 1) * r for the loss, r being what rounding in `dtype`
    may cause at the first step, and + 4 (i + 1) * r for the gradient norm: rounding differences feed back
    through the parameters and grow.

    Args:
        reference_losses: Loss at each step, finite.
        candidate_losses: The same under the candidate's flags; any NaN or infinity is a failure.
        reference_grad_norms: Global gradient norm at each step, finite.
        candidate_grad_norms: The same under the candidate's flags.
        aa_tolerance: Largest relative difference seen between two runs of the reference (`largest_drift`).
        dtype: Arithmetic of the matrix products: float32, bfloat16, float16, float64, or tensorfloat32, which is
            what float32 products are by default on NVIDIA GPUs.
    """
    rounding = rounding_of(dtype)
    traces = (
        ("loss", 1.0, reference_losses, candidate_losses),
        ("gradient norm", _GRAD_NORM_FACTOR, reference_grad_norms, candidate_grad_norms),
    )
    if not all(math.isfinite(value) for _, _, reference, _ in traces for value in reference):
        raise ValueError("the reference's own loss or gradient norm is not finite: mend the workload first")
    largest = 0.0
    for step in range(max(len(reference_losses), len(reference_grad_norms))):
        for quantity, factor, reference, candidate in traces:
            if step >= len(reference):
                continue
            tolerance = _AA_MARGIN * aa_tolerance + factor * (step + 1) * rounding
            got = candidate[step] if step < len(candidate) else None
            difference = math.inf if got is None else relative_difference(reference[step], got)
            largest = max(largest, difference)
            if difference > tolerance:
                return TraceCheck(
                    is_ok=False,
                    step=step,
                    quantity=quantity,
                    expected=reference[step],
                    got=got,
                    tolerance=tolerance,
                    largest_difference=largest,
                )
    return TraceCheck(is_ok=True, largest_difference=largest)


def largest_drift(first: Sequence[float], second: Sequence[float]) -> float:
    """Largest relative difference between two traces of the same length, infinite when one is not finite."""
    return max((relative_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def relative_difference(expected: float, got: float) -> float:
    """Of two numbers, infinite when one is not finite."""
    if not (math.isfinite(expected) and math.isfinite(got)):
        return math.inf
    return abs(got - expected) / max(abs(expected), 1e-12)
