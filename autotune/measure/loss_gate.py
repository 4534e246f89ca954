"""Loss check: whether a candidate trains as the reference does.

Flags, and options that change rounding only, are held to the reference step by step, in their first
steps and after every block. Another batch meets it only at equal work; another dtype, and a program
whose equal runs see other data, only roughly: of these the soak decides.
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
    CURVE_TOLERANCE,
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
    formats_of,
    relative_difference,
    rounding_of,
    spacing_of,
    spread_between,
)
from autotune.workers.base import Worker, WorkerFailed
from autotune.workers.local import first_step

# How many times the coarser rounding the first loss may be off when the arithmetic changes.
DTYPE_MARGIN = 4.0
# How many times as far, or as little, first steps may move the state as the reference's do.
CHANGE_FACTOR = 2.0
# Sets that do the same work in the same arithmetic: each step must be the reference's.
STEP_BY_STEP = (LossBasis.STEPS, LossBasis.ROUNDING)

# Why a loss is not compared step by step, to begin a sentence with.
NOT_BY_STEP = {
    LossBasis.DTYPE: "dtype changes: ",
    LossBasis.WORK: "the work of a step changes: ",
    LossBasis.ORDER: "equal runs see other data: ",
}

Sets = tuple[FlagSet, FlagSet]
Reports = tuple[WorkerReport, WorkerReport]  # Of what is compared with, and of the candidate

# Of one arm of a soak: steps of its first process since it was ready, and the loss there.
LongLosses = Sequence[tuple[int, StepLoss]]

# Share of the first loss of which differences are a share, where a loss is learned by heart.
COLLAPSED = 0.05
HOW_TO_TELL = "call autotune.hook.report(loss=...), or give workload.read.loss"

_DTYPE_OPTION = re.compile(r"dtype|precision|quant|fp8|float8|bf16|amp$")
_DATA_OPTION = re.compile(r"(^|_)(?<!micro_)(batch|seq|sequence|length|context)")


@dataclass(frozen=True, slots=True)
class LossGate:
    """Holds candidates to the losses of the reference."""

    spec: StudySpec
    spread: LossSpread

    def check(self, settings: FlagSet, reports: Reports) -> LossCheck:
        """Compares first steps, if that can be; WorkerFailed if the candidate trains otherwise."""
        reference, candidate = reports
        basis = self._basis((FlagSet(), settings), reports)
        if not reference.losses:
            return _silent(basis, "the reference")
        if not candidate.losses and basis is not LossBasis.STEPS:
            return _silent(basis, "the candidate")
        if basis in STEP_BY_STEP:
            return self._step_by_step(basis, reports)
        if basis is LossBasis.WORK and reference.tokens_per_step == candidate.tokens_per_step:
            with contextlib.suppress(WorkerFailed):  # rows may be cut otherwise
                return self._step_by_step(basis, reports)
        return self._at_equal_work(basis, reports)

    def _basis(self, sets: Sets, reports: Reports) -> LossBasis:
        """How a candidate can be compared, given how far equal runs are apart."""
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

    def check_block(self, sets: Sets, reports: Reports, losses: SameStep | None) -> None:
        """Compares what both arms reported of the same step after a pair of blocks."""
        if losses is not None and self._basis(sets, reports) in STEP_BY_STEP:
            self._refuse_wrong(*_traces_of(losses), reports[0], phase="step")

    def with_blocks(
        self, check: LossCheck | None, pairs: Sequence[Pair], reference: WorkerReport
    ) -> LossCheck | None:
        """A check of first steps, extended by the blocks after them, none of which was wrong."""
        blocks = [p.loss for p in pairs if p.loss is not None]
        if check is None or not check.is_ok or check.basis not in STEP_BY_STEP or not blocks:
            return check
        differences = [relative_difference(block.reference, block.candidate) for block in blocks]
        steps = {block.step for block in blocks}
        return self._agreeing(
            check.basis,
            f"{check.steps} steps and after blocks up to step {max(steps)}",
            max(check.difference or 0.0, *differences),
            reference,
            end=max(steps),
            steps=len(steps) + (check.steps or 0),
        )

    def check_soak(
        self,
        basis: LossBasis,
        reports: Reports,
        losses: tuple[LongLosses, LongLosses],
        *,
        steps: int,
    ) -> LossCheck:
        """Compares the losses of two long runs, the candidate's of `steps`: the final check."""
        reference, candidate = reports
        over = f"judged by loss over {steps} steps against the reference's after as much work"
        if basis in STEP_BY_STEP:
            if not all(losses):
                return _silent(basis, "the candidate" if losses[0] else "the reference")
            result = _compare_curves(losses, LOSS, reference.losses, CURVE_TOLERANCE)
            norms = _compare_curves(losses, GRAD_NORM, reference.grad_norms, MOST_TOLERANCE)
            if result.is_ok and norms.is_ok is False:
                result = norms._replace(reason=norms.reason.replace(LOSS, GRAD_NORM))
        else:
            by_work = [
                [(step * (report.tokens_per_step or 1), step_loss.loss) for step, step_loss in run]
                for report, run in zip(reports, losses, strict=True)
            ]
            over += ", by confirm.loss_tolerance"
            result = compare_long_runs(
                *by_work,
                tolerance=self.spec.confirm.loss_tolerance,
                is_same_work=reference.tokens_per_step == candidate.tokens_per_step,
            )
        return _check_of(basis, result, over, phase="soak")

    def _step_by_step(self, basis: LossBasis, reports: Reports) -> LossCheck:
        """The same work, every step held to the reference's within the spread of references."""
        expected, actual = (first_steps(r.losses, r.grad_norms) for r in reports)
        self._refuse_wrong(expected, actual, reports[0], phase="check")
        _refuse_wrong_change(*reports)
        steps = len(expected)
        return self._agreeing(
            basis,
            f"{steps} steps",
            max(relative_difference(expected[n].loss, actual[n].loss) for n in expected),
            reports[0],
            end=steps - 1,
            steps=steps,
        )

    def _agreeing(
        self,
        basis: LossBasis,
        over: str,
        largest: float,
        reference: WorkerReport,
        *,
        end: int,
        steps: int,
    ) -> LossCheck:
        """The check of a candidate whose losses were all within tolerance, up to the step `end`."""
        allowed = self.spread.tolerance(end, dtype=_arithmetic(reference))
        allowed += _spacing(reference).get(LOSS, 0.0)
        about = "options that change rounding only: " if basis is LossBasis.ROUNDING else ""
        measured = "measured on the reference in another rounding"
        if not self.spread.is_rounded:
            measured = (
                "that of its arithmetic: no reference ran in another rounding, or it did not differ"
            )
        return LossCheck(
            basis=basis,
            is_ok=True,
            difference=largest,
            tolerance=allowed,
            steps=steps,
            words=(
                f"{about}loss step by step over {over}, difference at most {largest:.1e}, "
                f"tolerance {allowed:.1e} at the last ({measured})"
            ),
        )

    def _at_equal_work(self, basis: LossBasis, reports: Reports) -> LossCheck:
        """Compares first steps wherever both have done as much; a long run has to say the rest."""
        reference, candidate = reports
        rounding = max(rounding_of(_arithmetic(report)) for report in reports)
        if basis is LossBasis.DTYPE:
            rounding *= DTYPE_MARGIN
        stored = max(_spacing(report).get(LOSS, 0.0) for report in reports)
        spread = MARGIN * self.spread.seen(len(reference.losses) - 1)
        result = compare_first_steps(
            reference.losses,
            candidate.losses,
            (reference.grad_norms, candidate.grad_norms),
            work=(reference.tokens_per_step or 1, candidate.tokens_per_step or 1),
            least_tolerance=stored + max(spread, rounding),
        )
        over = (
            f"first losses, at {result.points} points of equal work, as far as the reference's "
            "own neighbouring steps differ, before a long run says the rest"
        )
        check = _check_of(basis, result, over, phase="check")
        return check.model_copy(update={"is_final": False})

    def _refuse_wrong(
        self, expected: Trace, actual: Trace, reference: WorkerReport, *, phase: str
    ) -> None:
        mismatch = compare_traces(
            expected,
            actual,
            spread=self.spread,
            dtype=_arithmetic(reference),
            spacing=_spacing(reference),
        )
        if mismatch is not None:
            raise wrong_loss(
                f"{mismatch.quantity} at step {mismatch.step} must be {mismatch.expected!r} within "
                f"{mismatch.tolerance:.1e} (relative) but is {mismatch.actual!r}",
                phase=phase,
            )


