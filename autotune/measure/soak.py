"""Long run (soak) of a winner under a watchdog: some settings hang, diverge, stall or leak after hundreds of steps.

Then the reference runs as many steps: total time, stalls and memory of both are compared (`autotune.model.proofs`),
and, where the candidate's options change dtype or batch, their losses, for which both learn from batches that they have
not seen before. What speaks against a set by its time or memory must come again in a second process of it.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.measure.context import MeasurementContext, work_between
from autotune.measure.loss_gate import STEP_BY_STEP
from autotune.measure.tasks import SoakTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, LossBasis, LossCheck, WorkerReport
from autotune.model.proofs import judge_soak
from autotune.model.records import MemoryUse, SoakArm, SoakArms, SoakLook, SoakRecord
from autotune.stats.long_run import LEAK_LOOKS, SOAK_LOOKS, find_stalls, segments
from autotune.workers.base import Worker, WorkerFailed

SAMPLES = 24
"""Blocks, about, into which a process's run is cut at least: each tells one loss, and the memory in use."""

KEPT_SAMPLES = 96
"""Samples of memory that a record keeps."""

REFERENCE_TRIES = 2

LONGEST_REFERENCE = 64
"""Steps of the reference for each of the candidate, at most: a bound for a program that tells nonsense of its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How long a run is to be, and for what."""

    is_enough: Callable[[LongRun], bool]
    least_s: float
    least_steps: int
    is_compared: bool
    """Its losses are compared by work done: every step gets a batch of its own, where a worker makes its batches."""
    block: int | None = None


