"""Concludes a study in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.model.flags import FlagSet
from autotune.model.measurement import ABA
from autotune.model.records import (
    AaRecord,
    ConfirmRun,
    FinalistResult,
    Objection,
    Outcome,
    SoakRecord,
    TrialResult,
)
from autotune.model.units import format_gain, format_seconds, format_share
from autotune.results.format import format_estimate, format_soak, time_of
from autotune.results.winner import loss_addition
from autotune.rundir.store import earlier_runs
from autotune.stats.estimates import Verdict, clock_resolution
from autotune.stats.proof import unseen_share
from autotune.study.plan import Conclude
from autotune.study.run import StudyRun

RULED_OUT = 0.02
"""A study without a winner is inconclusive if it does not rule out larger gains than this share."""


def conclude(run: StudyRun, end: Conclude) -> None:
    """Records the study's conclusion."""
    results = run.store.of(TrialResult)
    run.conclude(trial_count=len(results), **_found(run, end, results))


def _found(run: StudyRun, end: Conclude, results: Sequence[TrialResult]) -> dict[str, object]:
    if end.winner is not None:
        return _of_winner(run, end, end.winner)
    budget_s = run.time.elapsed_s + run.time.least_s if end.unproven is not None else None
    if not results:
        outcome = Outcome.INCONCLUSIVE
        sentence = "inconclusive: nothing was tried on this machine"
        if run.time.has_budget:
            budget_s = run.time.needed_s
            sentence += (
                ": the A/A run left no time for a trial; with a time budget of at least "
                f"{format_seconds(budget_s)} the same command continues the study"
            )
    elif all(r.failure is not None for r in results):
        outcome = Outcome.NOTHING_RAN
        sentence = "no setting tried ran to a result on this machine"
    else:
        outcome, sentence = _no_winner(run, end, results)
        sentence += "".join(
            f"; {text}" for text in _objections(run, _refused(run, end)) if text not in sentence
        )
    latest = {s.settings: s for s in run.store.of(SoakRecord)}.values()
    if against := [s for s in latest if s.failure is not None or s.unsettled is not None]:
        least = min(against, key=lambda s: len(s.settings))
        sentence += f"; {least.settings} was faster but {format_soak(least)}"
    return {"outcome": outcome, "sentence": sentence, "needed_s": budget_s}


def _of_winner(run: StudyRun, end: Conclude, proven: FinalistResult) -> dict[str, object]:
    confirm = run.spec.confirm
    aa_run = run.store.of(AaRecord)[-1]
    ratio = end.report.estimate
    assert ratio is not None
    soaks = [s for s in run.store.of(SoakRecord) if s.settings == proven.settings]
    runs = [r for r in run.store.of(ConfirmRun) if r.settings == proven.settings]
    count, what = sum(r.log_ratio is not None for r in runs), time_of(proven.work)
    gain = format_gain(
        ratio.ratio, aa_run.comparison.reference_step_s if proven.work is None else None, of=what
    )
    sentence = (
        f"{proven.settings} beats {run.spec.reference_name} on this machine, {gain}: {what} ratio "
        f"{format_estimate(ratio)} over {ratio.pair_count} fresh pairs of processes"
    )
    if end.report.isolated:
        sentence += f" and {end.report.isolated} of isolated runs"
    if not confirm.isolated and aa_run.comparison.mode != ABA:
        sentence += ", isolated runs left out"
    sentence += loss_addition([r for r in runs if r.stage == proven.stage], soaks)
    if earlier := earlier_runs(run.store):
        sentence += (
            f"; this is run {earlier + 1} of the same study here, and each may name a false winner"
        )
    share = format_share(unseen_share(count))
    sentence += f"; its {count} processes do not rule out that up to {share} of processes are slow"
    sentence += "".join(f"; {text}" for text in _objections(run, end.objections))
    return {
        "outcome": Outcome.WINNER,
        "sentence": sentence,
        "settings": proven.settings,
        "trial": proven.trial,
        "estimate": ratio,
        "soaked_s": soaks[-1].steps_s if soaks and confirm.soak else None,
    }


