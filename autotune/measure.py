"""Turns: blocks of reference and candidate in pairs, in random order, until a rule says stop.

While one runs the other is idle. Within each pair a fresh fair coin decides who goes first: the statistics rest on
that (see `autotune.stats`).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

from autotune.energy import NO_METER, EnergyMeter
from autotune.launch.base import Worker
from autotune.records import Arm, Comparison, Pair
from autotune.stats import Decision, Estimate, SequentialPlan, decide, estimate_pairs, judge

OnPair = Callable[[Pair], None]
"""Called with each finished pair: it is stored before the next one is run."""

LONGEST_BLOCK_STEPS = 10_000

TURNS = "turns"
"""Mode of a comparison whose blocks are in pairs; the other one is `autotune.sandwich.MODE`."""


def block_steps(step_s: float, *, block_s: float, least: int) -> int:
    """Steps in a block: long against the timer, short against drift.

    Args:
        step_s: Duration of one step of the reference, in seconds.
        block_s: Shortest block, in seconds.
        least: Fewest steps.
    """
    wanted = math.ceil(block_s / step_s) if step_s > 0 else LONGEST_BLOCK_STEPS
    return min(LONGEST_BLOCK_STEPS, max(least, wanted))


def block_step_s(step_times_s: Sequence[float]) -> float:
    """A block's step time, in seconds: its whole duration over its steps, for training pays for slow steps too."""
    return sum(step_times_s) / len(step_times_s)


def log_ratio(pair: Pair) -> float:
    """Logarithm of candidate over reference step time of one pair."""
    return math.log(block_step_s(pair.candidate_s) / block_step_s(pair.reference_s))


def measure_pairs(
    reference: Worker,
    candidate: Worker,
    *,
    steps: int,
    rng: random.Random,
    stop: Callable[[list[float]], Decision | None],
    on_pair: OnPair,
    clock: Callable[[], float],
    meter: EnergyMeter = NO_METER,
) -> tuple[list[Pair], str]:
    """Runs pairs of blocks until `stop` gives a decision that says so.

    Args:
        reference: Worker under the baseline, idle.
        candidate: Worker under the settings on trial, idle.
        steps: Steps in each block.
        rng: Tosses the coin of each pair.
        stop: Given the log ratios so far, whether to stop and why; None between looks.
        on_pair: Told of each pair.
        clock: Seconds since the study began.
        meter: Counts the energy of each block.

    Returns:
        All pairs, and the reason for stopping in words.

    Raises:
        WorkerFailed: If one of the two failed in a block.
    """
    pairs: list[Pair] = []
    ratios: list[float] = []
    while True:
        first = Arm.REFERENCE if rng.random() < 0.5 else Arm.CANDIDATE
        at_s = clock()
        if first is Arm.REFERENCE:
            reference_s, reference_j = meter.measure(lambda: reference.run_block(steps))
            candidate_s, candidate_j = meter.measure(lambda: candidate.run_block(steps))
        else:
            candidate_s, candidate_j = meter.measure(lambda: candidate.run_block(steps))
            reference_s, reference_j = meter.measure(lambda: reference.run_block(steps))
        pair = Pair(
            index=len(pairs),
            first=first,
            reference_s=reference_s,
            candidate_s=candidate_s,
            at_s=round(at_s, 3),
            reference_j=reference_j,
            candidate_j=candidate_j,
        )
        on_pair(pair)
        pairs.append(pair)
        ratios.append(log_ratio(pair))
        decision = stop(ratios)
        if decision is not None and decision.stop:
            return pairs, decision.reason


def sequential(
    plan: SequentialPlan, *, sesoi: float, incumbent: Estimate | None
) -> Callable[[list[float]], Decision | None]:
    """The stopping rule of a trial: looks at the plan's pair counts, at an error level that holds over all looks."""

    def stop(ratios: list[float]) -> Decision | None:
        if len(ratios) not in plan.looks and len(ratios) < plan.cap:
            return None
        return decide(ratios, plan, sesoi=sesoi, incumbent=incumbent)

    return stop


def fixed(count: int, *, sesoi: float) -> Callable[[list[float]], Decision | None]:
    """The stopping rule of a confirmation: a number of pairs settled beforehand."""

    def stop(ratios: list[float]) -> Decision | None:
        if len(ratios) < count:
            return None
        estimate = estimate_pairs(ratios)
        return Decision(
            stop=True,
            reason=f"all {count} pairs run",
            estimate=estimate,
            verdict=judge(estimate, sesoi=sesoi),
        )

    return stop


def compare(
    pairs: Sequence[Pair],
    estimate: Estimate,
    *,
    sesoi: float,
    stopped: str,
    mode: str = TURNS,
    warnings: tuple[str, ...] = (),
    meter: EnergyMeter = NO_METER,
) -> Comparison:
    """Puts a comparison's figures together; `meter` is the one that counted the energy of the pairs."""
    return Comparison(
        estimate=estimate,
        verdict=judge(estimate, sesoi=sesoi),
        reference_step_s=statistics.median(t for p in pairs for t in p.reference_s),
        candidate_step_s=statistics.median(t for p in pairs for t in p.candidate_s),
        pair_count=len(pairs),
        mode=mode,
        stopped=stopped,
        warnings=warnings,
        energy=meter.use_of(pairs, sandwiches=mode != TURNS),
    )
