"""Loss check: whether a candidate trains as the reference does.

Flags, and options that change rounding only, are held to the reference step by step, in their first
steps and after every block. Another batch meets it only at equal work, another dtype only roughly
in its first steps, and so does a program whose equal runs see other data: of these a long run
decides, in the soak.
"""

from __future__ import annotations

import contextlib
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
    MARGIN,
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
"""How many times the coarser arithmetic's rounding the first loss may be off when the arithmetic
changes.
"""

CHANGE_FACTOR = 2.0
"""How many times as far, or as little, the first steps of a candidate may move the state as those
of the reference.
"""

STEP_BY_STEP = (LossBasis.STEPS, LossBasis.ROUNDING)
"""Sets that do the same work in the same arithmetic: every step of theirs is to be the
reference's.
"""

NOT_BY_STEP = {
    LossBasis.DTYPE: "dtype changes: ",
    LossBasis.WORK: "the work of a step changes: ",
    LossBasis.ORDER: "equal runs see other data: ",
}
"""Why a loss is not compared step by step, to begin a sentence with."""

Sets = tuple[FlagSet, FlagSet]
"""What is compared with, and the candidate."""

Reports = tuple[WorkerReport, WorkerReport]
"""Of both."""

LongLosses = Sequence[tuple[int, float]]
"""Of one arm of a soak: steps of its first process since it was ready, and the loss there, in
order.
"""

COLLAPSED = 0.05
"""Share of the first loss below which a loss counts as learned by heart: its differences are shares
of this.
"""

HOW_TO_TELL = "call autotune.hook.report(loss=...), or give workload.read.loss"

_DTYPE_OPTION = re.compile(r"dtype|precision|quant|fp8|float8|bf16|amp$")
_DATA_OPTION = re.compile(r"(^|_)(?<!micro_)(batch|seq|sequence|length|context)")


