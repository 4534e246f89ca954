"""Long run (soak) of a winner under a watchdog: some settings hang, diverge, stall or leak after hundreds of steps.

Then the reference runs as many steps: total time, stalls and memory of both are compared (`autotune.model.proofs`),
and, where the candidate's options change dtype or batch, their losses, for which both learn from batches that they have
not seen before. What speaks against a set by its time or memory must come again in a second process of it.
"""

from __future__ import annotations

import contextlib
import math
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
from autotune.model.units import format_change
from autotune.stats.long_run import LEAK_LOOKS, find_stalls, segments
from autotune.workers.base import Worker, WorkerFailed

SAMPLES = 24
"""Blocks, about, into which a process's run is cut at least: each tells one loss, and the memory in use."""

KEPT_SAMPLES = 96
"""Samples of memory that a record keeps."""

REFERENCE_TRIES = 2

OUTSIDE_SHARE, OUTSIDE_TRIES = 0.25, 3
"""Share of a long run for which each program runs from outside, and how often all must speak against a set."""

LEAST_AWAY, SDS_AWAY = 0.01, 4.0
"""By how much, in log and in standard deviations between processes, one such run must be off to speak against it."""

END_SHARE = 0.5
"""Share of a long run for which a program that runs by itself may go on after it, to come to its own end."""

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
    settle_steps: int = 0
    """First steps that a proof does not measure."""
    proven_steps: int = 0
    """Steps of a process of the proof."""
    block: int | None = None
    end_s: float = 0.0
    """Seconds of steps in which a program that runs by itself may come to its own end after its long run."""


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
    has_ended: bool = False
    """Whether its program came to its own end."""
    end: Failure | None = None
    """How it failed at its own end, after the long run."""
    written: tuple[int, int] | None = None
    """Files that its only process left in its folder, and their bytes; None where that is not known."""
    exit_status: int | None = None
    """With which a process ended that was asked to; None where that is not known."""

    @property
    def work(self) -> int:
        """What a step of it does; 1 where nobody tells, or it has not started."""
        return (self.report.tokens_per_step if self.report is not None else None) or 1

    def arm(self, beside: LongRun | None, asked: _Asked) -> SoakArm:
        """Its part of the record; `beside` is the other arm's run, if that did not fail."""
        early = self._early(asked)
        kept = self.memory[:: -(-len(self.memory) // KEPT_SAMPLES) or 1]
        return SoakArm(
            step_count=len(self.times),
            steps_s=round(sum(self.times), 3),
            stalls=find_stalls(self.times, beside.times if beside is not None else ()),
            segment_s=segments(self.times),
            processes=max(1, self.starts),
            early_steps=len(early),
            early_s=statistics.median(early) if len(early) > 0 else None,
            written=self.written,
            host=tuple((n, m.host_bytes) for n, m in kept if m.host_bytes is not None),
            device=tuple((n, m.device_bytes) for n, m in kept if m.device_bytes is not None),
        )

    def _early(self, asked: _Asked) -> list[float]:
        """Seconds of first steps, as many as a proof measured of a process; none of a program that ended before."""
        if self.starts != 1:
            return []
        count = len(self.times)
        first = min(asked.settle_steps, count // 4)
        return self.times[first : min(first + asked.proven_steps, count // 2)]


def soak_isolated(context: MeasurementContext, task: SoakTask, folder: Path) -> SoakRecord:
    """Runs a set alone for as long as is asked, then the reference; both again until all tell that its gain stays."""
    asked = _Asked(
        is_enough=lambda run: run.lasted_s >= task.least_s and len(run.times) >= task.least_steps,
        least_s=task.least_s,
        least_steps=task.least_steps,
        is_compared=task.basis not in STEP_BY_STEP,
        proven_steps=task.proven_steps,
        end_s=END_SHARE * task.least_s,
    )
    run, reference = _run_both(context, task, folder, asked)
    settling, _ = context.spec.block_sizes.split_isolated(reference.times or run.times)
    asked = replace(asked, settle_steps=max(context.settle_steps, len(settling)), end_s=0.0)
    loss = None
    arms = None
    failure = run.failure or _bad_end(run, reference)
    unsettled = None
    if failure is None and run.report is not None:

        def look_again(number: int) -> tuple[LongRun, LongRun]:
            into = context.folder_in(folder, "again" if number == 2 else f"again-{number}")
            return _run_both(context, task, into, asked)

        arms, failure, unsettled = _judge_arms(task, asked, run, reference, look_again)
        if failure is None:
            try:
                loss = _judge_loss(context, task.basis, run, reference)
            except WorkerFailed as error:
                failure = error.failure
    ratio = None
    if failure is None and unsettled is None and arms is not None and arms.work is None:
        ratio, failure = _check_from_outside(context, task, folder, run)
    return SoakRecord(
        settings=task.settings,
        steps_s=round(run.lasted_s, 3),
        step_count=len(run.times),
        starts=run.starts,
        longest=run.longest,
        loss=loss,
        failure=failure,
        seen_outside=ratio,
        unsettled=unsettled if failure is None else None,
        arms=arms,
    )


def _check_from_outside(
    context: MeasurementContext, task: SoakTask, folder: Path, run: LongRun
) -> tuple[float | None, Failure | None]:
    """Ratio of both programs' pace as the user would run them, and what that says against the set, if all tries do."""
    start_s = run.report.start_s if run.report is not None else 0.0
    limit_s = 2.0 * start_s + OUTSIDE_SHARE * task.least_s
    typical = task.typical or 0.0
    ratio = 1.0
    for number in range(OUTSIDE_TRIES):
        context.progress.phase("running the set and the default from outside")
        into = context.folder_in(folder, f"outside-{number}")
        line_s = context.pace_outside(task.settings, into, limit_s=limit_s)
        reference_s = context.pace_outside(FlagSet(), context.folder_in(into, "reference"), limit_s=limit_s)
        if not line_s or not reference_s:
            return None, None
        ratio = line_s / reference_s
        if ratio < 1.0 or math.log(ratio) - typical <= max(LEAST_AWAY, SDS_AWAY * task.process_sd):
            return ratio, None
    message = (
        f"timed from outside by its lines, without hook or reader, it is {format_change(ratio)} than the reference "
        f"though a typical step is {format_change(math.exp(typical))}"
    )
    return ratio, Failure(kind=FailureKind.SLOWER_IN_TOTAL, message=message, phase="outside")


def _bad_end(run: LongRun, reference: LongRun) -> Failure | None:
    """How a set's process ends where the reference's does not; None if it ends like that, or nobody saw it."""
    if run.end is not None:
        is_alike = reference.end is not None and reference.end.kind is run.end.kind
        return None if is_alike else run.end
    if not run.exit_status or reference.exit_status in (None, run.exit_status):
        return None
    message = (
        f"its process ends with status {run.exit_status} after its loop, the reference's with {reference.exit_status}"
    )
    return Failure(kind=FailureKind.CRASH, message=message, phase="exit")


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
                worker.fresh_batches = asked.is_compared
                worker.watches_memory = run.starts == 1
                _run_process(context, worker, asked, run)
                if run.starts == 1 and not context.spec.workload.can_wait:
                    _let_end(context, worker, asked, run)
            run.exit_status = worker.exit_status if context.spec.workload.can_wait else None
            run.written = worker.written if run.starts == 1 else None
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


def _let_end(context: MeasurementContext, worker: Worker, asked: _Asked, run: LongRun) -> None:
    """Lets a program that runs by itself go on to its own end for a while: some settings crash only there."""
    passed_s = 0.0
    context.progress.phase("waiting for the program's own end")
    try:
        while not worker.has_ended and passed_s < asked.end_s:
            passed_s += max(sum(worker.run_block(run.block or 1)), worker.last_clock_s or 0.0)
    except WorkerFailed as error:
        run.end = error.failure
    run.has_ended = worker.has_ended or run.end is not None


def _run_reference(context: MeasurementContext, run: LongRun, folder: Path, asked: _Asked) -> LongRun:
    """The reference alone for as many steps, and, where losses are compared, for as much work; tried twice."""
    steps = len(run.times)

    def has_done_as_much(reference: LongRun) -> bool:
        done = len(reference.times)
        is_as_much = not asked.is_compared or done * reference.work >= steps * run.work
        return done >= LONGEST_REFERENCE * steps or (done >= steps and is_as_much)

    end_s = 2.0 * asked.end_s if run.has_ended else 0.0
    as_long = replace(
        asked, is_enough=has_done_as_much, least_s=run.lasted_s, least_steps=steps, block=run.block, end_s=end_s
    )
    for _ in range(REFERENCE_TRIES):
        reference = _run_long(context, FlagSet(), context.folder_in(folder, "reference"), as_long)
        if reference.failure is None:
            break
        context.progress.incident(f"the reference beside a soak failed: {reference.failure.message}"[:300])
    return reference


def _judge_arms(
    task: SoakTask,
    asked: _Asked,
    run: LongRun,
    reference: LongRun,
    look_again: Callable[[int], tuple[LongRun, LongRun]],
) -> tuple[SoakArms, Failure | None, str | None]:
    """What both arms did, what that says against the set, and why it does not show that its gain stays."""
    arms = SoakArms(
        looks=(_look(run, reference, asked),),
        most=task.most,
        typical=task.typical,
        proven=task.proven,
        process_sd=task.process_sd,
    )
    if reference.failure is None and reference.report is not None and run.report is not None:
        try:
            work = work_between((FlagSet(), task.settings), (reference.report, run.report))
        except WorkerFailed as error:
            return arms, error.failure, None
        arms = arms.model_copy(update={"work": work})
    while True:
        verdict = judge_soak(arms)
        is_leak = verdict.failure is not None and verdict.failure.kind is FailureKind.LEAK
        is_alone = arms.looks[-1].reference is None and verdict.failure is None
        if verdict.is_passed or is_alone or len(arms.looks) >= (LEAK_LOOKS if is_leak else task.most):
            return arms, verdict.failure, verdict.unsettled
        again, beside = look_again(len(arms.looks) + 1)
        if again.failure is not None:
            return arms, again.failure, None
        arms = arms.model_copy(update={"looks": (*arms.looks, _look(again, beside, asked))})


def _look(run: LongRun, reference: LongRun, asked: _Asked) -> SoakLook:
    beside = reference if reference.failure is None else None
    base = beside.arm(run, asked) if beside is not None else None
    return SoakLook(candidate=run.arm(beside, asked), reference=base)


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
