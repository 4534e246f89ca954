"""How long each piece of a study takes, and the power analysis of its proofs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from autotune.measure.context import MeasurementContext
from autotune.model.errors import LaunchError
from autotune.model.measurement import INTERLEAVED, WorkerReport
from autotune.model.records import ISOLATED, AaRecord, ConfirmRun, PowerAnalysis
from autotune.model.spec import StudySpec
from autotune.model.units import format_seconds
from autotune.stats.aa_noise import proof_size, trial_plan
from autotune.stats.proof import FIRST_LOOK, ISOLATED_PAIRS, LEAST_PAIRS, smallest_gain

# Share of a time budget beyond which an A/A run starts no more processes than it must.
AA_SHARE = 0.2
LEAST_AA = 2  # Processes beside the living reference that an A/A run needs to tell a spread
PROOF_AA_RUNS = 6.0  # What a study with one proof takes, about, over its least A/A run
RECENT = 20  # Latest pairs of processes from which their duration is estimated
ABLATIONS = 4  # Settings of a finalist for which time is kept to leave each of them out in turn


class Durations(NamedTuple):
    """Seconds of one lane; 0 of what does not occur. Trials and ablations are looked at once."""

    start_s: float = 0.0
    trial_s: float = 0.0
    block_pair_s: float = 0.0
    pair_s: float = 0.0  # A fresh pair of processes of a proof
    isolated_s: float = 0.0  # All isolated runs of both arms that come after a proof
    ablation_s: float = 0.0
    soak_s: float = 0.0


NO_TIME = Durations()  # Where nothing is known of time, or it does not count


def durations_of(spec: StudySpec, result: AaRecord, runs: Sequence[ConfirmRun]) -> Durations:
    """Durations by the A/A run, longer if pairs of processes (`runs`) were; or `NO_TIME`."""
    noise = result.noise
    if not noise.pair_s:
        return NO_TIME
    cap = spec.measure.pairs_cap
    sizes = spec.block_sizes.learned(noise)
    step_s = result.comparison.reference_step_s
    start_s = noise.start_s
    block_pair_s = 0.0
    isolated_s = 0.0
    if result.comparison.mode == INTERLEAVED:
        start_s += noise.settle_steps * step_s
        both_start_s = sizes.starts * start_s
        block_pair_s = max(noise.pair_s, 2 * sizes.steps(step_s) * step_s)
        pairs = proof_size(noise, starts=sizes.starts)
        pair_s = both_start_s + pairs * block_pair_s
        trial_s = start_s + trial_plan(noise, most=cap).first_look * block_pair_s
        ablation_plan = trial_plan(noise, most=cap, starts=sizes.starts)
        ablation_s = both_start_s + ablation_plan.first_look * block_pair_s
        steps_s = pairs * block_pair_s / 2.0
        if spec.workload.can_wait:
            steps_s = step_s * sizes.isolated_steps(
                step_s, start_s=start_s, blocks=pairs, least=spec.measure.run_steps
            )
        if spec.confirm.isolated:
            isolated_s = ISOLATED_PAIRS * 2.0 * (start_s + steps_s)
    else:
        pair_s = 2.0 * start_s + noise.pair_s
        trial_s = spec.measure.aba_runs * 1.5 * pair_s
        ablation_s = trial_s
    durations_s = [
        r.duration_s for r in runs if r.duration_s and r.stage != ISOLATED and r.failure is None
    ]
    # Candidates may choose kernels, so their processes may take longer.
    longer = max(1.0, statistics.median(durations_s[-RECENT:] or [pair_s]) / pair_s)
    soak_s = 0.0
    if spec.confirm.soak:
        line_s = max(step_s, result.reference.line_s)
        soak_s = 2.0 * (max(spec.confirm.soak, spec.soak_steps({}) * line_s) + noise.start_s)
    return Durations(
        start_s=start_s,
        trial_s=trial_s,
        block_pair_s=block_pair_s,
        pair_s=longer * pair_s,
        isolated_s=longer * isolated_s,
        ablation_s=ablation_s,
        soak_s=longer * soak_s,
    )


def refuse_short_budget(
    context: MeasurementContext, reference: WorkerReport, *, aa_s: float
) -> None:
    """Ends a study, by a LaunchError, whose budget the rest of its A/A run (`aa_s`) uses up."""
    budget_s = context.spec.search.time_budget
    used_s = context.assignment.at_s + reference.start_s
    if budget_s is None or not reference.start_s or used_s + aa_s <= budget_s:
        return
    raise LaunchError(
        "the time budget must hold the A/A run, search and proof but is "
        f"{format_seconds(budget_s)}: the reference takes {format_seconds(reference.start_s)} to "
        f"start, so the A/A run would end only after {format_seconds(used_s + aa_s)}, and a proof "
        "takes several times that. Give it at least "
        f"{format_seconds(used_s + PROOF_AA_RUNS * aa_s)}, or make the reference start faster (a "
        "smaller model)"
    )


def power_analysis(spec: StudySpec, result: AaRecord) -> PowerAnalysis | None:
    """The smallest gain proven 9 times in 10, and the time of proofs; None if not known."""
    noise = result.noise
    confirm = spec.confirm
    takes = durations_of(spec, result, ())
    if takes == NO_TIME or not noise.start_s or confirm.processes < FIRST_LOOK:
        return None
    is_interleaved = result.comparison.mode == INTERLEAVED
    pairs = proof_size(noise, starts=spec.block_sizes.starts) if is_interleaved else 1
    pair_sd = math.hypot(
        math.sqrt(2.0) * noise.cautious_process_sd(), noise.later_sd / math.sqrt(pairs)
    )
    smallest = smallest_gain(
        pair_sd,
        most=confirm.processes,
        finalists=confirm.finalists,
        isolated=confirm.isolated if is_interleaved else 0,
        min_effect=spec.measure.min_effect,
    )
    return PowerAnalysis(
        pair_sd=pair_sd,
        most=confirm.processes,
        smallest=smallest,
        proof_s=proofs_s(spec, takes),
    )


def proofs_s(spec: StudySpec, takes: Durations) -> float:
    """Seconds planned for one proof on one lane, its isolated runs included; few take more."""
    return min(spec.confirm.processes, 2 * LEAST_PAIRS) * takes.pair_s + takes.isolated_s
