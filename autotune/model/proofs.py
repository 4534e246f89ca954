"""What the pairs of processes of one proof come to: one rule, for whoever proves and for whoever checks a proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autotune.model.records import ONCE_MORE, ConfirmRun, FinalistResult, ProofRecord
from autotune.model.totals import training_total, veto_of
from autotune.model.units import format_change
from autotune.stats import FIRST_LOOK, Estimate, ProofPlan, Verdict, estimate_processes, judge, look, look_alone

GAIN, ALONE = ONCE_MORE


class Standing(NamedTuple):
    """How a proof stands: what it says now, and whether it has ended."""

    result: FinalistResult
    is_over: bool


class OnceMore(NamedTuple):
    """What came after a proof.

    Attributes:
        estimate: The figure to report, see `reported_gain`; None where nothing was measured.
        alone: Pairs of runs alone that have a say in it.
        objection: What speaks against the set; None where nothing does.
    """

    estimate: Estimate | None = None
    alone: int = 0
    objection: str | None = None


def standing(
    proof: ProofRecord,
    runs: Sequence[ConfirmRun],
    *,
    trial: int,
    most: int,
    sesoi: float,
) -> Standing:
    """What a proof says, and whether more pairs of processes are to be run.

    The pairs count in the order of their numbers, up to the first that is missing and to the look at which the proof
    ended: what ran beside that or after it can change nothing.

    Args:
        proof: Its plan.
        runs: Pairs of processes, those of other proofs included.
        trial: Number of the trial that had the set first.
        most: Pairs after which it ends in any case.
        sesoi: Smallest effect of interest.
    """
    mine = runs_of(proof, runs)
    base = FinalistResult(
        stage=proof.stage, trial=trial, settings=proof.settings, verdict=Verdict.UNRESOLVED, process_count=len(mine),
        goes_on=False, most=most, work=next((r.work for r in mine if r.work is not None), None),
    )  # fmt: skip
    if (failure := next((r.failure for r in mine if r.failure is not None), None)) is not None:
        able = sum(r.log_ratio is not None for r in mine)
        update = {"failure": failure, "process_count": able, "reason": "a process failed"}
        return Standing(base.model_copy(update=update), is_over=True)
    ratios = ratios_of(mine)
    hurdle, claim = (ProofPlan(base=proof.base, error=e) for e in (proof.hurdle, proof.claim))

    def is_clear(count: int) -> bool:
        return veto_of(mine[:count], hurdle.estimate(ratios[:count])) is None

    found = look(ratios, hurdle, most=most, sesoi=sesoi, is_clear=is_clear)
    used = found.used if found.stop else len(mine)
    if used < 2:
        return Standing(base, is_over=False)
    corrected = claim.estimate(ratios[:used])
    verdict, veto = judge(corrected, sesoi=sesoi), None
    if found.stop and verdict is Verdict.FASTER:
        veto = veto_of(mine[:used], corrected)
    return Standing(
        base.model_copy(
            update={
                "estimate": estimate_processes(ratios[:used]),
                "corrected": corrected,
                "verdict": verdict if veto is None else Verdict.UNRESOLVED,
                "veto": veto,
                "process_count": used,
                "goes_on": found.holds,
                "reason": found.reason,
            }
        ),
        is_over=found.stop,
    )


def runs_of(proof: ProofRecord, runs: Sequence[ConfirmRun]) -> list[ConfirmRun]:
    """The pairs of processes of one proof, in the order of their numbers, up to the first that is missing."""
    by_repeat = {r.repeat: r for r in runs if r.stage == proof.stage and r.settings == proof.settings}
    found: list[ConfirmRun] = []
    while (following := by_repeat.get(proof.first + len(found))) is not None:
        found.append(following)
    return found


def plain_estimate(runs: Sequence[ConfirmRun]) -> Estimate | None:
    """Mean ratio of some pairs of processes that nothing has chosen, with its 95 % interval; None of fewer than two."""
    ratios = ratios_of(runs)
    return estimate_processes(ratios) if len(ratios) >= 2 else None


def gain_of(proven: FinalistResult, runs: Sequence[ConfirmRun], *, sesoi: float) -> FinalistResult:
    """The gain of a proven set in pairs of processes that decide nothing, unless they contradict the proof.

    Args:
        proven: The proof.
        runs: Pairs of processes, those of other stages and sets included.
        sesoi: Smallest effect of interest.
    """
    mine = runs_after(proven, runs, GAIN)
    estimate, veto = plain_estimate(mine), None
    if estimate is not None and estimate.low > 1.0 - sesoi:
        veto = f"{len(mine)} more fresh pairs of processes contradict that: {format_change(estimate.ratio)}"
    return _after(proven, GAIN, mine, len(mine), sesoi=sesoi, veto=veto, reason="these pairs decide nothing")


def alone_of(proven: FinalistResult, runs: Sequence[ConfirmRun], *, most: int, sesoi: float) -> FinalistResult:
    """What runs of each arm with nothing beside it say of a proven set; `most` of them, otherwise as `gain_of`."""
    mine, beside, most = runs_after(proven, runs, ALONE), runs_after(proven, runs, GAIN), max(most, FIRST_LOOK)
    found = look_alone(ratios_of(mine), ratios_of(beside), most=most)
    alone, in_turns, veto = plain_estimate(mine), plain_estimate(beside), None
    if found.is_apart and alone is not None and in_turns is not None:
        veto = (
            "what idles beside an arm, or ran before it, changes its time: alone the set is "
            f"{format_change(alone.ratio)} than the default, in turns {format_change(in_turns.ratio)}; "
            '`measure.mode = "sandwich"` measures everything alone'
        )
    result = _after(proven, ALONE, mine, found.used, sesoi=sesoi, veto=veto, reason=found.reason)
    return result.model_copy(update={"most": most})


def runs_after(proven: FinalistResult, runs: Sequence[ConfirmRun], stage: str) -> list[ConfirmRun]:
    """The pairs of processes that measured a proven set once more, in the order of their numbers."""
    return sorted((r for r in runs if (r.stage, r.settings) == (stage, proven.settings)), key=lambda r: r.repeat)


def _after(
    proven: FinalistResult,
    stage: str,
    runs: Sequence[ConfirmRun],
    used: int,
    *,
    sesoi: float,
    veto: str | None,
    reason: str,
) -> FinalistResult:
    """The figures of so many of the pairs; one that failed speaks against the set, whichever it is."""
    failure = next((r.failure for r in runs if r.failure is not None), None)
    counted = [r for r in runs if r.failure is None][:used]
    estimate = plain_estimate(counted)
    verdict = judge(estimate, sesoi=sesoi) if estimate is not None else Verdict.UNRESOLVED
    return FinalistResult(
        stage=stage, trial=proven.trial, settings=proven.settings, estimate=estimate, corrected=estimate,
        verdict=verdict if failure is None else Verdict.UNRESOLVED, process_count=len(counted), failure=failure,
        work=proven.work, goes_on=failure is None and veto is None, reason=reason, veto=veto,
    )  # fmt: skip


def once_more(gain: FinalistResult, alone: FinalistResult | None, runs: Sequence[ConfirmRun]) -> OnceMore:
    """What the pairs after a proof come to.

    Args:
        gain: See `gain_of`.
        alone: See `alone_of`; None where nothing was run alone.
        runs: Pairs of processes, those of other sets included.
    """
    every = [r for r in runs if r.settings == gain.settings and r.against is None]
    estimate, last = reported_gain(gain, alone, every), alone or gain
    if (failure := last.failure) is not None:
        told = f"{failure.kind.replace('_', ' ')} in a fresh process: {failure.message}"[:300]
        return OnceMore(estimate=estimate, objection=told)
    if last.veto is not None:
        return OnceMore(estimate=estimate, objection=last.veto)
    counts = alone is not None and estimate != reported_gain(gain, None, every)
    count = alone.process_count if alone is not None and counts else 0
    return OnceMore(estimate=estimate, alone=count, objection=veto_of(every, gain.estimate))


def reported_gain(
    gain: FinalistResult, alone: FinalistResult | None, runs: Sequence[ConfirmRun] = ()
) -> Estimate | None:
    """The figure that a winner is reported with, whose interval holds the truth although the set was proven first.

    In turns a neighbour idles beside each arm, and in production none does. So where runs alone can tell a gain, the
    interval reaches over what they say, too; and where the figure in turns is none that they could mean, theirs counts.
    Likewise of total times, where a typical step is not what training gets.

    Args:
        gain: What pairs in turns measured after the proof.
        alone: What runs of each arm alone did; None where there are none.
        runs: All pairs of processes of the set.
    """
    found = gain.estimate
    if found is None:
        return None
    others = [alone.estimate] if alone is not None and alone.estimate is not None else []
    others = [other for other in (training_total(runs, found), *others) if other is not None and other.high < 1.0]
    for other in others:
        ratio = found.ratio if other.low <= found.ratio <= other.high else other.ratio
        low, high = min(found.low, other.low), max(found.high, other.high)
        found = Estimate(ratio=ratio, low=low, high=high, level=found.level, pair_count=found.pair_count)
    return found


def ratios_of(runs: Sequence[ConfirmRun]) -> list[float]:
    """The log ratios of some pairs of processes, of those that have one."""
    return [r.log_ratio for r in runs if r.log_ratio is not None]
