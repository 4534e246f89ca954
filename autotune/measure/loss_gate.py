"""Loss check: whether a candidate trains as the reference does.

Flags, and options that change rounding only, are held to the reference step by step, in their first steps and after
every block. Another batch meets it only at equal work, another dtype only roughly in its first steps, and so does a
program whose equal runs see other data: of these a long run decides, in the soak.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import (
    LOSS_NOT_CHECKED,
    Arm,
    Failure,
    FailureKind,
    LossBasis,
    LossCheck,
    Pair,
    SameStep,
    WorkerReport,
)
from autotune.model.options import options_in
from autotune.model.spec import StudySpec
from autotune.model.units import format_change_of
from autotune.stats.loss_check import (
    EQUAL_RUNS,
    GRAD_NORM,
    LOSS,
    MOST_TOLERANCE,
    SMALL,
    Comparability,
    LossSpread,
    StepLoss,
    Trace,
    compare_curves,
    compare_first_steps,
    compare_long_runs,
    compare_traces,
    first_steps,
    is_float32,
    relative_difference,
    rounding_of,
    spacing_of,
    spread_between,
)
from autotune.workers.base import Worker, WorkerFailed
from autotune.workers.local import first_step

DTYPE_MARGIN = 4.0
"""How many times the coarser arithmetic's rounding the first loss may be off when the arithmetic changes."""

CHANGE_FACTOR = 2.0
"""How many times as far, or as little, the first steps of a candidate may move the state as those of the reference."""

STEP_BY_STEP = (LossBasis.STEPS, LossBasis.ROUNDING)
"""Sets that do the same work in the same arithmetic: every step of theirs is to be the reference's."""

Sets = tuple[FlagSet, FlagSet]
"""What is compared with, and the candidate."""

Reports = tuple[WorkerReport, WorkerReport]
"""Of both."""

LongLosses = Sequence[tuple[int, float]]
"""Of one arm of a soak: steps of its first process since it was ready, and the loss there, in order."""

COLLAPSED = 0.05
"""Share of the first loss below which a loss counts as learned by heart: its differences are shares of this."""

HOW_TO_TELL = "call autotune.hook.report(loss=...), or give workload.read.loss"

_DTYPE_OPTION = re.compile(r"dtype|precision|quant|fp8|float8|bf16|amp$")
_DATA_OPTION = re.compile(r"(^|_)(?<!micro_)(batch|seq|sequence|length|context)")


def basis_of(spec: StudySpec, sets: Sets, reports: Reports) -> LossBasis:
    """How the loss of a candidate can be compared with the reference's."""
    reference, candidate = reports
    before, after = ({**spec.reference_options, **options_in(settings)} for settings in sets)
    changed = [n for n, value in after.items() if n not in before or before[n] != value]
    if not changed:
        return LossBasis.STEPS
    if reference.dtype != candidate.dtype or any(_DTYPE_OPTION.search(n) for n in changed):
        return LossBasis.DTYPE
    is_other_work = reference.tokens_per_step != candidate.tokens_per_step
    return LossBasis.WORK if is_other_work or any(map(_DATA_OPTION.search, changed)) else LossBasis.ROUNDING


