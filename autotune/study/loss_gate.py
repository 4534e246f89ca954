"""Does a candidate train as the reference does? What stays comparable is compared, and what does not is said.

Flags, and options that change rounding only, are held to the reference step by step. Another batch meets it only at
equal work, and another dtype only roughly in its first steps: of both a long run decides, in the soak.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.model import (
    LOSS_NOT_CHECKED,
    Failure,
    FailureKind,
    FlagSet,
    LossBasis,
    LossCheck,
    Pair,
    SameStep,
    StudySpec,
    WorkerReport,
    format_change_of,
    options_in,
)
from autotune.stats import (
    GRAD_NORM,
    LOSS,
    MOST_TOLERANCE,
    Comparability,
    LossSpread,
    StepLoss,
    Trace,
    compare_first_steps,
    compare_long_runs,
    compare_traces,
    first_steps,
    is_float32,
    relative_difference,
    rounding_of,
    spacing_of,
)
from autotune.workers import first_step

DTYPE_MARGIN = 4.0
"""How many times the coarser arithmetic's rounding the first loss may be off when the arithmetic changes."""

STEP_BY_STEP = (LossBasis.STEPS, LossBasis.ROUNDING)
"""Sets that do the same work in the same arithmetic: every step of theirs is to be the reference's."""

COLLAPSED = 0.05
"""Share of the first loss below which a loss counts as learned by heart: its differences are shares of this."""

HOW_TO_TELL = "call autotune.hook.report(loss=...), or give workload.read.loss"

_DTYPE_OPTION = re.compile(r"dtype|precision|quant|fp8|float8|bf16|amp$")
_DATA_OPTION = re.compile(r"(^|_)(?<!micro_)(batch|seq|sequence|length|context)")


def changed_options(spec: StudySpec, settings: FlagSet, base: FlagSet) -> list[str]:
    """Options of a set that have another value than those of the set that it is compared with."""
    before = {**spec.reference_options, **options_in(base)}
    after = {**spec.reference_options, **options_in(settings)}
    return [n for n, value in after.items() if n not in before or before[n] != value]


def basis_of(
    spec: StudySpec, sets: tuple[FlagSet, FlagSet], reference: WorkerReport, candidate: WorkerReport
) -> LossBasis:
    """By what the loss of a candidate, the second set, can be compared with that of the first."""
    changed = changed_options(spec, sets[1], sets[0])
    if not changed:
        return LossBasis.STEPS
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
    spread: LossSpread,
) -> LossCheck | Failure:
    """Compares the first steps.

    Args:
        spec: The study.
        settings: Of the candidate.
        reference: What the reference's process said of itself.
        candidate: What the candidate's said.
        aa_tolerance: Largest relative difference seen between the first steps of two runs of the reference.
        spread: How far references are apart by step, one in another rounding among them where that ran.

    Returns:
        What is wrong; or what was compared, and where nothing could be, that.
    """
    basis = basis_of(spec, (FlagSet(), settings), reference, candidate)
    if not reference.losses:
        return _silent(basis, "the reference")
    if not candidate.losses and basis is not LossBasis.STEPS:
        return _silent(basis, "the candidate")
    if basis in STEP_BY_STEP or _is_as_much(basis, reference, candidate):
        found = _step_by_step(basis, reference, candidate, spread)
        if basis in STEP_BY_STEP or isinstance(found, LossCheck):
            return found
    return _at_equal_work(reference, candidate, basis, aa_tolerance=aa_tolerance)


def check_block(
    spec: StudySpec,
    sets: tuple[FlagSet, FlagSet],
    reports: tuple[WorkerReport, WorkerReport],
    told: SameStep | None,
    spread: LossSpread,
) -> Failure | None:
    """Compares what both arms told after a pair of blocks; what is wrong, if anything is.

    Args:
        spec: The study.
        sets: What is compared with, and the candidate.
        reports: Of both.
        told: Of the same step; None where one told nothing.
        spread: How far references are apart by step.
    """
    if told is None or basis_of(spec, sets, *reports) not in STEP_BY_STEP:
        return None
    base = {told.step: StepLoss(told.reference, told.reference_norm)}
    mine = {told.step: StepLoss(told.candidate, told.candidate_norm)}
    return _wrong_at(base, mine, reports[0], spread, phase="step")


