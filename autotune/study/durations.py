"""What each piece of a study takes, from what its reference took: the figures that budgets are planned with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.model import (
    INTERLEAVED,
    ConfirmRun,
    FloorResult,
    LaunchError,
    StudySpec,
    TurnCosts,
    WorkerReport,
    format_seconds,
)
from autotune.stats import ALONE_PAIRS, NoiseFloor, SequentialPlan, proof_size

FLOOR_SHARE = 0.2
"""Share of a time budget beyond which a noise floor starts no more processes than it must."""

LEAST_FLOOR = 2
"""Processes beside the living reference that a noise floor needs to tell a spread."""

PROOF_FLOORS = 6.0
"""What a study with one proof takes, about, over its least noise floor: 18 pairs of processes after 4 starts."""

RECENT = 20
"""Pairs of processes of which it is told what one really takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of one lane.

    Attributes:
        start_s: Until a process is ready.
        trial_s: A trial that is looked at once; `trial_most_s` with all its pairs of blocks, or ABA runs.
        turn_s: One pair of blocks; 0 where one process runs at a time.
        pair_s: A fresh pair of processes of a proof.
        alone_s: All runs of each arm alone that come after a proof; 0 where there are none.
        ablation_s: One setting left out, looked at once.
        soak_s: The winner for a while, and the reference as long; 0 where there is none.
    """

    start_s: float
    trial_s: float
    trial_most_s: float
    turn_s: float
    pair_s: float
    alone_s: float
    ablation_s: float
    soak_s: float


def durations_of(spec: StudySpec, result: FloorResult, runs: Sequence[ConfirmRun] = ()) -> Durations | None:
    """What the pieces of a study take at most, unless something goes wrong; None where the floor tells no times.

    Args:
        spec: The study.
        result: Its noise floor.
        runs: Pairs of processes that have run: where they took longer than was planned, that counts.
    """
    floor, step_s = result.floor, result.comparison.reference_step_s
    if not (floor.start_s and floor.pair_s):
        return None
    soak_s = max(spec.confirm.soak, spec.soak_steps * step_s) + floor.start_s if spec.confirm.soak else 0.0
    planned = (_in_turns if result.comparison.mode == INTERLEAVED else _one_at_a_time)(spec, result, 2.0 * soak_s)
    took = [r.duration_s for r in runs if r.duration_s and r.stage != "alone" and r.failure is None][-RECENT:]
    longer = max(1.0, statistics.median(took) / planned.pair_s) if took else 1.0  # candidates may choose kernels
    return replace(
        planned, pair_s=longer * planned.pair_s, alone_s=longer * planned.alone_s, soak_s=longer * planned.soak_s
    )


def _in_turns(spec: StudySpec, result: FloorResult, soak_s: float) -> Durations:
    costs, measure = _costs(spec, result), spec.measure
    least = SequentialPlan(cap=measure.pairs_cap).looks[0]
    run_s = costs.run_alone_s(pairs=pairs_of_blocks(spec, result.floor), least_steps=measure.run_steps)
    return Durations(
        start_s=costs.start_s,
        trial_s=costs.trial_s(least),
        trial_most_s=costs.trial_s(measure.pairs_cap),
        turn_s=costs.pair_s,
        pair_s=pair_of_processes_s(spec, result),
        alone_s=ALONE_PAIRS * 2.0 * run_s if spec.confirm.alone else 0.0,
        ablation_s=costs.fresh_pair_s(least),
        soak_s=soak_s,
    )


def _one_at_a_time(spec: StudySpec, result: FloorResult, soak_s: float) -> Durations:
    aba_s = spec.measure.aba_runs * 3.0 * pair_of_processes_s(spec, result) / 2.0
    return Durations(
        start_s=result.floor.start_s,
        trial_s=aba_s,
        trial_most_s=aba_s,
        turn_s=0.0,
        pair_s=pair_of_processes_s(spec, result),
        alone_s=0.0,
        ablation_s=aba_s,
        soak_s=soak_s,
    )


def _costs(spec: StudySpec, result: FloorResult) -> TurnCosts:
    return spec.turns.costs(step_s=result.comparison.reference_step_s, start_s=result.floor.start_s)


def pairs_of_blocks(spec: StudySpec, floor: NoiseFloor) -> int:
    """Pairs of blocks that each fresh pair of processes runs in turns."""
    return proof_size(floor, starts=spec.turns.starts)


def pair_of_processes_s(spec: StudySpec, result: FloorResult) -> float:
    """Seconds of one fresh pair of processes of a proof, from the noise floor's times."""
    floor = result.floor
    if result.comparison.mode == INTERLEAVED:
        return _costs(spec, result).fresh_pair_s(pairs_of_blocks(spec, floor))
    return 2.0 * floor.start_s + floor.pair_s


def refuse_short_budget(spec: StudySpec, reference: WorkerReport, *, begun_s: float, floor_s: float) -> None:
    """Ends a study whose time budget is used up by its noise floor, once its reference has started.

    Args:
        spec: The study.
        reference: What it said of itself.
        begun_s: Seconds of the study when it was started.
        floor_s: Seconds that the rest of the noise floor takes at least.

    Raises:
        LaunchError: If it is.
    """
    budget_s, used_s = spec.search.time_budget, begun_s + reference.start_s
    if budget_s is None or not reference.start_s or used_s + floor_s <= budget_s:
        return
    raise LaunchError(
        f"search.time_budget must hold the noise floor, search and proof but is {format_seconds(budget_s)}: the "
        f"reference takes {format_seconds(reference.start_s)} to start, so the noise floor alone would be over after "
        f"{format_seconds(used_s + floor_s)}, and a proof takes several times that. Give it at least "
        f"{format_seconds(used_s + PROOF_FLOORS * floor_s)}, or make the reference start faster (a smaller model, a "
        "compilation cache)"
    )


def floor_of_turns_s(reference: WorkerReport, *, processes: int, steps: int) -> float:
    """Seconds of a noise floor in turns after its reference has started, which starts once more in another rounding.

    Args:
        reference: What it said of itself.
        processes: Started beside it.
        steps: Steps that are run with each of those, both arms together.
    """
    each_s = reference.start_s + steps * statistics.median(reference.warmup_step_times_s or (0.0,))
    return reference.start_s + processes * each_s


def floor_alone_s(spec: StudySpec, reference: WorkerReport) -> float:
    """Likewise of one in ABA runs, while the first of its runs is in hand."""
    step_s = statistics.median(reference.warmup_step_times_s or (0.0,))
    costs = spec.turns.costs(step_s=step_s, start_s=reference.start_s)
    run_s = costs.run_alone_s(pairs=1, least_steps=spec.measure.run_steps)
    return 3 * spec.measure.aba_runs * run_s  # the first has started, one in another rounding is yet to start


def floor_processes(spec: StudySpec, reference: WorkerReport, *, steps: int) -> int:
    """How many processes a noise floor starts beside the living reference: fewer where the time budget is small.

    Args:
        spec: The study.
        reference: What the living one said of itself.
        steps: Steps that are run with each of the others, both arms together.
    """
    budget_s, asked = spec.search.time_budget, spec.measure.floor_processes
    each_s = reference.start_s + steps * statistics.median(reference.warmup_step_times_s or (0.0,))
    if budget_s is None or each_s <= 0.0:
        return asked
    # The reference itself is started once beside them, and once more in another rounding.
    fitting = int((FLOOR_SHARE * budget_s - 2.0 * reference.start_s) / each_s)
    return min(asked, max(LEAST_FLOOR, fitting))