def _compare_curves(
    losses: tuple[LongLosses, LongLosses],
    quantity: str,
    first: Sequence[float],
    tolerance: float,
) -> Comparability:
    """Compares one quantity of two long runs; `first` are the reference's first steps."""
    curves = (
        [(step, at.values[quantity]) for step, at in run if quantity in at.values] for run in losses
    )
    least_scale = COLLAPSED * abs(next(iter(first), 0.0))
    return compare_curves(*curves, least_scale=least_scale, tolerance=tolerance)


def _silent(basis: LossBasis, who: str) -> LossCheck:
    doubt = "" if basis is LossBasis.STEPS else "inconclusive: "
    return LossCheck(
        basis=basis,
        words=(
            f"{LOSS_NOT_CHECKED}: {doubt}{who} reports no loss, so nothing says that the set "
            f"trains as it should ({HOW_TO_TELL})"
        ),
    )


def _check_of(basis: LossBasis, result: Comparability, over: str, *, phase: str) -> LossCheck:
    """The loss check of a comparison at equal work; WorkerFailed where the candidate is wrong."""
    sentence = f"{NOT_BY_STEP.get(basis, '')}{over}"
    if result.is_ok is None:
        return LossCheck(basis=basis, words=f"{sentence}: inconclusive: {result.reason}")
    if result.reason:
        sentence += f": {result.reason}"
    sentence += (
        f": difference {format_change_of(result.difference)}, tolerance "
        f"{100 * result.tolerance:.2g} %"
    )
    if not result.is_ok:
        raise wrong_loss(sentence, phase=phase)
    return LossCheck(
        basis=basis,
        is_ok=True,
        difference=result.difference,
        tolerance=result.tolerance,
        words=sentence,
    )


