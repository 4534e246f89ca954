"""In turns: blocks of reference and candidate in pairs, in random order, until a rule says stop.

While one runs the other is idle. Within each pair a fresh fair coin decides who goes first: the statistics rest on
that (see `autotune.stats.estimates`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from autotune.machine import NO_METER, EnergyMeter
from autotune.model import TURNS, Arm, FailureKind, FlagSet, Pair, WorkPerStep, log_ratio
from autotune.stats import Decision, NoiseFloor, SequentialPlan, read_noise_floor
from autotune.study.alone import OneAtATime
from autotune.study.bench import ReferenceFailed
from autotune.study.comparer import Compared, Comparer, Inspect, S, StoppingRule, fixed, make_comparison
from autotune.study.limits import PHASE as LIMIT
from autotune.study.work import work_between
from autotune.workers import Worker, WorkerFailed


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
            with self._fresh(against, candidate, folder) as (first, second):
                return self._run((against, candidate), first, second, folder, name=name, rule=rule, inspect=inspect)
        reference = self.bench.reference()
        with contextlib.closing(self.bench.start(candidate, folder)) as worker:
            sets = (FlagSet(), candidate)
            return self._run(sets, reference, worker, folder, name=name, rule=rule, inspect=inspect)

    def _fresh_pair(
        self, candidate: FlagSet, folder: Path, *, name: str, against: FlagSet, inspect: Inspect[S] | None
    ) -> Compared[S]:
        spec = self.bench.spec
        rule = fixed(spec.confirm.pairs, sesoi=spec.measure.smallest_effect)
        with self._fresh(against, candidate, folder) as (reference, worker):
            sets = (against, candidate)
            return self._run(sets, reference, worker, folder, name=name, rule=rule, inspect=inspect)

    @contextlib.contextmanager
    def _fresh(self, one: FlagSet, other: FlagSet, folder: Path) -> Iterator[tuple[Worker, Worker]]:
        first, second = self.bench.start_both(one, other, folder)
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
    ) -> Compared[S]:
        bench, reports = self.bench, (reference.report, candidate.report)
        work = work_between(sets, reports)
        if inspect is not None and (settled := inspect(*reports)) is not None:
            return Compared(reference=reports[0], candidate=reports[1], settled=settled)
        ratios: list[float] = []

        def on_pair(pair: Pair) -> None:
            bench.desk.pair(folder, pair, work)
            ratios.append(log_ratio(pair, work))
            bench.gpus.look(folder)  # between two pairs, when nothing is timed

        pairs, stopped = measure_pairs(
            reference,
            candidate,
            steps=bench.steps_for(reference),
            rng=random.Random(f"{bench.spec.seed}/{name}"),
            stop=rule.stop,
            on_pair=on_pair,
            clock=lambda: bench.now_s,
            meter=bench.meter,
            work=work,
        )
        comparison = make_comparison(
            pairs, rule.estimate(ratios), stopped=stopped,
            warnings=bench.gpus.warnings(), meter=bench.meter, work=work,
        )  # fmt: skip
        return Compared(reference=reports[0], candidate=reports[1], pairs=pairs, comparison=comparison)

    def instead(self, error: WorkerFailed) -> Comparer | None:
        """One at a time, if two processes did not fit into the device's memory and the study leaves the choice."""
        spec = self.bench.spec
        if (
            error.failure.kind is not FailureKind.OUT_OF_MEMORY
            or error.failure.phase == LIMIT  # it does not fit alone either
            or spec.device.platform != "cuda"
            or spec.measure.mode != "auto"
        ):
            return None
        self.bench.release_reference()
        return OneAtATime(self.bench)

    def noise_floor(self, pairs: Sequence[Pair], *, plan: SequentialPlan) -> NoiseFloor:
        """See `Comparer`."""
        ratios = [log_ratio(p) for p in pairs]
        return read_noise_floor(ratios, plan=plan, sesoi=self.bench.spec.measure.smallest_effect)


def measure_pairs(
    reference: Worker,
    candidate: Worker,
    *,
    steps: int,
    rng: random.Random,
    stop: Callable[[list[float]], Decision | None],
    on_pair: Callable[[Pair], None],
    clock: Callable[[], float],
    meter: EnergyMeter = NO_METER,
    work: WorkPerStep | None = None,
) -> tuple[list[Pair], str]:
    """Runs pairs of blocks until `stop` gives a decision that says so.

    Args:
        reference: Worker under the baseline, idle.
        candidate: Worker under the settings on trial, idle.
        steps: Steps in each block.
        rng: Tosses the coin of each pair.
        stop: Given the log ratios so far, whether to stop and why; None between looks.
        on_pair: Told of each pair, which it must keep before the next one is run.
        clock: Seconds since the study began.
        meter: Counts the energy of each block.
        work: What a step of each arm does, where it differs: then `stop` is given ratios of time per unit of it.

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
        for arm in order:
            try:
                blocks[arm] = meter.measure(lambda worker=workers[arm]: worker.run_block(steps))  # type: ignore[misc]
            except WorkerFailed as error:
                if arm is Arm.REFERENCE:
                    raise ReferenceFailed(error) from error
                raise
        (reference_s, reference_j), (candidate_s, candidate_j) = blocks[Arm.REFERENCE], blocks[Arm.CANDIDATE]
        pair = Pair(
            index=len(pairs),
            first=order[0],
            reference_s=reference_s,
            candidate_s=candidate_s,
            at_s=round(at_s, 3),
            reference_j=reference_j,
            candidate_j=candidate_j,
        )
        on_pair(pair)
        pairs.append(pair)
        ratios.append(log_ratio(pair, work))
        decision = stop(ratios)
        if decision is not None and decision.stop:
            return pairs, decision.reason
