"""Decides what the pairs of processes of a proof, and the soak after it, say of a set."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autotune.model.files import Table
from autotune.model.measurement import (
    INTERLEAVED,
    Arm,
    Failure,
    FailureKind,
    Pair,
    WorkPerStep,
    held_in_one_arm,
    log_ratio,
    ratio_of_work,
)
from autotune.model.records import (
    AB,
    ISOLATED,
    AaRecord,
    ConfirmRun,
    FinalistResult,
    Objection,
    ProofRecord,
    SoakArms,
)
from autotune.model.units import format_change, format_seconds, format_share
from autotune.stats.estimates import (
    Estimate,
    Verdict,
    estimate_pairs,
    estimate_processes,
    is_surely_positive,
)
from autotune.stats.long_run import (
    Lasting,
    LastingGain,
    Stalls,
    TotalTime,
    all_stalls,
    apart_total,
    compare_totals,
    find_leak,
    lasting_gain,
    long_run_ratio,
    slower_total,
)
from autotune.stats.proof import ProofPlan, look

Runs = Sequence[ConfirmRun]

LEAST_SEGMENTS = 4  # fewest segments of a long run for its time to be judged
TENTHS = 10  # parts of a long run whose step times are reported


def figures_of(pairs: Sequence[Pair], work: WorkPerStep | None) -> Table:
    """Computes the fields of a `ConfirmRun` from its raw pairs; totals are untrimmed."""
    reference_s = [t for p in pairs for t in p.reference_s]
    candidate_s = [t for p in pairs for t in p.candidate_s]
    log_ratios = [log_ratio(p, work) for p in pairs]
    return {
        "pair_count": len(pairs),
        "reference_step_s": statistics.median(reference_s),
        "candidate_step_s": statistics.median(candidate_s),
        "untold": untold_share(pairs),
        "total": compare_totals(reference_s, candidate_s, work_ratio=ratio_of_work(work)),
        "log_ratio": math.log(estimate_pairs(log_ratios).ratio),
    }


def untold_share(pairs: Sequence[Pair]) -> float | None:
    """Share of a candidate's reported time that our own clock ran longer than for the reference."""
    reference_s = 0.0
    candidate_s = 0.0
    reported_s = 0.0
    for pair in pairs:
        if pair.reference_clock_s is None or pair.candidate_clock_s is None:
            return None
        reference_s += pair.reference_clock_s - sum(pair.ran_s(Arm.REFERENCE))
        candidate_told_s = sum(pair.ran_s(Arm.CANDIDATE))
        candidate_s += pair.candidate_clock_s - candidate_told_s
        reported_s += candidate_told_s
    return (candidate_s - reference_s) / reported_s


def veto_of(runs: Runs, typical: Estimate | None) -> Objection | None:
    """Why a set is no winner although its `typical` step may be faster; None if it may win."""
    if typical is None:
        return None
    if reasons := held_in_one_arm([r.during for r in runs if r.during is not None]):
        return Objection("; ".join(reasons))
    share = _untold(runs)
    if share > max(LEAST_UNTOLD, UNTOLD_SHARE * (1.0 - typical.ratio)):
        return Objection(
            f"by the clock of autotune its steps take {share:.1%} longer than it tells, not so "
            "the reference"
        )
    totals, log_ratios = _totals_of(runs)
    total = slower_total(totals, log_ratios, typical) if len(totals) >= 2 else None
    if total is None:
        return None
    reason = f"{_both_stalls(*all_stalls(totals))}: {_in_total(total.ratio, typical)}"
    return Objection(reason, is_slower_in_total=True)


LEAST_UNTOLD = 0.01  # share of a step from which on untold time counts
UNTOLD_SHARE = 0.25  # share of the gain from which on untold time counts
ALPHA_UNTOLD = 0.001


def _untold(runs: Runs) -> float:
    """Untold share of a candidate's time at equal work; 0 if it is not surely there."""
    shares = [r.untold for r in runs if r.untold is not None and r.work is None]
    if len(shares) < 2 or not is_surely_positive(shares, alpha=ALPHA_UNTOLD):
        return 0.0
    return statistics.fmean(shares)