@dataclass(frozen=True, slots=True)
class LossGate:
    """Holds candidates to the losses of the reference."""

    spec: StudySpec
    spread: LossSpread
    """How far processes of the reference are apart by step, one in another rounding among them where that ran."""
    aa_tolerance: float
    """Largest relative difference seen between the first steps of two runs of the reference."""

    def check(self, settings: FlagSet, reports: Reports) -> LossCheck:
        """Compares first steps: what was, or that nothing could be; WorkerFailed, as below, if it trains otherwise."""
        reference, candidate = reports
        basis = self._basis((FlagSet(), settings), reports)
        if not reference.losses:
            return _silent(basis, "the reference")
        if not candidate.losses and basis is not LossBasis.STEPS:
            return _silent(basis, "the candidate")
        if basis in STEP_BY_STEP:
            return self._step_by_step(basis, reference, candidate)
        if basis is LossBasis.WORK and reference.tokens_per_step == candidate.tokens_per_step:
            with contextlib.suppress(WorkerFailed):  # rows may be cut otherwise
                return self._step_by_step(basis, reference, candidate)
        return _at_equal_work(reference, candidate, basis, aa_tolerance=self.aa_tolerance)

    def _basis(self, sets: Sets, reports: Reports) -> LossBasis:
        """Returns how a candidate can be compared, given how far equal runs are apart."""
        basis = basis_of(self.spec, sets, reports)
        return LossBasis.ORDER if basis in STEP_BY_STEP and self.spread.has_other_data else basis

    def check_block(self, sets: Sets, reports: Reports, told: SameStep | None) -> None:
        """Compares what both arms reported of the same step after a pair of blocks."""
        if told is not None and self._basis(sets, reports) in STEP_BY_STEP:
            self._refuse_wrong(*_both(told), reports[0], phase="step")

    def with_blocks(self, check: LossCheck | None, pairs: Sequence[Pair], reference: WorkerReport) -> LossCheck | None:
        """A check of first steps, extended by the blocks after them, none of which was wrong."""
        told = [p.loss for p in pairs if p.loss is not None]
        if check is None or not check.is_ok or check.basis not in STEP_BY_STEP or not told:
            return check
        largest = max(check.difference or 0.0, *(relative_difference(t.reference, t.candidate) for t in told))
        last = max(t.step for t in told)
        allowed = self._allowed(last, reference)
        count = len({t.step for t in told}) + (check.steps or 0)
        words = self._agrees(check.basis, f"{check.steps} steps and after blocks up to step {last}", largest, allowed)
        return check.model_copy(update={"difference": largest, "tolerance": allowed, "steps": count, "words": words})

    def check_soak(
        self, basis: LossBasis, reports: Reports, losses: tuple[LongLosses, LongLosses], *, steps: int
    ) -> LossCheck:
        """Compares the losses of two long runs, the candidate's of `steps`: the last word on another dtype or batch.

        Sets that do the same work are held to the reference step by step, as far as the spread of references reaches,
        and as whole curves.
        """
        reference, candidate = reports
        if basis in STEP_BY_STEP:
            if not all(losses):
                return _silent(basis, "the candidate" if losses[0] else "the reference")
            self._refuse_wrong_in_soak(reference, *losses)
            least_scale = COLLAPSED * abs(next(iter(reference.losses), 0.0))
            return _long_run(basis, compare_curves(*losses, least_scale=least_scale), steps=steps)
        by_work = [[(n * (r.tokens_per_step or 1), v) for n, v in x] for r, x in zip(reports, losses, strict=True)]
        found = compare_long_runs(
            *by_work,
            tolerance=self.spec.confirm.loss_tolerance,
            is_same_work=reference.tokens_per_step == candidate.tokens_per_step,
        )
        return _long_run(basis, found, steps=steps)

    def _refuse_wrong_in_soak(self, report: WorkerReport, reference: LongLosses, candidate: LongLosses) -> None:
        """Compares the steps of both within the spread of references."""
        told = dict(reference)
        mine = dict(candidate)
        begin = first_step(self.spec) - 1
        last = max(self.spread.steps, default=0)
        common = [n for n in told if n in mine and begin + n <= last]
        base, own = ({begin + n: StepLoss(run[n]) for n in common} for run in (told, mine))
        self._refuse_wrong(base, own, report, phase="soak")

    def _step_by_step(self, basis: LossBasis, reference: WorkerReport, candidate: WorkerReport) -> LossCheck:
        """The same work, every step held to the reference's with the tolerance that references themselves showed."""
        base, mine = (first_steps(r.losses, r.grad_norms) for r in (reference, candidate))
        self._refuse_wrong(base, mine, reference, phase="check")
        _refuse_wrong_change(reference, candidate)
        largest = max(relative_difference(base[step].loss, mine[step].loss) for step in base)
        allowed = self._allowed(len(base) - 1, reference)
        words = self._agrees(basis, f"{len(base)} steps", largest, allowed)
        return LossCheck(basis=basis, is_ok=True, difference=largest, tolerance=allowed, steps=len(base), words=words)

    def _allowed(self, step: int, reference: WorkerReport) -> float:
        return self.spread.tolerance(step, dtype=_arithmetic(reference)) + _spacing(reference).get(LOSS, 0.0)

    def _agrees(self, basis: LossBasis, over: str, largest: float, allowed: float) -> str:
        what = "options that change rounding only: " if basis is LossBasis.ROUNDING else ""
        measured = "measured on the reference in another rounding"
        if not self.spread.is_rounded:
            measured = "that of its arithmetic: no reference ran in another rounding, or it did not differ"
        return (
            f"{what}loss step by step over {over}, difference at most {largest:.1e}, tolerance {allowed:.1e} at the "
            f"last ({measured})"
        )

    def _refuse_wrong(self, base: Trace, mine: Trace, reference: WorkerReport, *, phase: str) -> None:
        found = compare_traces(
            base, mine, spread=self.spread, dtype=_arithmetic(reference), spacing=_spacing(reference)
        )
        if found is not None:
            raise wrong_loss(
                f"{found.quantity} at step {found.step} must be {found.expected!r} within {found.tolerance:.1e} "
                f"(relative) but is {found.got!r}",
                phase=phase,
            )


