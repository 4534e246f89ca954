"""The stages of a study in order: floor, search, confirm, minimise, final proof; each goes on where it stopped."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from autotune import environment, front, measure, objectives, sandwich
from autotune.blame import minimise_failure, next_case, remember, remembered
from autotune.claims import MOST_DEATHS, POLL_S, trial_key
from autotune.confirm import choose_finalists, minimise, prove
from autotune.errors import LaunchError
from autotune.evaluate import Bench, Watcher, evaluate, node_lost, reference_failed
from autotune.flags import FlagSet
from autotune.launch.base import WorkerFailed
from autotune.nodes import refuse_strangers, refuse_upgraded
from autotune.noise import noise_floor
from autotune.records import (
    AblationResult,
    BlameRecord,
    ConclusionRecord,
    FinalistResult,
    FloorResult,
    Outcome,
    SessionRecord,
    SoakRecord,
    SpanRecord,
    TrialConfig,
    TrialResult,
    TrialStatus,
    WorkerReport,
)
from autotune.search import Proposer
from autotune.soak import describe, soak
from autotune.spec import StudySpec
from autotune.stats import REFERENCE, Estimate, SequentialPlan, Verdict, estimate_pairs
from autotune.store import Store
from autotune.traces import largest_drift
from autotune.units import format_change, format_interval, format_ratio, format_seconds, format_share

FLOOR_PAIRS_LEAST = 16
BUDGET_SHARE_FOR_PROOF = 0.5
"""Largest share of a time budget that is kept back from the search for confirming."""


class View(Watcher, Protocol):
    """Told what happens in a study; the CLI shows it, tests record it."""

    def stage(self, name: str, detail: str) -> None:
        """A stage begins."""

    def floor(self, result: FloorResult) -> None:
        """The noise floor is known."""

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """A set is about to be tried."""

    def trial_ends(self, result: TrialResult) -> None:
        """A set has its result."""

    def trial_of_other(self, result: TrialResult) -> None:
        """Another worker has finished a trial."""

    def finalist(self, result: FinalistResult) -> None:
        """A finalist has its verdict."""

    def ablation(self, result: AblationResult) -> None:
        """One setting was left out."""

    def note(self, text: str) -> None:
        """Something the user should know."""


def run_study(
    store: Store,
    bench: Bench,
    make_proposer: Callable[[WorkerReport], Proposer],
    *,
    trials: int,
    time_budget_s: float | None,
    view: View,
    command: Sequence[str] = (),
) -> ConclusionRecord:
    """Takes a study from where it is to its conclusion.

    Args:
        store: The run directory, locked.
        bench: Where comparisons are made.
        make_proposer: Makes who proposes, from what the reference said of itself.
        trials: How many trials the study shall have, those of earlier sessions included.
        time_budget_s: Wall seconds for the whole study, earlier sessions included; it ends the search, not the proof.
        view: Told what happens.
        command: How the driver was called, for the record.

    Raises:
        LaunchError: If the reference cannot run.
        RunDirectoryError: If the run directory cannot be written.
    """
    store.append(
        SessionRecord(
            started=environment.now(),
            pid=os.getpid(),
            host=socket.gethostname(),
            asked_trials=trials,
            command=tuple(map(environment.without_passwords, command)),
        )
    )
    try:
        plan = SequentialPlan(cap=store.spec.measure.pairs_cap)
        floor = measure_floor(store, bench, plan, view)
        bench.loss_tolerance = floor.loss_tolerance
        objectives.refuse_unknown(store.spec.search.objectives, floor.reference, floor.comparison.energy)
        proposer = make_proposer(floor.reference)
        if store.spec.search.known_failures and store.spec.replay is None:
            proposer.bad = remembered(floor.reference)
            if proposer.bad:
                view.note(
                    f"left out: {len(proposer.bad)} combinations that crashed or hung in earlier studies on this build "
                    "and device (search.known_failures = false tries them again)"
                )
        results = _search(
            store, bench, proposer, plan,
            trials=trials, time_budget_s=time_budget_s, view=view, reference=floor.reference,
        )  # fmt: skip
        bench.close()  # proofs start fresh processes of both arms
        return _conclude(store, bench, plan, results, view)
    finally:
        bench.close()
        store.append(SpanRecord(wall_s=store.watch.session_s, waited_s=store.watch.waited_s, ended=environment.now()))


# ---------------------------------------------------------------------- floor


def measure_floor(store: Store, bench: Bench, plan: SequentialPlan, view: View) -> FloorResult:
    """The reference against a second process of itself, unless that was measured in an earlier session."""
    mine = [f for f in store.of(FloorResult) if f.by == store.claims.worker]
    if mine:
        known = mine[-1]
        if store.spec.replay is None:
            refuse_upgraded(known, environment.provenance()["versions"])
        bench.mode = known.comparison.mode
        view.floor(known)
        return known
    view.stage("floor", "the reference is measured against itself: what can be resolved on this machine?")
    if bench.mode == sandwich.MODE:
        return _floor_alone(store, bench, view)
    for _ in range(3):
        reference = bench.reference()
        folder = store.folder(*bench.own_floor)
        try:
            second = bench.start(FlagSet(), folder)
        except WorkerFailed as error:
            if bench.must_run_alone(error.failure):
                view.note("two processes do not fit into the device's memory: they run one at a time, in sandwiches")
                bench.release_reference()
                bench.mode = sandwich.MODE
                return _floor_alone(store, bench, view)
            raise LaunchError(
                f"a second reference must run beside the first but did not: {error}; its log is {error.failure.log}. "
                "If both do not fit in memory together, make the workload smaller"
            ) from error
        try:
            count = max(FLOOR_PAIRS_LEAST, plan.cap // 2)
            sesoi = store.spec.measure.smallest_effect
            pairs, stopped = bench.run_turns(
                reference, second, folder, name="floor", stop=measure.fixed(count, sesoi=sesoi)
            )
        except WorkerFailed as error:
            bench.lose_reference(str(error))
            continue
        finally:
            second.close()
        ratios = [measure.log_ratio(p) for p in pairs]
        result = FloorResult(
            floor=noise_floor(ratios, [p.first == "candidate" for p in pairs], plan=plan, sesoi=sesoi),
            reference=reference.report,
            comparison=measure.compare(
                pairs,
                estimate_pairs(ratios),
                sesoi=sesoi,
                stopped=stopped,
                warnings=bench.gpus.warnings(),
                meter=bench.meter,
            ),
            provenance=environment.provenance(),
            loss_tolerance=max(
                largest_drift(reference.report.losses, second.report.losses),
                largest_drift(reference.report.grad_norms, second.report.grad_norms),
            ),
            directory=store.relative(folder),
        )
        _keep_floor(store, result, view)
        return result
    raise LaunchError("two references must run in turns but failed three times; see floor/ in the run directory")


def _floor_alone(store: Store, bench: Bench, view: View) -> FloorResult:
    """The reference against itself in fresh runs, one process at a time."""
    folder = store.folder(*bench.own_floor)
    reports: list[WorkerReport] = []
    while True:
        try:
            pairs = sandwich.run_sandwiches(
                bench, FlagSet(), FlagSet(), folder, inspect=lambda first, second: reports.extend((first, second))
            )
            break
        except (sandwich.ReferenceFailed, WorkerFailed) as error:
            failed = error.error if isinstance(error, sandwich.ReferenceFailed) else error
            if not failed.infrastructure and not reports:
                raise LaunchError(reference_failed(bench.spec.baseline, failed)) from error
            bench.lose_reference(str(failed))
    sesoi = store.spec.measure.smallest_effect
    first, second = reports[-2:]
    result = FloorResult(
        floor=sandwich.noise_floor(pairs, sesoi=sesoi),
        reference=first,
        comparison=sandwich.compare(bench, pairs),
        provenance=environment.provenance(),
        loss_tolerance=max(
            largest_drift(*_alike(first.losses, second.losses)),
            largest_drift(*_alike(first.grad_norms, second.grad_norms)),
        ),
        directory=store.relative(folder),
    )
    _keep_floor(store, result, view)
    return result


def _keep_floor(store: Store, result: FloorResult, view: View) -> None:
    """Records a floor and shows it.

    Raises:
        LaunchError: If another worker of the study has another kind of device or other versions.
    """
    refuse_strangers(result, store.of(FloorResult))
    store.append(result)
    view.floor(result)
    for warning in (*result.reference.warnings, *result.comparison.warnings):
        view.note(warning)


def _alike(first: Sequence[float], second: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Two traces cut to one length: what is read from a program's output may end anywhere."""
    count = min(len(first), len(second))
    return first[:count], second[:count]


