"""One comparison of two sets, as A/A runs, trials, proofs and ablations make it.

Interleaved: both processes live side by side and run blocks in pairs, one idle while the other
runs: it waits for orders, or signals pause it. Within each pair a fresh fair coin decides who goes
first: the statistics rest on that (see `autotune.stats.estimates`). Isolated: fresh runs one after
the other, where two do not fit into the device's memory or the program can neither wait nor be
paused. Trials are then ABA runs (reference, candidate, reference), so that a steady drift of the
machine cancels and what is left of it widens the interval; they are stored as two pairs that have
the candidate's run in common.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from autotune.measure.context import MeasurementContext, ReferenceFailed, work_between
from autotune.measure.durations import AA_SHARE, LEAST_AA, beside_reference_s, refuse_short_budget
from autotune.measure.loss_gate import LossTrace
from autotune.measure.pausing import (
    LONG_BLOCKS,
    refuse_dishonest,
    refuse_long_pause,
    why_not_paused,
)
from autotune.model.block_sizes import BlockSizes
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import (
    ABA,
    INTERLEAVED,
    Arm,
    Comparison,
    Pair,
    SameStep,
    WorkerReport,
    WorkPerStep,
    log_ratio,
)
from autotune.stats.aa_noise import (
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
    Floats,
    SequentialPlan,
    aba_runs,
    estimate_aba,
    estimate_pairs,
    reason_to_stop,
    widen,
)
from autotune.workers.base import Worker, WorkerFailed
from autotune.workers.failures import collision_of

R = TypeVar("R")

CANDIDATE_RETRIES = 2
"""How often a candidate that something outside seems to have ended (SIGTERM, a port in use) is
measured once more.
"""

AA_PAIRS = 8
MOST_AA_PAIRS = 20
"""Fewest and most pairs of blocks with each process of an A/A run, unless they are over within a
moment.
"""

LEAST_AA_PAIRS = 2
"""Fewest where a pair of blocks takes seconds: trials' intervals hold as with 8
(tests/stats/test_gpu_blocks.py).
"""

LARGEST_GAP = 0.1
"""Share by which the steps of a program that runs on by itself may miss the time over which its
energy was counted.
"""

Inspect = Callable[[WorkerReport, WorkerReport], bool]
"""Says from the reports of reference and candidate whether they need no measurement; may raise
WorkerFailed.
"""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When an interleaved comparison ends (a reason, or None), and the estimate that is honest
    under that rule.
    """

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
    """The rule of a trial: looks at the plan's pair counts, at an error level that holds over all
    looks.

    Args:
        spread: What one pair of equal processes may differ by, in log; it is in the estimate's
            interval.
        most: Pairs for which there is time: it ends at the last look within them, but never before
            the first one.
    """
    last = max((n for n in plan.looks if most is None or n <= most), default=plan.looks[0])

    def estimate(ratios: list[float]) -> Estimate:
        return widen(plan.estimate(ratios), spread)

    def stop(ratios: list[float]) -> str | None:
        count = len(ratios)
        if count not in plan.looks and count < plan.cap:
            return None
        reason = reason_to_stop(
            estimate(ratios), plan, min_effect=min_effect, incumbent=incumbent, spread=spread
        )
        return reason or ("no time for more pairs" if count >= last else None)

    return StoppingRule(stop, estimate)