def _refuse_wrong_change(reference: WorkerReport, candidate: WorkerReport) -> None:
    """Refuses equal steps that move the state very differently, as without an optimizer."""
    if reference.state_arrays != candidate.state_arrays:  # distances are of some arrays only
        return
    expected = reference.state_change
    actual = candidate.state_change
    if not expected:
        return
    distance = "is not told"
    if actual is not None:
        if expected / CHANGE_FACTOR <= actual <= expected * CHANGE_FACTOR:
            return
        distance = f"is {actual:.3g}"
    raise wrong_loss(
        f"its first steps must move the state by {expected:.3g} as the reference's do (at most "
        f"{CHANGE_FACTOR:g} times more or less), but the distance {distance}",
        phase="check",
    )


def wrong_loss(message: str, *, phase: str) -> WorkerFailed:
    """The error of a candidate that does not train as the reference does."""
    return WorkerFailed(Failure(kind=FailureKind.WRONG_LOSS, message=message, phase=phase))


def _arithmetic(report: WorkerReport) -> str:
    """The format of matrix products: a GPU multiplies float32 as TF32 unless told otherwise."""
    formats = {f.name for f in formats_of(report.dtype)}
    if formats == {"float32"} and report.platform != "cpu":
        return "tensorfloat32"
    return report.dtype