def with_blocks(
    check: LossCheck | None, pairs: Sequence[Pair], reference: WorkerReport, spread: LossSpread
) -> LossCheck | None:
    """A check of first steps, with what the blocks after them added: none of them was wrong.

    Args:
        check: Of the first steps.
        pairs: All pairs of blocks.
        reference: What the reference's process said of itself.
        spread: How far references are apart by step.
    """
    told = [p.loss for p in pairs if p.loss is not None]
    if check is None or not check.is_ok or check.basis not in STEP_BY_STEP or not told:
        return check
    largest = max(check.difference or 0.0, *(relative_difference(t.reference, t.candidate) for t in told))
    last = max(t.step for t in told)
    allowed = _allowed(spread, last, reference)
    count = len({t.step for t in told}) + (check.steps or 0)
    words = _agrees(check.basis, f"{check.steps} steps and after blocks up to step {last}", largest, allowed, spread)
    return check.model_copy(update={"difference": largest, "tolerance": allowed, "steps": count, "words": words})


def _silent(basis: LossBasis, who: str) -> LossCheck:
    said = "" if basis is LossBasis.STEPS else "inconclusive: "
    words = f"{LOSS_NOT_CHECKED}: {said}{who} tells no loss, so nothing says that the set trains as it should"
    return LossCheck(basis=basis, is_ok=None, words=f"{words} ({HOW_TO_TELL})")


def _step_by_step(
    basis: LossBasis, reference: WorkerReport, candidate: WorkerReport, spread: LossSpread
) -> LossCheck | Failure:
    """The same work, every step held to the reference's with the tolerance that references themselves showed."""
    base, mine = (first_steps(r.losses, r.grad_norms) for r in (reference, candidate))
    if (failure := _wrong_at(base, mine, reference, spread, phase="check")) is not None:
        return failure
    largest = max(relative_difference(base[step].loss, mine[step].loss) for step in base)
    allowed = _allowed(spread, len(base) - 1, reference)
    return LossCheck(
        basis=basis, is_ok=True, difference=largest, tolerance=allowed, steps=len(base),
        words=_agrees(basis, f"{len(base)} steps", largest, allowed, spread),
    )  # fmt: skip


def _allowed(spread: LossSpread, step: int, reference: WorkerReport) -> float:
    return spread.tolerance(step, dtype=_arithmetic(reference)) + _spacing(reference).get(LOSS, 0.0)


def _agrees(basis: LossBasis, over: str, largest: float, allowed: float, spread: LossSpread) -> str:
    what = "options that change rounding only: " if basis is LossBasis.ROUNDING else ""
    measured = "measured on the reference in another rounding"
    if not spread.is_rounded:
        measured = "that of its arithmetic: no reference ran in another rounding, or it did not differ"
    return (
        f"{what}loss step by step over {over}, difference at most {largest:.1e}, tolerance {allowed:.1e} at the last "
        f"({measured})"
    )


def _wrong_at(base: Trace, mine: Trace, reference: WorkerReport, spread: LossSpread, *, phase: str) -> Failure | None:
    check = compare_traces(base, mine, spread=spread, dtype=_arithmetic(reference), spacing=_spacing(reference))
    if check.is_ok:
        return None
    return wrong_loss(
        f"{check.quantity} at step {check.step} must be {check.expected!r} within {check.tolerance or 0:.1e} "
        f"(relative) but is {check.got!r}",
        phase=phase,
    )


