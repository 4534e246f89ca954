"""In turns: blocks of reference and candidate in pairs, in random order, until a rule says stop.

While one runs the other is idle. Within each pair a fresh fair coin decides who goes first: the statistics rest on
that (see `autotune.stats.estimates`).
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.machine import NO_METER, NO_WATCH, EnergyMeter, GpuWatch
from autotune.model import (
    EVERY_STEP,
    TURNS,
    Arm,
    FlagSet,
    Pair,
    TurnSizes,
    WorkerReport,
    WorkPerStep,
    log_ratio,
)
from autotune.stats import LONG_PAIR_S, Decision, SequentialPlan, moments, read_noise_floor
from autotune.study.alone import OneAtATime
from autotune.study.bench import ReferenceFailed
from autotune.study.comparer import Compared, Comparer, Inspect, MeasuredFloor, S, StoppingRule, fixed, make_comparison
from autotune.study.durations import LEAST_FLOOR, floor_of_turns_s, floor_processes, refuse_short_budget
from autotune.study.traces import LossTrace
from autotune.study.work import work_between
from autotune.workers import Worker, WorkerFailed

FLOOR_PAIRS = (8, 20)
"""Fewest and most pairs of blocks with each process of a noise floor, unless they are over within a moment."""

FEWEST_LONG_PAIRS = 4
"""Fewest where a pair of blocks takes seconds: trials' intervals hold as with 8 (tests/stats/test_gpu_turns.py)."""


