"""Decides what the pairs of processes of a proof, and the soak after it, say of a set."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autotune.model.measurement import (
    INTERLEAVED,
    Arm,
    Failure,
    FailureKind,
    Pair,
    WorkPerStep,
    held_in_one_arm,
    log_ratio,
)
from autotune.model.records import (
    AB,
    ISOLATED,
    AaRecord,
    ConfirmRun,
    FinalistResult,
    Objection,
    ProofRecord,
    SoakArm,
    SoakArms,
    SoakLook,
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
    LongRunRatio,
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

PHASE = "soak"

LEAST_SEGMENTS = 4
"""Of each run, for its time to be judged."""

TENTHS = 10
"""Parts of a long run whose step times are told."""


def figures_of(pairs: Sequence[Pair], work: WorkPerStep | None) -> dict[str, Any]:
    """The fields of a `ConfirmRun` that its raw pairs give; totals are untrimmed, and per token
    where work differs.
    """
    reference_s = [t for p in pairs for t in p.reference_s]
    candidate_s = [t for p in pairs for t in p.candidate_s]
    return {
        "pair_count": len(pairs),
        "reference_step_s": statistics.median(reference_s),
        "candidate_step_s": statistics.median(candidate_s),
        "untold": untold_share(pairs),
        "total": compare_totals(
            reference_s, candidate_s, work_ratio=work.ratio if work is not None else 1.0
        ),
        "log_ratio": math.log(estimate_pairs([log_ratio(p, work) for p in pairs]).ratio),
    }


def untold_share(pairs: Sequence[Pair]) -> float | None:
    """Share of a candidate's told time by which our own clock ran longer, beyond what it did for
    the reference.

    What a block takes beside its steps is the same in both arms; a program whose clock or figures
    are wrong is not. None where no clock ran.
    """
    reference_s = 0.0
    candidate_s = 0.0
    told_s = 0.0
    for pair in pairs:
        if pair.reference_clock_s is None or pair.candidate_clock_s is None:
            return None
        reference_s += pair.reference_clock_s - sum(pair.ran_s(Arm.REFERENCE))
        candidate_s += pair.candidate_clock_s - sum(pair.ran_s(Arm.CANDIDATE))
        told_s += sum(pair.ran_s(Arm.CANDIDATE))
    return (candidate_s - reference_s) / told_s


def veto_of(runs: Sequence[ConfirmRun], typical: Estimate | None) -> Objection | None:
    """Why a set is no winner although its `typical` step may be faster; None if nothing speaks
    against it.
    """
    if typical is None:
        return None
    if held := held_in_one_arm([r.during for r in runs if r.during is not None]):
        return Objection("; ".join(held))
    share = _untold(runs, typical)
    if share is not None:
        return Objection(
            f"by the clock of autotune its steps take {share:.1%} longer than it tells, not so "
            "the reference"
        )
    totals, log_ratios = _told(runs)
    if len(totals) < 2 or (total := slower_total(totals, log_ratios, typical)) is None:
        return None
    reason = f"{_stalls_beside(*all_stalls(totals))}: {_in_total(total.ratio, typical)}"
    return Objection(reason, is_slower_in_total=True)


LEAST_UNTOLD, UNTOLD_SHARE = 0.01, 0.25
"""Untold time that counts: so large a share of a step, and of the gain."""

ALPHA_UNTOLD = 0.001


def _untold(runs: Sequence[ConfirmRun], typical: Estimate) -> float | None:
    """Untold share of a candidate's time, if it is surely there and a good part of the gain."""
    shares = [
        r.untold for r in runs if r.untold is not None and r.work is None
    ]  # else batches take other times
    if len(shares) < 2:
        return None
    mean = statistics.fmean(shares)
    is_large = mean > max(LEAST_UNTOLD, UNTOLD_SHARE * (1.0 - typical.ratio))
    return mean if is_large and is_surely_positive(shares, alpha=ALPHA_UNTOLD) else None


def _told(runs: Sequence[ConfirmRun]) -> tuple[list[TotalTime], list[float]]:
    """Total times and typical log ratios of the pairs of processes that have both."""
    told = [(r.total, r.log_ratio) for r in runs if r.total is not None and r.log_ratio is not None]
    return [total for total, _ in told], [log_ratio for _, log_ratio in told]