# ---------------------------------------------------------------------- search


def _search(
    store: Store,
    bench: Bench,
    proposer: Proposer,
    plan: SequentialPlan,
    *,
    trials: int,
    time_budget_s: float | None,
    view: View,
    reference: WorkerReport,
) -> list[TrialResult]:
    """Tries sets until the asked number, the budget or the space is used up, by all workers together."""
    claims = store.claims
    proposer.share(claims)
    told: set[int] = set()
    has_begun = False
    while True:
        results = _take_in(store, proposer, told, view if has_begun else None)
        for text in proposer.news():
            view.note(text)
        if len(results) >= trials:
            break
        if not has_begun:
            has_begun = True
            view.stage("search", f"{trials - len(results)} of {trials} trials to go")
        if (
            time_budget_s is not None and not claims.search_is_over()
            and store.watch.total_s + _proof_cost_s(store, results, time_budget_s) >= time_budget_s
        ):  # fmt: skip
            view.note(f"time budget used: the search ends after {len(results)} of {trials} trials")
            claims.end_search()
        if _find_cause(store, bench, proposer, results, view, reference):
            continue
        begun = _begin_trial(store, proposer, results, trials, view)
        if begun is not None:
            _compile_ahead(bench, proposer, begun[0], results)
            _try(bench, plan, *begun, results=results, trials=trials, view=view)
        elif not claims.search_is_over() or any(
            claims.is_taken(trial_key(n)) for n in claims.sets() if n not in {r.number for r in results}
        ):
            with store.watch.waiting():  # others are at work on what is left
                time.sleep(POLL_S)
        else:
            break
    proposer.finish()
    for text in proposer.news():
        view.note(text)
    return results


