"""Does a candidate train as the reference does? What stays comparable is compared, and what does not is said.

Flags, and options that change rounding only, are held to the reference step by step. Another batch meets it only at
equal work, and another dtype only roughly in its first steps: of both a long run decides, in the soak.
"""

from __future__ import annotations

import math
import re

from autotune.model import (
    Failure,
    FailureKind,
    FlagSet,
    LossBasis,
    LossCheck,
    StudySpec,
    WorkerReport,
    format_change_of,
    options_in,
)
from autotune.stats import Comparability, compare_first_steps, compare_traces, rounding_of

OTHER_ROUNDING = FlagSet({"jax_disable_most_optimizations": "true"})
"""Under it the reference computes the same in another order: what that does to its loss is measured at the floor."""

DTYPE_MARGIN = 4.0
"""How many times the coarser arithmetic's rounding the first loss may be off when the arithmetic changes."""

_DTYPE_OPTION = re.compile(r"dtype|precision|quant|fp8|float8|bf16|amp$")
_DATA_OPTION = re.compile(r"(^|_)(?<!micro_)(batch|seq|sequence|length|context)")


def changed_options(spec: StudySpec, settings: FlagSet) -> list[str]:
    """Options of a set that have another value than the reference's."""
    reference = spec.reference_options
    return [n for n, value in options_in(settings).items() if n not in reference or reference[n] != value]


def basis_of(spec: StudySpec, settings: FlagSet, reference: WorkerReport, candidate: WorkerReport) -> LossBasis | None:
    """By what a set's loss can be compared; None for flags alone: step by step, as ever."""
    changed = changed_options(spec, settings)
    if not changed:
        return None
    if reference.dtype != candidate.dtype or any(_DTYPE_OPTION.search(n) for n in changed):
        return LossBasis.DTYPE
    is_other_work = reference.tokens_per_step != candidate.tokens_per_step
    return LossBasis.WORK if is_other_work or any(map(_DATA_OPTION.search, changed)) else LossBasis.ROUNDING


def check_loss(
    spec: StudySpec,
    settings: FlagSet,
    reference: WorkerReport,
    candidate: WorkerReport,
    *,
    aa_tolerance: float,
    rounding: float | None,
) -> LossCheck | Failure | None:
    """Compares the first steps.

    Args:
        spec: The study.
        settings: Of the candidate.
        reference: What the reference's process said of itself.
        candidate: What the candidate's said.
        aa_tolerance: Largest relative difference seen between two runs of the reference.
        rounding: Likewise to one in `OTHER_ROUNDING`; None where that is not known.

    Returns:
        What is wrong; or what was compared, where options differ; or None, where nothing is worth a record.
    """
    basis = basis_of(spec, settings, reference, candidate)
    if basis is None:
        return _step_by_step(reference, candidate, aa_tolerance=aa_tolerance)
    if not reference.losses or not candidate.losses:
        silent = "the reference" if not reference.losses else "the candidate"
        words = f"inconclusive: {silent} tells no loss, so nothing says that the set trains as it should"
        return LossCheck(basis=basis, is_ok=None, words=words)
    if basis is LossBasis.ROUNDING or _is_as_much(basis, reference, candidate):
        found = _rounded(reference, candidate, aa_tolerance=aa_tolerance, rounding=rounding)
        if basis is LossBasis.ROUNDING or isinstance(found, LossCheck):
            return found
    return _at_equal_work(reference, candidate, basis, aa_tolerance=aa_tolerance)


def _step_by_step(reference: WorkerReport, candidate: WorkerReport, *, aa_tolerance: float) -> Failure | None:
    check = compare_traces(
        reference_losses=reference.losses,
        candidate_losses=candidate.losses,
        reference_grad_norms=reference.grad_norms,
        candidate_grad_norms=candidate.grad_norms,
        aa_tolerance=aa_tolerance,
        dtype=_arithmetic(reference),
    )
    if check.is_ok:
        return None
    return wrong_loss(
        f"{check.quantity} at step {check.step} must be {check.expected!r} within {check.tolerance or 0:.1e} "
        f"(relative) but is {check.got!r}",
        phase="check",
    )