def _refused(run: StudyRun, end: Conclude) -> dict[FlagSet, Objection]:
    """Returns what speaks against each set whose proof, or an isolated one behind it, looked
    faster.
    """
    vetoes = {
        f.settings: f.objection for f in run.store.of(FinalistResult) if f.objection is not None
    }
    return {**vetoes, **end.objections}


def _objections(run: StudyRun, refused: Mapping[FlagSet, Objection]) -> list[str]:
    """Formats what speaks against sets that looked faster."""
    proofs = {
        f.settings: f.estimate for f in run.store.of(FinalistResult) if f.estimate is not None
    }
    looked = {s: format_gain(proofs[s].ratio) if s in proofs else "faster" for s in refused}
    return [
        f"{s} looked {looked[s]}, but is not accepted because {why.reason}"
        for s, why in refused.items()
    ]


def _no_winner(run: StudyRun, end: Conclude, results: Sequence[TrialResult]) -> tuple[Outcome, str]:
    """Returns the outcome without a winner: inconclusive unless gains above a bound are ruled
    out.
    """
    min_effect, best = run.spec.measure.min_effect, end.unproven
    bound = max(min_effect, RULED_OUT)
    open_gain, settings = max(_open_gains(run, end, results), default=(0.0, ""))
    coarse = _clock_resolution(run)
    if best is None and coarse > max(bound, open_gain):
        return Outcome.INCONCLUSIVE, (
            "inconclusive: steps are timed by a clock that is too coarse, so no smaller gains than "
            f"{format_share(coarse)} can be seen; time them by a finer one "
            "(`time.perf_counter`), or print more digits"
        )
    if best is None and open_gain <= bound:
        refused = _refused(run, end)
        if not all(
            why.is_slower_in_total for why in refused.values()
        ):  # any other is no evidence of no gain
            return Outcome.INCONCLUSIVE, f"inconclusive: {_objections(run, refused)[0]}"
        return Outcome.NOTHING_BEATS_THE_DEFAULT, (
            f"no setting tried beats {run.spec.reference_name} on this machine by more than "
            f"{format_share(max(open_gain, min_effect))}"
        )
    confirm = run.spec.confirm
    sentence = (
        f"inconclusive: no setting tried is proven to beat {run.spec.reference_name} on this "
        "machine, but gains of "
        f"step time up to {format_share(open_gain)} are not ruled out ({settings}); a larger "
        "`confirm.processes` (now "
        f"{confirm.processes}), `confirm.isolated` (now {confirm.isolated}) or time budget "
        "continues the study"
    )
    if best is not None and best.comparison is not None:
        estimate = best.comparison.estimate
        lead = (
            "best so far, unproven"
            if estimate.ratio < 1.0
            else "nothing looks faster so far, most open"
        )
        sentence += (
            f"; {lead}: {best.settings}, ratio {format_estimate(estimate)}; the budget left no "
            "time for its proof, "
            f"which needs {format_seconds(run.time.least_s)} more"
        )
    return Outcome.INCONCLUSIVE, sentence


def _clock_resolution(run: StudyRun) -> float:
    """Returns the share of a step that the program's clock can tell, by the steps of the A/A
    run.
    """
    pairs = run.store.pairs(run.store.of(AaRecord)[-1].directory)
    return clock_resolution([t for pair in pairs for t in pair.reference_s])


def _open_gains(
    run: StudyRun, end: Conclude, results: Sequence[TrialResult]
) -> list[tuple[float, str]]:
    """Returns, for each set without a verdict, the largest gain in its 95 % interval and its
    settings as text.
    """
    last = {f.settings: f for f in run.store.of(FinalistResult)}
    judged = {
        s
        for s, f in last.items()
        if f.verdict is not Verdict.UNRESOLVED or f.is_vetoed or f.failure is not None
    }
    soaks = run.store.of(SoakRecord)
    judged |= {s.settings for s in soaks if s.failure is not None}
    judged -= {s.settings for s in soaks if s.unsettled is not None}
    judged |= end.objections.keys()
    gains = []
    for result in results:
        if result.settings in judged or result.same_as is not None or result.comparison is None:
            continue  # a duplicate is judged by the trial that has its figures
        proof = last.get(result.settings)
        estimate = (
            proof.corrected if proof is not None and proof.corrected else result.comparison.estimate
        )
        gains.append((1.0 - estimate.low, str(result.settings)))
    return gains