class SoakVerdict(NamedTuple):
    """What a soak says of a set: nothing against it if neither is set."""

    failure: Failure | None = None
    """A leak, or a total time without the gain that was proven."""
    unsettled: str | None = None
    """Why it does not show that the gain stays, as a clause."""

    @property
    def is_passed(self) -> bool:
        """Whether the gain stays and nothing speaks against the set."""
        return self.failure is None and self.unsettled is None


def judge_soak(arms: SoakArms) -> SoakVerdict:
    """Returns what a soak says of a set: it passes at the first look at which all looks so far say
    so.
    """
    for count in range(1, len(arms.looks)):
        verdict = _judge_looks(arms, arms.looks[:count])
        if verdict.is_passed:
            return verdict
    return _judge_looks(arms, arms.looks)


def _judge_looks(arms: SoakArms, looks: Sequence[SoakLook]) -> SoakVerdict:
    """The gravest thing that some looks show against the set."""
    for message in _leaks(looks[-1]):
        return SoakVerdict(Failure(kind=FailureKind.LEAK, message=message, phase=PHASE))
    pairs = [(x.candidate, x.reference) for x in looks if x.reference is not None]
    if len(pairs) < len(looks):
        return SoakVerdict(
            unsettled="the reference failed beside it, so total times are not compared"
        )
    if any(
        len(mine.segment_s) != len(base.segment_s) or len(mine.segment_s) < LEAST_SEGMENTS
        for mine, base in pairs
    ):
        return SoakVerdict(
            unsettled="its long run had too few steps to tell whether its gain stays"
        )
    gain = lasting_of(arms, looks)
    if gain.finding is Lasting.STAYS or (arms.proven is None and gain.finding is not Lasting.LOST):
        return SoakVerdict()
    mine, base = pairs[-1]
    tenths = [
        statistics.fmean(part)
        for part in np.array_split(mine.segment_s, min(TENTHS, len(mine.segment_s)))
    ]
    along = (
        "step times along its run, of its first tenth: "
        f"{' '.join(f'{t / tenths[0]:.2f}' for t in tenths)}"
    )
    if gain.finding is not Lasting.LOST:
        return SoakVerdict(unsettled=f"{_why_unsettled(gain, arms)}; {along}")
    message = (
        f"over {mine.step_count} steps it is {_in_total(gain.late.ratio, arms.proven)}: "
        f"{_stalls_beside(mine.stalls, base.stalls)}; {along}"
    )
    return SoakVerdict(Failure(kind=FailureKind.SLOWER_IN_TOTAL, message=message, phase=PHASE))


def lasting_of(arms: SoakArms, looks: Sequence[SoakLook]) -> LastingGain:
    """Returns what looks at long runs of both arms say of the proven gain."""
    work_ratio = arms.work.ratio if arms.work is not None else 1.0
    ratios = [
        _ratio_of(x.candidate, x.reference, work_ratio) for x in looks if x.reference is not None
    ]
    return lasting_gain(ratios, proven=arms.proven, process_sd=arms.process_sd)


def _ratio_of(candidate: SoakArm, reference: SoakArm, work_ratio: float) -> LongRunRatio:
    """One look at long runs of both arms."""
    return long_run_ratio(
        candidate.segment_s,
        reference.segment_s,
        work_ratio=work_ratio,
        early=candidate.early_s / reference.early_s
        if candidate.early_s and reference.early_s
        else None,
        early_share=max(1, candidate.early_steps) / candidate.step_count,
        processes=min(candidate.processes, reference.processes),
    )


def _why_unsettled(gain: LastingGain, arms: SoakArms) -> str:
    """Says what long runs could and could not see of a gain, and which would do."""
    late = gain.late
    advice = {
        Lasting.SHRINKING: "and its gain was still shrinking at their end: a `confirm.soak` 4 "
        "times as long tells",
        Lasting.FIRST: "but not in the first one: what that left outside of the program's folder "
        "may make later ones "
        "faster; clear it, and use a new run directory",
    }
    reason = advice.get(gain.finding) or (
        f"and a loss of less than {format_share(gain.unseen)} could not be seen: `confirm.soaks "
        f"= {gain.looks}` (now "
        f"{arms.most}) would do, or processes that differ less"
    )
    return (
        f"over the second half of its long runs ({late.pair_count} of each arm) it is "
        f"{format_change(late.ratio)} "
        f"[{late.low:.3f}, {late.high:.3f}]{_though(arms.proven)}, {reason}"
    )