@dataclass(frozen=True, slots=True)
class LossGate:
    """Holds candidates to the losses of the reference."""

    spec: StudySpec
    spread: LossSpread
    """How far processes of the reference are apart by step, one in another rounding among them
    where that ran.
    """

    def check(self, settings: FlagSet, reports: Reports) -> LossCheck:
        """Compares first steps: what was, or that nothing could be; WorkerFailed, as below, if it
        trains otherwise.
        """
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
        return self._at_equal_work(basis, reference, candidate)

    def _basis(self, sets: Sets, reports: Reports) -> LossBasis:
        """Returns how a candidate can be compared, given how far equal runs are apart."""
        reference, candidate = reports
        before, after = (
            {**self.spec.reference_options, **options_in(settings)} for settings in sets
        )
        changed = [name for name, value in after.items() if before.get(name) != value]
        if changed and (
            reference.dtype != candidate.dtype or any(map(_DTYPE_OPTION.search, changed))
        ):
            return LossBasis.DTYPE
        is_other_work = changed and reference.tokens_per_step != candidate.tokens_per_step
        if is_other_work or any(map(_DATA_OPTION.search, changed)):
            return LossBasis.WORK
        if self.spread.has_other_data:
            return LossBasis.ORDER
        return LossBasis.ROUNDING if changed else LossBasis.STEPS

    def check_block(self, sets: Sets, reports: Reports, told: SameStep | None) -> None:
        """Compares what both arms reported of the same step after a pair of blocks."""
        if told is not None and self._basis(sets, reports) in STEP_BY_STEP:
            self._refuse_wrong(*_both(told), reports[0], phase="step")

    def with_blocks(
        self, check: LossCheck | None, pairs: Sequence[Pair], reference: WorkerReport
    ) -> LossCheck | None:
        """A check of first steps, extended by the blocks after them, none of which was wrong."""
        blocks = [p.loss for p in pairs if p.loss is not None]
        if check is None or not check.is_ok or check.basis not in STEP_BY_STEP or not blocks:
            return check
        differences = [relative_difference(block.reference, block.candidate) for block in blocks]
        steps = {block.step for block in blocks}
        over = f"{check.steps} steps and after blocks up to step {max(steps)}"
        largest = max(check.difference or 0.0, *differences)
        count = len(steps) + (check.steps or 0)
        return self._agreeing(check.basis, over, largest, reference, last=max(steps), steps=count)

    def check_soak(
        self,
        basis: LossBasis,
        reports: Reports,
        losses: tuple[LongLosses, LongLosses],
        *,
        steps: int,
    ) -> LossCheck:
        """Compares the losses of two long runs, the candidate's of `steps`: the last word on
        another dtype or batch.

        Sets that do the same work are held to the reference step by step, as far as the spread of
        references reaches, and as whole curves.
        """
        reference, candidate = reports
        over = f"judged by loss over {steps} steps against the reference's after as much work"
        if basis in STEP_BY_STEP:
            if not all(losses):
                return _silent(basis, "the candidate" if losses[0] else "the reference")
            self._refuse_wrong_in_soak(reference, *losses)
            result = compare_curves(
                *losses, least_scale=COLLAPSED * abs(next(iter(reference.losses), 0.0))
            )
        else:
            by_work = [
                [(n * (r.tokens_per_step or 1), v) for n, v in x]
                for r, x in zip(reports, losses, strict=True)
            ]
            over += ", by confirm.loss_tolerance"
            result = compare_long_runs(
                *by_work,
                tolerance=self.spec.confirm.loss_tolerance,
                is_same_work=reference.tokens_per_step == candidate.tokens_per_step,
            )
        return _check_of(basis, result, over, phase="soak")

    def _refuse_wrong_in_soak(
        self, report: WorkerReport, reference: LongLosses, candidate: LongLosses
    ) -> None:
        """Compares the steps of both within the spread of references."""
        begin = first_step(self.spec) - 1
        last = max(self.spread.steps, default=0)
        base, mine = (
            {begin + step: StepLoss(loss) for step, loss in run if begin + step <= last}
            for run in (reference, candidate)
        )
        self._refuse_wrong(
            {step: loss for step, loss in base.items() if step in mine}, mine, report, phase="soak"
        )

    def _step_by_step(
        self, basis: LossBasis, reference: WorkerReport, candidate: WorkerReport
    ) -> LossCheck:
        """The same work, every step held to the reference's with the tolerance that references
        themselves showed.
        """
        base, mine = (first_steps(r.losses, r.grad_norms) for r in (reference, candidate))
        self._refuse_wrong(base, mine, reference, phase="check")
        _refuse_wrong_change(reference, candidate)
        largest = max(relative_difference(base[step].loss, mine[step].loss) for step in base)
        steps = len(base)
        return self._agreeing(
            basis, f"{steps} steps", largest, reference, last=steps - 1, steps=steps
        )

    def _agreeing(
        self,
        basis: LossBasis,
        over: str,
        largest: float,
        reference: WorkerReport,
        *,
        last: int,
        steps: int,
    ) -> LossCheck:
        """The check of a candidate whose losses were all within tolerance, up to the `last`
        step.
        """
        allowed = self.spread.tolerance(last, dtype=_arithmetic(reference)) + _spacing(
            reference
        ).get(LOSS, 0.0)
        what = "options that change rounding only: " if basis is LossBasis.ROUNDING else ""
        measured = "measured on the reference in another rounding"
        if not self.spread.is_rounded:
            measured = (
                "that of its arithmetic: no reference ran in another rounding, or it did not differ"
            )
        words = (
            f"{what}loss step by step over {over}, difference at most {largest:.1e}, tolerance "
            f"{allowed:.1e} at the "
            f"last ({measured})"
        )
        return LossCheck(
            basis=basis, is_ok=True, difference=largest, tolerance=allowed, steps=steps, words=words
        )

    def _at_equal_work(
        self, basis: LossBasis, reference: WorkerReport, candidate: WorkerReport
    ) -> LossCheck:
        """Compares first steps wherever both have done as much; a long run has to say the rest."""
        reports = (reference, candidate)
        rounding = max(rounding_of(_arithmetic(report)) for report in reports)
        if basis is LossBasis.DTYPE:
            rounding *= DTYPE_MARGIN
        stored = max(_spacing(report).get(LOSS, 0.0) for report in reports)
        result = compare_first_steps(
            reference.losses,
            candidate.losses,
            (reference.grad_norms, candidate.grad_norms),
            work=(reference.tokens_per_step or 1, candidate.tokens_per_step or 1),
            least_tolerance=stored
            + max(MARGIN * self.spread.seen(len(reference.losses) - 1), rounding),
        )
        over = (
            f"first losses, at {result.points} points of equal work, as far as the reference's "
            "own neighbouring steps "
            "differ, before a long run says the rest"
        )
        check = _check_of(basis, result, over, phase="check")
        return check.model_copy(update={"is_final": False})

    def _refuse_wrong(
        self, base: Trace, mine: Trace, reference: WorkerReport, *, phase: str
    ) -> None:
        mismatch = compare_traces(
            base,
            mine,
            spread=self.spread,
            dtype=_arithmetic(reference),
            spacing=_spacing(reference),
        )
        if mismatch is not None:
            raise wrong_loss(
                f"{mismatch.quantity} at step {mismatch.step} must be {mismatch.expected!r} within "
                f"{mismatch.tolerance:.1e} (relative) but is {mismatch.got!r}",
                phase=phase,
            )


