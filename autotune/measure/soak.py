"""Long run (soak) of a winner under a watchdog: some settings hang, diverge, stall or leak after
hundreds of steps.

Then the reference runs as many steps: total time, stalls and memory of both are compared
(`autotune.model.proofs`), and, where the candidate's options change dtype or batch, their losses,
for which both learn from batches that they have not seen before. What speaks against a set by its
time or memory must come again in a second process of it.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.measure.context import MeasurementContext, work_between
from autotune.measure.loss_gate import STEP_BY_STEP
from autotune.measure.tasks import SoakTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, LossCheck, WorkerReport
from autotune.model.proofs import judge_soak
from autotune.model.records import MemoryUse, SoakArm, SoakArms, SoakLook, SoakRecord
from autotune.model.units import format_change
from autotune.stats.long_run import LEAK_LOOKS, find_stalls, segments
from autotune.workers.base import Worker, WorkerFailed

SAMPLES = 24
"""Blocks, about, into which a process's run is cut at least: each tells one loss, and the memory in
use.
"""

KEPT_SAMPLES = 96
"""Samples of memory that a record keeps."""

REFERENCE_TRIES = 2

OUTSIDE_SHARE, OUTSIDE_TRIES = 0.25, 3
"""Share of a long run for which each program runs from outside, and how often all must speak
against a set.
"""

LEAST_AWAY, SDS_AWAY = 0.01, 4.0
"""By how much, in log and in standard deviations between processes, one such run must be off to
speak against it.
"""

END_SHARE = 0.5
"""Share of a long run for which a program that runs by itself may go on after it, to come to its
own end.
"""

LONGEST_REFERENCE = 64
"""Steps of the reference for each of the candidate, at most: a bound for a program that tells
nonsense of its work.
"""


@dataclass(slots=True)
class LongRun:
    """What a set did for a while."""

    times: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    """Steps of the first process up to the end of a block, and the loss there, as far as it is
    told.
    """
    memory: list[tuple[int, MemoryUse]] = field(default_factory=list)
    """Likewise of memory in use."""
    lasted_s: float = 0.0
    """Seconds of its steps, those between the lines of a program that does not print each step
    included.
    """
    starts: int = 0
    longest: int = 0
    """Steps of the process that ran longest."""
    block: int = 0
    """Steps of a block; 0 before it has started."""
    report: WorkerReport | None = None
    failure: Failure | None = None
    has_ended: bool = False
    """Whether its program came to its own end."""
    end: Failure | None = None
    """How it failed at its own end, after the long run."""
    written: tuple[int, int] | None = None
    """Files that its only process left in its folder, and their bytes; None where that is not
    known.
    """
    exit_status: int | None = None
    """With which a process ended that was asked to; None where that is not known."""

    @property
    def work(self) -> int:
        """What its steps have done; each 1 where nobody tells, or it has not started."""
        of_step = self.report.tokens_per_step if self.report is not None else None
        return len(self.times) * (of_step or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """How long a run is to be."""

    least_s: float
    least_steps: int
    least_work: int = 0
    most_steps: float = math.inf
    block: int = 0
    """Steps of a block; 0 where the run is to find its own."""
    end_s: float = 0.0
    """Seconds of steps in which a program that runs by itself may come to its own end after its
    long run.
    """

    def is_met(self, run: LongRun) -> bool:
        """Returns whether a run is long enough."""
        steps = len(run.times)
        is_long = (
            run.lasted_s >= self.least_s
            and steps >= self.least_steps
            and run.work >= self.least_work
        )
        return is_long or steps >= self.most_steps


@dataclass(frozen=True, slots=True)
class _Soak:
    """One soak: pairs of long runs of the set and the reference."""

    context: MeasurementContext
    task: SoakTask
    folder: Path

    @property
    def has_fresh_batches(self) -> bool:
        """Whether losses are compared by work done: every step gets a batch of its own, if a worker
        makes batches.
        """
        return self.task.basis not in STEP_BY_STEP

    def run_both(self, folder: Path, *, end_s: float = 0.0) -> tuple[LongRun, LongRun]:
        """Runs the set, and the reference after it unless the set failed."""
        goal = _Goal(least_s=self.task.least_s, least_steps=self.task.least_steps, end_s=end_s)
        run = self._run(self.task.settings, folder, goal)
        if run.failure is not None:
            return run, LongRun(failure=run.failure)
        return run, self._run_reference(run, folder, end_s=2.0 * end_s if run.has_ended else 0.0)

    def _run_reference(self, run: LongRun, folder: Path, *, end_s: float) -> LongRun:
        """Runs the reference alone for as many steps, and, where losses are compared, for as much
        work; tried twice.
        """
        steps = len(run.times)
        goal = _Goal(
            least_s=0.0,
            least_steps=steps,
            least_work=run.work if self.has_fresh_batches else 0,
            most_steps=LONGEST_REFERENCE * steps,
            block=run.block,
            end_s=end_s,
        )
        for _ in range(REFERENCE_TRIES):
            reference = self._run(FlagSet(), self.context.folder_in(folder, "reference"), goal)
            if reference.failure is None:
                break
            self.context.progress.incident(
                f"the reference beside a soak failed: {reference.failure.message}"
            )
        return reference

    def _run(self, settings: FlagSet, folder: Path, goal: _Goal) -> LongRun:
        """Runs a set until it is enough, or it fails; a program that ends is started again."""
        run = LongRun()
        can_wait = self.context.spec.workload.can_wait
        while run.failure is None and not goal.is_met(run):
            try:
                with contextlib.closing(
                    self.context.start(settings, folder, isolated=True)
                ) as worker:
                    run.starts += 1
                    run.report = worker.report
                    worker.fresh_batches = self.has_fresh_batches
                    worker.watches_memory = run.starts == 1
                    worker.may_end = not can_wait
                    self._run_process(worker, goal, run)
                    if run.starts == 1 and not can_wait:
                        self._let_end(worker, goal, run)
                run.exit_status = worker.exit_status if can_wait else None
                run.written = worker.written if run.starts == 1 else None
            except WorkerFailed as error:
                run.failure = error.failure
        return run

    def _run_process(self, worker: Worker, goal: _Goal, run: LongRun) -> None:
        """Runs one process until it is enough, or the program has come to its own end."""
        run.block = run.block or goal.block or self._block_of(worker, goal)
        before = len(run.times)
        is_first = run.starts == 1
        while not goal.is_met(run) and not worker.has_ended:
            times = worker.run_block(run.block)
            run.times += times
            run.longest = max(run.longest, len(run.times) - before)
            clock_s = worker.last_clock_s or 0.0
            run.lasted_s += max(sum(times), clock_s) if worker.may_end else sum(times)
            if (
                is_first and worker.last_loss is not None
            ):  # a second process learns from the start again
                run.losses.append((len(run.times), worker.last_loss))
            if is_first and worker.last_memory is not None:
                run.memory.append((len(run.times), worker.last_memory))
            self.context.progress.phase(
                f"soaking: {len(run.times)} steps, {run.lasted_s:.0f} of {self.task.least_s:.0f} s"
            )

    def _block_of(self, worker: Worker, goal: _Goal) -> int:
        """Steps of a block: no more than in a trial, and so few that there are `SAMPLES` blocks."""
        longest = self.context.spec.measure.run_steps
        if self.context.spec.workload.can_wait:
            longest = max(longest, self.context.steps_for(worker))
        line_s = max(worker.report.line_s, worker.report.step_s)
        steps = max(goal.least_steps, round(goal.least_s / line_s) if line_s > 0 else 0)
        return max(1, min(longest, steps // SAMPLES))

    def _let_end(self, worker: Worker, goal: _Goal, run: LongRun) -> None:
        """Lets a program that runs by itself go on to its own end for a while: some settings crash
        only there.
        """
        passed_s = 0.0
        self.context.progress.phase("waiting for the program's own end")
        try:
            while not worker.has_ended and passed_s < goal.end_s:
                passed_s += max(sum(worker.run_block(run.block)), worker.last_clock_s or 0.0)
        except WorkerFailed as error:
            run.end = error.failure
        run.has_ended = worker.has_ended or run.end is not None

    # ------------------------------------------------------------------ what both arms did

    def look(self, run: LongRun, reference: LongRun) -> SoakLook:
        """One look at both arms."""
        if reference.failure is not None:
            return SoakLook(candidate=self._arm(run, ()))
        return SoakLook(
            candidate=self._arm(run, reference.times), reference=self._arm(reference, run.times)
        )

    def _arm(self, run: LongRun, beside_s: Sequence[float]) -> SoakArm:
        """The record of a long run; `beside_s` are the steps of the other one."""
        early_s = self._early(run)
        kept = run.memory[:: -(-len(run.memory) // KEPT_SAMPLES) or 1]
        return SoakArm(
            step_count=len(run.times),
            steps_s=round(sum(run.times), 3),
            stalls=find_stalls(run.times, beside_s),
            segment_s=segments(run.times),
            processes=max(1, run.starts),
            early_steps=len(early_s),
            early_s=statistics.median(early_s) if len(early_s) > 0 else None,
            written=run.written,
            host=tuple((n, m.host_bytes) for n, m in kept if m.host_bytes is not None),
            device=tuple((n, m.device_bytes) for n, m in kept if m.device_bytes is not None),
        )

    def _early(self, run: LongRun) -> list[float]:
        """Seconds of first steps, as many as a proof measured of a process; none of a program that
        ended before.
        """
        if run.starts != 1:
            return []
        count = len(run.times)
        settling, _ = self.context.spec.block_sizes.split_isolated(run.times)
        first = min(max(self.context.settle_steps, len(settling)), count // 4)
        return run.times[first : min(first + self.task.proven_steps, count // 2)]

    def judge(
        self, run: LongRun, reference: LongRun
    ) -> tuple[SoakArms, Failure | None, str | None]:
        """Returns what both arms did, what that says against the set, and why it does not show that
        its gain stays.
        """
        task = self.task
        arms = SoakArms(
            looks=(self.look(run, reference),),
            most=task.most,
            proven=task.proven,
            process_sd=task.process_sd,
        )
        if reference.report is not None and run.report is not None and reference.failure is None:
            try:
                work = work_between((FlagSet(), task.settings), (reference.report, run.report))
            except WorkerFailed as error:
                return arms, error.failure, None
            arms = arms.model_copy(update={"work": work})
        while True:
            verdict = judge_soak(arms)
            is_leak = verdict.failure is not None and verdict.failure.kind is FailureKind.LEAK
            is_alone = arms.looks[-1].reference is None and verdict.failure is None
            count = len(arms.looks)
            if verdict.is_passed or is_alone or count >= (LEAK_LOOKS if is_leak else task.most):
                return arms, verdict.failure, verdict.unsettled
            again, beside = self.run_both(self.context.folder_in(self.folder, f"again-{count}"))
            if again.failure is not None:
                return arms, again.failure, None
            arms = arms.model_copy(update={"looks": (*arms.looks, self.look(again, beside))})

    def judge_loss(self, run: LongRun, reference: LongRun) -> LossCheck | None:
        """Holds the losses of a long run to those of the reference; None where that adds nothing to
        its blocks.
        """
        basis = self.task.basis
        if reference.report is None or run.report is None or reference.failure is not None:
            why = reference.failure.message if reference.failure is not None else "it did not start"
            words = f"inconclusive: the reference beside it failed: {why}"[:500]
            return LossCheck(basis=basis, words=words) if self.has_fresh_batches else None
        reports = (reference.report, run.report)
        losses = (reference.losses, run.losses)
        check = self.context.losses.check_soak(basis, reports, losses, steps=len(run.times))
        is_news = check.is_ok is not None or not reference.losses
        return check if is_news or self.has_fresh_batches else None

    def check_from_outside(self, run: LongRun) -> tuple[float | None, Failure | None]:
        """Ratio of both programs' pace as a user runs them, and what it says against the set, if
        all tries do.
        """
        task = self.task
        start_s = run.report.start_s if run.report is not None else 0.0
        limit_s = 2.0 * start_s + OUTSIDE_SHARE * task.least_s
        typical = task.proven.ratio if task.proven is not None else 1.0
        most = typical * math.exp(max(LEAST_AWAY, SDS_AWAY * task.process_sd))
        ratio = 1.0
        self.context.progress.phase("running the set and the default from outside")
        for number in range(OUTSIDE_TRIES):
            folder = self.context.folder_in(self.folder, f"outside-{number}")
            line_s = self.context.pace_outside(task.settings, folder, limit_s=limit_s)
            beside = self.context.folder_in(folder, "reference")
            reference_s = self.context.pace_outside(FlagSet(), beside, limit_s=limit_s)
            if not line_s or not reference_s:
                return None, None
            ratio = line_s / reference_s
            if ratio < 1.0 or ratio <= most:
                return ratio, None
        message = (
            "timed from outside by its lines, without hook or reader, it is "
            f"{format_change(ratio)} than the reference "
            f"though a typical step is {format_change(typical)}"
        )
        return ratio, Failure(kind=FailureKind.SLOWER_IN_TOTAL, message=message, phase="outside")


def soak_isolated(context: MeasurementContext, task: SoakTask, folder: Path) -> SoakRecord:
    """Runs a set alone for as long as is asked, then the reference; both again until all tell that
    its gain stays.
    """
    soak = _Soak(context, task, folder)
    run, reference = soak.run_both(folder, end_s=END_SHARE * task.least_s)
    record = SoakRecord(
        settings=task.settings,
        steps_s=round(run.lasted_s, 3),
        step_count=len(run.times),
        starts=run.starts,
        longest=run.longest,
        failure=run.failure or _bad_end(run, reference),
    )
    if record.failure is not None:
        return record
    arms, failure, unsettled = soak.judge(run, reference)
    record = record.model_copy(update={"arms": arms, "failure": failure})
    if failure is not None:
        return record
    try:
        record = record.model_copy(
            update={"loss": soak.judge_loss(run, reference), "unsettled": unsettled}
        )
    except WorkerFailed as error:
        return record.model_copy(update={"failure": error.failure})
    if unsettled is not None or arms.work is not None:
        return record
    ratio, failure = soak.check_from_outside(run)
    return record.model_copy(update={"seen_outside": ratio, "failure": failure})


def _bad_end(run: LongRun, reference: LongRun) -> Failure | None:
    """Returns how a set's process ends where the reference's does not; None if it ends like that,
    or nobody saw it.
    """
    if run.end is not None:
        is_alike = reference.end is not None and reference.end.kind is run.end.kind
        return None if is_alike else run.end
    if not run.exit_status or reference.exit_status in (None, run.exit_status):
        return None
    message = (
        f"its process ends with status {run.exit_status} after its loop, the reference's "
        f"with {reference.exit_status}"
    )
    return Failure(kind=FailureKind.CRASH, message=message, phase="exit")