def _leaks(look: SoakLook) -> Iterator[str]:
    """Says which memory grows in the candidate's process."""
    mine = look.candidate
    base = look.reference
    for name, samples, beside in (
        ("memory", mine.host, base.host if base else ()),
        ("device memory", mine.device, base.device if base else ()),
    ):
        leak = find_leak(samples, beside, step_s=mine.stalls.typical_s)
        if leak is not None:
            yield f"its {name} grows by {format_growth(leak.candidate, leak.reference)}"


def _in_total(total: float, typical: Estimate | None) -> str:
    return f"{format_change(total)} in total{_though(typical)}"


def _though(typical: Estimate | None) -> str:
    return "" if typical is None else f" though a typical step is {format_change(typical.ratio)}"


def _stalls_beside(mine: Stalls, base: Stalls) -> str:
    return f"{describe_stalls(mine)} (reference: {describe_stalls(base)})"


def describe_stalls(stalls: Stalls) -> str:
    """Returns how many stalls of what size: ``one stall of 500 ms in 40 steps, 5 in all``."""
    if not stalls.count:
        return "no stall"
    size = stalls.typical_s + stalls.lost_s / stalls.count
    return (
        f"one stall of {format_seconds(size)} in {round(stalls.steps / stalls.count)} steps, "
        f"{stalls.count} in all"
    )


def format_growth(mine: float, base: float) -> str:
    """Growth of memory: ``2.0 MB a step (reference 0.0)``."""
    unit, name = (1e6, "MB") if max(abs(mine), abs(base)) >= 5e4 else (1e3, "kB")
    return f"{mine / unit:z.1f} {name} a step (reference {base / unit:z.1f})"


class Standing(NamedTuple):
    """Sequential state of a proof: its verdict so far, and whether it has ended."""

    result: FinalistResult
    is_over: bool


def standing(
    proof: ProofRecord, runs: Sequence[ConfirmRun], *, most: int, min_effect: float
) -> Standing:
    """The verdict of a proof so far, and whether more pairs of processes are to be run.

    Pairs count in the order of their numbers, up to the first missing one and to the look at which
    the proof ended. Isolated runs of a proven set only have to show that it is faster, not by how
    much.

    Args:
        runs: Pairs of processes, those of other proofs included.
        most: Pairs after which it ends in any case.
    """
    mine = runs_of(proof, runs)
    base = FinalistResult(
        stage=proof.stage,
        trial=proof.trial,
        settings=proof.settings,
        verdict=Verdict.UNRESOLVED,
        process_count=len(mine),
        most=most,
        work=next((r.work for r in mine if r.work is not None), None),
    )
    ratios = [r.log_ratio for r in mine if r.log_ratio is not None]
    if (failure := next((r.failure for r in mine if r.failure is not None), None)) is not None:
        update = {"failure": failure, "process_count": len(ratios), "reason": "a process failed"}
        return Standing(base.model_copy(update=update), is_over=True)
    plan = ProofPlan(
        base=proof.base, error=proof.error, least=proof.least, other_side=proof.other_side
    )
    if proof.stage == ISOLATED:
        min_effect = 0.0

    def is_clear(count: int) -> bool:
        return veto_of(mine[:count], plan.estimate(ratios[:count])) is None

    ends = proof.stage != AB  # of two variants, what is excluded is an answer too
    found = look(
        ratios, plan, most=most, min_effect=min_effect, is_clear=is_clear, ends_without_gain=ends
    )
    used = found.used if found.stop else len(mine)
    if used < 2:
        return Standing(base, is_over=False)
    corrected = plan.estimate(ratios[:used])
    verdict = plan.verdict(ratios[:used], min_effect=min_effect)
    update = {
        "estimate": estimate_processes(ratios[:used]),
        "corrected": corrected,
        "verdict": verdict,
        "process_count": used,
        "reason": found.reason,
    }
    if verdict is Verdict.FASTER and not found.holds:
        update["verdict"] = Verdict.UNRESOLVED
        veto = veto_of(mine[:used], corrected)
        if found.stop and veto is not None:
            update |= {"veto": veto.reason, "is_slower_in_total": veto.is_slower_in_total}
    return Standing(base.model_copy(update=update), is_over=found.stop)


def runs_of(proof: ProofRecord, runs: Sequence[ConfirmRun]) -> list[ConfirmRun]:
    """Returns the pairs of processes of one proof, in order, up to the first missing one."""
    by_repeat = {
        r.repeat: r for r in runs if r.stage == proof.stage and r.settings == proof.settings
    }
    present = itertools.takewhile(by_repeat.__contains__, itertools.count())
    return [by_repeat[repeat] for repeat in present]