def _silent(basis: LossBasis, who: str) -> LossCheck:
    said = "" if basis is LossBasis.STEPS else "inconclusive: "
    words = (
        f"{LOSS_NOT_CHECKED}: {said}{who} reports no loss, so nothing says that the set "
        "trains as it should"
    )
    return LossCheck(basis=basis, is_ok=None, words=f"{words} ({HOW_TO_TELL})")


def _check_of(basis: LossBasis, result: Comparability, over: str, *, phase: str) -> LossCheck:
    """The loss check that a comparison at equal work makes; WorkerFailed where the candidate is
    wrong.
    """
    words = f"{NOT_BY_STEP.get(basis, '')}{over}"
    if result.is_ok is None:
        return LossCheck(basis=basis, is_ok=None, words=f"{words}: inconclusive: {result.reason}")
    if result.reason:
        words += f": {result.reason}"
    words += (
        f": difference {format_change_of(result.difference)}, tolerance "
        f"{100 * result.tolerance:.2g} %"
    )
    if not result.is_ok:
        raise wrong_loss(words, phase=phase)
    return LossCheck(
        basis=basis,
        is_ok=True,
        difference=result.difference,
        tolerance=result.tolerance,
        words=words,
    )


def _refuse_wrong_change(reference: WorkerReport, candidate: WorkerReport) -> None:
    """Refuses equal steps that move the state by very different distances, as of a skipped
    optimizer.

    The distances are of some arrays of a state, so those of states with other arrays (stacked
    layers, or each by itself) say nothing of each other; their losses have been compared.
    """
    if reference.state_arrays != candidate.state_arrays:
        return
    expected = reference.state_change
    got = candidate.state_change
    if not expected or (
        got is not None and expected / CHANGE_FACTOR <= got <= expected * CHANGE_FACTOR
    ):
        return
    told = "is not told" if got is None else f"is {got:.3g}"
    raise wrong_loss(
        f"its first steps must move the state by {expected:.3g} as the reference's do (at most "
        f"{CHANGE_FACTOR:g} times "
        f"more or less), but the distance {told}",
        phase="check",
    )


def wrong_loss(message: str, *, phase: str) -> WorkerFailed:
    """The error of a candidate that does not train as the reference does."""
    return WorkerFailed(Failure(kind=FailureKind.WRONG_LOSS, message=message, phase=phase))


def _arithmetic(report: WorkerReport) -> str:
    """A GPU multiplies float32 matrices as TF32 unless told otherwise, and which ones changes with
    the kernels.
    """
    return (
        "tensorfloat32" if is_float32(report.dtype) and report.platform != "cpu" else report.dtype
    )


def _spacing(report: WorkerReport) -> dict[str, float]:
    """How far neighbours of loss and gradient norm are apart, where they are told in a format
    narrower than float32.
    """
    dtypes = {LOSS: report.loss_dtype, GRAD_NORM: report.norm_dtype}
    spacings = {
        quantity: spacing_of(dtype) for quantity, dtype in dtypes.items() if dtype is not None
    }
    return {
        quantity: spacing
        for quantity, spacing in spacings.items()
        if spacing > spacing_of("float32")
    }


