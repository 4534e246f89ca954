"""One comparison of two sets, as A/A runs, trials, proofs and ablations make it.

Interleaved: both processes live side by side and run blocks in pairs, one idle or paused while the
other runs. A fresh fair coin decides who goes first in each pair: the statistics rest on that (see
`autotune.stats.estimates`). Isolated: fresh runs one after the other, where two do not fit into the
device's memory or the program can neither wait nor be paused. Trials are then ABA runs (reference,
candidate, reference), so that a steady drift of the machine cancels and what is left of it widens
the interval; they are stored as two pairs that have the candidate's run in common.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autotune.measure.context import MeasurementContext, ReferenceFailed, work_between
from autotune.measure.durations import AA_SHARE, LEAST_AA, refuse_short_budget
from autotune.measure.loss_gate import LossTrace, Reports, Sets
from autotune.measure.pausing import (
    LONG_BLOCKS,
    refuse_dishonest,
    refuse_long_pause,
    why_not_paused,
)
from autotune.model.block_sizes import BlockSizes, Split
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import (
    ABA,
    INTERLEAVED,
    Arm,
    Comparison,
    Pair,
    WorkerReport,
    WorkPerStep,
    log_ratio,
)
from autotune.stats.aa_noise import (
    UNKNOWN_NOISE,
    AaNoise,
    fewest_pairs,
    moments,
    read_aa_noise,
    settling,
    settling_seconds,
    share_to_count,
    spread_of,
)
from autotune.stats.estimates import (
    Estimate,
    SequentialPlan,
    aba_runs,
    estimate_aba,
    estimate_pairs,
    reason_to_stop,
    widen,
)
from autotune.workers.base import Worker, WorkerFailed
from autotune.workers.failures import collision_of

# How often a candidate is measured once more that something outside seems to have ended.
CANDIDATE_RETRIES = 2
# Fewest and most pairs of blocks with each process of an A/A run, unless they take a moment.
AA_PAIRS = 8
MOST_AA_PAIRS = 20
# Fewest where a pair takes seconds: intervals hold as with 8 (tests/stats/test_gpu_blocks.py).
LEAST_AA_PAIRS = 2
# Share by which steps of a program that runs on may miss the time in which energy was counted.
LARGEST_GAP = 0.1


class SameProgram(Exception):
    """A candidate whose program is known already, so that there is nothing to measure."""


class StoppingRule(NamedTuple):
    """When an interleaved comparison ends (a reason, or None), and the honest estimate for that."""

    stop: Callable[[list[float]], str | None]
    estimate: Callable[[list[float]], Estimate]


def sequential(
    plan: SequentialPlan,
    *,
    min_effect: float,
    incumbent: Estimate | None,
    spread: float = 0.0,
    most: int | None = None,
) -> StoppingRule:
    """The rule of a trial: looks at the plan's counts, at an error level that holds over all looks.

    There is time for `most` pairs: it ends at the last look within them, or the first.
    """
    in_time = [count for count in plan.looks if most is None or count <= most]
    last_look = max(in_time, default=plan.looks[0])

    def estimate(ratios: list[float]) -> Estimate:
        return widen(plan.estimate(ratios), spread)

    def stop(ratios: list[float]) -> str | None:
        count = len(ratios)
        if count not in plan.looks:
            return None
        reason = reason_to_stop(
            estimate(ratios), plan, min_effect=min_effect, incumbent=incumbent, spread=spread
        )
        if reason is None and count >= last_look:
            return "no time for more pairs"
        return reason

    return StoppingRule(stop, estimate)


def fixed(count: int) -> StoppingRule:
    """The rule of a proof: a number of pairs settled beforehand."""
    return StoppingRule(
        lambda ratios: f"all {count} pairs run" if len(ratios) >= count else None, estimate_pairs
    )


class ComparisonRequest(NamedTuple):
    """What is to be compared, and how."""

    candidate: FlagSet
    rule: StoppingRule  # Of interleaved blocks; isolated runs have numbers of their own
    # What to compare with, in a fresh process; empty for the study's reference.
    against: FlagSet = FlagSet()
    is_proof: bool = False  # One fresh pair of processes, even of the study's reference
    is_aa: bool = False
    # Raises WorkerFailed or SameProgram before both are measured; then losses are compared.
    inspect: Callable[[Reports], None] | None = None

    @property
    def sets(self) -> Sets:
        """Reference and candidate."""
        return self.against, self.candidate


class Compared(NamedTuple):
    """Result of a comparison."""

    # Of the reference, then of the candidate or the other processes of an A/A run.
    reports: Sequence[WorkerReport]
    pairs: Sequence[Pair]
    comparison: Comparison
    noise: AaNoise


class Run(NamedTuple):
    """A block of one arm, or a fresh run of it."""

    arm: Arm
    at_s: float
    trace: LossTrace
    steps_s: Split
    joules: float | None
    clock_s: float | None  # Of all steps, by a clock that is not the program's


class Comparer(ABC):
    """Compares two sets in one place."""

    mode: str  # `INTERLEAVED` or `ABA`, as it is kept in records

    def __init__(self, context: MeasurementContext) -> None:
        self.context = context

    def compare(self, request: ComparisonRequest) -> Compared:
        """Measures a set; what was not the candidate's fault is tried again, a few times.

        Raises:
            WorkerFailed: If a set failed; `ReferenceFailed` if no reference outlived the candidate.
            LaunchError: If the reference cannot be started.
        """
        comparer = self.for_sets(*request.sets)
        is_replaceable = request.is_proof or not request.against
        retries = 0
        while True:
            self.context.gpus.take()  # what was seen of a try that failed is not of this one
            try:
                return comparer._compare(request)
            except WorkerFailed as error:
                instead = comparer.instead(error, request.sets)
                if instead is not None:
                    comparer = instead
                elif is_replaceable and isinstance(error, ReferenceFailed):
                    self.context.lose_reference(error)
                elif (
                    error.infrastructure
                    and error.failure.phase == "step"
                    and retries < CANDIDATE_RETRIES
                ):
                    retries += 1
                    self.context.progress.incident(f"measured once more after: {error}")
                else:
                    raise

    def aa_run(self) -> Compared:
        """Measures the reference against other processes of itself; see `compare`."""
        rule = fixed(AA_PAIRS)
        return self.compare(ComparisonRequest(candidate=FlagSet(), rule=rule, is_aa=True))

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """The way to compare some sets, from what earlier pairs have shown of them."""
        return self

    def instead(self, error: WorkerFailed, sets: Sets) -> Comparer | None:
        """The way to compare two sets if this one is why they failed, else None."""
        return None

    @abstractmethod
    def _compare(self, request: ComparisonRequest) -> Compared:
        """One try of `compare`; raises `ReferenceFailed` where it was not the candidate."""

    def _keep(
        self,
        request: ComparisonRequest,
        index: int,
        runs: Sequence[Run],
        work: WorkPerStep | None,
    ) -> Pair:
        """Stores two runs as a pair, and holds the candidate's losses against the reference's."""
        reference, candidate = sorted(runs, key=lambda run: run.arm is Arm.CANDIDATE)
        pair = Pair(
            index=index,
            first=runs[0].arm,
            reference_s=reference.steps_s[1],
            candidate_s=candidate.steps_s[1],
            reference_settling_s=reference.steps_s[0] or None,
            candidate_settling_s=candidate.steps_s[0] or None,
            at_s=round(runs[0].at_s, 3),
            reference_j=reference.joules,
            candidate_j=candidate.joules,
            reference_clock_s=reference.clock_s,
            candidate_clock_s=candidate.clock_s,
            loss=candidate.trace.beside(reference.trace),
        )
        self.context.progress.pair(self.context.folder(), pair, work)
        if request.inspect is not None:
            if self.mode == ABA:
                candidate.trace.refuse_shorter(reference.trace)
            reports = (reference.trace.worker.report, candidate.trace.worker.report)
            self.context.losses.check_block(request.sets, reports, pair.loss)
        return pair

    def _compared(
        self,
        reports: Sequence[WorkerReport],
        pairs: Sequence[Pair],
        estimate: Estimate,
        *,
        stopped: str,
        work: WorkPerStep | None = None,
        noise: AaNoise = UNKNOWN_NOISE,
    ) -> Compared:
        telemetry = self.context.gpus.take()
        comparison = Comparison(
            estimate=estimate,
            reference_step_s=statistics.median(t for p in pairs for t in p.reference_s),
            candidate_step_s=statistics.median(t for p in pairs for t in p.candidate_s),
            pair_count=len(pairs),
            mode=self.mode,
            stopped=stopped,
            warnings=telemetry.warnings,
            energy=self.context.meter.use_of(pairs),
            during=telemetry.during,
            work=work,
        )
        return Compared(reports=reports, pairs=pairs, comparison=comparison, noise=noise)


class Interleaved(Comparer):
    """Both processes side by side; isolated where the two do not fit into the device's memory."""

    mode = INTERLEAVED

    def _compare(self, request: ComparisonRequest) -> Compared:
        if request.is_aa:
            return self._aa_run()
        context = self.context
        with contextlib.ExitStack() as stack:
            if request.is_proof or request.against:
                reference, candidate = context.start_both(*request.sets)
                stack.callback(reference.close)
                trace = LossTrace(context.spec, reference)
            else:
                trace = context.reference()
                candidate = context.start(request.candidate, context.folder())
            stack.callback(candidate.close)
            reports = (trace.worker.report, candidate.report)
            work = work_between(request.sets, reports)
            if request.inspect is not None:
                request.inspect(reports)
            traces = (trace, LossTrace(context.spec, candidate))
            pairs, stopped = self.run_blocks(request, traces, work, seed=context.assignment.name)
            reports = (trace.worker.report, candidate.report)  # it may compile more
        estimate = request.rule.estimate([log_ratio(p, work) for p in pairs])
        return self._compared(reports, pairs, estimate, stopped=stopped, work=work)

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """Isolated for sets that turned out not to fit beside another process."""
        return self._isolated() if self.context.share.is_known_isolated(*sets) else self

    def instead(self, error: WorkerFailed, sets: Sets) -> Comparer | None:
        """Isolated, if pausing, a port, lock or memory is why; LaunchError if it may not be."""
        context = self.context
        mode = context.spec.measure.mode
        is_reference = isinstance(error, ReferenceFailed)
        failed_set = sets[not is_reference]
        resource = collision_of(error.failure)
        why = ""
        if not context.spec.workload.can_wait:
            why = why_not_paused(context, error, is_reference=is_reference or not sets[1])
        if why and mode == INTERLEAVED:
            raise LaunchError(
                f'measure.mode = "{INTERLEAVED}" must be able to pause the program, but {why}; '
                f'write "auto" or "{ABA}"'
            )
        if why:
            context.progress.incident(
                f"this program is not paused while another one runs, for {why}; it runs one "
                f'process at a time, as by measure.mode = "{ABA}"'
            )
        elif mode == "auto" and resource:
            context.progress.incident(
                f"two processes of this program want the same {resource}, so they run one at a "
                f'time from now on, as by measure.mode = "{ABA}": {error.failure.message}'
            )
        elif not context.share.is_too_small(error.failure):
            return None
        elif failed_set or not is_reference:
            context.share.remember(failed_set)
        else:
            context.progress.incident(
                "two processes do not fit into the device's memory, so they run one at a time"
            )
        return self._isolated()

    def _isolated(self) -> Comparer:
        self.context.release_reference()
        return Isolated(self.context)

    def _aa_run(self) -> Compared:
        """One process after the other beside the living reference; raw pairs of all in one file."""
        context = self.context
        spec = context.spec
        trace = context.reference()
        report = trace.worker.report
        block_steps = context.steps_for(trace.worker)
        refuse_long_pause(report, block_steps)
        count = aa_pairs(report, block_steps)
        start_s = report.start_s  # in the end it starts once more, in another rounding
        each_s = start_s + 2 * count * block_steps * report.step_s
        refuse_short_budget(context, report, aa_s=start_s + LEAST_AA * each_s)
        budget_s = spec.search.time_budget or math.inf
        planned_s = AA_SHARE * budget_s - 2.0 * start_s
        limit_s = context.now_s + AA_SHARE / 2.0 * budget_s  # the plan may be too short
        pairs: list[Pair] = []
        reports = [report]
        groups = []
        ages = []

        def stop(ratios: list[float]) -> str | None:
            needed = LEAST_AA_PAIRS if context.now_s > limit_s else count
            return "they are enough" if len(ratios) >= needed else None

        request = ComparisonRequest(candidate=FlagSet(), rule=StoppingRule(stop, estimate_pairs))
        for number in range(spec.measure.aa_processes):
            is_long = (number + 1) * each_s > planned_s or context.now_s > limit_s
            if number >= LEAST_AA and is_long:
                break
            names = [f"second-{number + 1}"] if number > 0 else []
            with contextlib.closing(context.start(FlagSet(), context.folder(*names))) as worker:
                fresh = LossTrace(spec, worker)
                new_pairs, _ = self.run_blocks(
                    request,
                    (trace, fresh),
                    seed=f"floor/{len(pairs)}" if pairs else "floor",
                    begin=len(pairs),
                )
                reports.append(worker.report)
            ago = block_steps * np.arange(len(new_pairs))[::-1]
            ages.append(np.asarray([fresh.done - ago, trace.done - ago]))
            if report.line_s and number == 0:
                long_steps = LONG_BLOCKS * block_steps
                refuse_dishonest(report, new_pairs, trace.worker.run_block(long_steps))
                trace.take(long_steps)
            pairs += new_pairs
            groups.append(np.asarray([log_ratio(p) for p in new_pairs]))
        settled = settling(groups, ages)
        noise = read_aa_noise(
            settled.log_ratios,
            settle_steps=settled.steps,
            start_s=typical_start_s(reports),
            pair_s=pair_duration_s(pairs),
        )
        if context.sizes.settle_s:
            noise = shortened(
                noise, pairs, context.sizes, has_own_blocks=spec.measure.block_s != "auto"
            )
        stopped = f"all {len(pairs)} pairs with {len(groups)} processes run"
        return self._compared(reports, pairs, noise.estimate, stopped=stopped, noise=noise)

    def run_blocks(
        self,
        request: ComparisonRequest,
        traces: tuple[LossTrace, LossTrace],
        work: WorkPerStep | None = None,
        *,
        seed: str,
        begin: int = 0,
    ) -> tuple[list[Pair], str]:
        """Runs pairs of blocks, from number `begin` on, until the rule gives a reason to stop."""
        context = self.context
        coin = random.Random(f"{context.spec.seed}/{seed}")
        steps = context.steps_for(traces[0].worker)
        for trace in traces:
            trace.settle(context.settle_steps)
        pairs: list[Pair] = []
        ratios = []
        while True:
            order = [*Arm] if coin.random() < 0.5 else [*reversed(Arm)]
            runs = [self._block(arm, traces[arm is Arm.CANDIDATE], steps) for arm in order]
            pair = self._keep(request, begin + len(pairs), runs, work)
            pairs.append(pair)
            ratios.append(log_ratio(pair, work))
            # For other people's processes, between two pairs, when nothing is timed.
            context.gpus.look()
            reason = request.rule.stop(ratios)
            if reason is not None:
                return pairs, reason

    def _block(self, arm: Arm, trace: LossTrace, steps: int) -> Run:
        worker = trace.worker
        sizes = self.context.sizes
        at_s = self.context.now_s
        begun_s = time.monotonic()
        try:
            with self.context.gpus.block(arm, settle_s=sizes.settle_s):
                times_s, joules = self.context.meter.measure(lambda: worker.run_block(steps))
        except WorkerFailed as error:
            if arm is Arm.REFERENCE:
                raise ReferenceFailed(error) from error
            raise
        # At once: the reference lives on where the candidate dies in its block of the same pair.
        trace.take(steps)
        clock_s = worker.last_clock_s
        if worker.report.line_s and joules is not None and clock_s is not None:
            joules *= clock_s / (time.monotonic() - begun_s)  # of lines that count, too
        return Run(arm, at_s, trace, sizes.split(times_s), joules, clock_s)


