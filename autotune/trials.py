"""The search: trial after trial until the asked number, the budget or the space is used up, by all workers together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from autotune import measure
from autotune.blame import minimise_failure, next_case, remember
from autotune.claims import MOST_DEATHS, POLL_S, trial_key
from autotune.conclude import finalists_of
from autotune.evaluate import Bench, evaluate, node_lost
from autotune.flags import FlagSet
from autotune.records import (
    BlameRecord,
    TrialConfig,
    TrialResult,
    TrialStatus,
    WorkerReport,
)
from autotune.search import Proposer
from autotune.stats import REFERENCE, Estimate, SequentialPlan
from autotune.store import Store
from autotune.told import View

BUDGET_SHARE_FOR_PROOF = 0.5
"""Largest share of a time budget that is kept back from the search for confirming."""


def search_trials(
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
    if not finalists_of(store, results):
        return 0.0
    starts = [r.worker.start_s for r in results if r.worker is not None] or [5.0]
    steps = [r.comparison.reference_step_s for r in results if r.comparison is not None] or [0.05]
    block_s = max(spec.measure.block_s, spec.measure.block_steps * statistics.median(steps))
    one_s = 1.5 * statistics.median(starts) + 2 * spec.confirm.pairs * block_s
    pairs = (spec.confirm.finalists + 1) * spec.confirm.processes
    return min(BUDGET_SHARE_FOR_PROOF * budget_s, pairs * one_s)
