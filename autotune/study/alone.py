"""One process at a time: where two do not fit into the device's memory, or the program can not wait for its turn.

A sandwich is three fresh runs, reference, candidate, reference, so that a steady drift of the machine cancels and what
is left of it widens the interval. It is stored as two pairs that have the candidate's run in common: the raw samples
of a study read the same whichever way they were measured.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from autotune.model import (
    Arm,
    FailureKind,
    FlagSet,
    LaunchError,
    Pair,
    WorkerReport,
    WorkPerStep,
    block_step_s,
    log_ratio,
)
from autotune.stats import (
    Estimate,
    NoiseFloor,
    Sandwich,
    SequentialPlan,
    estimate_pairs,
    estimate_sandwiches,
    spread_of,
)
from autotune.study.bench import Bench, ReferenceFailed, typical_step_s
from autotune.study.comparer import Compared, Comparer, Inspect, MeasuredFloor, S, StoppingRule, fixed, make_comparison
from autotune.study.durations import floor_alone_s, refuse_short_budget
from autotune.study.traces import LossTrace, not_finite, refuse_not_finite
from autotune.study.work import work_between
from autotune.workers import Worker, WorkerFailed

SANDWICH = "sandwich"

LARGEST_GAP = 0.1
"""Share by which the steps of a program that runs on by itself may miss the time over which its energy was counted."""


class Run(NamedTuple):
    """One fresh run: its report, seconds of each counted step and of those before, joules of all, and what it told."""

    report: WorkerReport
    times_s: tuple[float, ...]
    settling_s: tuple[float, ...] | None
    joules: float | None
    trace: LossTrace


class OneAtATime(Comparer):
    """Fresh runs, one after the other; nothing else of the bench may be running.

    Args:
        bench: Where.
        blocks: Length of a run, in blocks of turns, where the program waits for its turns; see `TurnSizes.steps_alone`.
    """

    mode = SANDWICH

    def __init__(self, bench: Bench, *, blocks: int = 1) -> None:
        super().__init__(bench)
        self._blocks = blocks
        self._run_steps: int | None = None
        self._is_first = False

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
        """As many sandwiches as the study asks for; every run is stored as it comes."""
        bench = self.bench
        pairs: list[Pair] = []
        base, work = against or FlagSet(), None

        def add(first: Arm, reference: Run, middle: Run) -> None:
            pairs.append(_pair(len(pairs), first, reference, middle, at_s=bench.now_s))
            bench.desk.pair(folder, pairs[-1], work)
            if inspect is not None:
                middle.trace.refuse_shorter(reference.trace)
                bench.hold_to((base, candidate), (reference.report, middle.report), pairs[-1].loss)

        for _ in range(bench.spec.measure.sandwiches):
            before = self._run_reference(base, folder)
            with contextlib.closing(bench.start(candidate, folder, alone=True)) as worker:
                work = work_between((base, candidate), (before.report, worker.report))
                if not pairs and inspect is not None and (settled := inspect(before.report, worker.report)) is not None:
                    return Compared(reference=before.report, candidate=worker.report, settled=settled)
                middle = self._measure(worker, folder, Arm.CANDIDATE)
            add(Arm.REFERENCE, before, middle)
            add(Arm.CANDIDATE, self._run_reference(base, folder), middle)
        comparison = make_comparison(
            pairs,
            estimate(pairs, work),
            stopped=f"all {len(pairs) // 2} sandwiches run",
            mode=SANDWICH,
            looked=bench.gpus.take(),
            meter=bench.meter,
            work=work,
        )
        return Compared(reference=before.report, candidate=middle.report, pairs=pairs, comparison=comparison)

    def _fresh_pair(
        self, candidate: FlagSet, folder: Path, *, name: str, pairs: int, against: FlagSet, inspect: Inspect[S] | None
    ) -> Compared[S]:
        """One fresh run of either, whatever `pairs` says; a coin, seeded by `name`, decides which goes first."""
        bench = self.bench
        order = [Arm.REFERENCE, Arm.CANDIDATE]
        if random.Random(f"{bench.spec.seed}/{name}").random() < 0.5:
            order.reverse()
        at_s = bench.now_s
        runs: dict[Arm, Run] = {}
        for arm in order:
            if arm is Arm.REFERENCE:
                runs[arm] = self._run_reference(against, folder)
            else:
                with contextlib.closing(bench.start(candidate, folder, alone=True)) as worker:
                    runs[arm] = self._measure(worker, folder, arm)
        reports = (runs[Arm.REFERENCE].report, runs[Arm.CANDIDATE].report)
        pair = _pair(0, order[0], runs[Arm.REFERENCE], runs[Arm.CANDIDATE], at_s=at_s)
        work = work_between((FlagSet(), candidate), reports)
        bench.desk.pair(folder, pair, work)
        if inspect is not None:
            if (settled := inspect(*reports)) is not None:
                return Compared(reference=reports[0], candidate=reports[1], settled=settled)
            runs[Arm.CANDIDATE].trace.refuse_shorter(runs[Arm.REFERENCE].trace)
            bench.hold_to((against, candidate), reports, pair.loss)
        comparison = make_comparison(
            [pair], estimate_pairs([log_ratio(pair, work)]), stopped="all pairs run", mode=SANDWICH,
            looked=bench.gpus.take(), meter=bench.meter, work=work,
        )  # fmt: skip
        return Compared(reference=reports[0], candidate=reports[1], pairs=[pair], comparison=comparison)

    def _run_reference(self, settings: FlagSet, folder: Path) -> Run:
        """A fresh run of what is compared with; its log lies beside the candidate's."""
        bench = self.bench
        beside = bench.folders.folder(*Path(bench.folders.relative(folder)).parts, "reference")
        try:
            with contextlib.closing(bench.start(settings, beside, alone=True)) as worker:
                if self._is_first:  # of a noise floor: is there time for the others?
                    self._is_first = False
                    left_s = floor_alone_s(bench.spec, worker.report)
                    refuse_short_budget(bench.spec, worker.report, begun_s=bench.begun_at_s, floor_s=left_s)
                run = self._measure(worker, beside, Arm.REFERENCE)
        except WorkerFailed as error:
            if error.failure.kind is FailureKind.WRONG_LOSS and not settings:
                raise not_finite(error.failure.message) from error
            if not (bench.has_run or error.infrastructure):
                raise LaunchError(bench.reference_cannot_run(error.failure)) from error
            raise ReferenceFailed(error) from error
        if not settings:
            refuse_not_finite(run.report)
        bench.has_run = True
        return run

    def _measure(self, worker: Worker, folder: Path, arm: Arm) -> Run:
        """The steps of one run."""
        spec, meter = self.bench.spec, self.bench.meter
        steps = self._run_steps or spec.measure.run_steps
        if spec.workload.takes_turns and self._run_steps is None:
            steps = spec.turns.steps_alone(typical_step_s(worker), blocks=self._blocks, least=spec.measure.run_steps)
        self._run_steps = steps  # all runs are as long: their losses are compared at the end
        # In blocks where it can be, as in turns: each has new batches, so that nothing is learned by heart.
        block = math.ceil(steps / self._blocks) if spec.workload.takes_turns else steps
        trace, times, joules = LossTrace(spec, worker.report), tuple[float, ...](), list[float | None]()
        begun = time.monotonic()
        while len(times) < steps:
            count = min(block, steps - len(times))
            with self.bench.gpus.block(arm, settle_s=max(0.0, spec.turns.steady_s - sum(times))):
                more, drawn = meter.measure(lambda count=count: worker.run_block(count))  # type: ignore[misc]
            times += more
            joules.append(drawn)
            trace.take(worker, count)
        known = [j for j in joules if j is not None]
        total = sum(known) if len(known) == len(joules) else None
        if not spec.workload.takes_turns:
            # Such a program runs on whether it is asked or not: the steps must fill the time that was metered.
            metered_s = time.monotonic() - begun
            total = total if abs(sum(times) - metered_s) < LARGEST_GAP * metered_s else None
        self.bench.gpus.look(folder)
        settling_s, counted_s = spec.turns.split_alone(times)
        return Run(worker.report, counted_s, settling_s or None, total, trace)

    def _floor(self, folder: Path, plan: SequentialPlan) -> MeasuredFloor:
        """Each run of a sandwich is a fresh process already; sandwiches are few, whatever a plan of pairs says."""
        spec = self.bench.spec
        rule = fixed(spec.measure.sandwiches, min_effect=spec.measure.min_effect)
        self._is_first = True
        found: Compared[None] = self._compare(FlagSet(), folder, name="floor", rule=rule, against=None, inspect=None)
        assert found.comparison is not None
        reports = (found.reference, found.candidate)
        noise = sandwich_floor(
            found.pairs,
            min_effect=spec.measure.min_effect,
            start_s=statistics.mean(r.start_s for r in reports),
        )
        return MeasuredFloor(
            reference=found.reference, seconds=[found.candidate], pairs=found.pairs, comparison=found.comparison,
            noise=noise,
        )  # fmt: skip