def _totals_of(runs: Runs) -> tuple[list[TotalTime], list[float]]:
    """Total times and typical log ratios of the pairs of processes that have both."""
    totals = []
    log_ratios = []
    for run in runs:
        if run.total is not None and run.log_ratio is not None:
            totals.append(run.total)
            log_ratios.append(run.log_ratio)
    return totals, log_ratios


class SoakVerdict(NamedTuple):
    """What a soak says of a set: nothing against it if neither is set."""

    failure: Failure | None = None  # a leak, or a total time without the proven gain
    unsettled: str | None = None  # why it does not show that the gain stays

    @property
    def is_passed(self) -> bool:
        """Whether the gain stays and nothing speaks against the set."""
        return self.failure is None and self.unsettled is None


def judge_soak(arms: SoakArms) -> SoakVerdict:
    """Returns what a soak says of a set, at the first look at which it passes or at the last."""
    verdict = SoakVerdict()
    for count in range(1, len(arms.looks) + 1):
        verdict = _judge_looks(arms.model_copy(update={"looks": arms.looks[:count]}))
        if verdict.is_passed:
            break
    return verdict


def _judge_looks(arms: SoakArms) -> SoakVerdict:
    """The gravest thing that all looks together show against the set."""
    candidate = arms.looks[-1].candidate
    reference = arms.looks[-1].reference or candidate.model_copy(update={"host": (), "device": ()})
    for name, samples, reference_samples in (
        ("memory", candidate.host, reference.host),
        ("device memory", candidate.device, reference.device),
    ):
        leak = find_leak(samples, reference_samples, step_s=candidate.stalls.typical_s)
        if leak is not None:
            growth = format_growth(*leak)
            return _failed(FailureKind.LEAK, f"its {name} grows by {growth}")
    pairs = [(x.candidate, x.reference) for x in arms.looks if x.reference is not None]
    if len(pairs) < len(arms.looks):
        return SoakVerdict(
            unsettled="the reference failed beside it, so total times are not compared"
        )
    if any(
        len(c.segment_s) != len(r.segment_s) or len(c.segment_s) < LEAST_SEGMENTS for c, r in pairs
    ):
        return SoakVerdict(
            unsettled="its long run had too few steps to tell whether its gain stays"
        )
    gain = lasting_of(arms)
    is_lost = gain.finding is Lasting.LOST
    if gain.finding is Lasting.STAYS or (arms.proven is None and not is_lost):
        return SoakVerdict()
    groups = np.array_split(candidate.segment_s, min(TENTHS, len(candidate.segment_s)))
    tenths = [statistics.fmean(group) for group in groups]
    ratios = " ".join(f"{tenth / tenths[0]:.2f}" for tenth in tenths)
    along = f"step times along its run, of its first tenth: {ratios}"
    if not is_lost:
        return SoakVerdict(unsettled=f"{_why_unsettled(gain, arms)}; {along}")
    return _failed(
        FailureKind.SLOWER_IN_TOTAL,
        f"over {candidate.step_count} steps it is {_in_total(gain.late.ratio, arms.proven)}: "
        f"{_both_stalls(candidate.stalls, reference.stalls)}; {along}",
    )


def _failed(kind: FailureKind, message: str) -> SoakVerdict:
    return SoakVerdict(Failure(kind=kind, message=message, phase="soak"))


def lasting_of(arms: SoakArms) -> LastingGain:
    """Returns what looks at long runs of both arms say of the proven gain."""
    ratios = []
    for long_runs in arms.looks:
        candidate = long_runs.candidate
        reference = long_runs.reference
        if reference is None:
            continue
        early = None
        if candidate.early_s is not None and reference.early_s is not None:
            early = candidate.early_s / reference.early_s
        ratios.append(
            long_run_ratio(
                candidate.segment_s,
                reference.segment_s,
                work_ratio=ratio_of_work(arms.work),
                early=early,
                early_share=max(1, candidate.early_steps) / candidate.step_count,
                processes=min(candidate.processes, reference.processes),
            )
        )
    return lasting_gain(ratios, proven=arms.proven, process_sd=arms.process_sd)


