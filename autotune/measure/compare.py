"""One comparison of two sets, as A/A runs, trials, proofs and ablations make it.

Interleaved: both processes live side by side and run blocks in pairs, one idle while the other runs: it waits for
orders, or signals pause it. Within each pair a fresh fair coin decides who goes first: the statistics rest on that (see
`autotune.stats.estimates`). Isolated: fresh runs one after the other, where two do not fit into the device's memory or
the program can neither wait nor be paused. Trials are then ABA runs (reference, candidate, reference), so that a steady
drift of the machine cancels and what is left of it widens the interval; they are stored as two pairs that have the
candidate's run in common.
"""

from __future__ import annotations

import contextlib
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

from autotune.measure.context import MeasurementContext, ReferenceFailed, typical_step_s, work_between
from autotune.measure.durations import (
    LEAST_AA,
    aa_limit_s,
    aa_processes,
    beside_reference_s,
    isolated_aa_s,
    refuse_short_budget,
)
from autotune.measure.loss_gate import LossTrace, refuse_not_finite
from autotune.measure.pausing import LONG_BLOCKS, refuse_dishonest, refuse_long_pause, why_not_paused
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
    block_step_s,
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
    estimate_aba,
    estimate_pairs,
    reason_to_stop,
    widen,
)
from autotune.workers.base import Worker, WorkerFailed
from autotune.workers.failures import collision_of

R = TypeVar("R")

CANDIDATE_RETRIES = 2
"""How often a candidate that something outside seems to have ended (SIGTERM, a port in use) is measured once more."""

AA_PAIRS = (8, 20)
"""Fewest and most pairs of blocks with each process of an A/A run, unless they are over within a moment."""

LEAST_AA_PAIRS = 2
"""Fewest where a pair of blocks takes seconds: trials' intervals hold as with 8 (tests/stats/test_gpu_blocks.py)."""

LARGEST_GAP = 0.1
"""Share by which the steps of a program that runs on by itself may miss the time over which its energy was counted."""

