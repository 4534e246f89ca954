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


_ROUNDING = {  # unit roundoff of the arithmetic that decides: float32 matrix products may run as TF32
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tensorfloat32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}
_LOSS_ROUNDINGS = 16.0
_GRAD_NORM_ROUNDINGS = 64.0
_AA_MARGIN = 4.0


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

    The tolerance at step i is 4 * `aa_tolerance` + c * (i + 1) * (unit roundoff of `dtype`), c being 16 for
    the loss and 64 for the gradient norm: rounding differences feed back through the parameters and grow.

    Args:
        reference_losses: Loss at each step, finite.
        candidate_losses: The same under the candidate's flags; any NaN or infinity is a failure.
        reference_grad_norms: Global gradient norm at each step, finite.
        candidate_grad_norms: The same under the candidate's flags.
        aa_tolerance: Largest relative difference seen between two runs of the reference (`largest_drift`).
        dtype: Arithmetic of the matrix products: float32, tensorfloat32, bfloat16, float16 or float64.
    """
    if dtype not in _ROUNDING:
        raise ValueError(f"`dtype` must be one of {', '.join(_ROUNDING)} but got {dtype!r}")
    rounding = _ROUNDING[dtype]
    traces = (
        ("loss", _LOSS_ROUNDINGS, reference_losses, candidate_losses),
        ("gradient norm", _GRAD_NORM_ROUNDINGS, reference_grad_norms, candidate_grad_norms),
    )
    if not all(math.isfinite(value) for _, _, reference, _ in traces for value in reference):
        raise ValueError("the reference's own loss or gradient norm is not finite: mend the workload first")
    largest = 0.0
    for step in range(max(len(reference_losses), len(reference_grad_norms))):
        for quantity, roundings, reference, candidate in traces:
            if step >= len(reference):
                continue
            tolerance = _AA_MARGIN * aa_tolerance + roundings * (step + 1) * rounding
            got = candidate[step] if step < len(candidate) else None
            difference = math.inf if got is None else _relative_difference(reference[step], got)
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
    return max((_relative_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _relative_difference(expected: float, got: float) -> float:
    if not (math.isfinite(expected) and math.isfinite(got)):
        return math.inf
    return abs(got - expected) / max(abs(expected), 1e-12)
