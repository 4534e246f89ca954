"""Long run (soak) of a winner: some settings hang, diverge, stall or leak after hundreds of steps.

The reference runs as many steps: by turns with the set if the pairs of its proof ran so, else after
it. Total time, stalls, memory (`autotune.model.proofs`) and losses of both are compared; where the
candidate's options change dtype or batch, both learn from batches that they have not seen before.
What speaks against a set by its time or memory must come again in a second process of it.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autotune.measure.context import MeasurementContext, work_between
from autotune.measure.loss_gate import STEP_BY_STEP, wrong_loss
from autotune.measure.tasks import SoakTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, LossCheck, WorkerReport
from autotune.model.proofs import SoakVerdict, judge_soak
from autotune.model.records import MemoryUse, SoakArm, SoakArms, SoakLook, SoakRecord
from autotune.model.units import format_change
from autotune.stats.long_run import LEAK_LOOKS, find_stalls, segments
from autotune.stats.loss_check import StepLoss
from autotune.workers.base import Worker, WorkerFailed

# Blocks of a process's run at least, each a sample of loss and memory, and samples in a record.
SAMPLES = 24
KEPT_SAMPLES = 96
REFERENCE_TRIES = 2
# Share of a long run for which programs run from outside; so often they must speak against.
OUTSIDE_SHARE = 0.25
OUTSIDE_TRIES = 3
# By how much, in log and in standard deviations of processes, one such run must be off.
LEAST_AWAY = 0.01
SDS_AWAY = 4.0
# Share of a long run for which a program may go on after it, to come to its own end.
END_SHARE = 0.5
# Steps of the reference for each of the candidate, at most, for a program may tell nonsense.
LONGEST_REFERENCE = 64


@dataclass(slots=True, kw_only=True)
class LongRun:
    """How long a set was to run, and what it did."""

    least_s: float = 0.0
    least_steps: int = 0
    least_work: int = 0
    most_steps: float = math.inf
    # Seconds of steps in which a program may come to its own end after its long run.
    end_s: float = 0.0
    block: int = 0  # Steps of a block; 0 until that is known
    times: list[float] = field(default_factory=list)
    # Steps of the first process up to the end of a block, and the loss there, if it is told.
    losses: list[tuple[int, StepLoss]] = field(default_factory=list)
    memory: list[tuple[int, MemoryUse]] = field(default_factory=list)  # Likewise of memory in use
    lasted_s: float = 0.0  # Seconds of its steps, those included that a program does not print
    loss_lag: int = 0  # Steps of the first process after its last loss
    longest_lag: int = 0
    starts: int = 0
    begin: int = 0  # Steps before the process that runs now
    longest: int = 0  # Steps of the process that ran longest
    report: WorkerReport | None = None
    failure: Failure | None = None
    has_ended: bool = False
    end: Failure | None = None  # How its program failed at its own end, after the long run
    # Files that its only process left in its folder, and their bytes; None if not known.
    written: tuple[int, int] | None = None
    exit_status: int | None = None  # Of a process that was asked to end; None if not known

    @property
    def work(self) -> int:
        """What its steps have done; each 1 where nobody tells, or it has not started."""
        of_step = self.report.tokens_per_step if self.report is not None else None
        return len(self.times) * (of_step or 1)

    @property
    def is_enough(self) -> bool:
        """Whether it is as long as it was to be."""
        steps = len(self.times)
        is_long = (
            self.lasted_s >= self.least_s
            and steps >= self.least_steps
            and self.work >= self.least_work
        )
        return is_long or steps >= self.most_steps

    @contextlib.contextmanager
    def keeps_failure(self) -> Iterator[None]:
        """Keeps the failure of a worker that the body raises."""
        try:
            yield
        except WorkerFailed as error:
            self.failure = error.failure
            raise


@dataclass(frozen=True, slots=True)
class _Soak:
    """One soak: pairs of long runs of the set and the reference."""

    context: MeasurementContext
    task: SoakTask

    @property
    def has_fresh_batches(self) -> bool:
        """Whether losses are compared by work done, with a batch of its own for every step."""
        return self.task.basis not in STEP_BY_STEP

    def run_both(self, *names: str, end_s: float = 0.0) -> tuple[LongRun, LongRun]:
        """Runs the set and the reference, by turns or one after the other; `names` of a folder."""
        if self.task.is_interleaved:
            run, reference = self._interleave(*names)
            if reference.failure is None:
                return run, reference
            self._note_failed_reference(reference.failure)
        run = LongRun(least_s=self.task.least_s, least_steps=self.task.least_steps, end_s=end_s)
        self._run(run, self.task.settings, *names)
        if run.failure is not None:
            return run, LongRun(failure=run.failure)
        steps = len(run.times)
        for _ in range(REFERENCE_TRIES):
            reference = LongRun(
                least_steps=steps,
                least_work=self._work_of(run),
                most_steps=LONGEST_REFERENCE * steps,
                block=run.block,
                end_s=2.0 * end_s if run.has_ended else 0.0,
            )
            self._run(reference, FlagSet(), *names, "reference")
            if reference.failure is None:
                break
            self._note_failed_reference(reference.failure)
        return run, reference

    def _note_failed_reference(self, failure: Failure) -> None:
        self.context.progress.incident(f"the reference beside a soak failed: {failure.message}")

    def _work_of(self, run: LongRun) -> int:
        """Work that the reference must do at least, because losses are compared by it."""
        return run.work if self.has_fresh_batches else 0

    def _interleave(self, *names: str) -> tuple[LongRun, LongRun]:
        """Runs blocks of both arms by turns, so that what the machine does meets both alike."""
        run = LongRun(least_s=self.task.least_s, least_steps=self.task.least_steps)
        reference = LongRun()
        with (
            contextlib.suppress(WorkerFailed),
            self._process(run, self.task.settings, *names) as worker,
            self._process(reference, FlagSet(), *names, "reference") as reference_worker,
        ):
            run.block = reference.block = self._block_of(worker)
            arms = [(run, worker), (reference, reference_worker)]
            while not run.is_enough:
                for arm in arms:
                    self._run_block(*arm)
                arms.reverse()
            reference.least_steps = len(run.times)
            reference.least_work = self._work_of(run)
            while not reference.is_enough:
                self._run_block(reference, reference_worker)
        return run, reference

    def _run(self, run: LongRun, settings: FlagSet, *names: str) -> None:
        """Runs a set until it is enough, or it fails; a program that ends is started again."""
        with contextlib.suppress(WorkerFailed):
            while not run.is_enough:
                with self._process(run, settings, *names, isolated=True) as worker:
                    self._run_process(worker, run)

    def _run_process(self, worker: Worker, run: LongRun) -> None:
        """Runs one process until it is enough, or the program has come to its own end."""
        run.block = run.block or self._block_of(worker)
        while not run.is_enough and not worker.has_ended:
            self._run_block(run, worker)
        if run.starts == 1 and not self._can_wait:
            self._let_end(worker, run)

    @property
    def _can_wait(self) -> bool:
        return self.context.spec.workload.can_wait

    @contextlib.contextmanager
    def _process(
        self, run: LongRun, settings: FlagSet, *names: str, isolated: bool = False
    ) -> Iterator[Worker]:
        """One process of a long run, which keeps how it ended; `names` of its folder."""
        folder = self.context.folder(*names)
        with run.keeps_failure():
            worker = self.context.start(settings, folder, isolated=isolated)
        with contextlib.closing(worker):
            run.starts += 1
            run.begin = len(run.times)
            run.report = worker.report
            worker.fresh_batches = self.has_fresh_batches
            worker.watches_memory = run.starts == 1
            worker.may_end = not self._can_wait
            yield worker
        run.exit_status = worker.exit_status if self._can_wait else None
        run.written = worker.written if run.starts == 1 else None

    def _run_block(self, run: LongRun, worker: Worker) -> None:
        """Runs one block of a process."""
        with run.keeps_failure():
            times = worker.run_block(run.block)
        run.times += times
        steps = len(run.times)
        run.longest = max(run.longest, steps - run.begin)
        clock_s = worker.last_clock_s or 0.0
        run.lasted_s += max(sum(times), clock_s) if worker.may_end else sum(times)
        if run.starts == 1:  # a second process learns from the start again
            run.loss_lag = worker.loss_lag
            run.longest_lag = max(run.longest_lag, run.loss_lag)
            if worker.last_loss is not None:
                run.losses.append((steps, StepLoss(worker.last_loss, worker.last_norm)))
            if worker.last_memory is not None:
                run.memory.append((steps, worker.last_memory))
        self.context.progress.phase(
            f"soaking: {steps} steps, {run.lasted_s:.0f} of {self.task.least_s:.0f} s"
        )

    def _block_of(self, worker: Worker) -> int:
        """Steps of a block: no more than in a trial, and so few that there are `SAMPLES` blocks."""
        longest = self.context.spec.measure.run_steps
        if self._can_wait:
            longest = max(longest, self.context.steps_for(worker))
        steps = self.task.least_steps
        line_s = max(worker.report.line_s, worker.report.step_s)
        if line_s > 0:
            steps = max(steps, round(self.task.least_s / line_s))
        return max(1, min(longest, steps // SAMPLES))

    def _let_end(self, worker: Worker, run: LongRun) -> None:
        """Lets a program go on to its own end for a while: some settings crash only there."""
        passed_s = 0.0
        self.context.progress.phase("waiting for the program's own end")
        try:
            while not worker.has_ended and passed_s < run.end_s:
                passed_s += max(sum(worker.run_block(run.block)), worker.last_clock_s or 0.0)
        except WorkerFailed as error:
            run.end = error.failure
        run.has_ended = worker.has_ended or run.end is not None

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
        memory = run.memory[:: -(-len(run.memory) // KEPT_SAMPLES) or 1]
        return SoakArm(
            step_count=len(run.times),
            steps_s=round(sum(run.times), 3),
            stalls=find_stalls(run.times, beside_s),
            segment_s=segments(run.times),
            processes=max(1, run.starts),
            early_steps=len(early_s),
            early_s=statistics.median(early_s) if early_s else None,
            written=run.written,
            host=tuple((n, m.host_bytes) for n, m in memory if m.host_bytes is not None),
            device=tuple((n, m.device_bytes) for n, m in memory if m.device_bytes is not None),
        )

    def _early(self, run: LongRun) -> list[float]:
        """Seconds of first steps, as many as in a proof; none of a program that ended before."""
        if run.starts != 1:
            return []
        count = len(run.times)
        settling, _ = self.context.spec.block_sizes.split_isolated(run.times)
        begin = min(max(self.context.settle_steps, len(settling)), count // 4)
        return run.times[begin : min(begin + self.task.proven_steps, count // 2)]

    def judge(self, run: LongRun, reference: LongRun) -> tuple[SoakArms, SoakVerdict]:
        """Returns what both arms did, in as many runs as it takes, and what that says."""
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
                return arms, SoakVerdict(error.failure)
            arms = arms.model_copy(update={"work": work})
        while True:
            verdict = judge_soak(arms)
            is_leak = verdict.failure is not None and verdict.failure.kind is FailureKind.LEAK
            is_alone = arms.looks[-1].reference is None and verdict.failure is None
            count = len(arms.looks)
            limit = LEAK_LOOKS if is_leak else task.most
            if verdict.is_passed or is_alone or count >= limit:
                return arms, verdict
            run, reference = self.run_both(f"again-{count}")
            if run.failure is not None:
                return arms, SoakVerdict(run.failure)
            arms = arms.model_copy(update={"looks": (*arms.looks, self.look(run, reference))})

    def judge_loss(self, run: LongRun, reference: LongRun) -> LossCheck | None:
        """Holds the losses of a long run to the reference's; None if that adds nothing."""
        basis = self.task.basis
        if reference.report is None or run.report is None or reference.failure is not None:
            if not self.has_fresh_batches:
                return None
            why = reference.failure.message if reference.failure is not None else "it did not start"
            sentence = f"inconclusive: the reference beside it failed: {why}"[:500]
            return LossCheck(basis=basis, words=sentence)
        if run.loss_lag > 2 * reference.longest_lag + run.block:
            why = f"its loss was not told in its last {run.loss_lag} steps; it may be nan"
            raise wrong_loss(why, phase="soak")
        reports = (reference.report, run.report)
        losses = (reference.losses, run.losses)
        check = self.context.losses.check_soak(basis, reports, losses, steps=len(run.times))
        is_news = check.is_ok is not None or not reference.losses
        return check if is_news or self.has_fresh_batches else None

    def check_from_outside(self, run: LongRun) -> tuple[float | None, Failure | None]:
        """Ratio of both programs' pace as a user runs them, and what all tries say against it."""
        task = self.task
        start_s = run.report.start_s if run.report is not None else 0.0
        limit_s = 2.0 * start_s + OUTSIDE_SHARE * task.least_s
        typical = task.proven.ratio if task.proven is not None else 1.0
        allowed = typical * math.exp(max(LEAST_AWAY, SDS_AWAY * task.process_sd))
        ratio = 1.0
        self.context.progress.phase("running the set and the default from outside")
        for number in range(OUTSIDE_TRIES):
            name = f"outside-{number}"
            line_s = self.context.pace_outside(task.settings, name, limit_s=limit_s)
            reference_s = self.context.pace_outside(FlagSet(), name, "reference", limit_s=limit_s)
            if not line_s or not reference_s:
                return None, None
            ratio = line_s / reference_s
            if ratio < 1.0 or ratio <= allowed:
                return ratio, None
        message = (
            "timed from outside by its lines, without hook or reader, it is "
            f"{format_change(ratio)} than the reference "
            f"though a typical step is {format_change(typical)}"
        )
        return ratio, Failure(kind=FailureKind.SLOWER_IN_TOTAL, message=message, phase="outside")


def soak_isolated(context: MeasurementContext, task: SoakTask) -> SoakRecord:
    """Runs a set and the reference for long; both again until all tell that its gain stays."""
    soak = _Soak(context, task)
    run, reference = soak.run_both(end_s=END_SHARE * task.least_s)
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
    arms, verdict = soak.judge(run, reference)
    record = record.model_copy(update={"arms": arms, "failure": verdict.failure})
    if verdict.failure is not None:
        return record
    try:
        loss = soak.judge_loss(run, reference)
    except WorkerFailed as error:
        return record.model_copy(update={"failure": error.failure})
    record = record.model_copy(update={"loss": loss, "unsettled": verdict.unsettled})
    if verdict.unsettled is not None or arms.work is not None:
        return record
    ratio, failure = soak.check_from_outside(run)
    return record.model_copy(update={"seen_outside": ratio, "failure": failure})


def _bad_end(run: LongRun, reference: LongRun) -> Failure | None:
    """How a set's process ends where the reference's does not, if anybody saw it."""
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
