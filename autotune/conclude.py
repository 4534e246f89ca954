"""From trials to the one sentence: finalists, minimal set, final proof, soak; or a proven front."""

from __future__ import annotations

from collections.abc import Sequence

from autotune import environment, front
from autotune.confirm import choose_finalists, minimise, prove
from autotune.evaluate import Bench
from autotune.flags import FlagSet
from autotune.records import (
    ConclusionRecord,
    FinalistResult,
    FloorResult,
    Outcome,
    SoakRecord,
    TrialResult,
)
from autotune.soak import describe, soak
from autotune.spec import StudySpec
from autotune.stats import SequentialPlan, Verdict
from autotune.store import Store
from autotune.told import View
from autotune.units import format_change, format_interval, format_ratio, format_seconds, format_share


def conclude(
    store: Store, bench: Bench, plan: SequentialPlan, results: Sequence[TrialResult], view: View
) -> ConclusionRecord:
    """Confirms, minimises, proves again; records and gives the study's conclusion."""
    spec = store.spec
    processes = spec.confirm.processes
    finalists = finalists_of(store, results)
    proven: FinalistResult | None = None
    members: list[FinalistResult] = []
    if finalists and len(spec.search.objectives) > 1:
        members = _prove_front(bench, finalists, view)
    elif finalists:
        view.stage("confirm", f"{len(finalists)} finalists, each in {processes} fresh pairs of processes")
        confirmed = prove(bench, [(f.number, f.settings) for f in finalists], stage="confirm", processes=processes)
        for result in confirmed:
            view.finalist(result)
        faster = [c for c in confirmed if c.verdict is Verdict.FASTER and c.corrected is not None]
        if faster:
            best = min(faster, key=lambda c: c.corrected.ratio if c.corrected else 1.0)
            proven = _minimise_and_prove(bench, best, plan, view)
    soaked = [s for s in store.of(SoakRecord) if proven is not None and s.settings == proven.settings]
    conclusion = _conclusion(store, results, proven)
    if soaked and spec.confirm.soak:
        conclusion = conclusion.model_copy(update={"soaked_s": soaked[-1].steps_s})
    elif failed := [s for s in store.of(SoakRecord) if proven is None and s.failure is not None]:
        least = min(failed, key=lambda s: len(s.settings))
        sentence = f"{conclusion.sentence}; {least.settings} was faster but {describe(least)}"
        conclusion = conclusion.model_copy(update={"sentence": sentence})
    if members:
        conclusion = conclusion.model_copy(update=_front_update(members, spec))
    store.append_once(conclusion, key=f"conclusion-{len(results)}")
    return conclusion


def finalists_of(store: Store, results: Sequence[TrialResult]) -> list[TrialResult]:
    """The trials that are worth a proof."""
    spec = store.spec
    count, sesoi = spec.confirm.finalists, spec.measure.smallest_effect
    floor = store.last(FloorResult)
    if len(spec.search.objectives) == 1 or floor is None:
        return choose_finalists(results, count=count, sesoi=sesoi)
    return front.finalists(results, spec.search.objectives, floor.reference, count=count, sesoi=sesoi)


def _prove_front(bench: Bench, finalists: Sequence[TrialResult], view: View) -> list[FinalistResult]:
    """Those members of the search's front that hold in fresh processes."""
    spec = bench.spec
    what = ", ".join(o.words for o in spec.search.objectives)
    view.stage("confirm", f"{len(finalists)} sets of the front by {what}, each in {spec.confirm.processes} fresh pairs")
    found, members = front.prove_front(bench, finalists)
    for result in found:
        view.finalist(result)
    return members


def _front_update(members: Sequence[FinalistResult], spec: StudySpec) -> dict[str, object]:
    """What a conclusion says of a proven front; the fastest set stands for it if it beats the default's step time."""
    fastest = members[0]
    found: dict[str, object] = {
        "outcome": Outcome.FRONT,
        "sentence": front.sentence(members, spec.search.objectives, sesoi=spec.measure.smallest_effect),
        "front": tuple(m.trial for m in members),
    }
    if fastest.verdict is Verdict.FASTER:
        found |= {"settings": fastest.settings, "trial": fastest.trial, "estimate": fastest.corrected}
    return found


def _minimise_and_prove(bench: Bench, best: FinalistResult, plan: SequentialPlan, view: View) -> FinalistResult | None:
    """The minimal set if it holds in a second proof, else the whole set if that does, else nothing."""
    minimal = best.settings
    if bench.spec.confirm.minimise and len(best.settings) > 1:
        view.stage("minimise", f"{len(best.settings)} settings, each left out in turn: does it pay for itself?")
        minimal, ablations = minimise(bench, best.settings, plan=plan)
        for ablation in ablations:
            view.ablation(ablation)
    candidates = [("final", minimal)]
    if minimal != best.settings:
        candidates.append(("full", best.settings))
    for stage, settings in candidates:
        what = "the minimal set" if stage == "final" else "the whole set, for the minimal one did not hold"
        view.stage("final", f"{what}, proven once more in {bench.spec.confirm.processes} fresh pairs of processes")
        result = prove(bench, [(best.trial, settings)], stage=stage, processes=bench.spec.confirm.processes)[0]
        view.finalist(result)
        if result.verdict is Verdict.FASTER and _survives(bench, settings, view):
            return result
    return None


def _survives(bench: Bench, settings: FlagSet, view: View) -> bool:
    """Whether a proven set runs for as long as the study asks without a fault."""
    least_s, least_steps = bench.spec.confirm.soak, bench.spec.confirm.soak_steps
    if not least_s:
        return True
    view.stage("soak", f"the winner alone for {format_seconds(least_s)} of steps: does it hang or diverge later?")
    record = soak(bench, settings, least_s=least_s, least_steps=least_steps)
    view.note(describe(record))
    return record.failure is None


def _conclusion(store: Store, results: Sequence[TrialResult], proven: FinalistResult | None) -> ConclusionRecord:
    sesoi = store.spec.measure.smallest_effect
    ran = [r for r in results if r.failure is None]
    if proven is not None and proven.estimate is not None:
        outcome = Outcome.WINNER
        sentence = (
            f"{proven.settings} is {format_change(proven.estimate.ratio)} than the default on this machine: "
            f"step time ratio {format_ratio(proven.estimate.ratio)} "
            f"{format_interval(proven.estimate.low, proven.estimate.high)} "
            f"over {proven.process_count} fresh pairs of processes"
        )
    elif not ran:
        outcome = Outcome.NOTHING_RAN
        sentence = "no setting tried ran to a result on this machine"
    else:
        outcome = Outcome.NOTHING_BEATS_THE_DEFAULT
        wanted = store.spec.search.objectives
        what = f" in {', '.join(o.words for o in wanted)}" if len(wanted) > 1 else ""
        sentence = (
            f"no setting tried beats the default on this machine{what} by more than the smallest effect of interest "
            f"({format_share(sesoi)})"
        )
    return ConclusionRecord(
        outcome=outcome,
        sentence=sentence,
        settings=proven.settings if proven else None,
        trial=proven.trial if proven else None,
        estimate=proven.estimate if proven else None,
        trial_count=len(results),
        ended=environment.now(),
        provenance=environment.provenance(),
    )