def sandwich_floor(pairs: Sequence[Pair], *, min_effect: float, start_s: float = 0.0) -> NoiseFloor:
    """What sandwiches of the reference with itself say about this machine.

    Args:
        pairs: Sandwiches stored as pairs.
        min_effect: Smallest effect of interest.
        start_s: Seconds until a process is ready.
    """
    found = estimate(pairs)
    count = found.pair_count
    half = math.log(found.high / found.low) / 2
    ratios = [sum(log_ratio(p) for p in two) / 2 for two in zip(pairs[::2], pairs[1::2], strict=True)]
    mean = sum(ratios) / count
    return NoiseFloor(
        estimate=found,
        is_honest=found.low <= 1.0 <= found.high,
        pair_sd=math.sqrt(sum((r - mean) ** 2 for r in ratios) / max(1, count - 1)),
        # A true effect of twice the half width is found more than 9 times in 10.
        detectable=min_effect + 1.0 - math.exp(-2 * half),
        process_sd=(run_sd := _run_sd(pairs)),
        within_sd=0.0,
        degrees=2 * count,
        spread=spread_of(run_sd**2, 2 * count),
        start_s=start_s,
        pair_s=statistics.median(p.lasted_s for p in pairs),
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


def estimate(pairs: Sequence[Pair], work: WorkPerStep | None = None) -> Estimate:
    """The estimate of sandwiches stored as pairs, two for each; per unit of `work` where that differs."""
    per_step = work.ratio if work is not None else 1.0
    return estimate_sandwiches(
        [
            Sandwich(
                before_s=block_step_s(before.reference_s),
                candidate_s=block_step_s(before.candidate_s) / per_step,
                after_s=block_step_s(after.reference_s),
            )
            for before, after in zip(pairs[::2], pairs[1::2], strict=True)
        ]
    )


def _pair(index: int, first: Arm, reference: Run, candidate: Run, *, at_s: float) -> Pair:
    return Pair(
        index=index,
        first=first,
        reference_s=reference.times_s,
        candidate_s=candidate.times_s,
        reference_settling_s=reference.settling_s,
        candidate_settling_s=candidate.settling_s,
        at_s=round(at_s, 3),
        reference_j=reference.joules,
        candidate_j=candidate.joules,
        loss=candidate.trace.beside(reference.trace),
    )