def _take_in(store: Store, proposer: Proposer, told: set[int], view: View | None) -> list[TrialResult]:
    """All results so far; what is new of them is told to the proposer, and what others did to the user."""
    results = store.of(TrialResult)
    for result in results:
        if result.number not in told:
            told.add(result.number)
            proposer.tell(result)
            if view is not None and result.by != store.claims.worker:
                view.trial_of_other(result)
    return results


def _find_cause(
    store: Store,
    bench: Bench,
    proposer: Proposer,
    results: Sequence[TrialResult],
    view: View,
    reference: WorkerReport,
) -> bool:
    """Looks for the smallest failing part of one set that crashed or hung; whether there was one to look for.

    What was found, by whomever, is kept from the sampler.
    """
    known = store.of(BlameRecord)
    proposer.bad += [b.smallest for b in known if b.smallest not in proposer.bad]
    trial = next_case(results, known)
    if trial is None or (attempt := store.claims.take(key := f"blame-{trial.number:04d}")) is None:
        return False
    record = minimise_failure(bench, trial, results)
    if not store.claims.commit(key, attempt):
        return False
    store.append(record)
    what = "cause" if record.is_minimal else "smallest failing part found"
    view.note(f"trial {trial.number}: the {what} of the {record.failure_kind} is {record.smallest}")
    if store.spec.replay is None:
        remember(record, reference)
    return True


