"""What processes tell of their training, step by step: kept while blocks are timed, and never part of what is timed."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from autotune.model import Arm, FlagSet, LaunchError, Pair, SameStep, StudySpec, WorkerReport
from autotune.stats import LossSpread, StepLoss, first_steps, spread_between
from autotune.study.loss_gate import wrong_loss
from autotune.workers import Worker, WorkerFailed, first_step

OTHER_ROUNDING = FlagSet({"jax_disable_most_optimizations": "true", "xla_allow_excess_precision": "false"})
"""Under it the reference computes the same in another order, and rounds where it is told to instead of where it likes.

Seen on XLA:CPU (docs/loss.md): the first alone does not round bfloat16 otherwise for several steps, the second alone
changes nothing of float32.
"""

ROUNDINGS = (OTHER_ROUNDING, OTHER_ROUNDING.without("jax_disable_most_optimizations"))
"""What is tried, one after the other: a program without its optimizations may not fit into memory."""

SLOWEST_ROUNDING = 2.0
"""How many times as long as the floor's own blocks those of the reference in another rounding may take together."""


class LossTrace:
    """What one process tells: of each of its first steps, then of the steps that end its blocks.

    Args:
        spec: The study.
        report: Of the process, whose first block is still to come.

    Attributes:
        told: By step, counted from 0.
        last: The last step that its last block told of; None where that told of none.
    """

    def __init__(self, spec: StudySpec, report: WorkerReport) -> None:
        self.told: dict[int, StepLoss] = first_steps(report.losses, report.grad_norms)
        self._done = first_step(spec)
        self.last: int | None = None

    def take(self, worker: Worker, steps: int) -> None:
        """Takes in what a worker tells after a block of so many steps."""
        self._done += steps
        self.last = None
        if worker.last_loss is not None:
            self.last = self._done - 1 - worker.loss_lag
            self.told[self.last] = StepLoss(worker.last_loss, worker.last_norm)

    def refuse_shorter(self, reference: LossTrace) -> None:
        """Refuses a candidate that falls silent while the reference goes on telling: nobody could see it go wrong.

        Raises:
            WorkerFailed: If after a block of as many steps it told nothing of a step as late.
        """
        wanted, mine = reference.last, self.last
        if wanted is not None and (mine is None or mine < wanted):
            ends = "is told nowhere" if mine is None else f"ends at step {mine}"
            raise WorkerFailed(
                wrong_loss(f"its loss must be told up to step {wanted}, as the reference's, but {ends}", phase="step")
            )

    def beside(self, reference: LossTrace) -> SameStep | None:
        """What the last block of this candidate told, and the reference at the same step; None where one did not."""
        if self.last is None or (base := reference.told.get(self.last)) is None:
            return None
        mine = self.told[self.last]
        return SameStep(
            step=self.last, reference=base.loss, candidate=mine.loss, reference_norm=base.grad_norm,
            candidate_norm=mine.grad_norm,
        )  # fmt: skip


def refuse_not_finite(report: WorkerReport) -> None:
    """Refuses a reference whose first steps tell a loss that is no number: nothing can be held to it.

    Raises:
        LaunchError: If there is one.
    """
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


def known_at_start(drift: float) -> LossSpread:
    """What is known of references of which only the largest difference of their first steps was kept."""
    return LossSpread(steps=(0,), losses=(drift,), norms=(drift,))


def spread_of_floor(reports: Sequence[WorkerReport], pairs: Sequence[Pair]) -> LossSpread:
    """How far processes of the reference were apart, over their first steps and the blocks of a noise floor.

    Args:
        reports: Of the living reference, then of the others.
        pairs: Of the living one with all others.

    Raises:
        LaunchError: If one of them tells what is not finite.
    """
    for report in reports:
        refuse_not_finite(report)
    first, *others = (first_steps(r.losses, r.grad_norms) for r in reports)
    found = [spread_between(first, other) for other in others]
    found += [spread_between(*_both(p.loss)) for p in pairs if p.loss is not None]
    return functools.reduce(LossSpread.joined, found, LossSpread())


def _both(told: SameStep) -> tuple[dict[int, StepLoss], dict[int, StepLoss]]:
    return (
        {told.step: StepLoss(told.reference, told.reference_norm)},
        {told.step: StepLoss(told.candidate, told.candidate_norm)},
    )


def spread_of_rounding(spec: StudySpec, worker: Worker, reference: WorkerReport, pairs: Sequence[Pair]) -> LossSpread:
    """How far the reference in another rounding is off, over blocks like those of a floor.

    Args:
        spec: The study.
        worker: The reference in another rounding, fresh.
        reference: What the reference said of itself.
        pairs: Of the floor.

    Raises:
        WorkerFailed: If the worker fails, or tells what is not finite.
    """
    if problem := _not_a_number(worker.report):
        raise WorkerFailed(wrong_loss(f"{problem} in another rounding", phase="check"))
    told = first_steps(reference.losses, reference.grad_norms)
    told |= {p.loss.step: StepLoss(p.loss.reference, p.loss.reference_norm) for p in pairs if p.loss is not None}
    trace, spent_s = LossTrace(spec, worker.report), 0.0
    patience_s = SLOWEST_ROUNDING * sum(sum(p.ran_s(Arm.REFERENCE)) for p in pairs)
    for steps in [len(p.ran_s(Arm.CANDIDATE)) for p in pairs if p.loss is not None]:
        if spent_s > patience_s or max(trace.told) >= max(told):
            break
        spent_s += sum(worker.run_block(steps))
        trace.take(worker, steps)
        if not math.isfinite(worker.last_loss or 0.0):
            raise WorkerFailed(wrong_loss(f"its loss is {worker.last_loss} at step {trace.last}", phase="step"))
    return spread_between(told, trace.told, is_rounded=True)