def shortened(
    noise: AaNoise, pairs: Sequence[Pair], planned: BlockSizes, *, has_own_blocks: bool
) -> AaNoise:
    """The noise of an A/A run of `planned` blocks, with what it says of later blocks' lengths."""
    blocks = [pair.block(arm) for pair in pairs for arm in Arm]
    noise = replace(noise, settle_s=settling_seconds(blocks, planned.settle_s))
    settle_s = planned.learned(noise).settle_s
    counted_s = statistics.median(sum(counted) for _, counted in blocks)
    share = 1.0
    if not has_own_blocks:
        share = share_to_count(noise, counted_s=counted_s, settle_s=settle_s)
    spared_s = planned.settle_s - settle_s + (1.0 - share) * counted_s
    return replace(noise, counted_share=share, pair_s=noise.pair_s - 2.0 * spared_s)


def typical_start_s(reports: Sequence[WorkerReport]) -> float:
    """Seconds of a start that compiles, but does not wait for a disk as the first one may."""
    beside_s = min(r.start_s - (r.compile_s or 0.0) for r in reports)
    return beside_s + (reports[0].compile_s or 0.0)


def aa_pairs(report: WorkerReport, steps: int) -> int:
    """Pairs with each process of an A/A run: a third of its start's time, and as `moments` asks."""
    pair_s = 2 * steps * report.step_s
    if pair_s <= 0:
        return MOST_AA_PAIRS
    fewest = max(LEAST_AA_PAIRS, fewest_pairs(AA_PAIRS, pair_s))
    count = min(MOST_AA_PAIRS, max(fewest, round(report.start_s / 3 / pair_s)))
    return max(count, moments(report.start_s, pair_s))