def _rounded(
    reference: WorkerReport, candidate: WorkerReport, *, aa_tolerance: float, rounding: float | None
) -> LossCheck | Failure:
    """The same work in another order: as for flags, with the tolerance that the reference itself showed."""
    allowed = max(aa_tolerance, rounding or 0.0)
    if (failure := _step_by_step(reference, candidate, aa_tolerance=allowed)) is not None:
        return failure
    steps, tolerance = len(reference.losses), 4.0 * allowed + rounding_of(_arithmetic(reference))
    largest = max(abs(c - r) / max(abs(r), 1e-12) for r, c in zip(reference.losses, candidate.losses, strict=False))
    measured = "that of its arithmetic" if rounding is None else "measured on the reference in another rounding"
    words = (
        f"options that change rounding only: loss step by step over {steps} steps, difference at most {largest:.1e}, "
        f"tolerance from {tolerance:.1e} at the first ({measured})"
    )
    return LossCheck(basis=LossBasis.ROUNDING, is_ok=True, difference=largest, tolerance=tolerance, words=words)


def _at_equal_work(
    reference: WorkerReport, candidate: WorkerReport, basis: LossBasis, *, aa_tolerance: float
) -> LossCheck | Failure:
    classes = [rounding_of(_arithmetic(r)) for r in (reference, candidate)]
    found = compare_first_steps(
        reference.losses,
        candidate.losses,
        (reference.grad_norms, candidate.grad_norms),
        work=(reference.tokens_per_step or 1, candidate.tokens_per_step or 1),
        least_tolerance=max(4.0 * aa_tolerance, max(classes) * (DTYPE_MARGIN if basis is LossBasis.DTYPE else 1.0)),
    )
    if found.is_ok is False:
        return wrong_loss(
            f"{_of(basis)}: {found.reason} (tolerance {found.tolerance:.1e}, from the reference's own neighbouring "
            "steps)",
            phase="check",
        )
    words = f"{_of(basis)}: inconclusive: {found.reason}"
    if found.is_ok:
        words = (
            f"{_of(basis)}: first steps agree at {found.points} points of equal work, difference "
            f"{format_change_of(found.difference)}, tolerance {found.tolerance:.1e}; a long run has to say the rest"
        )
    return LossCheck(
        basis=basis, is_ok=found.is_ok, difference=found.difference, tolerance=found.tolerance, words=words,
        is_final=False,
    )  # fmt: skip


def judge_long_run(basis: LossBasis, found: Comparability, *, steps: int) -> LossCheck | Failure:
    """What a soak says: the last word on a set with another dtype or batch.

    Args:
        basis: Why its loss was compared at all.
        found: What came out.
        steps: Steps that the candidate ran.
    """
    over = f"{_of(basis)}: judged by loss over {steps} steps"
    if found.is_ok is None:
        return LossCheck(basis=basis, is_ok=None, words=f"{over}: inconclusive: {found.reason}")
    difference = f"difference {format_change_of(found.difference)}, tolerance {found.tolerance:.1%}"
    if not found.is_ok:
        return wrong_loss(
            f"{over} against the reference's after as much work: {found.reason}: {difference} (confirm.loss_tolerance)",
            phase="soak",
        )
    return LossCheck(
        basis=basis, is_ok=True, difference=found.difference, tolerance=found.tolerance,
        words=f"{over} against the reference's after as much work, {difference}",
    )  # fmt: skip


def wrong_loss(message: str, *, phase: str) -> Failure:
    """A candidate that does not train as the reference does."""
    return Failure(kind=FailureKind.WRONG_LOSS, message=message, phase=phase)


def drift_between(first: WorkerReport, second: WorkerReport) -> float | None:
    """Largest relative difference of two reports' losses and gradient norms; None if it is not finite."""
    traces = ((first.losses, second.losses), (first.grad_norms, second.grad_norms))
    found = [abs(b - a) / max(abs(a), 1e-12) for one, other in traces for a, b in zip(one, other, strict=False)]
    return max(found, default=0.0) if all(map(math.isfinite, found)) else None


def _is_as_much(basis: LossBasis, reference: WorkerReport, candidate: WorkerReport) -> bool:
    """Whether a step does as much although its rows may be cut otherwise: it may still be the very same step."""
    return basis is LossBasis.WORK and reference.tokens_per_step == candidate.tokens_per_step


def _of(basis: LossBasis) -> str:
    return "dtype changes" if basis is LossBasis.DTYPE else "the work of a step changes"


def _arithmetic(report: WorkerReport) -> str:
    """A GPU multiplies float32 matrices as TF32 unless told otherwise, and which ones changes with the kernels."""
    return "tensorfloat32" if report.dtype == "float32" and report.platform != "cpu" else report.dtype