class Report(NamedTuple):
    """What is reported of a proven set."""

    estimate: Estimate | None = None
    """See `reported_gain`."""
    isolated: int = 0
    """Isolated runs of each arm that are part of it."""
    objection: Objection | None = None


def is_alone_due(
    proven: FinalistResult, aa_run: AaRecord | None, runs: Sequence[ConfirmRun], *, asked: int
) -> bool:
    """Whether isolated runs must show a proven set, too: the study asks for some, and its pairs
    were interleaved.
    """
    of_proof = [r for r in runs if (r.stage, r.settings) == (proven.stage, proven.settings)]
    is_interleaved = aa_run is not None and aa_run.comparison.mode == INTERLEAVED
    return asked > 0 and is_interleaved and not all(r.is_isolated for r in of_proof)


def report_of(
    proven: FinalistResult,
    isolated: FinalistResult | None,
    runs: Sequence[ConfirmRun],
    soak: SoakArms | None = None,
) -> Report:
    """The figure to report of a proven set, or what its isolated runs say against it, if there are
    any.

    Isolated runs that cannot tell are no consent.

    Args:
        soak: Its long runs; None before them, or without any.
    """
    mine = [
        r for r in runs if r.settings == proven.settings and r.stage in (proven.stage, ISOLATED)
    ]
    estimate = reported_gain(proven, isolated, mine, soak)
    if isolated is None:
        return Report(estimate)
    if isolated.failure is not None:
        reason = (
            f"{isolated.failure.kind.replace('_', ' ')} in a fresh process: "
            f"{isolated.failure.message}"
        )[:300]
        return Report(estimate, objection=Objection(reason))
    if isolated.objection is not None:
        return Report(estimate, objection=isolated.objection)
    if not isolated.is_passed or _is_apart(proven, isolated):
        return Report(estimate, objection=Objection(_not_alone(proven, isolated)))
    counts = estimate != reported_gain(proven, None, mine, soak)
    return Report(
        estimate,
        isolated=isolated.process_count if counts else 0,
        objection=veto_of(mine, proven.corrected),
    )


def _is_apart(proven: FinalistResult, isolated: FinalistResult) -> bool:
    """Whether isolated runs surely show less than the proof: then its figure is of the neighbour,
    or of a beginning.
    """
    if isolated.estimate is None or proven.corrected is None:
        return False
    return isolated.estimate.low > proven.corrected.high


def _not_alone(proven: FinalistResult, isolated: FinalistResult) -> str:
    """Says that isolated runs do not show a gain, and what they show."""
    found = isolated.estimate
    beside = proven.estimate
    if found is None or beside is None:
        return "there was no time for isolated runs, without which interleaved pairs prove nothing"
    does = (
        "contradict the interleaved pairs"
        if _is_apart(proven, isolated)
        else "cannot tell whether it is faster"
    )
    return (
        f"isolated runs {does}: isolated, the set is {format_change(found.ratio)} than the "
        "reference "
        f"[{found.low:.3f}, {found.high:.3f}] over {isolated.process_count} runs of each, "
        "interleaved "
        f'{format_change(beside.ratio)}; `measure.mode = "aba"` measures everything in '
        "isolation, and a larger "
        "`confirm.isolated` allows more runs"
    )


def reported_gain(
    proven: FinalistResult,
    isolated: FinalistResult | None,
    runs: Sequence[ConfirmRun],
    soak: SoakArms | None = None,
) -> Estimate | None:
    """The estimate to report for a winner, whose interval holds the truth although the set was
    proven first.

    Its interval is the one that holds at all looks together. Such a small error leaves it right for
    19 of 20 named winners even where luck is needed to be named, down to 1 study in 30. In pairs a
    neighbour idles beside each arm, in production none does, so the interval covers that of
    isolated runs, too; and where the interleaved figure lies outside their interval, theirs is
    reported. Likewise of total times, where a typical step is not what training gets, and of the
    second half of long runs.
    """
    found = proven.corrected
    if found is None:
        return None
    totals, log_ratios = _told(runs)
    total = apart_total(totals, log_ratios, found) if len(totals) >= 2 else None
    others = [total, isolated.estimate if isolated is not None else None]
    if soak is not None and soak.proven is not None:
        others.append(lasting_of(soak, soak.looks).late)
    for other in [other for other in others if other is not None and other.high < 1.0]:
        ratio = found.ratio if other.low <= found.ratio <= other.high else other.ratio
        found = replace(
            found, ratio=ratio, low=min(found.low, other.low), high=max(found.high, other.high)
        )
    return found