def _silent(basis: LossBasis, who: str) -> LossCheck:
    said = "" if basis is LossBasis.STEPS else "inconclusive: "
    words = f"{LOSS_NOT_CHECKED}: {said}{who} reports no loss, so nothing says that the set trains as it should"
    return LossCheck(basis=basis, is_ok=None, words=f"{words} ({HOW_TO_TELL})")


def _at_equal_work(
    reference: WorkerReport, candidate: WorkerReport, basis: LossBasis, *, aa_tolerance: float
) -> LossCheck:
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
        raise wrong_loss(
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


def _long_run(basis: LossBasis, found: Comparability, *, steps: int) -> LossCheck:
    over = f"{_of(basis)}judged by loss over {steps} steps"
    if found.is_ok is None:
        return LossCheck(basis=basis, is_ok=None, words=f"{over}: inconclusive: {found.reason}")
    difference = f"difference {format_change_of(found.difference)}, tolerance {found.tolerance:.1%}"
    if not found.is_ok:
        key = "" if basis in STEP_BY_STEP else " (confirm.loss_tolerance)"
        raise wrong_loss(
            f"{over} against the reference's after as much work: {found.reason}: {difference}{key}", phase="soak"
        )
    return LossCheck(
        basis=basis, is_ok=True, difference=found.difference, tolerance=found.tolerance,
        words=f"{over} against the reference's after as much work, {difference}",
    )  # fmt: skip


def _refuse_wrong_change(reference: WorkerReport, candidate: WorkerReport) -> None:
    """Refuses equal steps that move the state by very different distances, as of a skipped optimizer.

    The distances are of some arrays of a state, so those of states with other arrays (stacked layers, or each by
    itself) say nothing of each other; their losses have been compared.
    """
    if reference.state_arrays != candidate.state_arrays:
        return
    expected = reference.state_change
    got = candidate.state_change
    if not expected or (got is not None and expected / CHANGE_FACTOR <= got <= expected * CHANGE_FACTOR):
        return
    told = "is not told" if got is None else f"is {got:.3g}"
    raise wrong_loss(
        f"its first steps must move the state by {expected:.3g} as the reference's do (at most {CHANGE_FACTOR:g} times "
        f"more or less), but the distance {told}",
        phase="check",
    )


def wrong_loss(message: str, *, phase: str) -> WorkerFailed:
    """The error of a candidate that does not train as the reference does."""
    return WorkerFailed(Failure(kind=FailureKind.WRONG_LOSS, message=message, phase=phase))


def _of(basis: LossBasis) -> str:
    """Why a loss is not compared step by step, to begin a sentence with; empty where it is."""
    reasons = {
        LossBasis.DTYPE: "dtype changes: ",
        LossBasis.WORK: "the work of a step changes: ",
        LossBasis.ORDER: "equal runs see other data: ",
    }
    return reasons.get(basis, "")


def _arithmetic(report: WorkerReport) -> str:
    """A GPU multiplies float32 matrices as TF32 unless told otherwise, and which ones changes with the kernels."""
    return "tensorfloat32" if is_float32(report.dtype) and report.platform != "cpu" else report.dtype


def _spacing(report: WorkerReport) -> dict[str, float]:
    """How far neighbours of loss and gradient norm are apart, where they are told in a format narrower than float32."""
    told = {LOSS: report.loss_dtype, GRAD_NORM: report.norm_dtype}
    found = {quantity: spacing_of(dtype) for quantity, dtype in told.items() if dtype is not None}
    return {quantity: spacing for quantity, spacing in found.items() if spacing > spacing_of("float32")}


def refuse_unusable_dtype(report: WorkerReport) -> None:
    """Refuses formats in which a loss could not be held to another's, by a WorkerFailed."""
    told = {"loss": report.loss_dtype, "grad_norm": report.norm_dtype}
    for what, dtype in {"the step's arithmetic (config['dtype'])": report.dtype, **told}.items():
        try:
            spacing = spacing_of(dtype) if dtype is not None else 0.0
        except ValueError as error:
            raise not_comparable(f"{what}: {error}") from None
        if what in told and spacing > MOST_TOLERANCE:
            raise not_comparable(
                f"{what} must be reported finely enough to be compared but is {dtype}: return it as float32"
            )


def not_comparable(message: str) -> WorkerFailed:
    """The error of a process whose report cannot be held to another's."""
    return WorkerFailed(Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase="check"))