class InTurns(Comparer):
    """Both processes side by side; one at a time where the two turn out not to fit into the device's memory."""

    mode = TURNS

    def _compare(
        self,
        candidate: FlagSet,
        folder: Path,
        *,
        name: str,
        rule: StoppingRule,
        against: FlagSet | None,
        inspect: Inspect[S] | None,
    ) -> Compared[S]:
        if against is not None:
            with self._fresh(against, candidate, folder, name) as (first, second):
                return self._run((against, candidate), first, second, folder, name=name, rule=rule, inspect=inspect)
        reference = self.bench.reference()
        with contextlib.closing(self.bench.start(candidate, folder)) as worker:
            sets, trace = (FlagSet(), candidate), self.bench.reference_trace
            return self._run(sets, reference, worker, folder, name=name, rule=rule, inspect=inspect, trace=trace)

    def _fresh_pair(
        self, candidate: FlagSet, folder: Path, *, name: str, pairs: int, against: FlagSet, inspect: Inspect[S] | None
    ) -> Compared[S]:
        rule = fixed(pairs, min_effect=self.bench.spec.measure.min_effect)
        with self._fresh(against, candidate, folder, name) as (reference, worker):
            sets = (against, candidate)
            return self._run(sets, reference, worker, folder, name=name, rule=rule, inspect=inspect)

    @contextlib.contextmanager
    def _fresh(self, one: FlagSet, other: FlagSet, folder: Path, name: str) -> Iterator[tuple[Worker, Worker]]:
        first, second = self.bench.start_both(one, other, folder, name=name)
        with contextlib.closing(first), contextlib.closing(second):
            yield first, second

    def _run(
        self,
        sets: tuple[FlagSet, FlagSet],
        reference: Worker,
        candidate: Worker,
        folder: Path,
        *,
        name: str,
        rule: StoppingRule,
        inspect: Inspect[S] | None,
        trace: LossTrace | None = None,
    ) -> Compared[S]:
        bench, reports = self.bench, (reference.report, candidate.report)
        traces = (trace or LossTrace(bench.spec, reports[0]), LossTrace(bench.spec, reports[1]))
        work = work_between(sets, reports)
        if inspect is not None and (settled := inspect(*reports)) is not None:
            return Compared(reference=reports[0], candidate=reports[1], settled=settled)
        ratios: list[float] = []

        def on_pair(pair: Pair) -> None:
            bench.desk.pair(folder, pair, work)
            if inspect is not None:
                bench.hold_to(sets, reports, pair.loss)
            ratios.append(log_ratio(pair, work))
            bench.gpus.look(folder)  # for other people's processes, between two pairs, when nothing is timed

        pairs, stopped = measure_pairs(
            reference,
            candidate,
            steps=bench.steps_for(reference),
            sizes=bench.spec.turns,
            rng=random.Random(f"{bench.spec.seed}/{name}"),
            stop=rule.stop,
            on_pair=on_pair,
            clock=lambda: bench.now_s,
            meter=bench.meter,
            gpus=bench.gpus,
            work=work,
            traces=traces,
        )
        comparison = make_comparison(
            pairs, rule.estimate(ratios), stopped=stopped,
            looked=bench.gpus.take(), meter=bench.meter, work=work,
        )  # fmt: skip
        return Compared(reference=reports[0], candidate=reports[1], pairs=pairs, comparison=comparison)

    def for_sets(self, *sets: FlagSet) -> Comparer:
        """One at a time for sets that turned out not to fit beside another process."""
        return self._one_at_a_time() if self.bench.share.is_known_alone(*sets) else self

    def instead(self, error: WorkerFailed, candidate: FlagSet) -> Comparer | None:
        """One at a time, if two processes did not fit into the device's memory and the study leaves the choice."""
        if not self.bench.share.is_too_small(error.failure):
            return None
        if not isinstance(error, ReferenceFailed):
            self.bench.share.remember(candidate)
        return self._one_at_a_time()

    def _one_at_a_time(self) -> Comparer:
        self.bench.release_reference()
        return OneAtATime(self.bench)

    def _floor(self, folder: Path, plan: SequentialPlan) -> MeasuredFloor:
        """One process after the other beside the living reference; raw pairs of all in one file, in order."""
        bench, spec = self.bench, self.bench.spec
        reference, parts = bench.reference(), Path(bench.folders.relative(folder)).parts
        pairs: list[Pair] = []
        reports: list[WorkerReport] = []
        groups: list[list[float]] = []
        steps = bench.steps_for(reference)
        steps *= 2 * floor_pairs(reference.report, steps)
        least_s = floor_of_turns_s(reference.report, processes=LEAST_FLOOR, steps=steps)
        refuse_short_budget(spec, reference.report, begun_s=bench.begun_at_s, floor_s=least_s)
        for number in range(floor_processes(spec, reference.report, steps=steps)):
            beside = folder if number == 0 else bench.folders.folder(*parts, f"second-{number + 1}")
            with contextlib.closing(bench.start(FlagSet(), beside)) as worker:
                reports.append(worker.report)
                found = self._floor_pairs(reference, worker, folder, begin=len(pairs))
            pairs += found
            groups.append([log_ratio(p) for p in found])
        noise = read_noise_floor(
            groups,
            plan=plan,
            min_effect=spec.measure.min_effect,
            start_s=statistics.median(r.start_s for r in (reference.report, *reports)),
            pair_s=statistics.median(p.lasted_s for p in pairs),
            least=FEWEST_LONG_PAIRS,
        )
        comparison = make_comparison(
            pairs, noise.estimate, looked=bench.gpus.take(), meter=bench.meter,
            stopped=f"all {len(pairs)} pairs with {len(groups)} processes run",
        )  # fmt: skip
        return MeasuredFloor(
            reference=reference.report, seconds=reports, pairs=pairs, comparison=comparison, noise=noise,
            log_times=[0.0, *map(statistics.median, groups)],
        )  # fmt: skip

    def _floor_pairs(self, reference: Worker, second: Worker, folder: Path, *, begin: int) -> list[Pair]:
        """The pairs of one second process; the first of them has the number `begin`."""
        bench = self.bench
        steps = bench.steps_for(reference)
        count, trace = floor_pairs(reference.report, steps), LossTrace(bench.spec, second.report)

        def on_pair(pair: Pair) -> None:
            bench.desk.pair(folder, pair)
            bench.gpus.look(folder)

        pairs, _ = measure_pairs(
            reference,
            second,
            steps=steps,
            sizes=bench.spec.turns,
            rng=random.Random(f"{bench.spec.seed}/floor/{begin}" if begin else f"{bench.spec.seed}/floor"),
            stop=fixed(count, min_effect=bench.spec.measure.min_effect).stop,
            on_pair=on_pair,
            clock=lambda: bench.now_s,
            meter=bench.meter,
            gpus=bench.gpus,
            traces=(bench.reference_trace or LossTrace(bench.spec, reference.report), trace),
            begin=begin,
        )
        return pairs