def _spacing(report: WorkerReport) -> dict[str, float]:
    """How far neighbours of loss and gradient norm are apart in formats narrower than float32."""
    dtypes = {LOSS: report.loss_dtype, GRAD_NORM: report.norm_dtype}
    spacings = {quantity: spacing_of(dtype or "float32") for quantity, dtype in dtypes.items()}
    finest = spacing_of("float32")
    return {quantity: spacing for quantity, spacing in spacings.items() if spacing > finest}


def refuse_unusable_dtype(report: WorkerReport) -> None:
    """Refuses formats in which a loss could not be held to another's, by a WorkerFailed."""
    arithmetic = "the step's arithmetic (config['dtype'])"
    formats = {
        arithmetic: report.dtype,
        "loss": report.loss_dtype,
        "grad_norm": report.norm_dtype,
    }
    for quantity, dtype in formats.items():
        try:
            spacing = spacing_of(dtype or "float32")
        except ValueError as error:
            raise not_comparable(f"{quantity}: {error}") from None
        if quantity != arithmetic and spacing > MOST_TOLERANCE:
            raise not_comparable(
                f"{quantity} must be reported finely enough to be compared but is {dtype}: return "
                "it as float32"
            )


def not_comparable(message: str) -> WorkerFailed:
    """The error of a process whose report cannot be held to another's."""
    return WorkerFailed(Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase="check"))


# Under it the reference computes the same in another order, and rounds where it is told to.
#
# Seen on XLA:CPU (docs/loss.md): the first alone does not round bfloat16 otherwise for several
# steps, the second alone changes nothing of float32.
OTHER_ROUNDING = FlagSet(
    {"jax_disable_most_optimizations": "true", "xla_allow_excess_precision": "false"}
)

# What is tried, in order: a program without its optimizations may not fit into memory.
ROUNDINGS = (OTHER_ROUNDING, OTHER_ROUNDING.without("jax_disable_most_optimizations"))
# How many times as long as the A/A run's blocks those in another rounding may take together.
SLOWEST_ROUNDING = 2.0


class LossTrace:
    """A worker that has `done` so many steps, and its losses: of first steps and block ends."""

    def __init__(self, spec: StudySpec, worker: Worker) -> None:
        self.worker = worker
        self.reported = first_steps(worker.report.losses, worker.report.grad_norms)
        self.done = first_step(spec)
        self.last: int | None = None
        """Step that the last block reported."""
        self.recent: dict[int, StepLoss] = {}
        """Steps that were reported with the last block."""

    def take(self, steps: int) -> None:
        """Takes in what the worker reports after a block of so many steps."""
        worker = self.worker
        self.done += worker.dropped_steps + steps
        self.last = None
        self.recent = {step: StepLoss(loss) for step, loss in worker.passed_losses}
        self.reported = self.recent | self.reported  # first steps stay
        if worker.last_loss is not None:
            self.last = self.done - 1 - worker.loss_lag
            self.recent[self.last] = StepLoss(worker.last_loss, worker.last_norm)
            self.reported[self.last] = self.recent[self.last]

    def settle(self, steps: int) -> None:
        """Runs the worker, without measuring it, until it has done so many steps."""
        missing = steps - self.done
        if missing > 0:
            self.worker.run_block(missing)
            self.take(missing)

    def refuse_shorter(self, reference: LossTrace) -> None:
        """Refuses, by a WorkerFailed, a candidate whose losses end before the reference's."""
        if reference.last is None or (self.last is not None and self.last >= reference.last):
            return
        ends = "is reported nowhere" if self.last is None else f"ends at step {self.last}"
        raise wrong_loss(
            f"its loss must be reported up to step {reference.last}, as by the reference, but "
            f"{ends}",
            phase="step",
        )

    def beside(self, reference: LossTrace) -> SameStep | None:
        """Losses of the latest step of the candidate's last block that the reference has, too."""
        step = max(self.recent.keys() & reference.reported.keys(), default=None)
        if step is None:
            return None
        expected = reference.reported[step]
        actual = self.reported[step]
        return SameStep(
            step=step,
            reference=expected.loss,
            candidate=actual.loss,
            reference_norm=expected.grad_norm,
            candidate_norm=actual.grad_norm,
        )