# ---------------------------------------------------------------------- traces of processes

OTHER_ROUNDING = FlagSet({"jax_disable_most_optimizations": "true", "xla_allow_excess_precision": "false"})
"""Under it the reference computes the same in another order, and rounds where it is told to instead of where it likes.

Seen on XLA:CPU (docs/loss.md): the first alone does not round bfloat16 otherwise for several steps, the second alone
changes nothing of float32.
"""

ROUNDINGS = (OTHER_ROUNDING, OTHER_ROUNDING.without("jax_disable_most_optimizations"))
"""What is tried, one after the other: a program without its optimizations may not fit into memory."""

SLOWEST_ROUNDING = 2.0
"""How many times as long as the A/A run's own blocks those of the reference in another rounding may take together."""


class LossTrace:
    """Losses of one process by step, from 0: of each of its first steps, then of the steps that end its blocks.

    So far it has `done` so many steps; `last` is the step that its last block reported.
    """

    def __init__(self, spec: StudySpec, report: WorkerReport) -> None:
        self.told: dict[int, StepLoss] = first_steps(report.losses, report.grad_norms)
        self.done = first_step(spec)
        self.last: int | None = None
        self.recent: list[int] = []
        """Steps that were reported with the last block."""

    def take(self, worker: Worker, steps: int) -> None:
        """Takes in what a worker reports after a block of so many steps."""
        self.done += worker.dropped_steps + steps
        self.last = None
        self.told = {step: StepLoss(loss) for step, loss in worker.passed_losses} | self.told  # first steps stay
        self.recent = [step for step, _ in worker.passed_losses]
        if worker.last_loss is not None:
            self.last = self.done - 1 - worker.loss_lag
            self.told[self.last] = StepLoss(worker.last_loss, worker.last_norm)
            self.recent.append(self.last)

    def settle(self, worker: Worker, steps: int) -> None:
        """Runs a worker, without measuring it, until it has done so many steps."""
        if steps > self.done:
            rest = steps - self.done
            worker.run_block(rest)
            self.take(worker, rest)

    def refuse_shorter(self, reference: LossTrace) -> None:
        """Refuses, by a WorkerFailed, a candidate that reports no step as late as the reference's last one."""
        wanted = reference.last
        mine = self.last
        if wanted is not None and (mine is None or mine < wanted):
            ends = "is reported nowhere" if mine is None else f"ends at step {mine}"
            raise wrong_loss(
                f"its loss must be reported up to step {wanted}, as by the reference, but {ends}", phase="step"
            )

    def beside(self, reference: LossTrace) -> SameStep | None:
        """Loss of the latest step of this candidate's last block that the reference reported, too; None without one."""
        step = max((step for step in self.recent if step in reference.told), default=None)
        if step is None:
            return None
        base = reference.told[step]
        mine = self.told[step]
        return SameStep(
            step=step, reference=base.loss, candidate=mine.loss, reference_norm=base.grad_norm,
            candidate_norm=mine.grad_norm,
        )  # fmt: skip


def refuse_not_finite(report: WorkerReport) -> None:
    """Refuses a reference whose first steps tell a loss that is no number, by a LaunchError."""
    if problem := _not_a_number(report):
        raise not_finite(problem)


def _not_a_number(report: WorkerReport) -> str:
    """What is not finite of a process's first steps; empty if all is."""
    for quantity, values in (("loss", report.losses), ("gradient norm", report.grad_norms)):
        for step, value in enumerate(values):
            if not math.isfinite(value):
                return f"its {quantity} is {value} at step {step}"
    return ""


def not_finite(what: str) -> LaunchError:
    """The error of a study whose reference tells something that is no number."""
    return LaunchError(
        "loss and gradient norm of the reference must be finite at every step, for candidates are held to them, but "
        f"{what}; mend the workload (learning rate, data, loss scaling) or the baseline of the study, then run it in a "
        "new run directory"
    )