def _why_unsettled(gain: LastingGain, arms: SoakArms) -> str:
    """Says what long runs could and could not see of a gain, and which would do."""
    late = gain.late
    reason = (
        f"and a loss of less than {format_share(gain.unseen)} could not be seen: `confirm.soaks "
        f"= {gain.looks}` (now {arms.most}) would do, or processes that differ less"
    )
    if gain.finding is Lasting.SHRINKING:
        reason = (
            "and its gain was still shrinking at their end: a `confirm.soak` 4 times as long tells"
        )
    elif gain.finding is Lasting.FIRST:
        reason = (
            "but not in the first one: what that left outside of the program's folder may make "
            "later ones faster; clear it, and use a new run directory"
        )
    return (
        f"over the second half of its long runs ({late.pair_count} of each arm) it is "
        f"{format_change(late.ratio)} [{late.low:.3f}, {late.high:.3f}]{_though(arms.proven)}, "
        f"{reason}"
    )


def _in_total(total: float, typical: Estimate | None) -> str:
    return f"{format_change(total)} in total{_though(typical)}"


def _though(typical: Estimate | None) -> str:
    if typical is None:
        return ""
    return f" though a typical step is {format_change(typical.ratio)}"


def _both_stalls(candidate: Stalls, reference: Stalls) -> str:
    return f"{describe_stalls(candidate)} (reference: {describe_stalls(reference)})"


def describe_stalls(stalls: Stalls) -> str:
    """Returns how many stalls of what size: ``one stall of 500 ms in 40 steps, 5 in all``."""
    if not stalls.count:
        return "no stall"
    size = stalls.typical_s + stalls.lost_s / stalls.count
    return (
        f"one stall of {format_seconds(size)} in {round(stalls.steps / stalls.count)} steps, "
        f"{stalls.count} in all"
    )


def format_growth(candidate: float, reference: float) -> str:
    """Growth of memory: ``2.0 MB a step (reference 0.0)``."""
    unit = 1e3
    name = "kB"
    if max(abs(candidate), abs(reference)) >= 5e4:
        unit = 1e6
        name = "MB"
    return f"{candidate / unit:z.1f} {name} a step (reference {reference / unit:z.1f})"


class Standing(NamedTuple):
    """Sequential state of a proof."""

    result: FinalistResult
    is_over: bool


def standing(proof: ProofRecord, runs: Runs, *, most: int, min_effect: float) -> Standing:
    """Judges a proof by its pairs of processes so far, at most `most`, and whether more are due.

    Pairs count in the order of their numbers, up to the look at which the proof ended. Isolated
    runs of a proven set only have to show that it is faster, not by how much.
    """
    runs = runs_of(proof, runs)
    ratios = [r.log_ratio for r in runs if r.log_ratio is not None]
    fields: Table = {
        "stage": proof.stage,
        "trial": proof.trial,
        "settings": proof.settings,
        "verdict": Verdict.UNRESOLVED,
        "process_count": len(ratios),
        "most": most,
        "work": next((r.work for r in runs if r.work is not None), None),
    }
    failure = next((r.failure for r in runs if r.failure is not None), None)
    if failure is not None:
        fields |= {"failure": failure, "reason": "a process failed"}
        return Standing(FinalistResult(**fields), is_over=True)
    plan = ProofPlan(
        base=proof.base, error=proof.error, least=proof.least, other_side=proof.other_side
    )
    if proof.stage == ISOLATED:
        min_effect = 0.0

    def is_clear(count: int) -> bool:
        return veto_of(runs[:count], plan.estimate(ratios[:count])) is None

    state = look(
        ratios,
        plan,
        most=most,
        min_effect=min_effect,
        is_clear=is_clear,
        ends_without_gain=proof.stage != AB,  # of variants it is an answer too
    )
    if state.used < 2:
        return Standing(FinalistResult(**fields), is_over=False)
    ratios = ratios[: state.used]
    corrected = plan.estimate(ratios)
    fields |= {
        "estimate": estimate_processes(ratios),
        "corrected": corrected,
        "verdict": plan.verdict(ratios, min_effect=min_effect),
        "process_count": state.used,
        "reason": state.reason,
    }
    if fields["verdict"] is Verdict.FASTER and not state.holds:
        fields["verdict"] = Verdict.UNRESOLVED
        veto = veto_of(runs[: state.used], corrected)
        if state.stop and veto is not None:
            fields["veto"] = veto.reason
            fields["is_slower_in_total"] = veto.is_slower_in_total
    return Standing(FinalistResult(**fields), is_over=state.stop)