def _begin_trial(
    store: Store, proposer: Proposer, results: Sequence[TrialResult], trials: int, view: View
) -> tuple[TrialConfig, int] | None:
    """A trial that nobody else has, and the number of its attempt; None if there is none to begin now."""
    claims = store.claims
    if claims.search_is_over():
        return None
    for number in range(1, trials + 1):
        if any(r.number == number for r in results) or (attempt := claims.take(trial_key(number))) is None:
            continue
        # Its last owner may have recorded it, and ended, since the results were read.
        if attempt > 1 and any(r.number == number for r in store.of(TrialResult)):
            continue
        while True:
            taken = claims.sets()
            if number in taken:  # given back by a worker that died
                return taken[number], attempt
            config = proposer.ask(number, results, taken=[c.settings for c in taken.values()])
            if config is None:
                view.note(f"the whole space is tried: the search ends after {len(results)} of {trials} trials")
                claims.end_search()
                return None
            if claims.take_set(config):
                return config, attempt
    return None


def _try(
    bench: Bench,
    plan: SequentialPlan,
    config: TrialConfig,
    attempt: int,
    *,
    results: Sequence[TrialResult],
    trials: int,
    view: View,
) -> None:
    """Makes one trial and records it, unless another worker took it over, thinking this one dead."""
    claims = bench.store.claims
    view.trial_starts(config, trials)
    if (deaths := claims.deaths(trial_key(config.number))) >= MOST_DEATHS:
        result = TrialResult(
            number=config.number, settings=config.settings, origin=config.origin, params=config.params,
            status=TrialStatus.FAILED, failure=node_lost(deaths),
        )  # fmt: skip
    else:
        # By step time alone a set that is surely not the best is given up; as one of a front it may still count.
        best = incumbent(results) if len(bench.spec.search.objectives) == 1 else None
        stop = measure.sequential(plan, sesoi=bench.spec.measure.smallest_effect, incumbent=best)
        result = evaluate(bench, config, stop=stop, estimate=plan.estimate, known=results, attempt=attempt)
    if not claims.commit(trial_key(config.number), attempt):
        view.note(f"trial {config.number} was given to another worker, for this one gave no sign of life")
        return
    bench.store.append(result)
    view.trial_ends(result)


def _compile_ahead(bench: Bench, proposer: Proposer, config: TrialConfig, results: Sequence[TrialResult]) -> None:
    """Has the screen compile what would be proposed after this set, were it to tell nothing new."""

    def guess() -> FlagSet | None:
        following = proposer.ask(config.number + 1, results, taken=[config.settings])
        return following.settings if following is not None else None

    if bench.screening is not None:
        bench.screening.ahead(guess)


def incumbent(results: Sequence[TrialResult]) -> Estimate:
    """The best estimate so far, the reference's own while nothing is better."""
    found = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison is not None]
    best = min(found, key=lambda e: e.ratio, default=None)
    return best if best is not None and best.ratio < 1 else REFERENCE


def _proof_cost_s(store: Store, results: Sequence[TrialResult], budget_s: float) -> float:
    """Seconds to keep back for confirming, from what trials took so far; at most half of the budget."""
    spec = store.spec
    if not _finalists(store, results):
        return 0.0
    starts = [r.worker.start_s for r in results if r.worker is not None] or [5.0]
    steps = [r.comparison.reference_step_s for r in results if r.comparison is not None] or [0.05]
    block_s = max(spec.measure.block_s, spec.measure.block_steps * statistics.median(steps))
    one_s = 1.5 * statistics.median(starts) + 2 * spec.confirm.pairs * block_s
    pairs = (spec.confirm.finalists + 1) * spec.confirm.processes
    return min(BUDGET_SHARE_FOR_PROOF * budget_s, pairs * one_s)


# ---------------------------------------------------------------------- proof


def _conclude(
    store: Store, bench: Bench, plan: SequentialPlan, results: Sequence[TrialResult], view: View
) -> ConclusionRecord:
    """Confirms, minimises, proves again; records and gives the study's conclusion."""
    spec = store.spec
    processes = spec.confirm.processes
    finalists = _finalists(store, results)
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


def _finalists(store: Store, results: Sequence[TrialResult]) -> list[TrialResult]:
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
