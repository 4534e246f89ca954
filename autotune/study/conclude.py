"""Concludes a study in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
from autotune.rundir.store import Store, earlier_runs
from autotune.stats.estimates import Verdict, clock_resolution
from autotune.study.plan import Conclude
from autotune.study.run import StudyRun

RULED_OUT = 0.02  # larger gains are ruled out, or a study without a winner is inconclusive


def conclude(run: StudyRun, end: Conclude) -> None:
    """Records the study's conclusion."""
    if end.winner:
        _conclude_winner(run, end, end.winner)
        return
    results = run.store.of(TrialResult)
    needed_s = run.time.elapsed_s + run.time.least_s if end.unproven else None
    if not results:
        outcome = Outcome.INCONCLUSIVE
        sentence = "inconclusive: nothing was tried on this machine"
        if run.time.has_budget:
            needed_s = run.time.needed_s
            sentence += (
                ": the A/A run left no time for a trial; with a time budget of at least "
                f"{format_seconds(needed_s)} the same command continues the study"
            )
    elif all(r.failure for r in results):
        outcome = Outcome.NOTHING_RAN
        sentence = "no setting tried ran to a result on this machine"
    else:
        outcome, sentence = _no_winner(run, end)
        objections = _objections(run.store, _refused(run.store, end))
        sentence += "".join(f"; {text}" for text in objections if text not in sentence)
    soaks = {s.settings: s for s in run.store.of(SoakRecord)}.values()
    if against := [s for s in soaks if s.failure or s.unsettled]:
        smallest = min(against, key=lambda s: len(s.settings))
        sentence += f"; {smallest.settings} was faster but {format_soak(smallest)}"
    run.conclude(outcome=outcome, sentence=sentence, needed_s=needed_s)


def _conclude_winner(run: StudyRun, end: Conclude, proven: FinalistResult) -> None:
    confirm = run.spec.confirm
    figures = run.store.of(AaRecord)[-1].comparison
    estimate = end.report.estimate
    assert estimate is not None
    soaks = [s for s in run.store.of(SoakRecord) if s.settings == proven.settings]
    runs = [r for r in run.store.of(ConfirmRun) if r.settings == proven.settings]
    quantity = time_of(proven.work)
    step_s = None if proven.work else figures.reference_step_s
    sentence = (
        f"{proven.settings} beats {run.spec.reference_name} on this machine, "
        f"{format_gain(estimate.ratio, step_s, of=quantity)}: {quantity} ratio "
        f"{format_estimate(estimate)} over {estimate.pair_count} fresh pairs of processes"
    )
    if end.report.isolated:
        sentence += f" and {end.report.isolated} of isolated runs"
    if not confirm.isolated and figures.mode != ABA:
        sentence += ", isolated runs left out"
    sentence += loss_addition([r for r in runs if r.stage == proven.stage], soaks)
    if earlier := earlier_runs(run.store):
        sentence += (
            f"; this is run {earlier + 1} of the same study here, and each may name a false winner"
        )
    count = sum(r.log_ratio is not None for r in runs)
    share = format_share(1.0 - 0.05 ** (1.0 / count))  # so many show none in one case of 20
    sentence += f"; its {count} processes do not rule out that up to {share} of processes are slow"
    for text in _objections(run.store, end.objections):
        sentence += f"; {text}"
    run.conclude(
        outcome=Outcome.WINNER,
        sentence=sentence,
        settings=proven.settings,
        trial=proven.trial,
        estimate=estimate,
        soaked_s=soaks[-1].steps_s if soaks and confirm.soak else None,
    )


def _refused(store: Store, end: Conclude) -> dict[FlagSet, Objection]:
    """Returns what speaks against sets whose proof, or an isolated one behind it, looked faster."""
    finalists = store.of(FinalistResult)
    return {**{f.settings: f.objection for f in finalists if f.objection}, **end.objections}


def _objections(store: Store, refused: Mapping[FlagSet, Objection]) -> list[str]:
    finalists = store.of(FinalistResult)
    gains = {f.settings: format_gain(f.estimate.ratio) for f in finalists if f.estimate}
    return [
        f"{s} looked {gains.get(s, 'faster')}, but is not accepted because {why.reason}"
        for s, why in refused.items()
    ]


def _no_winner(run: StudyRun, end: Conclude) -> tuple[Outcome, str]:
    """Returns the outcome without a winner: inconclusive unless larger gains are ruled out."""
    store = run.store
    best = end.unproven
    min_effect = run.spec.measure.min_effect
    bound = max(min_effect, RULED_OUT)
    open_gain, settings = max(_open_gains(store, end), default=(0.0, ""))
    pairs = store.pairs(store.of(AaRecord)[-1].directory)
    coarse = clock_resolution([t for pair in pairs for t in pair.reference_s])
    if best is None and coarse > max(bound, open_gain):
        return Outcome.INCONCLUSIVE, (
            "inconclusive: steps are timed by a clock that is too coarse, so no smaller gains than "
            f"{format_share(coarse)} can be seen; time them by a finer one "
            "(`time.perf_counter`), or print more digits"
        )
    if best is None and open_gain <= bound:
        refused = _refused(store, end)
        # Any other objection than a slower total is no evidence of no gain.
        if not all(why.is_slower_in_total for why in refused.values()):
            return Outcome.INCONCLUSIVE, f"inconclusive: {_objections(store, refused)[0]}"
        return Outcome.NOTHING_BEATS_THE_DEFAULT, (
            f"no setting tried beats {run.spec.reference_name} on this machine by more than "
            f"{format_share(max(open_gain, min_effect))}"
        )
    confirm = run.spec.confirm
    sentence = (
        f"inconclusive: no setting tried is proven to beat {run.spec.reference_name} on this "
        f"machine, but gains of step time up to {format_share(open_gain)} are not ruled out "
        f"({settings}); a larger `confirm.processes` (now {confirm.processes}), "
        f"`confirm.isolated` (now {confirm.isolated}) or time budget continues the study"
    )
    if best and best.comparison:
        estimate = best.comparison.estimate
        lead = "nothing looks faster so far, most open"
        if estimate.ratio < 1.0:
            lead = "best so far, unproven"
        sentence += (
            f"; {lead}: {best.settings}, ratio {format_estimate(estimate)}; the budget left no "
            f"time for its proof, which needs {format_seconds(run.time.least_s)} more"
        )
    return Outcome.INCONCLUSIVE, sentence


def _open_gains(store: Store, end: Conclude) -> Iterator[tuple[float, str]]:
    """Yields the largest gain in the 95 % interval of each set without a verdict, and the set."""
    proofs = {f.settings: f for f in store.of(FinalistResult)}
    settled = {s for s, f in proofs.items() if f.verdict is not Verdict.UNRESOLVED or f.is_vetoed}
    soaks = store.of(SoakRecord)
    settled |= {s.settings for s in soaks if s.failure}
    settled -= {s.settings for s in soaks if s.unsettled}
    settled |= end.objections.keys()
    for result in store.of(TrialResult):
        if result.settings in settled or result.same_as is not None or result.comparison is None:
            continue  # a duplicate is judged by the trial that has its figures
        estimate = result.comparison.estimate
        proof = proofs.get(result.settings)
        if proof and proof.corrected:
            estimate = proof.corrected
        yield 1.0 - estimate.low, str(result.settings)