@dataclass(slots=True)
class LongRun:
    """What a set did for a while."""

    times: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    """Steps of the first process up to the end of a block, and the loss there, as far as it is told."""
    memory: list[tuple[int, MemoryUse]] = field(default_factory=list)
    """Likewise of memory in use."""
    lasted_s: float = 0.0
    """Seconds of its steps, those between the lines of a program that does not print each step included."""
    starts: int = 0
    longest: int = 0
    """Steps of the process that ran longest."""
    block: int | None = None
    report: WorkerReport | None = None
    failure: Failure | None = None

    @property
    def work(self) -> int:
        """What a step of it does; 1 where nobody tells, or it has not started."""
        return (self.report.tokens_per_step if self.report is not None else None) or 1

    def arm(self, beside: LongRun | None) -> SoakArm:
        """Its part of the record; `beside` is the other arm's run, if that did not fail."""
        kept = self.memory[:: -(-len(self.memory) // KEPT_SAMPLES) or 1]
        return SoakArm(
            step_count=len(self.times),
            steps_s=round(sum(self.times), 3),
            stalls=find_stalls(self.times, beside.times if beside is not None else ()),
            segment_s=segments(self.times),
            host=tuple((n, m.host_bytes) for n, m in kept if m.host_bytes is not None),
            device=tuple((n, m.device_bytes) for n, m in kept if m.device_bytes is not None),
        )


def soak_isolated(context: MeasurementContext, task: SoakTask, folder: Path) -> SoakRecord:
    """Runs a set alone for as long as is asked, then the reference; both again if something speaks against the set."""
    asked = _Asked(
        is_enough=lambda run: run.lasted_s >= task.least_s and len(run.times) >= task.least_steps,
        least_s=task.least_s,
        least_steps=task.least_steps,
        is_compared=task.basis not in STEP_BY_STEP,
    )
    run, reference = _run_both(context, task, folder, asked)
    loss, arms, failure = None, None, run.failure
    if failure is None and run.report is not None:

        def look_again(number: int) -> tuple[LongRun, LongRun]:
            into = context.folder_in(folder, "again" if number == 2 else f"again-{number}")
            return _run_both(context, task, into, asked)

        arms, failure = _judge_arms(task, run, reference, look_again)
        if failure is None:
            try:
                loss = _judge_loss(context, task.basis, run, reference)
            except WorkerFailed as error:
                failure = error.failure
    return SoakRecord(
        settings=task.settings,
        steps_s=round(run.lasted_s, 3),
        step_count=len(run.times),
        starts=run.starts,
        longest=run.longest,
        loss=loss,
        failure=failure,
        arms=arms,
    )


def _run_both(context: MeasurementContext, task: SoakTask, folder: Path, asked: _Asked) -> tuple[LongRun, LongRun]:
    """The set, and the reference after it unless it failed."""
    run = _run_long(context, task.settings, folder, asked)
    if run.failure is not None:
        return run, LongRun(failure=run.failure)
    return run, _run_reference(context, run, folder, asked)


def _run_long(context: MeasurementContext, settings: FlagSet, folder: Path, asked: _Asked) -> LongRun:
    """Runs a set until it is enough, or it fails; a program that ends is started again."""
    run = LongRun()
    while run.failure is None and not asked.is_enough(run):
        try:
            with contextlib.closing(context.start(settings, folder, isolated=True)) as worker:
                run.starts += 1
                run.report = worker.report
                worker.fresh_batches, worker.watches_memory = asked.is_compared, run.starts == 1
                _run_process(context, worker, asked, run)
        except WorkerFailed as error:
            run.failure = error.failure
    return run


def _run_process(context: MeasurementContext, worker: Worker, asked: _Asked, run: LongRun) -> None:
    """One process of a long run, until it is enough, or the program has come to its own end."""
    longest = context.spec.measure.run_steps
    if context.spec.workload.can_wait:
        longest = max(longest, context.steps_for(worker))
    line_s = max(worker.report.line_s, statistics.median(worker.report.warmup_step_times_s))
    in_all = max(asked.least_steps, round(asked.least_s / line_s) if line_s > 0 else 0)
    steps = asked.block or max(1, min(longest, in_all // SAMPLES))
    run.block = run.block or steps
    worker.may_end = not context.spec.workload.can_wait
    before = len(run.times)
    while not asked.is_enough(run) and not worker.has_ended:
        times = worker.run_block(steps)
        run.times += times
        run.longest = max(run.longest, len(run.times) - before)
        run.lasted_s += max(sum(times), worker.last_clock_s or 0.0) if worker.may_end else sum(times)
        if run.starts == 1 and worker.last_loss is not None:  # a second process learns from the start again
            run.losses.append((len(run.times), worker.last_loss))
        if run.starts == 1 and worker.last_memory is not None:
            run.memory.append((len(run.times), worker.last_memory))
        context.progress.phase(f"soaking: {len(run.times)} steps, {run.lasted_s:.0f} of {asked.least_s:.0f} s")


def _run_reference(context: MeasurementContext, run: LongRun, folder: Path, asked: _Asked) -> LongRun:
    """The reference alone for as many steps, and, where losses are compared, for as much work; tried twice."""
    steps = len(run.times)

    def has_done_as_much(reference: LongRun) -> bool:
        done = len(reference.times)
        is_as_much = not asked.is_compared or done * reference.work >= steps * run.work
        return done >= LONGEST_REFERENCE * steps or (done >= steps and is_as_much)

    as_long = replace(asked, is_enough=has_done_as_much, least_s=run.lasted_s, least_steps=steps, block=run.block)
    for _ in range(REFERENCE_TRIES):
        reference = _run_long(context, FlagSet(), context.folder_in(folder, "reference"), as_long)
        if reference.failure is None:
            break
        context.progress.incident(f"the reference beside a soak failed: {reference.failure.message}"[:300])
    return reference


def _judge_arms(
    task: SoakTask, run: LongRun, reference: LongRun, look_again: Callable[[int], tuple[LongRun, LongRun]]
) -> tuple[SoakArms, Failure | None]:
    """What both arms did, and what that says against the set: in further processes of each, too."""
    arms = SoakArms(looks=(_look(run, reference),), typical=task.typical, process_sd=task.process_sd)
    if reference.failure is None and reference.report is not None and run.report is not None:
        try:
            work = work_between((FlagSet(), task.settings), (reference.report, run.report))
        except WorkerFailed as error:
            return arms, error.failure
        arms = arms.model_copy(update={"work": work})
    while (found := judge_soak(arms)) is not None:
        if len(arms.looks) >= (LEAK_LOOKS if found.kind is FailureKind.LEAK else SOAK_LOOKS):
            break
        again, beside = look_again(len(arms.looks) + 1)
        if again.failure is not None:
            return arms, again.failure
        arms = arms.model_copy(update={"looks": (*arms.looks, _look(again, beside))})
    return arms, found


def _look(run: LongRun, reference: LongRun) -> SoakLook:
    beside = reference if reference.failure is None else None
    return SoakLook(candidate=run.arm(beside), reference=beside.arm(run) if beside is not None else None)


def _judge_loss(context: MeasurementContext, basis: LossBasis, run: LongRun, reference: LongRun) -> LossCheck | None:
    """Holds the losses of a long run against those of the reference; None where that adds nothing to its blocks."""
    if reference.failure is not None:
        said = reference.failure.message
        found = LossCheck(basis=basis, is_ok=None, words=f"inconclusive: the reference beside it failed: {said}"[:500])
        return found if basis not in STEP_BY_STEP else None
    assert reference.report is not None and run.report is not None  # noqa: PT018
    reports = reference.report, run.report
    judged = context.losses.check_soak(basis, reports, (reference.losses, run.losses), steps=len(run.times))
    is_news = judged.is_ok is not None or not reference.losses
    return judged if is_news or basis not in STEP_BY_STEP else None
