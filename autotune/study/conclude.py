"""The one sentence of a study, from what its stages found."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.machine import describe_machine, utc_now
from autotune.model import (
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    SoakRecord,
    StudySpec,
    TrialResult,
    format_change,
    format_share,
)
from autotune.results import (
    format_estimate,
    format_soak,
    keep_in_run,
    loss_addition,
    time_of,
)
from autotune.stats import Outlook, Verdict
from autotune.study.proof import unsettled
from autotune.study.run import StudyRun

RULED_OUT = 0.02
"""Where larger gains are not ruled out, a study without a winner has found nothing out: it is inconclusive."""


def record_conclusion(run: StudyRun) -> ConclusionRecord:
    """Makes the study's conclusion and records it, unless the newest one says the same."""
    results = run.store.of(TrialResult)
    found = _found(run, results)
    conclusion = ConclusionRecord(trial_count=len(results), ended=utc_now(), provenance=describe_machine(), **found)
    run.store.append_news(conclusion)
    if conclusion.outcome is Outcome.WINNER and conclusion.settings is not None:
        soaks = [s.kernels for s in run.store.of(SoakRecord) if s.settings == conclusion.settings]
        keep_in_run(run.store, conclusion.settings, soaks[-1] if soaks else None)
    return conclusion


def _found(run: StudyRun, results: Sequence[TrialResult]) -> dict[str, object]:
    """Outcome and sentence, and of a winner its set and figures."""
    spec, proven, once_more = run.spec, run.proven, run.once_more
    where = _where(spec)
    soaks = run.store.of(SoakRecord)
    if proven is not None and proven.estimate is not None:
        ratio = once_more.estimate or proven.estimate
        mine = [s for s in soaks if s.settings == proven.settings]
        soaked = [s.steps_s for s in mine]
        after = f" and {once_more.alone} of runs alone" if once_more.alone else ""
        after += f", after a proof of {proven.process_count}" if once_more.estimate is not None else ""
        proofs = [r for r in run.store.of(ConfirmRun) if (r.stage, r.settings) == (proven.stage, proven.settings)]
        loss = loss_addition([*proofs, *mine])
        if proven.corrected is not None and ratio.high >= 1.0:  # those pairs decide nothing, and may be few
            after += f"; that it is faster at all the proof says: {format_estimate(proven.corrected)}"
        return {
            "outcome": Outcome.WINNER,
            "sentence": f"{proven.settings} is {format_change(ratio.ratio)} than the default {where}: "
            f"{time_of(proven.work, spec.workload.unit)} ratio {format_estimate(ratio)} over "
            f"{ratio.pair_count} fresh pairs of processes{after}{loss}",
            "settings": proven.settings,
            "trial": proven.trial,
            "estimate": ratio,
            "soaked_s": soaked[-1] if soaked and spec.confirm.soak else None,
        }
    if not results:
        has_budget = spec.search.time_budget is not None or spec.search.gpu_hours is not None
        why = "the noise floor left no time for a trial; with a larger budget the same command goes on from here"
        sentence = f"inconclusive: nothing was tried {where}: {why if has_budget else 'there was nothing to try'}"
        outcome = Outcome.INCONCLUSIVE
    elif all(r.failure is not None for r in results):
        outcome, sentence = Outcome.NOTHING_RAN, f"no setting tried ran to a result {where}"
    else:
        outcome, sentence = _no_winner(run, results, where)
    objections = {f.settings: f.veto for f in run.store.of(FinalistResult) if f.veto is not None} | run.objections
    sentence += "".join(f"; {settings} looked faster but {why}" for settings, why in objections.items())
    if failed := [s for s in soaks if s.failure is not None]:
        least = min(failed, key=lambda s: len(s.settings))
        sentence += f"; {least.settings} was faster but {format_soak(least)}"
    if (left := unsettled(run.store)) is not None:
        sentence += f"; not settled: {left.result.settings}, a gain of up to {format_share(left.gain)} is not ruled out"
    return {"outcome": outcome, "sentence": sentence}


def _where(spec: StudySpec) -> str:
    return "in this replay" if spec.replay is not None else "on this machine"


def _no_winner(run: StudyRun, results: Sequence[TrialResult], where: str) -> tuple[Outcome, str]:
    """What a study says that proved no winner: that there is none, where gains above a bound are ruled out."""
    sesoi = run.spec.measure.smallest_effect
    open_gain, settings = max(_open_gains(run, results), default=(0.0, ""))
    if left_over := run.time.unproven:
        dull = {r.settings for r in results if r.outlook_at(sesoi=sesoi) is Outlook.NOT_PROMISING}
        dull -= {f.settings for f in run.store.of(FinalistResult)}  # of these a proof says more than their trial
        worth = [s for s in left_over if s not in dull]
        if not worth:
            return Outcome.INCONCLUSIVE, (
                f"inconclusive: nothing is proven {where}, and what the budget left no time to prove does not look "
                f"promising; gains of step time up to {format_share(open_gain)} are not ruled out ({settings}); with a "
                "larger one the same command goes on from here"
            )
        more = f" and {len(worth) - 1} more" if len(worth) > 1 else ""
        return Outcome.INCONCLUSIVE, (
            "inconclusive: nothing is proven: the budget left no time for that. Worth a proof: "
            f"{worth[0]}{more}; with a larger one the same command goes on from here"
        )
    if open_gain > max(sesoi, RULED_OUT):
        return Outcome.INCONCLUSIVE, (
            f"inconclusive: no setting tried is proven to beat the default {where}, but gains of step time up to "
            f"{format_share(open_gain)} are not ruled out ({settings})"
        )
    beats = f"no setting tried beats the default {where} by more than"
    if open_gain > sesoi:
        return Outcome.NOTHING_BEATS_THE_DEFAULT, f"{beats} {format_share(open_gain)}"
    return Outcome.NOTHING_BEATS_THE_DEFAULT, f"{beats} the smallest effect of interest ({format_share(sesoi)})"


def _open_gains(run: StudyRun, results: Sequence[TrialResult]) -> list[tuple[float, str]]:
    """Of each set without a verdict the largest gain that its 95 % interval holds, with its settings as text."""
    last = {f.settings: f for f in run.store.of(FinalistResult)}
    judged = {s for s, f in last.items() if f.verdict is not Verdict.UNRESOLVED or f.is_vetoed or f.failure is not None}
    judged |= set(run.objections)
    judged |= {s.settings for s in run.store.of(SoakRecord) if s.failure is not None}
    found = []
    for result in results:
        if result.settings in judged or result.failure is not None or result.comparison is None:
            continue
        proof = last.get(result.settings)
        estimate = proof.corrected if proof is not None and proof.corrected else result.comparison.estimate
        found.append((1.0 - estimate.low, str(result.settings)))
    return found