def refuse_not_finite(report: WorkerReport) -> None:
    """Refuses a reference whose first steps tell a loss that is no number, by a LaunchError."""
    for quantity, values in (("loss", report.losses), ("gradient norm", report.grad_norms)):
        for step, value in enumerate(values):
            if not math.isfinite(value):
                raise not_finite(f"its {quantity} is {value} at step {step}")


def not_finite(finding: str) -> LaunchError:
    """The error of a study whose reference tells something that is no number."""
    return LaunchError(
        "loss and gradient norm of the reference must be finite at every step, for candidates "
        f"are held to them, but {finding}; mend the workload (learning rate, data, loss scaling) "
        "or the baseline of the study, then run it in a new run directory"
    )


def spread_of_aa_run(reports: Sequence[WorkerReport], pairs: Sequence[Pair]) -> LossSpread:
    """How far apart processes of the reference were by step; LaunchError if they began unlike."""
    for report in reports:
        refuse_not_finite(report)
    living, *others = (first_steps(r.losses, r.grad_norms) for r in reports)
    compared: list[tuple[Trace, Trace]] = [(living, trace) for trace in others]
    compared += [_traces_of(pair.loss) for pair in pairs if pair.loss is not None]
    scale = SMALL * abs(living[0].loss) if living else 0.0
    spread = LossSpread()
    for trace, later in compared:
        for step in sorted(set(trace) & set(later)):
            loss = trace[step].loss
            later_loss = later[step].loss
            limit = EQUAL_RUNS if step == 0 else MOST_TOLERANCE
            if abs(loss - later_loss) / max(abs(loss), scale, 1e-12) > limit:
                raise LaunchError(
                    f"equal runs of the reference must have the same loss within {limit:.0%} but "
                    f"at step {step} it is {loss:.6g} in one and {later_loss:.6g} in another, and "
                    "so a wrong loss would not be noticed: let each run begin alike (a fixed seed, "
                    "the same order of the data, no checkpoint of another run; docs/tune.md), or "
                    "leave the loss out (delete the `loss` of [workload.read], or of hook.report)"
                )
        spread = spread.joined(spread_between(trace, later))
    return spread


def refuse_resumed(first: WorkerReport, later: WorkerReport) -> None:
    """Refuses, by a LaunchError, a program whose step numbers go on where an earlier run ended."""
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
            f"later one at {later_began}: it goes on from what an earlier run saved. Let it begin "
            "anew (switch its checkpoints off, or send them to {folder} in its arguments), then "
            "run the study in a new run directory (docs/tune.md)"
        )


def _traces_of(losses: SameStep) -> tuple[Trace, Trace]:
    return (
        {losses.step: StepLoss(losses.reference, losses.reference_norm)},
        {losses.step: StepLoss(losses.candidate, losses.candidate_norm)},
    )


def spread_of_rounding(
    spec: StudySpec, worker: Worker, reference: WorkerReport, pairs: Sequence[Pair]
) -> LossSpread:
    """How far a fresh reference in another rounding is off, over blocks like an A/A run's."""
    losses = first_steps(reference.losses, reference.grad_norms)
    blocks = []
    for pair in pairs:
        if pair.loss is not None:
            losses |= _traces_of(pair.loss)[0]
            blocks.append(len(pair.ran_s(Arm.CANDIDATE)))
    trace = LossTrace(spec, worker)
    left_s = SLOWEST_ROUNDING * sum(sum(pair.ran_s(Arm.REFERENCE)) for pair in pairs)
    for steps in blocks:
        if left_s < 0.0 or max(trace.reported) >= max(losses):
            break
        left_s -= sum(worker.run_block(steps))
        trace.take(steps)
        if not math.isfinite(worker.last_loss or 0.0):
            raise wrong_loss(f"its loss is {worker.last_loss} at step {trace.last}", phase="step")
    return spread_between(losses, trace.reported, is_rounded=True)