def refuse_unusable_dtype(report: WorkerReport) -> None:
    """Refuses formats in which a loss could not be held to another's, by a WorkerFailed."""
    reported = {"loss": report.loss_dtype, "grad_norm": report.norm_dtype}
    for what, dtype in {
        "the step's arithmetic (config['dtype'])": report.dtype,
        **reported,
    }.items():
        try:
            spacing = spacing_of(dtype or "float32")
        except ValueError as error:
            raise not_comparable(f"{what}: {error}") from None
        if what in reported and spacing > MOST_TOLERANCE:
            raise not_comparable(
                f"{what} must be reported finely enough to be compared but is {dtype}: return it "
                "as float32"
            )


def not_comparable(message: str) -> WorkerFailed:
    """The error of a process whose report cannot be held to another's."""
    return WorkerFailed(Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase="check"))


# ---------------------------------------------------------------------- traces of processes

OTHER_ROUNDING = FlagSet(
    {"jax_disable_most_optimizations": "true", "xla_allow_excess_precision": "false"}
)
"""Under it the reference computes the same in another order, and rounds where it is told to instead
of where it likes.

Seen on XLA:CPU (docs/loss.md): the first alone does not round bfloat16 otherwise for several steps,
the second alone changes nothing of float32.
"""

ROUNDINGS = (OTHER_ROUNDING, OTHER_ROUNDING.without("jax_disable_most_optimizations"))
"""What is tried, one after the other: a program without its optimizations may not fit into
memory.
"""

SLOWEST_ROUNDING = 2.0
"""How many times as long as the A/A run's own blocks those of the reference in another rounding may
take together.
"""


class LossTrace:
    """A worker, and its losses by step, from 0: of each of its first steps, then of the steps that
    end its blocks.

    So far it has `done` so many steps; `last` is the step that its last block reported.
    """

    def __init__(self, spec: StudySpec, worker: Worker) -> None:
        self.worker = worker
        self.told: dict[int, StepLoss] = first_steps(worker.report.losses, worker.report.grad_norms)
        self.done = first_step(spec)
        self.last: int | None = None
        self.recent: dict[int, StepLoss] = {}
        """Steps that were reported with the last block."""

    def take(self, steps: int) -> None:
        """Takes in what the worker reports after a block of so many steps."""
        worker = self.worker
        self.done += worker.dropped_steps + steps
        self.last = None
        self.recent = {step: StepLoss(loss) for step, loss in worker.passed_losses}
        self.told = self.recent | self.told  # first steps stay
        if worker.last_loss is not None:
            self.last = self.done - 1 - worker.loss_lag
            self.recent[self.last] = StepLoss(worker.last_loss, worker.last_norm)
            self.told[self.last] = self.recent[self.last]

    def settle(self, steps: int) -> None:
        """Runs the worker, without measuring it, until it has done so many steps."""
        rest = steps - self.done
        if rest > 0:
            self.worker.run_block(rest)
            self.take(rest)

    def refuse_shorter(self, reference: LossTrace) -> None:
        """Refuses, by a WorkerFailed, a candidate that reports no step as late as the reference's
        last one.
        """
        if reference.last is None or (self.last is not None and self.last >= reference.last):
            return
        ends = "is reported nowhere" if self.last is None else f"ends at step {self.last}"
        raise wrong_loss(
            f"its loss must be reported up to step {reference.last}, as by the reference, but "
            f"{ends}",
            phase="step",
        )

    def beside(self, reference: LossTrace) -> SameStep | None:
        """Loss of the latest step of this candidate's last block that the reference reported, too;
        None without one.
        """
        step = max((step for step in self.recent if step in reference.told), default=None)
        if step is None:
            return None
        base = reference.told[step]
        mine = self.told[step]
        return SameStep(
            step=step,
            reference=base.loss,
            candidate=mine.loss,
            reference_norm=base.grad_norm,
            candidate_norm=mine.grad_norm,
        )


def refuse_not_finite(report: WorkerReport) -> None:
    """Refuses a reference whose first steps tell a loss that is no number, by a LaunchError."""
    for quantity, values in (("loss", report.losses), ("gradient norm", report.grad_norms)):
        for step, value in enumerate(values):
            if not math.isfinite(value):
                raise not_finite(f"its {quantity} is {value} at step {step}")


def not_finite(what: str) -> LaunchError:
    """The error of a study whose reference tells something that is no number."""
    return LaunchError(
        "loss and gradient norm of the reference must be finite at every step, for candidates "
        "are held to them, but "
        f"{what}; mend the workload (learning rate, data, loss scaling) or the baseline of the "
        "study, then run it in a "
        "new run directory"
    )