def _at_equal_work(
    reference: WorkerReport, candidate: WorkerReport, basis: LossBasis, *, aa_tolerance: float
) -> LossCheck | Failure:
    classes = [rounding_of(_arithmetic(r)) for r in (reference, candidate)]
    stored = max(_spacing(r).get(LOSS, 0.0) for r in (reference, candidate))
    found = compare_first_steps(
        reference.losses,
        candidate.losses,
        (reference.grad_norms, candidate.grad_norms),
        work=(reference.tokens_per_step or 1, candidate.tokens_per_step or 1),
        least_tolerance=stored
        + max(4.0 * aa_tolerance, max(classes) * (DTYPE_MARGIN if basis is LossBasis.DTYPE else 1.0)),
    )
    if found.is_ok is False:
        return wrong_loss(
            f"{_of(basis)}{found.reason} (tolerance {found.tolerance:.1e}, from the reference's own neighbouring "
            "steps)",
            phase="check",
        )
    words = f"{_of(basis)}inconclusive: {found.reason}"
    if found.is_ok:
        words = (
            f"{_of(basis)}first steps agree at {found.points} points of equal work, difference "
            f"{format_change_of(found.difference)}, tolerance {found.tolerance:.1e}; a long run has to say the rest"
        )
    return LossCheck(
        basis=basis, is_ok=found.is_ok, difference=found.difference, tolerance=found.tolerance, words=words,
        is_final=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLosses:
    """What one arm of a soak told.

    Attributes:
        report: Of its first process.
        losses: Steps of that process since it was ready, and the loss there, in order.
        steps: Steps of all its processes.
    """

    report: WorkerReport
    losses: Sequence[tuple[int, float]]
    steps: int

    @property
    def by_work(self) -> list[tuple[float, float]]:
        """Work done so far, and the loss there."""
        each = self.report.tokens_per_step or 1
        return [(n * each, loss) for n, loss in self.losses]


def judge_soak_loss(
    spec: StudySpec, basis: LossBasis, reference: LongLosses, candidate: LongLosses, *, spread: LossSpread
) -> LossCheck | Failure:
    """What a soak says of a loss: the last word on a set with another dtype or batch.

    Sets that do the same work are held to the reference step by step, as far as references told how far they may be
    apart, and after that by their mean loss.

    Args:
        spec: The study.
        basis: By what the set's loss can be compared.
        reference: What the reference told, which ran alone as long.
        candidate: What the set told.
        spread: How far references are apart by step.
    """
    if basis in STEP_BY_STEP:
        if not reference.losses or not candidate.losses:
            return _silent(basis, "the reference" if not reference.losses else "the candidate")
        if (failure := _wrong_in_soak(spec, reference, candidate, spread)) is not None:
            return failure
    found = compare_long_runs(
        reference.by_work,
        candidate.by_work,
        tolerance=spec.confirm.loss_tolerance,
        is_same_work=reference.report.tokens_per_step == candidate.report.tokens_per_step,
        least_scale=COLLAPSED * abs(next(iter(reference.report.losses), 0.0)) if basis in STEP_BY_STEP else 0.0,
    )
    return _long_run(basis, found, steps=candidate.steps)


def _wrong_in_soak(spec: StudySpec, reference: LongLosses, candidate: LongLosses, spread: LossSpread) -> Failure | None:
    """What is wrong at a step of both for which references told how far they may be apart."""
    told, mine = dict(reference.losses), dict(candidate.losses)
    begin, last = first_step(spec) - 1, max(spread.steps, default=0)
    common = [n for n in told if n in mine and begin + n <= last]
    base, own = ({begin + n: StepLoss(run[n]) for n in common} for run in (told, mine))
    return _wrong_at(base, own, reference.report, spread, phase="soak")


def _long_run(basis: LossBasis, found: Comparability, *, steps: int) -> LossCheck | Failure:
    over = f"{_of(basis)}judged by loss over {steps} steps"
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


def _is_as_much(basis: LossBasis, reference: WorkerReport, candidate: WorkerReport) -> bool:
    """Whether a step does as much although its rows may be cut otherwise: it may still be the very same step."""
    return basis is LossBasis.WORK and reference.tokens_per_step == candidate.tokens_per_step


def _of(basis: LossBasis) -> str:
    """Why a loss is not compared step by step, to begin a sentence with; empty where it is."""
    return {LossBasis.DTYPE: "dtype changes: ", LossBasis.WORK: "the work of a step changes: "}.get(basis, "")


def _arithmetic(report: WorkerReport) -> str:
    """A GPU multiplies float32 matrices as TF32 unless told otherwise, and which ones changes with the kernels."""
    return "tensorfloat32" if is_float32(report.dtype) and report.platform != "cpu" else report.dtype


def _spacing(report: WorkerReport) -> dict[str, float]:
    """How far neighbours of loss and gradient norm are apart, where they are told in a format narrower than float32."""
    told = {LOSS: report.loss_dtype, GRAD_NORM: report.norm_dtype}
    found = {quantity: spacing_of(dtype) for quantity, dtype in told.items() if dtype is not None}
    return {quantity: spacing for quantity, spacing in found.items() if spacing > spacing_of("float32")}


def unusable_dtype(report: WorkerReport) -> Failure | None:
    """What is wrong with the formats that a process names: with them its loss could not be held to another's."""
    told = {"loss": report.loss_dtype, "grad_norm": report.norm_dtype}
    for what, dtype in {"the step's arithmetic (config['dtype'])": report.dtype, **told}.items():
        try:
            spacing = spacing_of(dtype) if dtype is not None else 0.0
        except ValueError as error:
            return Failure(kind=FailureKind.WORKLOAD_ERROR, message=f"{what}: {error}", phase="check")
        if what in told and spacing > MOST_TOLERANCE:
            message = f"{what} must be told finely enough to be compared but is {dtype}: return it as float32"
            return Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase="check")
    return None
