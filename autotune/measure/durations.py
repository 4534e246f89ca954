"""How long each piece of a study takes, the ETA of a whole study, and the power analysis of its proofs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.model.block_sizes import BlockCosts
from autotune.model.errors import LaunchError
from autotune.model.measurement import INTERLEAVED, WorkerReport
from autotune.model.records import AaRecord, ConfirmRun, LedgerRecord, PowerAnalysis, SessionRecord, TrialResult
from autotune.model.spec import StudySpec
from autotune.model.units import format_seconds
from autotune.rundir.store import Store
from autotune.stats.aa_noise import AaNoise, proof_size
from autotune.stats.estimates import SequentialPlan
from autotune.stats.long_run import soak_arm_s
from autotune.stats.proof import FIRST_LOOK, ISOLATED_PAIRS, proof_pairs, smallest_gain, study_power

AA_SHARE = 0.2
"""Share of a time budget beyond which an A/A run starts no more processes than it must."""

LEAST_AA = 2
"""Processes beside the living reference that an A/A run needs to tell a spread."""

PROOF_AA_RUNS = 6.0
"""What a study with one proof takes, about, over its least A/A run: 18 pairs of processes after 4 starts."""

RECENT = 20
"""Latest pairs of processes, or trials, from which their duration is estimated."""

ABLATIONS = 4
"""Settings of a finalist for which time is kept to leave each of them out in turn."""

SEARCHES, PROVES, LAST = ("A/A run", "screen", "search"), ("minimise", "confirm"), "soak"
"""Stages by what is still to do in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of one lane.

    Attributes:
        start_s: Until a process is ready.
        trial_s: A trial that is looked at once.
        block_pair_s: One pair of blocks; 0 where one process runs at a time.
        pair_s: A fresh pair of processes of a proof.
        isolated_s: All isolated runs of each arm that come after a proof; 0 where there are none.
        ablation_s: One setting left out, looked at once.
        soak_s: The winner for a while, and the reference as long; 0 where there is none.
    """

    start_s: float
    trial_s: float
    block_pair_s: float
    pair_s: float
    isolated_s: float
    ablation_s: float
    soak_s: float


def durations_of(spec: StudySpec, result: AaRecord, runs: Sequence[ConfirmRun]) -> Durations | None:
    """Returns the durations of a study's pieces; None where the A/A run does not say how long a pair takes.

    Args:
        runs: Pairs of processes that have run: where they took longer than was planned, that counts.
    """
    noise, step_s = result.noise, result.comparison.reference_step_s
    if not noise.pair_s:
        return None
    soak_s = 0.0
    if spec.confirm.soak:
        run_steps = None if spec.workload.can_interleave else spec.measure.run_steps
        least_s = max(spec.confirm.soak, spec.soak_steps({}) * step_s)
        soak_s = soak_arm_s(least_s, step_s=step_s, start_s=noise.start_s, run_steps=run_steps)
    planned = (_interleaved if result.comparison.mode == INTERLEAVED else _one_at_a_time)(spec, result, 2.0 * soak_s)
    took = [r.duration_s for r in runs if r.duration_s and r.stage != "isolated" and r.failure is None][-RECENT:]
    longer = max(1.0, statistics.median(took) / planned.pair_s) if took else 1.0  # candidates may choose kernels
    return replace(
        planned, pair_s=longer * planned.pair_s, isolated_s=longer * planned.isolated_s, soak_s=longer * planned.soak_s
    )


def _interleaved(spec: StudySpec, result: AaRecord, soak_s: float) -> Durations:
    costs, measure = _costs(spec, result), spec.measure
    least = SequentialPlan(cap=measure.pairs_cap).looks[0]
    run_s = costs.run_beside_pairs_s(pairs=pairs_of_blocks(spec, result.noise), least_steps=measure.run_steps)
    return Durations(
        start_s=costs.start_s,
        trial_s=costs.trial_s(least),
        block_pair_s=costs.pair_s,
        pair_s=pair_of_processes_s(spec, result),
        isolated_s=ISOLATED_PAIRS * 2.0 * run_s if spec.confirm.isolated else 0.0,
        ablation_s=costs.fresh_pair_s(least),
        soak_s=soak_s,
    )


def _one_at_a_time(spec: StudySpec, result: AaRecord, soak_s: float) -> Durations:
    aba_s = spec.measure.aba_runs * 3.0 * pair_of_processes_s(spec, result) / 2.0
    return Durations(
        start_s=result.noise.start_s,
        trial_s=aba_s,
        block_pair_s=0.0,
        pair_s=pair_of_processes_s(spec, result),
        isolated_s=0.0,
        ablation_s=aba_s,
        soak_s=soak_s,
    )


def _costs(spec: StudySpec, result: AaRecord) -> BlockCosts:
    step_s, aa_run = result.comparison.reference_step_s, result.noise
    return spec.block_sizes.costs(step_s=step_s, start_s=aa_run.start_s + aa_run.settle_steps * step_s)


def pairs_of_blocks(spec: StudySpec, noise: AaNoise) -> int:
    """Returns the pairs of blocks that each fresh pair of processes runs interleaved."""
    return proof_size(noise, starts=spec.block_sizes.starts)


def pair_of_processes_s(spec: StudySpec, result: AaRecord) -> float:
    """Returns the seconds of one fresh pair of processes of a proof."""
    noise = result.noise
    if result.comparison.mode == INTERLEAVED:
        return _costs(spec, result).fresh_pair_s(pairs_of_blocks(spec, noise))
    return 2.0 * noise.start_s + noise.pair_s


def minimising_s(spec: StudySpec, takes: Durations, *, sets: int) -> float:
    """Returns the seconds that are kept for minimising so many sets."""
    return sets * ABLATIONS * takes.ablation_s if spec.confirm.minimise else 0.0


def refuse_short_budget(spec: StudySpec, reference: WorkerReport, *, begun_s: float, aa_s: float) -> None:
    """Ends a study whose time budget is used up by its A/A run, once its reference has started.

    Args:
        begun_s: Seconds of the study when the reference was started.
        aa_s: Least seconds of the rest of the A/A run.

    Raises:
        LaunchError: If it is.
    """
    budget_s, used_s = spec.search.time_budget, begun_s + reference.start_s
    if budget_s is None or not reference.start_s or used_s + aa_s <= budget_s:
        return
    raise LaunchError(
        f"search.time_budget must hold the A/A run, search and proof but is {format_seconds(budget_s)}: the "
        f"reference takes {format_seconds(reference.start_s)} to start, so the A/A run would end only after "
        f"{format_seconds(used_s + aa_s)}, and a proof takes several times that. Give it at least "
        f"{format_seconds(used_s + PROOF_AA_RUNS * aa_s)}, or make the reference start faster (a smaller model, a "
        "compilation cache)"
    )


def interleaved_aa_s(reference: WorkerReport, *, processes: int, steps: int) -> float:
    """Returns the seconds of an interleaved A/A run after its reference has started.

    Args:
        reference: Starts once more, in another rounding.
        processes: Started beside it.
        steps: Steps of both arms that are run with each of those.
    """
    return reference.start_s + processes * _process_s(reference, steps)


def _process_s(reference: WorkerReport, steps: int) -> float:
    return reference.start_s + steps * statistics.median(reference.warmup_step_times_s or (0.0,))


def isolated_aa_s(spec: StudySpec, reference: WorkerReport) -> float:
    """Returns the same of one in ABA runs, while the first of its runs is in hand."""
    step_s = statistics.median(reference.warmup_step_times_s or (0.0,))
    costs = spec.block_sizes.costs(step_s=step_s, start_s=reference.start_s)
    run_s = costs.isolated_run_s(pairs=1, least_steps=spec.measure.run_steps)
    return 3 * spec.measure.aba_runs * run_s  # the first has started, one in another rounding is yet to start


def aa_processes(spec: StudySpec, reference: WorkerReport, *, steps: int) -> int:
    """Returns how many processes an A/A run starts beside its reference: fewer where the time budget is small.

    Args:
        steps: Steps of both arms that are run with each of the others.
    """
    budget_s, asked = spec.search.time_budget, spec.measure.aa_processes
    each_s = _process_s(reference, steps)
    if budget_s is None or each_s <= 0.0:
        return asked
    # The reference itself is started once beside them, and once more in another rounding.
    fitting = int((AA_SHARE * budget_s - 2.0 * reference.start_s) / each_s)
    return min(asked, max(LEAST_AA, fitting))


def floor_limit_s(spec: StudySpec, *, begun_s: float) -> float:
    """Returns the seconds of the study from which an interleaved A/A run runs no more than it must.

    Its length is planned by warm-up steps; on a busy machine others take several times as long.

    Args:
        begun_s: Seconds of the study when its reference has started.
    """
    budget_s = spec.search.time_budget
    return math.inf if budget_s is None else begun_s + AA_SHARE / 2.0 * budget_s


# ---------------------------------------------------------------------- power analysis


def power_analysis(spec: StudySpec, result: AaRecord) -> PowerAnalysis | None:
    """Returns the smallest gain that is proven 9 times in 10, and its cost; None where the A/A run cannot say.

    Spreads from few processes are often too small, so it rests on an upper limit: `AaNoise.cautious_process_sd`.
    """
    noise, most = result.noise, spec.confirm.processes
    if not (noise.start_s and noise.pair_s):
        return None
    if most < FIRST_LOOK:
        return None
    pairs = pairs_of_blocks(spec, noise) if result.comparison.mode == INTERLEAVED else 1
    pair_s = pair_of_processes_s(spec, result)
    pair_sd = _round_up(math.hypot(math.sqrt(2.0) * noise.cautious_process_sd(), noise.within_sd / math.sqrt(pairs)))
    finalists, min_effect = spec.confirm.finalists, spec.measure.min_effect
    isolated = spec.confirm.isolated if result.comparison.mode == INTERLEAVED else 0
    how: dict[str, Any] = {"most": most, "finalists": finalists, "isolated": isolated, "min_effect": min_effect}
    smallest = smallest_gain(pair_sd, **how)
    cost = study_power(smallest, pair_sd, **how) if smallest else None
    return PowerAnalysis(
        pair_sd=pair_sd, pairs=pairs, pair_s=pair_s, most=most, smallest=smallest,
        proof_s=cost.pairs * pair_s if cost else None,
    )  # fmt: skip


def _round_up(sd: float) -> float:
    """Rounds up by at most 2 % to one of few figures: thousands of simulated studies share the result of each."""
    return 1.02 ** math.ceil(math.log(sd) / math.log(1.02)) if sd > 0.0 else 0.0


# ---------------------------------------------------------------------- ETA


def eta_s(store: Store, stage: str, *, used_s: float, stage_s: float) -> float | None:
    """Returns the seconds until a study ends at the latest, about: by its trials and proofs, or by a budget.

    Args:
        store: The run directory, which somebody else may be writing.
        stage: The current one.
        used_s: Of the study's time.
        stage_s: Of the stage.

    Returns:
        None where there is no budget, and the A/A run is not known yet or the stage is none of a search.
    """
    known = [s for s in (_planned_s(store, stage, used_s, stage_s), *_budgets_s(store, used_s)) if s is not None]
    return max(0.0, min(known)) if known else None


def _budgets_s(store: Store, used_s: float) -> list[float]:
    search, found = store.spec.search, []
    if search.time_budget is not None:
        found.append(search.time_budget - used_s)
    ledger, aa_run = store.last(LedgerRecord), store.last(AaRecord)
    if search.gpu_hours is not None and ledger is not None and aa_run is not None:
        devices = aa_run.reference.device_count * max(1, len(ledger.lanes))
        found.append((3600 * search.gpu_hours - ledger.device_s) / devices)
    return found


def _planned_s(store: Store, stage: str, used_s: float, stage_s: float) -> float | None:
    """Returns what is left of trials, proofs and soak, if each takes as long as those before it, or as planned."""
    spec, aa_runs, runs = store.spec, store.of(AaRecord), store.of(ConfirmRun)
    takes = durations_of(spec, aa_runs[0], runs) if aa_runs else None
    if takes is None or stage not in (*SEARCHES, *PROVES, LAST):
        return None
    if stage == LAST:
        return takes.soak_s - stage_s
    trials, ledger, session = store.of(TrialResult), store.last(LedgerRecord), store.last(SessionRecord)
    lanes = max(1, len(ledger.lanes)) if ledger else 1
    proofs_s = proofs_of_study_s(spec, aa_runs[0], takes) / lanes
    proofs_s += minimising_s(spec, takes, sets=spec.confirm.finalists)
    if stage in PROVES:
        spent_s = used_s - max((t.at_s for t in trials), default=used_s)
        return max(0.0, proofs_s - spent_s) + takes.soak_s
    ends_s = [t.at_s for t in trials[-RECENT:]]  # of all lanes together
    each_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) if len(ends_s) > 1 else takes.trial_s / lanes
    asked = session.asked_trials if session else spec.search.trials
    return max(0, asked - len(trials)) * each_s + proofs_s + takes.soak_s


def proofs_of_study_s(spec: StudySpec, aa_run: AaRecord, takes: Durations) -> float:
    """Returns the seconds of all proofs of a study on one lane, within which 97 of 100 are through."""
    if aa_run.power is not None and aa_run.power.proof_s is not None:
        return aa_run.power.proof_s
    return proof_pairs(spec.confirm.finalists, most=spec.confirm.processes) * takes.pair_s