Inspect = Callable[[WorkerReport, WorkerReport], bool]
"""Says from the reports of reference and candidate whether they need no measurement; may raise WorkerFailed."""


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When an interleaved comparison ends (a reason, or None), and the estimate that is honest under that rule."""

    stop: Callable[[list[float]], str | None]
    estimate: Callable[[list[float]], Estimate]


def sequential(
    plan: SequentialPlan, *, min_effect: float, incumbent: Estimate | None, spread: float = 0.0, most: int | None = None
) -> StoppingRule:
    """The rule of a trial: looks at the plan's pair counts, at an error level that holds over all looks.

    Args:
        spread: What one pair of equal processes may differ by, in log; it is in the estimate's interval.
        most: Pairs for which there is time: it ends at the last look within them, but never before the first one.
    """
    last = max((n for n in plan.looks if most is None or n <= most), default=plan.looks[0])

    def estimate(ratios: list[float]) -> Estimate:
        return widen(plan.estimate(ratios), spread)

    def stop(ratios: list[float]) -> str | None:
        count = len(ratios)
        if count not in plan.looks and count < plan.cap:
            return None
        reason = reason_to_stop(estimate(ratios), plan, min_effect=min_effect, incumbent=incumbent, spread=spread)
        return reason or ("no time for more pairs" if count >= last else None)

    return StoppingRule(stop, estimate)


def fixed(count: int) -> StoppingRule:
    """The rule of a proof, and of each process of an A/A run: a number of pairs settled beforehand."""
    return StoppingRule(lambda ratios: f"all {count} pairs run" if len(ratios) >= count else None, estimate_pairs)


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
    """Result of a comparison: its pairs and their figures; none where the reports needed no measurement."""

    reference: WorkerReport
    candidate: WorkerReport
    pairs: Sequence[Pair] = ()
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AaRun:
    """The living reference against other processes of itself (`seconds`), with the pairs of all of them in order."""

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
            WorkerFailed: If the candidate failed, or `against` did; `ReferenceFailed` if no reference outlived it.
            LaunchError: If the reference cannot be started.
        """
        return self._until_reference_holds(
            lambda way: way._compare(request), request.sets, is_replaceable=request.is_proof or request.against is None
        )

    def aa_run(self, folder: Path) -> AaRun:
        """Measures the reference against other processes of itself; see `compare`."""
        return self._until_reference_holds(lambda way: way._aa_run(folder), (FlagSet(), FlagSet()), is_replaceable=True)

    def _until_reference_holds(
        self, once: Callable[[Comparer], R], sets: tuple[FlagSet, FlagSet], *, is_replaceable: bool
    ) -> R:
        """Tries again what was not the candidate's fault, a few times; whose it was, its process tells."""
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
                elif error.infrastructure and error.failure.phase == "step" and retries < CANDIDATE_RETRIES:
                    retries += 1
                    self.context.progress.incident(f"measured once more after: {error}")
                else:
                    raise

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """The way to compare some sets, from what earlier pairs have shown of them."""
        return self

    def instead(self, error: WorkerFailed, sets: tuple[FlagSet, FlagSet]) -> Comparer | None:
        """The way to compare reference and candidate when this one is why they failed; None if that is not so."""
        return None

    @abstractmethod
    def _compare(self, request: ComparisonRequest) -> Compared:
        """One try of `compare`; raises `ReferenceFailed` where it was not the candidate."""

    @abstractmethod
    def _aa_run(self, folder: Path) -> AaRun:
        """One try of `aa_run`."""

    def _figures(
        self, pairs: Sequence[Pair], estimate: Estimate, *, stopped: str, work: WorkPerStep | None = None
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
    """Both processes side by side; isolated where the two turn out not to fit into the device's memory."""

    mode = INTERLEAVED

    def _compare(self, request: ComparisonRequest) -> Compared:
        context = self.context
        folder = request.folder
        with contextlib.ExitStack() as stack:
            if request.is_proof or request.against is not None:
                first, second = context.start_both(*request.sets, folder, name=request.name)
                stack.callback(first.close)
                stack.callback(second.close)
                trace = LossTrace(context.spec, first.report)
            else:
                first = context.reference()
                second = stack.enter_context(contextlib.closing(context.start(request.candidate, folder)))
                trace = context.reference_trace or LossTrace(context.spec, first.report)
            return self._run(request, first, second, trace)

    def _run(self, request: ComparisonRequest, reference: Worker, candidate: Worker, trace: LossTrace) -> Compared:
        reports = (reference.report, candidate.report)
        work = work_between(request.sets, reports)
        if request.inspect is not None and request.inspect(*reports):
            return Compared(reference=reports[0], candidate=reports[1])

        def check(pair: Pair) -> None:
            if request.inspect is not None:
                self.context.losses.check_block(request.sets, reports, pair.loss)

        blocks = InterleavedBlocks(
            self.context,
            request.folder,
            (reference, candidate),
            (trace, LossTrace(self.context.spec, reports[1])),
            work,
        )
        pairs, stopped = blocks.measure(request.rule.stop, seed=request.name, check=check)
        estimate = request.rule.estimate([log_ratio(p, work) for p in pairs])
        comparison = self._figures(pairs, estimate, stopped=stopped, work=work)
        return Compared(reference=reports[0], candidate=reports[1], pairs=pairs, comparison=comparison)

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """Isolated for sets that turned out not to fit beside another process."""
        return self._isolated() if self.context.share.is_known_isolated(*sets) else self

    def instead(self, error: WorkerFailed, sets: tuple[FlagSet, FlagSet]) -> Comparer | None:
        """Isolated, if pausing, one port, lock or the device's memory is why, and the study leaves the choice."""
        if not self.context.spec.workload.can_wait:
            is_reference = isinstance(error, ReferenceFailed) or not sets[1]
            if why := why_not_paused(self.context, error, is_reference=is_reference):
                return self._unpaused(why)
        if self.context.spec.measure.mode == "auto" and (what := collision_of(error.failure)):
            self.context.progress.incident(
                f"two processes of this program want the same {what}, so they run one at a time from now on, as by "
                f'measure.mode = "{ABA}": {error.failure.message}'[:500]
            )
            return self._isolated()
        if not self.context.share.is_too_small(error.failure):
            return None
        failed = sets[0] if isinstance(error, ReferenceFailed) else sets[1]
        if failed or not isinstance(error, ReferenceFailed):  # of the study's reference the A/A run tells
            self.context.share.remember(failed)
        return self._isolated()

    def _unpaused(self, why: str) -> Comparer:
        """Isolated, for a program that must not be paused; LaunchError if the study asks for it."""
        if self.context.spec.measure.mode == INTERLEAVED:
            raise LaunchError(
                f'measure.mode = "{INTERLEAVED}" must be able to pause the program, but {why}; write "auto" or "{ABA}"'
            )
        self.context.progress.incident(
            f"this program is not paused while another one runs, for {why}; it runs one process at a time, as by "
            f'measure.mode = "{ABA}"'[:500]
        )
        return self._isolated()

    def _isolated(self) -> Comparer:
        self.context.release_reference()
        return Isolated(self.context)

    def _aa_run(self, folder: Path) -> AaRun:
        """One process after the other beside the living reference; raw pairs of all in one file, in order."""
        context = self.context
        spec = self.context.spec
        reference = context.reference()
        trace = context.reference_trace or LossTrace(spec, reference.report)
        refuse_long_pause(reference.report, context.steps_for(reference))
        count = aa_pairs(reference.report, context.steps_for(reference))
        steps = 2 * count * context.steps_for(reference)
        # In the end the reference starts once more, in another rounding.
        least_s = reference.report.start_s + LEAST_AA * beside_reference_s(reference.report, steps=steps)
        refuse_short_budget(spec, reference.report, begun_s=context.assignment.at_s, aa_s=least_s)
        pairs: list[Pair] = []
        reports: list[WorkerReport] = []
        groups: list[Floats] = []
        ages: list[npt.NDArray[np.int64]] = []
        limit_s = aa_limit_s(spec, begun_s=context.now_s)

        def stop(ratios: list[float]) -> str | None:
            is_late = len(ratios) >= LEAST_AA_PAIRS and context.now_s > limit_s
            return fixed(LEAST_AA_PAIRS if is_late else count).stop(ratios)

        for number in range(aa_processes(spec, reference.report, steps=steps)):
            if number >= LEAST_AA and context.now_s > limit_s:
                break
            beside = folder if number == 0 else context.folder_in(folder, f"second-{number + 1}")
            with contextlib.closing(context.start(FlagSet(), beside)) as second:
                traces = (trace, LossTrace(spec, second.report))
                blocks = InterleavedBlocks(context, folder, (reference, second), traces)
                seed = f"floor/{len(pairs)}" if pairs else "floor"
                found, _ = blocks.measure(stop, seed=seed, begin=len(pairs))
                reports.append(second.report)
            own = traces[1].done - np.arange(len(found))[::-1] * context.steps_for(reference)
            ages.append(np.asarray([own, own - traces[1].done + trace.done]))
            if reference.report.line_s and number == 0:
                long = LONG_BLOCKS * context.steps_for(reference)
                refuse_dishonest(reference.report, found, reference.run_block(long))
                trace.take(reference, long)
            pairs += found
            groups.append(np.asarray([log_ratio(p) for p in found]))
        steps, groups = settling(groups, ages)
        noise = read_aa_noise(
            groups,
            settle_steps=steps,
            start_s=context.first_report.start_s,
            pair_s=pair_duration_s(pairs),
            least=LEAST_AA_PAIRS,
        )
        if context.sizes.settle_s:
            noise = shortened(noise, pairs, context.sizes, has_own_blocks=spec.measure.block_s != "auto")
        stopped = f"all {len(pairs)} pairs with {len(groups)} processes run"
        return AaRun(
            reference=reference.report,
            seconds=reports,
            pairs=pairs,
            comparison=self._figures(pairs, noise.estimate, stopped=stopped),
            noise=noise,
        )


@dataclass(frozen=True, slots=True)
class InterleavedBlocks:
    """Pairs of blocks of two living processes."""

    context: MeasurementContext
    folder: Path
    workers: tuple[Worker, Worker]
    """Reference and candidate, idle."""
    traces: tuple[LossTrace, LossTrace]
    """What both report of their losses."""
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
        """Runs pairs of blocks, numbered from `begin`, until `stop` gives a reason; gives them and that reason."""
        context = self.context
        rng = random.Random(f"{context.spec.seed}/{seed}")
        steps = context.steps_for(self.workers[0])
        for trace, worker in zip(self.traces, self.workers, strict=True):
            trace.settle(worker, context.settle_steps)
        pairs: list[Pair] = []
        ratios: list[float] = []
        while True:
            order = [*Arm] if rng.random() < 0.5 else [*reversed(Arm)]
            pair = self._pair(begin + len(pairs), order, steps)
            context.progress.pair(self.folder, pair, self.work)
            check(pair)
            pairs.append(pair)
            ratios.append(log_ratio(pair, self.work))
            context.gpus.look()  # for other people's processes, between two pairs, when nothing is timed
            if (reason := stop(ratios)) is not None:
                return pairs, reason

    def _pair(self, index: int, order: Sequence[Arm], steps: int) -> Pair:
        at_s = self.context.now_s
        blocks = {arm: self._block(arm, steps) for arm in order}
        for trace, worker in zip(self.traces, self.workers, strict=True):
            trace.take(worker, steps)
        told = self.traces[1].beside(self.traces[0])
        return _make_pair(index, order[0], at_s, blocks[Arm.REFERENCE], blocks[Arm.CANDIDATE], told)

    def _block(self, arm: Arm, steps: int) -> Timed:
        worker = self.workers[arm is Arm.CANDIDATE]
        sizes = self.context.sizes
        begun = time.monotonic()
        try:
            with self.context.gpus.block(arm, settle_s=sizes.settle_s):
                times_s, joules = self.context.meter.measure(lambda: worker.run_block(steps))
        except WorkerFailed as error:
            if arm is Arm.REFERENCE:
                raise ReferenceFailed(error) from error
            raise
        if worker.report.line_s and joules is not None and worker.last_clock_s is not None:  # of lines that count, too
            joules *= worker.last_clock_s / (time.monotonic() - begun)
        return Timed(*sizes.split(times_s), joules, worker.last_clock_s)


class Timed(NamedTuple):
    """Seconds of the steps of a block or run: those in which the device settles, and those that count."""

    settling_s: tuple[float, ...]
    counted_s: tuple[float, ...]
    joules: float | None
    clock_s: float | None
    """Of all steps, by a clock that is not the program's."""


def _make_pair(index: int, first: Arm, at_s: float, reference: Timed, candidate: Timed, loss: SameStep | None) -> Pair:
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


def shortened(noise: AaNoise, pairs: Sequence[Pair], planned: BlockSizes, *, has_own_blocks: bool) -> AaNoise:
    """Returns the noise of an A/A run with what it says of the lengths of later blocks.

    Args:
        planned: Sizes of the blocks in `pairs`.
        has_own_blocks: Whether the study says how long a block counts.
    """
    blocks = [pair.block(arm) for pair in pairs for arm in Arm]
    settle_s = settling_seconds(blocks, planned.settle_s)
    settled = planned.learned(replace(noise, settle_s=settle_s))
    counted_s = statistics.median(sum(counted) for _, counted in blocks)
    share = 1.0
    if not has_own_blocks:
        share = share_to_count(noise, counted_s=counted_s, settle_s=settled.settle_s)
    spared_s = planned.settle_s - settled.settle_s + (1.0 - share) * counted_s
    return replace(noise, settle_s=settle_s, counted_share=share, pair_s=noise.pair_s - 2.0 * spared_s)


def aa_pairs(report: WorkerReport, steps: int) -> int:
    """Pairs of blocks with each process of an A/A run: a third of the time of its start, and as `moments` asks."""
    pair_s = 2 * steps * statistics.median(report.warmup_step_times_s)
    least, most = AA_PAIRS
    least = max(LEAST_AA_PAIRS, fewest_pairs(least, pair_s))
    if pair_s <= 0:
        return most
    return max(min(most, max(least, round(report.start_s / 3 / pair_s))), moments(report.start_s, pair_s))


def pair_duration_s(pairs: Sequence[Pair]) -> float:
    """Returns the median seconds from the beginning of a pair of blocks to that of the next one."""
    steps_s = statistics.median(p.lasted_s for p in pairs)
    if len(pairs) < 2:
        return steps_s
    return max(steps_s, statistics.median(after.at_s - before.at_s for before, after in itertools.pairwise(pairs)))


# ---------------------------------------------------------------------- isolated runs


class Run(NamedTuple):
    """One fresh run."""

    arm: Arm
    at_s: float
    report: WorkerReport
    timed: Timed
    trace: LossTrace


class Isolated(Comparer):
    """Fresh runs, one after the other; nothing else may be running here."""

    mode = ABA

    def __init__(self, context: MeasurementContext, *, beside: int | None = None) -> None:
        super().__init__(context)
        self._beside = beside
        """Interleaved blocks of each arm in the pairs with which its runs are compared; None if all are isolated."""
        self._run_steps: int | None = None

    def _compare(self, request: ComparisonRequest) -> Compared:
        """One fresh run of either in a proof, else as many ABA runs as the study asks for."""
        reports: dict[Arm, WorkerReport] = {}
        pairs: list[Pair] = []
        work: WorkPerStep | None = None
        for order in self._orders(request):
            before: Run | None = None
            for arm in order:
                with self._started(request, arm) as worker:
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
        found = estimate_pairs([log_ratio(pairs[0], work)]) if request.is_proof else aba_estimate(pairs, work)
        stopped = "all pairs run" if request.is_proof else f"all {len(pairs) // 2} ABA runs measured"
        return Compared(
            reference=reports[Arm.REFERENCE], candidate=reports[Arm.CANDIDATE], pairs=pairs,
            comparison=self._figures(pairs, found, stopped=stopped, work=work),
        )  # fmt: skip

    def _orders(self, request: ComparisonRequest) -> list[list[Arm]]:
        """The arms in order: neighbours make a pair. In a proof a coin, seeded by the name, decides who goes first."""
        if not request.is_proof:
            return [[*Arm, Arm.REFERENCE]] * self.context.spec.measure.aba_runs
        is_last = random.Random(f"{self.context.spec.seed}/{request.name}").random() < 0.5
        return [[*reversed(Arm)] if is_last else [*Arm]]

    @contextlib.contextmanager
    def _started(self, request: ComparisonRequest, arm: Arm) -> Iterator[Worker]:
        """A fresh process of one arm; the log of a reference lies beside the candidate's."""
        with self._blaming(request, arm):
            is_candidate = arm is Arm.CANDIDATE
            folder = request.folder
            own = folder if is_candidate else self.context.folder_in(folder, "reference")
            worker = self.context.start(request.sets[is_candidate], own, isolated=True)
        with contextlib.closing(worker):
            yield worker

    def _run(self, request: ComparisonRequest, arm: Arm, worker: Worker) -> Run:
        context = self.context
        at_s = self.context.now_s
        if not any(request.sets) and self._run_steps is None:  # the first run of all: is there time for the others?
            left_s = isolated_aa_s(context.spec, worker.report)
            refuse_short_budget(context.spec, worker.report, begun_s=context.assignment.at_s, aa_s=left_s)
        with self._blaming(request, arm):
            run = Run(arm, at_s, worker.report, *self._measure(worker, arm))
        if arm is Arm.REFERENCE:
            if not request.sets[0]:
                refuse_not_finite(run.report)
            context.has_run = True
        return run

    @contextlib.contextmanager
    def _blaming(self, request: ComparisonRequest, arm: Arm) -> Iterator[None]:
        """Says of a failing process that it was the reference, if it was."""
        try:
            yield
        except WorkerFailed as error:
            if arm is Arm.CANDIDATE:
                raise
            if not (self.context.has_run or error.infrastructure):
                raise LaunchError(self.context.reference_cannot_run(error.failure)) from error
            raise ReferenceFailed(error) from error

    def _keep(self, request: ComparisonRequest, index: int, first: Run, second: Run, work: WorkPerStep | None) -> Pair:
        """Stores two runs as a pair, and holds the candidate's losses against the reference's."""
        reference, candidate = (first, second) if first.arm is Arm.REFERENCE else (second, first)
        told = candidate.trace.beside(reference.trace)
        pair = _make_pair(index, first.arm, first.at_s, reference.timed, candidate.timed, told)
        self.context.progress.pair(request.folder, pair, work)
        if request.inspect is not None:
            candidate.trace.refuse_shorter(reference.trace)
            self.context.losses.check_block(request.sets, (reference.report, candidate.report), pair.loss)
        return pair

    def _measure(self, worker: Worker, arm: Arm) -> tuple[Timed, LossTrace]:
        """The steps of one run."""
        spec = self.context.spec
        meter = self.context.meter
        sizes = self.context.sizes
        steps = self._run_steps or spec.measure.run_steps
        if self._run_steps is None and (spec.workload.can_wait or self._beside is not None):
            steps = self._steps_of(worker)
        self._run_steps = steps  # all runs are as long: their losses are compared at the end
        # In blocks where it can be, as if interleaved: each has new batches, so that nothing is learned by heart.
        block = math.ceil(steps / (self._beside or 1)) if spec.workload.can_wait else steps
        trace = LossTrace(spec, worker.report)
        times = tuple[float, ...]()
        joules = list[float | None]()
        trace.settle(worker, self.context.settle_steps)
        clocks = list[float | None]()
        begun = time.monotonic()
        while len(times) < steps:
            count = min(block, steps - len(times))
            with self.context.gpus.block(arm, settle_s=max(0.0, sizes.steady_s - sum(times))):
                more, drawn = meter.measure(lambda count=count: worker.run_block(count))  # type: ignore[misc]
            times += more
            joules.append(drawn)
            clocks.append(worker.last_clock_s)
            trace.take(worker, count)
        total = _sum_if_known(joules)
        clock_s = _sum_if_known(clocks)
        if not spec.workload.can_wait:
            # Such a program runs on whether it is asked or not: the steps must fill the time that was metered.
            metered_s = time.monotonic() - begun
            total = total if abs(sum(times) - metered_s) < LARGEST_GAP * metered_s else None
        self.context.gpus.look()
        return Timed(*sizes.split_isolated(times), total, clock_s), trace

    def _steps_of(self, worker: Worker) -> int:
        spec = self.context.spec
        step_s = typical_step_s(worker)
        if self._beside is not None and not spec.workload.can_wait:  # it may end: no longer than in its pairs
            return max(spec.measure.run_steps, self._beside * self.context.steps_for(worker))
        if self._beside is None:
            return self.context.sizes.isolated_steps(step_s, blocks=1, least=spec.measure.run_steps)
        return self.context.sizes.isolated_steps(
            step_s, beside_s=worker.report.start_s, blocks=self._beside, least=spec.measure.run_steps
        )

    def _aa_run(self, folder: Path) -> AaRun:
        """Each isolated run is a fresh process already, so they are few."""
        measure = self.context.spec.measure
        request = ComparisonRequest(candidate=FlagSet(), folder=folder, name="floor", rule=fixed(measure.aba_runs))
        found = self._compare(request)
        assert found.comparison is not None
        return AaRun(
            reference=self.context.first_report,
            seconds=[found.candidate],
            pairs=found.pairs,
            comparison=found.comparison,
            noise=noise_of_aba_runs(found.pairs, start_s=self.context.first_report.start_s),
        )


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def noise_of_aba_runs(pairs: Sequence[Pair], *, start_s: float = 0.0) -> AaNoise:
    """What ABA runs of the reference with itself, stored as pairs, say about this machine."""
    found = aba_estimate(pairs)
    count = found.pair_count
    return AaNoise(
        estimate=found,
        process_sd=(run_sd := _run_sd(pairs)),
        within_sd=0.0,
        degrees=2 * count,
        spread=spread_of(run_sd**2, 2 * count),
        start_s=start_s,
        pair_s=statistics.median(
            max(p.lasted_s, (p.reference_clock_s or 0.0) + (p.candidate_clock_s or 0.0)) for p in pairs
        ),
    )


def _run_sd(pairs: Sequence[Pair]) -> float:
    """Standard deviation of one fresh run, in log, all that is in it together.

    With the variance v of a run, the middle one against the mean of its neighbours has 1.5 v and these against each
    other have 2 v, independently; of equal runs both are 0 in the mean, so none of either is lost to estimating that.
    """
    total = 0.0
    for before, after in zip(pairs[::2], pairs[1::2], strict=True):
        total += ((log_ratio(before) + log_ratio(after)) / 2) ** 2 / 1.5
        total += (log_ratio(before) - log_ratio(after)) ** 2 / 2
    return math.sqrt(total / len(pairs))


def aba_estimate(pairs: Sequence[Pair], work: WorkPerStep | None = None) -> Estimate:
    """The estimate of ABA runs stored as pairs, two for each; per unit of `work` where that differs."""
    per_step = work.ratio if work is not None else 1.0
    return estimate_aba(
        [
            (
                block_step_s(before.reference_s),
                block_step_s(before.candidate_s) / per_step,
                block_step_s(after.reference_s),
            )
            for before, after in zip(pairs[::2], pairs[1::2], strict=True)
        ]
    )