def floor_pairs(report: WorkerReport, steps: int) -> int:
    """Pairs of blocks with each process of a noise floor: a third of the time that it takes to start one.

    And as many as last some seconds, as in a proof: see `autotune.stats.sizes.moments`.

    Args:
        report: Of the reference.
        steps: Steps in a block.
    """
    pair_s = 2 * steps * statistics.median(report.warmup_step_times_s)
    least, most = FLOOR_PAIRS
    least = FEWEST_LONG_PAIRS if pair_s >= LONG_PAIR_S else least
    if pair_s <= 0:
        return most
    return max(min(most, max(least, round(report.start_s / 3 / pair_s))), moments(report.start_s, pair_s))


def measure_pairs(
    reference: Worker,
    candidate: Worker,
    *,
    steps: int,
    sizes: TurnSizes = EVERY_STEP,
    rng: random.Random,
    stop: Callable[[list[float]], Decision | None],
    on_pair: Callable[[Pair], None],
    clock: Callable[[], float],
    meter: EnergyMeter = NO_METER,
    gpus: GpuWatch = NO_WATCH,
    work: WorkPerStep | None = None,
    traces: tuple[LossTrace, LossTrace] | None = None,
    begin: int = 0,
) -> tuple[list[Pair], str]:
    """Runs pairs of blocks until `stop` gives a decision that says so.

    Args:
        reference: Worker under the baseline, idle.
        candidate: Worker under the settings on trial, idle.
        steps: Steps in each block, those that are not counted included.
        sizes: Say which are not.
        rng: Tosses the coin of each pair.
        stop: Given the log ratios so far, whether to stop and why; None between looks.
        on_pair: Told of each pair, which it must keep before the next one is run.
        clock: Seconds since the study began.
        meter: Counts the energy of each block.
        gpus: Looks at the GPUs while each block runs.
        work: What a step of each arm does, where it differs: then `stop` is given ratios of time per unit of it.
        traces: What reference and candidate tell of their losses, to be gone on with.
        begin: Number of the first pair.

    Returns:
        All pairs, and the reason for stopping in words.

    Raises:
        ReferenceFailed: If the reference failed in a block.
        WorkerFailed: If the candidate failed in a block.
    """
    workers = {Arm.REFERENCE: reference, Arm.CANDIDATE: candidate}
    pairs: list[Pair] = []
    ratios: list[float] = []
    while True:
        order = [Arm.REFERENCE, Arm.CANDIDATE]
        if rng.random() >= 0.5:
            order.reverse()
        at_s = clock()
        blocks = {}
        told = None
        for arm in order:
            try:
                with gpus.block(arm, settle_s=sizes.settle_s):
                    blocks[arm] = meter.measure(lambda worker=workers[arm]: worker.run_block(steps))  # type: ignore[misc]
            except WorkerFailed as error:
                if arm is Arm.REFERENCE:
                    raise ReferenceFailed(error) from error
                raise
        if traces is not None:
            for trace, worker in zip(traces, (reference, candidate), strict=True):
                trace.take(worker, steps)
            told = traces[1].beside(traces[0])
        (reference_s, reference_j), (candidate_s, candidate_j) = blocks[Arm.REFERENCE], blocks[Arm.CANDIDATE]
        (reference_settling_s, reference_s), (candidate_settling_s, candidate_s) = map(
            sizes.split, (reference_s, candidate_s)
        )
        pair = Pair(
            index=begin + len(pairs),
            first=order[0],
            reference_s=reference_s,
            candidate_s=candidate_s,
            reference_settling_s=reference_settling_s or None,
            candidate_settling_s=candidate_settling_s or None,
            at_s=round(at_s, 3),
            reference_j=reference_j,
            candidate_j=candidate_j,
            loss=told,
        )
        on_pair(pair)
        pairs.append(pair)
        ratios.append(log_ratio(pair, work))
        decision = stop(ratios)
        if decision is not None and decision.stop:
            return pairs, decision.reason
