"""How long each piece of a study takes, and the power analysis of its proofs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.model.block_sizes import BlockCosts
from autotune.model.errors import LaunchError
from autotune.model.measurement import INTERLEAVED, WorkerReport
from autotune.model.records import ISOLATED, AaRecord, ConfirmRun, PowerAnalysis
from autotune.model.spec import StudySpec
from autotune.model.units import format_seconds
from autotune.stats.aa_noise import proof_size, trial_plan
from autotune.stats.proof import FIRST_LOOK, ISOLATED_PAIRS, planned_pairs, smallest_gain

AA_SHARE = 0.2
"""Share of a time budget beyond which an A/A run starts no more processes than it must."""

LEAST_AA = 2
"""Processes beside the living reference that an A/A run needs to tell a spread."""

PROOF_AA_RUNS = 6.0
"""What a study with one proof takes, about, over its least A/A run: 18 pairs of processes after 4 starts."""

RECENT = 20
"""Latest pairs of processes from which their duration is estimated."""

ABLATIONS = 4
"""Settings of a finalist for which time is kept to leave each of them out in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of one lane."""

    start_s: float = 0.0
    trial_s: float = 0.0
    """A trial that is looked at once."""
    block_pair_s: float = 0.0
    """One pair of blocks; 0 where one process runs at a time."""
    pair_s: float = 0.0
    """A fresh pair of processes of a proof."""
    isolated_s: float = 0.0
    """All isolated runs of each arm that come after a proof; 0 where there are none."""
    ablation_s: float = 0.0
    """One setting left out, looked at once."""
    soak_s: float = 0.0
    """The winner for a while, and the reference as long; 0 where there is none."""


def durations_of(spec: StudySpec, result: AaRecord, runs: Sequence[ConfirmRun]) -> Durations | None:
    """Returns the durations of a study's pieces; None where the A/A run does not say how long a pair takes.

    Where the pairs of processes that have run (`runs`) took longer than was planned, that counts.
    """
    noise = result.noise
    step_s = result.comparison.reference_step_s
    measure = spec.measure
    if not noise.pair_s:
        return None
    pair_s = pair_of_processes_s(spec, result)
    took = [r.duration_s for r in runs if r.duration_s and r.stage != ISOLATED and r.failure is None][-RECENT:]
    longer = max(1.0, statistics.median(took) / pair_s) if took else 1.0  # candidates may choose kernels
    soak_s = 0.0
    aba_s = measure.aba_runs * 1.5 * pair_s
    if spec.confirm.soak:
        line_s = max(step_s, result.reference.line_s)
        least_s = max(spec.confirm.soak, spec.soak_steps({}) * line_s)
        soak_s = 2.0 * (least_s + noise.start_s)
    takes = Durations(
        start_s=noise.start_s, trial_s=aba_s, pair_s=longer * pair_s, ablation_s=aba_s, soak_s=longer * soak_s
    )
    if result.comparison.mode != INTERLEAVED:
        return takes
    costs = _costs(spec, result)
    starts = spec.block_sizes.starts
    pairs = proof_size(noise, starts=starts)
    run_s = costs.isolated_run_s(pairs=pairs, least_steps=measure.run_steps, beside_s=costs.start_s)
    if not spec.workload.can_wait:
        run_s = costs.start_s + pairs * costs.pair_s / 2.0
    return replace(
        takes,
        start_s=costs.start_s,
        trial_s=costs.trial_s(trial_plan(noise, most=measure.pairs_cap).first),
        block_pair_s=costs.pair_s,
        isolated_s=longer * ISOLATED_PAIRS * 2.0 * run_s if spec.confirm.isolated else 0.0,
        ablation_s=costs.fresh_pair_s(trial_plan(noise, most=measure.pairs_cap, starts=starts).first),
    )


def _costs(spec: StudySpec, result: AaRecord) -> BlockCosts:
    step_s = result.comparison.reference_step_s
    aa_run = result.noise
    start_s = aa_run.start_s + aa_run.settle_steps * step_s
    return BlockCosts(spec.block_sizes.learned(aa_run), step_s, start_s, measured_pair_s=aa_run.pair_s)


def pair_of_processes_s(spec: StudySpec, result: AaRecord) -> float:
    """Returns the seconds of one fresh pair of processes of a proof."""
    noise = result.noise
    if result.comparison.mode == INTERLEAVED:
        return _costs(spec, result).fresh_pair_s(proof_size(noise, starts=spec.block_sizes.starts))
    return 2.0 * noise.start_s + noise.pair_s


def minimising_s(spec: StudySpec, takes: Durations) -> float:
    """Returns the seconds that are kept for minimising one set."""
    return ABLATIONS * takes.ablation_s if spec.confirm.minimise else 0.0


def refuse_short_budget(spec: StudySpec, reference: WorkerReport, *, begun_s: float, aa_s: float) -> None:
    """Ends a study whose time budget is used up by its A/A run, by a LaunchError.

    Its reference was started at `begun_s`; the rest of the A/A run takes `aa_s` at least.
    """
    budget_s = spec.search.time_budget
    used_s = begun_s + reference.start_s
    if budget_s is None or not reference.start_s or used_s + aa_s <= budget_s:
        return
    raise LaunchError(
        f"search.time_budget must hold the A/A run, search and proof but is {format_seconds(budget_s)}: the "
        f"reference takes {format_seconds(reference.start_s)} to start, so the A/A run would end only after "
        f"{format_seconds(used_s + aa_s)}, and a proof takes several times that. Give it at least "
        f"{format_seconds(used_s + PROOF_AA_RUNS * aa_s)}, or make the reference start faster (a smaller model)"
    )


def beside_reference_s(reference: WorkerReport, *, steps: int) -> float:
    """Returns the seconds of a process of an A/A run beside the living reference, in which both run so many steps."""
    return reference.start_s + steps * statistics.median(reference.warmup_step_times_s or (0.0,))


def isolated_aa_s(spec: StudySpec, reference: WorkerReport) -> float:
    """Returns the seconds of the rest of an A/A run in ABA runs, while the first of its runs is in hand."""
    step_s = statistics.median(reference.warmup_step_times_s or (0.0,))
    costs = BlockCosts(spec.block_sizes, step_s, reference.start_s)
    run_s = costs.isolated_run_s(pairs=1, least_steps=spec.measure.run_steps)
    return 3 * spec.measure.aba_runs * run_s  # the first has started, one in another rounding is yet to start


def aa_processes(spec: StudySpec, reference: WorkerReport, *, steps: int) -> int:
    """Returns how many processes an A/A run starts beside its reference, for `steps` of both within the budget."""
    budget_s = spec.search.time_budget
    asked = spec.measure.aa_processes
    each_s = beside_reference_s(reference, steps=steps)
    if budget_s is None or each_s <= 0.0:
        return asked
    # The reference itself is started once beside them, and once more in another rounding.
    fitting = int((AA_SHARE * budget_s - 2.0 * reference.start_s) / each_s)
    return min(asked, max(LEAST_AA, fitting))


def aa_limit_s(spec: StudySpec, *, begun_s: float) -> float:
    """Returns the seconds of the study from which an A/A run runs no more than it must: its plan may be too short."""
    budget_s = spec.search.time_budget
    return math.inf if budget_s is None else begun_s + AA_SHARE / 2.0 * budget_s


# ---------------------------------------------------------------------- power analysis


def power_analysis(spec: StudySpec, result: AaRecord) -> PowerAnalysis | None:
    """Returns the smallest gain that is proven 9 times in 10, and the time of proofs; None where it is not known."""
    noise = result.noise
    confirm = spec.confirm
    takes = durations_of(spec, result, ())
    if takes is None or not noise.start_s or confirm.processes < FIRST_LOOK:
        return None
    is_interleaved = result.comparison.mode == INTERLEAVED
    pairs = proof_size(noise, starts=spec.block_sizes.starts) if is_interleaved else 1
    pair_sd = math.hypot(math.sqrt(2.0) * noise.cautious_process_sd(), noise.later_sd / math.sqrt(pairs))
    smallest = smallest_gain(
        pair_sd,
        most=confirm.processes,
        finalists=confirm.finalists,
        isolated=confirm.isolated if is_interleaved else 0,
        min_effect=spec.measure.min_effect,
    )
    proof_s = proofs_s(spec, takes)
    return PowerAnalysis(pair_sd=pair_sd, most=confirm.processes, smallest=smallest, proof_s=proof_s)


def proofs_s(spec: StudySpec, takes: Durations) -> float:
    """Returns the seconds that are planned for the proof of the best finalist on one lane, isolated runs included."""
    return planned_pairs(spec.confirm.processes) * takes.pair_s + takes.isolated_s