def spread_of_aa_run(reports: Sequence[WorkerReport], pairs: Sequence[Pair]) -> LossSpread:
    """How far processes of the reference, the living one first, were apart over their first steps and their blocks.

    Raises:
        LaunchError: If a loss or norm is not finite, or equal runs did not begin alike: their first losses differ by
            more than `EQUAL_RUNS`, or later ones by more than `MOST_TOLERANCE`.
    """
    for report in reports:
        refuse_not_finite(report)
    first, *others = (first_steps(r.losses, r.grad_norms) for r in reports)
    told = [(first, other) for other in others] + [_both(p.loss) for p in pairs if p.loss is not None]
    scale = SMALL * abs(first[0].loss) if first else 0.0
    for traces in told:
        _refuse_unequal(*traces, least_scale=scale)
    found = [spread_between(*traces) for traces in told]
    return functools.reduce(LossSpread.joined, found, LossSpread())


def _refuse_unequal(one: Trace, other: Trace, *, least_scale: float) -> None:
    """Refuses runs of a set whose losses, as shares of `least_scale` at least, differ too much to have begun alike."""
    for step in sorted(set(one) & set(other)):
        losses = (one[step].loss, other[step].loss)
        difference = abs(losses[0] - losses[1]) / max(abs(losses[0]), least_scale, 1e-12)
        most = EQUAL_RUNS if step == 0 else MOST_TOLERANCE
        if difference > most:
            raise LaunchError(
                f"equal runs of the reference must have the same loss within {most:.0%} but at step {step} it is "
                f"{losses[0]:.6g} in one and {losses[1]:.6g} in another, and so a wrong loss would not be noticed: let "
                "each run begin alike (a fixed seed, the same order of the data, no checkpoint of another run; "
                "docs/tune.md), or leave the loss out (delete the `loss` of [workload.read], or of hook.report)"
            )


def refuse_resumed(first: WorkerReport, later: WorkerReport) -> None:
    """Refuses, by a LaunchError, a program whose first step numbers say that it goes on where an earlier run ended."""
    if not (first.step_numbers and later.step_numbers):
        return
    # What prints by the clock may begin anywhere between two lines.
    between = [b - a for r in (first, later) for a, b in itertools.pairwise(r.step_numbers)]
    begins = first.step_numbers[0], later.step_numbers[0]
    if abs(begins[1] - begins[0]) > max(between, default=1):
        raise LaunchError(
            f"each run of the program must begin at the same step but one began at {begins[0]} and a later one at "
            f"{begins[1]}: it goes on from what an earlier run saved. Let it begin anew (switch its checkpoints off, "
            "or send them to {folder} in its arguments), then run the study in a new run directory (docs/tune.md)"
        )


def _both(told: SameStep) -> tuple[dict[int, StepLoss], dict[int, StepLoss]]:
    return (
        {told.step: StepLoss(told.reference, told.reference_norm)},
        {told.step: StepLoss(told.candidate, told.candidate_norm)},
    )


def spread_of_rounding(spec: StudySpec, worker: Worker, reference: WorkerReport, pairs: Sequence[Pair]) -> LossSpread:
    """How far a fresh reference in another rounding is off, over blocks like an A/A run's; WorkerFailed if it fails."""
    if problem := _not_a_number(worker.report):
        raise wrong_loss(f"{problem} in another rounding", phase="check")
    told = first_steps(reference.losses, reference.grad_norms)
    told |= {p.loss.step: StepLoss(p.loss.reference, p.loss.reference_norm) for p in pairs if p.loss is not None}
    trace = LossTrace(spec, worker.report)
    spent_s = 0.0
    patience_s = SLOWEST_ROUNDING * sum(sum(p.ran_s(Arm.REFERENCE)) for p in pairs)
    for steps in [len(p.ran_s(Arm.CANDIDATE)) for p in pairs if p.loss is not None]:
        if spent_s > patience_s or max(trace.told) >= max(told):
            break
        spent_s += sum(worker.run_block(steps))
        trace.take(worker, steps)
        if not math.isfinite(worker.last_loss or 0.0):
            raise wrong_loss(f"its loss is {worker.last_loss} at step {trace.last}", phase="step")
    return spread_between(told, trace.told, is_rounded=True)