def fixed(count: int) -> StoppingRule:
    """The rule of a proof, and of each process of an A/A run: a number of pairs settled
    beforehand.
    """
    return StoppingRule(
        lambda ratios: f"all {count} pairs run" if len(ratios) >= count else None, estimate_pairs
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """What is to be compared, and how."""

    candidate: FlagSet
    folder: Path
    name: str
    """Seeds the order of blocks and runs."""
    rule: StoppingRule
    """When to stop, where blocks are interleaved; isolated runs have numbers of their own."""
    against: FlagSet | None = None
    """What to compare with, in a fresh process; None is the study's reference."""
    is_proof: bool = False
    """One fresh pair of processes, even of the study's reference."""
    inspect: Inspect | None = None
    """Also has each block's losses held to the reference's."""

    @property
    def sets(self) -> tuple[FlagSet, FlagSet]:
        """Reference and candidate."""
        return self.against or FlagSet(), self.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of a comparison: its pairs and their figures; none where the reports needed no
    measurement.
    """

    reference: WorkerReport
    candidate: WorkerReport
    pairs: Sequence[Pair] = ()
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AaRun:
    """The living reference against other processes of itself (`seconds`), with the pairs of all of
    them in order.
    """

    reference: WorkerReport
    seconds: Sequence[WorkerReport]
    pairs: Sequence[Pair]
    comparison: Comparison
    noise: AaNoise


class Comparer(ABC):
    """Compares two sets in one place."""

    mode: str
    """`INTERLEAVED` or `ABA`, as it is kept in records."""

    def __init__(self, context: MeasurementContext) -> None:
        self.context = context

    def compare(self, request: ComparisonRequest) -> Compared:
        """Measures a set until its interval is as good as it gets.

        Raises:
            WorkerFailed: If the candidate failed, or `against` did; `ReferenceFailed` if no
                reference outlived it.
            LaunchError: If the reference cannot be started.
        """
        return self._until_reference_holds(
            lambda way: way._compare(request),
            request.sets,
            is_replaceable=request.is_proof or request.against is None,
        )

    def aa_run(self, folder: Path) -> AaRun:
        """Measures the reference against other processes of itself; see `compare`."""
        return self._until_reference_holds(
            lambda way: way._aa_run(folder), (FlagSet(), FlagSet()), is_replaceable=True
        )

    def _until_reference_holds(
        self, once: Callable[[Comparer], R], sets: tuple[FlagSet, FlagSet], *, is_replaceable: bool
    ) -> R:
        """Tries again what was not the candidate's fault, a few times; whose it was, its process
        tells.
        """
        comparer = self.for_sets(*sets)
        retries = 0
        while True:
            self.context.gpus.take()  # what was seen of a try that failed is not of this one
            try:
                return once(comparer)
            except WorkerFailed as error:
                if (way := comparer.instead(error, sets)) is not None:
                    comparer = way
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

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """The way to compare some sets, from what earlier pairs have shown of them."""
        return self

    def instead(self, error: WorkerFailed, sets: tuple[FlagSet, FlagSet]) -> Comparer | None:
        """The way to compare reference and candidate when this one is why they failed; None if that
        is not so.
        """
        return None

    @abstractmethod
    def _compare(self, request: ComparisonRequest) -> Compared:
        """One try of `compare`; raises `ReferenceFailed` where it was not the candidate."""

    @abstractmethod
    def _aa_run(self, folder: Path) -> AaRun:
        """One try of `aa_run`."""

    def _figures(
        self,
        pairs: Sequence[Pair],
        estimate: Estimate,
        *,
        stopped: str,
        work: WorkPerStep | None = None,
    ) -> Comparison:
        looked = self.context.gpus.take()
        meter = self.context.meter
        return Comparison(
            estimate=estimate,
            reference_step_s=statistics.median(t for p in pairs for t in p.reference_s),
            candidate_step_s=statistics.median(t for p in pairs for t in p.candidate_s),
            pair_count=len(pairs),
            mode=self.mode,
            stopped=stopped,
            warnings=looked.warnings,
            energy=meter.use_of(pairs),
            during=looked.during,
            work=work,
        )


# ---------------------------------------------------------------------- interleaved pairs


class Interleaved(Comparer):
    """Both processes side by side; isolated where the two turn out not to fit into the device's
    memory.
    """

    mode = INTERLEAVED

    def _compare(self, request: ComparisonRequest) -> Compared:
        context = self.context
        with contextlib.ExitStack() as stack:
            if request.is_proof or request.against is not None:
                reference, candidate = context.start_both(
                    *request.sets, request.folder, name=request.name
                )
                stack.callback(reference.close)
                trace = LossTrace(context.spec, reference)
            else:
                trace = context.reference()
                candidate = context.start(request.candidate, request.folder)
            stack.callback(candidate.close)
            return self._run(request, (trace, LossTrace(context.spec, candidate)))

    def _run(self, request: ComparisonRequest, traces: tuple[LossTrace, LossTrace]) -> Compared:
        reports = (traces[0].worker.report, traces[1].worker.report)
        work = work_between(request.sets, reports)
        if request.inspect is not None and request.inspect(*reports):
            return Compared(reference=reports[0], candidate=reports[1])

        def check(pair: Pair) -> None:
            if request.inspect is not None:
                self.context.losses.check_block(request.sets, reports, pair.loss)

        blocks = InterleavedBlocks(self.context, request.folder, traces, work)
        pairs, stopped = blocks.measure(request.rule.stop, seed=request.name, check=check)
        estimate = request.rule.estimate([log_ratio(p, work) for p in pairs])
        comparison = self._figures(pairs, estimate, stopped=stopped, work=work)
        return Compared(
            reference=reports[0], candidate=reports[1], pairs=pairs, comparison=comparison
        )

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """Isolated for sets that turned out not to fit beside another process."""
        return self._isolated() if self.context.share.is_known_isolated(*sets) else self

    def instead(self, error: WorkerFailed, sets: tuple[FlagSet, FlagSet]) -> Comparer | None:
        """Isolated, if pausing, one port, lock or the device's memory is why, and the study leaves
        the choice.
        """
        if not self.context.spec.workload.can_wait:
            is_reference = isinstance(error, ReferenceFailed) or not sets[1]
            if why := why_not_paused(self.context, error, is_reference=is_reference):
                return self._unpaused(why)
        if self.context.spec.measure.mode == "auto" and (what := collision_of(error.failure)):
            self.context.progress.incident(
                f"two processes of this program want the same {what}, so they run one at a time "
                "from now on, as by "
                f'measure.mode = "{ABA}": {error.failure.message}'
            )
            return self._isolated()
        if not self.context.share.is_too_small(error.failure):
            return None
        failed = sets[0] if isinstance(error, ReferenceFailed) else sets[1]
        if failed or not isinstance(
            error, ReferenceFailed
        ):  # of the study's reference the A/A run tells
            self.context.share.remember(failed)
        return self._isolated()

    def _unpaused(self, why: str) -> Comparer:
        """Isolated, for a program that must not be paused; LaunchError if the study asks for it."""
        if self.context.spec.measure.mode == INTERLEAVED:
            raise LaunchError(
                f'measure.mode = "{INTERLEAVED}" must be able to pause the program, but {why}; '
                f'write "auto" or "{ABA}"'
            )
        self.context.progress.incident(
            f"this program is not paused while another one runs, for {why}; it runs one process "
            "at a time, as by "
            f'measure.mode = "{ABA}"'
        )
        return self._isolated()

    def _isolated(self) -> Comparer:
        self.context.release_reference()
        return Isolated(self.context)

    def _aa_run(self, folder: Path) -> AaRun:
        """One process after the other beside the living reference; raw pairs of all in one file, in
        order.
        """
        context = self.context
        spec = context.spec
        trace = context.reference()
        reference = trace.worker
        report = reference.report
        block_steps = context.steps_for(reference)
        refuse_long_pause(report, block_steps)
        count = aa_pairs(report, block_steps)
        start_s = report.start_s  # in the end it starts once more, in another rounding
        each_s = beside_reference_s(report, steps=2 * count * block_steps)
        refuse_short_budget(
            spec, report, begun_s=context.assignment.at_s, aa_s=start_s + LEAST_AA * each_s
        )
        budget_s = spec.search.time_budget or math.inf
        planned_s = AA_SHARE * budget_s - 2.0 * start_s
        limit_s = context.now_s + AA_SHARE / 2.0 * budget_s  # the plan may be too short
        pairs: list[Pair] = []
        reports: list[WorkerReport] = []
        groups: list[Floats] = []
        ages: list[npt.NDArray[np.int64]] = []

        def stop(ratios: list[float]) -> str | None:
            is_late = len(ratios) >= LEAST_AA_PAIRS and context.now_s > limit_s
            return fixed(LEAST_AA_PAIRS if is_late else count).stop(ratios)

        for number in range(spec.measure.aa_processes):
            is_long = (number + 1) * each_s > planned_s or context.now_s > limit_s
            if number >= LEAST_AA and is_long:
                break
            beside = folder if number == 0 else context.folder_in(folder, f"second-{number + 1}")
            with contextlib.closing(context.start(FlagSet(), beside)) as second:
                second_trace = LossTrace(spec, second)
                blocks = InterleavedBlocks(context, folder, (trace, second_trace))
                seed = f"floor/{len(pairs)}" if pairs else "floor"
                new_pairs, _ = blocks.measure(stop, seed=seed, begin=len(pairs))
                reports.append(second.report)
            ago = block_steps * np.arange(len(new_pairs))[::-1]
            ages.append(np.asarray([second_trace.done - ago, trace.done - ago]))
            if report.line_s and number == 0:
                refuse_dishonest(report, new_pairs, reference.run_block(LONG_BLOCKS * block_steps))
                trace.take(LONG_BLOCKS * block_steps)
            pairs += new_pairs
            groups.append(np.asarray([log_ratio(p) for p in new_pairs]))
        settled = settling(groups, ages)
        noise = read_aa_noise(
            settled.log_ratios,
            settle_steps=settled.steps,
            start_s=context.first_report.start_s,
            pair_s=pair_duration_s(pairs),
            least=LEAST_AA_PAIRS,
        )
        if context.sizes.settle_s:
            noise = shortened(
                noise, pairs, context.sizes, has_own_blocks=spec.measure.block_s != "auto"
            )
        stopped = f"all {len(pairs)} pairs with {len(groups)} processes run"
        comparison = self._figures(pairs, noise.estimate, stopped=stopped)
        return AaRun(
            reference=report, seconds=reports, pairs=pairs, comparison=comparison, noise=noise
        )


@dataclass(frozen=True, slots=True)
class InterleavedBlocks:
    """Pairs of blocks of two living processes."""

    context: MeasurementContext
    folder: Path
    traces: tuple[LossTrace, LossTrace]
    """Reference and candidate, idle."""
    work: WorkPerStep | None = None
    """What a step of each arm does, where it differs: ratios are then of time per unit of it."""

    def measure(
        self,
        stop: Callable[[list[float]], str | None],
        *,
        seed: str,
        check: Callable[[Pair], None] = lambda pair: None,
        begin: int = 0,
    ) -> tuple[list[Pair], str]:
        """Runs pairs of blocks, numbered from `begin`, until `stop` gives a reason; gives them and
        that reason.
        """
        context = self.context
        rng = random.Random(f"{context.spec.seed}/{seed}")
        steps = context.steps_for(self.traces[0].worker)
        for trace in self.traces:
            trace.settle(context.settle_steps)
        pairs: list[Pair] = []
        ratios: list[float] = []
        while True:
            order = [*Arm] if rng.random() < 0.5 else [*reversed(Arm)]
            pair = self._pair(begin + len(pairs), order, steps)
            context.progress.pair(self.folder, pair, self.work)
            check(pair)
            pairs.append(pair)
            ratios.append(log_ratio(pair, self.work))
            # For other people's processes, between two pairs, when nothing is timed.
            context.gpus.look()
            if (reason := stop(ratios)) is not None:
                return pairs, reason

    def _pair(self, index: int, order: Sequence[Arm], steps: int) -> Pair:
        at_s = self.context.now_s
        blocks = {arm: self._block(arm, steps) for arm in order}
        for trace in self.traces:
            trace.take(steps)
        told = self.traces[1].beside(self.traces[0])
        return _make_pair(index, order[0], at_s, blocks[Arm.REFERENCE], blocks[Arm.CANDIDATE], told)

    def _block(self, arm: Arm, steps: int) -> Timed:
        worker = self.traces[arm is Arm.CANDIDATE].worker
        sizes = self.context.sizes
        begun = time.monotonic()
        try:
            with self.context.gpus.block(arm, settle_s=sizes.settle_s):
                times_s, joules = self.context.meter.measure(lambda: worker.run_block(steps))
        except WorkerFailed as error:
            if arm is Arm.REFERENCE:
                raise ReferenceFailed(error) from error
            raise
        if (
            worker.report.line_s and joules is not None and worker.last_clock_s is not None
        ):  # of lines that count, too
            joules *= worker.last_clock_s / (time.monotonic() - begun)
        return Timed(*sizes.split(times_s), joules, worker.last_clock_s)


class Timed(NamedTuple):
    """Seconds of the steps of a block or run: those in which the device settles, and those that
    count.
    """

    settling_s: tuple[float, ...]
    counted_s: tuple[float, ...]
    joules: float | None
    clock_s: float | None
    """Of all steps, by a clock that is not the program's."""


def _make_pair(
    index: int, first: Arm, at_s: float, reference: Timed, candidate: Timed, loss: SameStep | None
) -> Pair:
    return Pair(
        index=index,
        first=first,
        reference_s=reference.counted_s,
        candidate_s=candidate.counted_s,
        reference_settling_s=reference.settling_s or None,
        candidate_settling_s=candidate.settling_s or None,
        at_s=round(at_s, 3),
        reference_j=reference.joules,
        candidate_j=candidate.joules,
        reference_clock_s=reference.clock_s,
        candidate_clock_s=candidate.clock_s,
        loss=loss,
    )


def shortened(
    noise: AaNoise, pairs: Sequence[Pair], planned: BlockSizes, *, has_own_blocks: bool
) -> AaNoise:
    """Returns the noise of an A/A run with what it says of the lengths of later blocks.

    Args:
        planned: Sizes of the blocks in `pairs`.
        has_own_blocks: Whether the study says how long a block counts.
    """
    blocks = [pair.block(arm) for pair in pairs for arm in Arm]
    noise = replace(noise, settle_s=settling_seconds(blocks, planned.settle_s))
    settle_s = planned.learned(noise).settle_s
    counted_s = statistics.median(sum(counted) for _, counted in blocks)
    share = 1.0
    if not has_own_blocks:
        share = share_to_count(noise, counted_s=counted_s, settle_s=settle_s)
    spared_s = planned.settle_s - settle_s + (1.0 - share) * counted_s
    return replace(noise, counted_share=share, pair_s=noise.pair_s - 2.0 * spared_s)


def aa_pairs(report: WorkerReport, steps: int) -> int:
    """Pairs of blocks with each process of an A/A run: a third of the time of its start, and as
    `moments` asks.
    """
    pair_s = 2 * steps * report.step_s
    if pair_s <= 0:
        return MOST_AA_PAIRS
    least = max(LEAST_AA_PAIRS, fewest_pairs(AA_PAIRS, pair_s))
    count = min(MOST_AA_PAIRS, max(least, round(report.start_s / 3 / pair_s)))
    return max(count, moments(report.start_s, pair_s))


def pair_duration_s(pairs: Sequence[Pair]) -> float:
    """Returns the median seconds from the beginning of a pair of blocks to that of the next one."""
    steps_s = statistics.median(pair.lasted_s for pair in pairs)
    apart_s = [after.at_s - before.at_s for before, after in itertools.pairwise(pairs)]
    return max(steps_s, statistics.median(apart_s or [0.0]))


# ---------------------------------------------------------------------- isolated runs


class Run(NamedTuple):
    """One fresh run."""

    arm: Arm
    at_s: float
    timed: Timed
    trace: LossTrace


class Isolated(Comparer):
    """Fresh runs, one after the other; nothing else may be running here."""

    mode = ABA

    def __init__(self, context: MeasurementContext, *, beside: int | None = None) -> None:
        super().__init__(context)
        self._beside = beside
        """Interleaved blocks of each arm in the pairs with which its runs are compared; None if all
        are isolated.
        """
        self._run_steps: int | None = None

    def _compare(self, request: ComparisonRequest) -> Compared:
        """One fresh run of either in a proof, else as many ABA runs as the study asks for."""
        reports: dict[Arm, WorkerReport] = {}
        pairs: list[Pair] = []
        work: WorkPerStep | None = None
        for order in self._orders(request):
            before: Run | None = None
            for arm in order:
                with contextlib.closing(self._start(request, arm)) as worker:
                    reports[arm] = worker.report
                    if before is not None:
                        both = (reports[Arm.REFERENCE], reports[Arm.CANDIDATE])
                        work = work_between(request.sets, both)
                        if not pairs and request.inspect is not None and request.inspect(*both):
                            return Compared(reference=both[0], candidate=both[1])
                    run = self._run(request, arm, worker)
                if before is not None:
                    pairs.append(self._keep(request, len(pairs), before, run, work))
                before = run
        estimate_of = estimate_pairs if request.is_proof else estimate_aba
        estimate = estimate_of([log_ratio(pair, work) for pair in pairs])
        comparison = self._figures(pairs, estimate, stopped="all runs measured", work=work)
        return Compared(
            reference=reports[Arm.REFERENCE],
            candidate=reports[Arm.CANDIDATE],
            pairs=pairs,
            comparison=comparison,
        )

    def _orders(self, request: ComparisonRequest) -> list[list[Arm]]:
        """The arms in order: neighbours make a pair. In a proof a coin, seeded by the name, decides
        who goes first.
        """
        if not request.is_proof:
            return [[*Arm, Arm.REFERENCE]] * self.context.spec.measure.aba_runs
        is_last = random.Random(f"{self.context.spec.seed}/{request.name}").random() < 0.5
        return [[*reversed(Arm)] if is_last else [*Arm]]

    def _start(self, request: ComparisonRequest, arm: Arm) -> Worker:
        """A fresh process of one arm; the log of a reference lies beside the candidate's."""
        is_candidate = arm is Arm.CANDIDATE
        folder = (
            request.folder if is_candidate else self.context.folder_in(request.folder, "reference")
        )
        with self._blaming(arm):
            worker = self.context.start(request.sets[is_candidate], folder, isolated=True)
        return worker

    def _run(self, request: ComparisonRequest, arm: Arm, worker: Worker) -> Run:
        context = self.context
        at_s = context.now_s
        if (
            not any(request.sets) and self._run_steps is None
        ):  # the first run of all: is there time for the others?
            run_s = beside_reference_s(worker.report, steps=self._steps_of(worker))
            left_s = (
                3 * context.spec.measure.aba_runs * run_s
            )  # one in another rounding is yet to start
            refuse_short_budget(
                context.spec, worker.report, begun_s=context.assignment.at_s, aa_s=left_s
            )
        trace = LossTrace(context.spec, worker)
        with self._blaming(arm):
            timed = self._measure(trace, arm)
        if arm is Arm.REFERENCE:
            context.has_run = True
        return Run(arm, at_s, timed, trace)

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

    def _keep(
        self,
        request: ComparisonRequest,
        index: int,
        first: Run,
        second: Run,
        work: WorkPerStep | None,
    ) -> Pair:
        """Stores two runs as a pair, and holds the candidate's losses against the reference's."""
        reference, candidate = (first, second) if first.arm is Arm.REFERENCE else (second, first)
        told = candidate.trace.beside(reference.trace)
        pair = _make_pair(index, first.arm, first.at_s, reference.timed, candidate.timed, told)
        self.context.progress.pair(request.folder, pair, work)
        if request.inspect is not None:
            candidate.trace.refuse_shorter(reference.trace)
            reports = (reference.trace.worker.report, candidate.trace.worker.report)
            self.context.losses.check_block(request.sets, reports, pair.loss)
        return pair

    def _measure(self, trace: LossTrace, arm: Arm) -> Timed:
        """The steps of one run."""
        worker = trace.worker
        sizes = self.context.sizes
        can_wait = self.context.spec.workload.can_wait
        steps = self._run_steps or self._steps_of(worker)
        self._run_steps = steps  # all runs are as long: their losses are compared at the end
        # In blocks where it can be, as if interleaved: each has new batches, so that nothing is
        # learned by heart.
        block = math.ceil(steps / (self._beside or 1)) if can_wait else steps
        trace.settle(self.context.settle_steps)
        begun = time.monotonic()
        times: tuple[float, ...] = ()
        joules: list[float | None] = []
        clocks: list[float | None] = []
        while len(times) < steps:
            count = min(block, steps - len(times))
            with self.context.gpus.block(arm, settle_s=max(0.0, sizes.steady_s - sum(times))):
                run_block = functools.partial(worker.run_block, count)
                more, drawn = self.context.meter.measure(run_block)
            times += more
            joules.append(drawn)
            clocks.append(worker.last_clock_s)
            trace.take(count)
        metered_s = time.monotonic() - begun
        if not can_wait and abs(sum(times) - metered_s) >= LARGEST_GAP * metered_s:
            joules = [
                None
            ]  # it runs on whether it is asked or not, so that its steps are not all that drew them
        self.context.gpus.look()
        return Timed(*sizes.split_isolated(times), _sum_if_known(joules), _sum_if_known(clocks))

    def _steps_of(self, worker: Worker) -> int:
        least = self.context.spec.measure.run_steps
        blocks = self._beside or 0
        if not self.context.spec.workload.can_wait:  # it may end: no longer than in its pairs
            return max(least, blocks * self.context.steps_for(worker))
        start_s = worker.report.start_s if blocks else 0.0
        return self.context.sizes.isolated_steps(
            worker.report.step_s, blocks=max(1, blocks), least=least, start_s=start_s
        )

    def _aa_run(self, folder: Path) -> AaRun:
        """Each isolated run is a fresh process already, so they are few."""
        measure = self.context.spec.measure
        request = ComparisonRequest(
            candidate=FlagSet(), folder=folder, name="floor", rule=fixed(measure.aba_runs)
        )
        compared = self._compare(request)
        assert compared.comparison is not None
        first = self.context.first_report
        return AaRun(
            reference=first,
            seconds=[compared.candidate],
            pairs=compared.pairs,
            comparison=compared.comparison,
            noise=noise_of_aba_runs(compared.pairs, start_s=first.start_s),
        )


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def noise_of_aba_runs(pairs: Sequence[Pair], *, start_s: float = 0.0) -> AaNoise:
    """Returns what ABA runs of the reference with itself, stored as pairs, say about this machine.

    With the variance v of a run, the middle one against the mean of its neighbours has 1.5 v and
    these against each other have 2 v, independently; of equal runs both are 0 in the mean, so none
    of either is lost to estimating that.
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