def spread_of_aa_run(reports: Sequence[WorkerReport], pairs: Sequence[Pair]) -> LossSpread:
    """How far processes of the reference, the living one first, were apart over their first steps
    and their blocks.

    Raises:
        LaunchError: If a loss or norm is not finite, or equal runs did not begin alike: their first
            losses differ by more than `EQUAL_RUNS`, or later ones by more than `MOST_TOLERANCE`.
    """
    for report in reports:
        refuse_not_finite(report)
    first, *others = (first_steps(r.losses, r.grad_norms) for r in reports)
    told = [(first, other) for other in others] + [
        _both(p.loss) for p in pairs if p.loss is not None
    ]
    scale = SMALL * abs(first[0].loss) if first else 0.0
    spread = LossSpread()
    for traces in told:
        _refuse_unequal(*traces, least_scale=scale)
        spread = spread.joined(spread_between(*traces))
    return spread


def _refuse_unequal(one: Trace, other: Trace, *, least_scale: float) -> None:
    """Refuses runs of a set whose losses, as shares of `least_scale` at least, differ too much to
    have begun alike.
    """
    for step in sorted(set(one) & set(other)):
        losses = (one[step].loss, other[step].loss)
        difference = abs(losses[0] - losses[1]) / max(abs(losses[0]), least_scale, 1e-12)
        most = EQUAL_RUNS if step == 0 else MOST_TOLERANCE
        if difference > most:
            raise LaunchError(
                f"equal runs of the reference must have the same loss within {most:.0%} but at "
                f"step {step} it is "
                f"{losses[0]:.6g} in one and {losses[1]:.6g} in another, and so a wrong loss "
                "would not be noticed: let "
                "each run begin alike (a fixed seed, the same order of the data, no checkpoint "
                "of another run; "
                "docs/tune.md), or leave the loss out (delete the `loss` of [workload.read], or "
                "of hook.report)"
            )


def refuse_resumed(first: WorkerReport, later: WorkerReport) -> None:
    """Refuses, by a LaunchError, a program whose first step numbers say that it goes on where an
    earlier run ended.
    """
    if not (first.step_numbers and later.step_numbers):
        return
    # What prints by the clock may begin anywhere between two lines.
    between = [
        b - a for report in (first, later) for a, b in itertools.pairwise(report.step_numbers)
    ]
    began = first.step_numbers[0]
    later_began = later.step_numbers[0]
    if abs(later_began - began) > max(between, default=1):
        raise LaunchError(
            f"each run of the program must begin at the same step but one began at {began} and a "
            "later one at "
            f"{later_began}: it goes on from what an earlier run saved. Let it begin anew "
            "(switch its checkpoints off, "
            "or send them to {folder} in its arguments), then run the study in a new run "
            "directory (docs/tune.md)"
        )


def _both(told: SameStep) -> tuple[dict[int, StepLoss], dict[int, StepLoss]]:
    return (
        {told.step: StepLoss(told.reference, told.reference_norm)},
        {told.step: StepLoss(told.candidate, told.candidate_norm)},
    )


def spread_of_rounding(
    spec: StudySpec, worker: Worker, reference: WorkerReport, pairs: Sequence[Pair]
) -> LossSpread:
    """Returns how far a fresh reference in another rounding is off, over blocks like an A/A run's.

    Raises:
        WorkerFailed: If it fails.
        ValueError: If a loss or norm is not finite.
    """
    told = first_steps(reference.losses, reference.grad_norms)
    blocks: list[int] = []
    for pair in pairs:
        if pair.loss is not None:
            told |= _both(pair.loss)[0]
            blocks.append(len(pair.ran_s(Arm.CANDIDATE)))
    trace = LossTrace(spec, worker)
    left_s = SLOWEST_ROUNDING * sum(sum(pair.ran_s(Arm.REFERENCE)) for pair in pairs)
    for steps in blocks:
        if left_s < 0.0 or max(trace.told) >= max(told):
            break
        left_s -= sum(worker.run_block(steps))
        trace.take(steps)
        if not math.isfinite(worker.last_loss or 0.0):
            raise wrong_loss(f"its loss is {worker.last_loss} at step {trace.last}", phase="step")
    return spread_between(told, trace.told, is_rounded=True)