def runs_of(proof: ProofRecord, runs: Runs) -> list[ConfirmRun]:
    """Returns the pairs of processes of one proof, in order, up to the first missing one."""
    key = (proof.stage, proof.settings)
    by_repeat = {r.repeat: r for r in runs if (r.stage, r.settings) == key}
    present = itertools.takewhile(by_repeat.__contains__, itertools.count())
    return [by_repeat[repeat] for repeat in present]


class Report(NamedTuple):
    """What is reported of a proven set."""

    estimate: Estimate | None = None  # see `reported_gain`
    isolated: int = 0  # isolated runs of each arm that are part of it
    objection: Objection | None = None


def is_interleaved(proven: FinalistResult, aa_run: AaRecord | None, runs: Runs) -> bool:
    """Whether pairs of a proof were interleaved, so that isolated runs must show the set, too."""
    if aa_run is None or aa_run.comparison.mode != INTERLEAVED:
        return False
    proof = (proven.stage, proven.settings)
    return any((r.stage, r.settings) == proof and not r.is_isolated for r in runs)


def report_of(
    proven: FinalistResult,
    isolated: FinalistResult | None,
    runs: Runs,
    soak: SoakArms | None = None,
) -> Report:
    """Returns the figure to report of a proven set, and what its isolated runs say against it.

    Isolated runs that cannot tell are no consent.
    """
    stages = (proven.stage, ISOLATED)
    runs = [r for r in runs if r.settings == proven.settings and r.stage in stages]
    estimate = reported_gain(proven, isolated, runs, soak)
    if isolated is None:
        return Report(estimate)
    objection = _isolated_objection(proven, isolated)
    if objection is not None:
        return Report(estimate, objection=objection)
    count = isolated.process_count
    if estimate == reported_gain(proven, None, runs, soak):
        count = 0
    return Report(estimate, count, veto_of(runs, proven.corrected))


def _isolated_objection(proven: FinalistResult, isolated: FinalistResult) -> Objection | None:
    """What isolated runs say against a set; None if they show a gain as the proof does."""
    failure = isolated.failure
    if failure is not None:
        kind = failure.kind.replace("_", " ")
        return Objection(f"{kind} in a fresh process: {failure.message}"[:300])
    if isolated.objection is not None:
        return isolated.objection
    alone = isolated.estimate
    paired = proven.estimate
    bound = proven.corrected
    if alone is None or paired is None or bound is None:
        return Objection(
            "there was no time for isolated runs, without which interleaved pairs prove nothing"
        )
    verdict = "cannot tell whether it is faster"
    if alone.low > bound.high:
        verdict = "contradict the interleaved pairs"
    elif isolated.is_passed:
        return None
    return Objection(
        f"isolated runs {verdict}: isolated, the set is {format_change(alone.ratio)} than the "
        f"reference [{alone.low:.3f}, {alone.high:.3f}] over {isolated.process_count} runs of "
        f"each, interleaved {format_change(paired.ratio)}; "
        '`measure.mode = "aba"` measures everything in isolation, and a larger '
        "`confirm.isolated` allows more runs"
    )


def reported_gain(
    proven: FinalistResult,
    isolated: FinalistResult | None,
    runs: Runs,
    soak: SoakArms | None,
) -> Estimate | None:
    """Returns the estimate to report for a winner.

    Its interval holds at all looks together and covers those of isolated runs, of total times and
    of the second half of long runs; where the figure lies outside one, that one's is reported.
    """
    gain = proven.corrected
    if gain is None:
        return None
    estimates = []
    totals, log_ratios = _totals_of(runs)
    if len(totals) >= 2:
        estimates.append(apart_total(totals, log_ratios, gain))
    if isolated is not None:
        estimates.append(isolated.estimate)
    if soak is not None and soak.proven is not None:
        estimates.append(lasting_of(soak).late)
    for estimate in estimates:
        if estimate is None or estimate.high >= 1.0:
            continue
        if not estimate.low <= gain.ratio <= estimate.high:
            gain = replace(gain, ratio=estimate.ratio)
        gain = replace(gain, low=min(gain.low, estimate.low), high=max(gain.high, estimate.high))
    return gain