def pair_duration_s(pairs: Sequence[Pair]) -> float:
    """Median seconds from the beginning of a pair of blocks to that of the next one."""
    steps_s = statistics.median(pair.lasted_s for pair in pairs)
    apart_s = [after.at_s - before.at_s for before, after in itertools.pairwise(pairs)]
    return max(steps_s, statistics.median(apart_s or [0.0]))


class Isolated(Comparer):
    """Fresh runs, one after the other; nothing else may be running here.

    They are compared with pairs of `beside` interleaved blocks, if any.
    """

    mode = ABA

    def __init__(self, context: MeasurementContext, *, beside: int = 0) -> None:
        super().__init__(context)
        self._beside = beside
        self._run_steps: int | None = None

    def _compare(self, request: ComparisonRequest) -> Compared:
        """One fresh run of either in a proof, else as many ABA runs as the study asks for."""
        latest: dict[Arm, WorkerReport] = {}
        pairs: list[Pair] = []
        work: WorkPerStep | None = None
        for order in self._orders(request):
            before: Run | None = None
            for arm in order:
                with contextlib.closing(self._start(request, arm)) as worker:
                    latest[arm] = worker.report
                    if before is not None:
                        reports = (latest[Arm.REFERENCE], latest[Arm.CANDIDATE])
                        work = work_between(request.sets, reports)
                        if not pairs and request.inspect is not None:
                            request.inspect(reports)
                    run = self._run(request, arm, worker)
                if before is not None:
                    pairs.append(self._keep(request, len(pairs), (before, run), work))
                before = run
        estimate_of = estimate_pairs if request.is_proof else estimate_aba
        estimate = estimate_of([log_ratio(pair, work) for pair in pairs])
        noise = UNKNOWN_NOISE
        if request.is_aa:
            reports = (self.context.first_report, reports[1])
            noise = noise_of_aba_runs(pairs, start_s=typical_start_s(reports))
        return self._compared(
            reports, pairs, estimate, stopped="all runs measured", work=work, noise=noise
        )

    def _orders(self, request: ComparisonRequest) -> list[list[Arm]]:
        """The arms in order, of which neighbours make a pair; in a proof a coin decides."""
        if not request.is_proof:
            return [[*Arm, Arm.REFERENCE]] * self.context.spec.measure.aba_runs
        context = self.context
        coin = random.Random(f"{context.spec.seed}/{context.assignment.name}")
        is_last = coin.random() < 0.5
        return [[*reversed(Arm)] if is_last else [*Arm]]

    def _start(self, request: ComparisonRequest, arm: Arm) -> Worker:
        """A fresh process of one arm; the log of a reference lies beside the candidate's."""
        settings = request.candidate
        folder = self.context.folder()
        if arm is Arm.REFERENCE:
            settings = request.against
            folder = self.context.folder("reference")
        with self._blaming(arm):
            return self.context.start(settings, folder, isolated=True)

    def _run(self, request: ComparisonRequest, arm: Arm, worker: Worker) -> Run:
        context = self.context
        if request.is_aa and self._run_steps is None:  # the first: is there time for the others?
            run_s = worker.report.start_s + self._steps_of(worker) * worker.report.step_s
            # One in another rounding is yet to start.
            left_s = 3 * context.spec.measure.aba_runs * run_s
            refuse_short_budget(context, worker.report, aa_s=left_s)
        with self._blaming(arm):
            run = self._measure(arm, LossTrace(context.spec, worker))
        if arm is Arm.REFERENCE:
            context.has_run = True
        return run

    @contextlib.contextmanager
    def _blaming(self, arm: Arm) -> Iterator[None]:
        """Says of a failing process that it was the reference, if it was."""
        try:
            yield
        except WorkerFailed as error:
            if arm is Arm.CANDIDATE:
                raise
            if not (self.context.has_run or error.infrastructure):
                raise LaunchError(self.context.reference_cannot_run(error.failure)) from error
            raise ReferenceFailed(error) from error

    def _measure(self, arm: Arm, trace: LossTrace) -> Run:
        worker = trace.worker
        sizes = self.context.sizes
        can_wait = self.context.spec.workload.can_wait
        at_s = self.context.now_s
        steps = self._run_steps or self._steps_of(worker)
        self._run_steps = steps  # all runs are as long: their losses are compared at the end
        # In blocks where it can be: each has new batches, so that nothing is learned by heart.
        block = math.ceil(steps / max(1, self._beside)) if can_wait else steps
        trace.settle(self.context.settle_steps)
        begun_s = time.monotonic()
        times: tuple[float, ...] = ()
        joules = []
        clocks = []
        while len(times) < steps:
            count = min(block, steps - len(times))
            with self.context.gpus.block(arm, settle_s=max(0.0, sizes.steady_s - sum(times))):
                run_block = functools.partial(worker.run_block, count)
                times_s, drawn = self.context.meter.measure(run_block)
            times += times_s
            joules.append(drawn)
            clocks.append(worker.last_clock_s)
            trace.take(count)
        metered_s = time.monotonic() - begun_s
        if not can_wait and abs(sum(times) - metered_s) >= LARGEST_GAP * metered_s:
            # It runs on whether it is asked or not, so that its steps are not all that drew them.
            joules = [None]
        self.context.gpus.look()
        return Run(
            arm,
            at_s,
            trace,
            sizes.split_isolated(times),
            _sum_if_known(joules),
            _sum_if_known(clocks),
        )

    def _steps_of(self, worker: Worker) -> int:
        context = self.context
        fewest = context.spec.measure.run_steps
        if not context.spec.workload.can_wait:  # it may end: no longer than pairs
            return max(fewest, self._beside * context.steps_for(worker))
        report = worker.report
        return context.sizes.isolated_steps(
            report.step_s,
            blocks=max(1, self._beside),
            least=fewest,
            start_s=report.start_s if self._beside else 0.0,
        )


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(value or 0.0 for value in values)


def noise_of_aba_runs(pairs: Sequence[Pair], *, start_s: float) -> AaNoise:
    """The noise of this machine by ABA runs of the reference with itself, stored as pairs.

    With the variance v of a run, the middle one against the mean of its neighbours has 1.5 v and
    these against each other have 2 v, independently; both are 0 in the mean.
    """
    log_ratios = [log_ratio(pair) for pair in pairs]
    degrees = len(pairs)
    middles, drifts = aba_runs(log_ratios)
    variance = float(np.sum(middles**2) / 1.5 + np.sum(drifts**2) / 2.0) / degrees
    lasted_s = [
        max(p.lasted_s, (p.reference_clock_s or 0.0) + (p.candidate_clock_s or 0.0)) for p in pairs
    ]
    return AaNoise(
        estimate=estimate_aba(log_ratios),
        process_sd=math.sqrt(variance),
        within_sd=0.0,
        degrees=degrees,
        spread=spread_of(variance, degrees),
        start_s=start_s,
        pair_s=statistics.median(lasted_s),
    )
