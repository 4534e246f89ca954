"""The search: trial after trial until the asked number, the budget or the space is used up, by all workers together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from autotune.model import BlameRecord, Failed, Failure, FailureKind, FlagSet, TrialConfig, TrialResult
from autotune.rundir import MOST_DEATHS, POLL_S, trial_key
from autotune.study.culprit import minimise_failure, next_case, remember, remembered
from autotune.study.finalists import choose_finalists
from autotune.study.run import StudyRun

BUDGET_SHARE_FOR_PROOF = 0.5
"""Largest share of a time budget that is kept back from the search for confirming."""


class Search:
    """The search of one session.

    Args:
        run: The study, its reference measured and its space known.
    """

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._store = run.store
        self._claims = run.store.claims
        self._proposer = run.proposer
        self._asked = run.spec.search.trials
        self._told: set[int] = set()

    def work(self) -> None:
        """Tries sets until there is nothing left to try."""
        run, claims = self._run, self._claims
        self._recall_failures()
        has_begun = False
        while True:
            results = self._take_in(is_shown=has_begun)
            self._tell_news()
            if len(results) >= self._asked:
                break
            if not has_begun:
                has_begun = True
                run.view.stage("search", f"{self._asked - len(results)} of {self._asked} trials to go")
            self._mind_the_budget(results)
            if self._find_cause(results):
                continue
            begun = self._begin_trial(results)
            if begun is not None:
                self._try(*begun, results)
            elif not claims.search_is_over() or self._others_are_trying(results):
                with self._store.watch.waiting():
                    time.sleep(POLL_S)
            else:
                break
        self._proposer.finish()
        self._tell_news()

    def _recall_failures(self) -> None:
        """Keeps the sampler from what crashed or hung in earlier studies on this build and device."""
        reference = self._run.reference
        if reference is None or not self._run.spec.search.known_failures or self._run.spec.replay is not None:
            return
        self._proposer.bad = remembered(reference)
        if self._proposer.bad:
            self._run.view.note(
                f"left out: {len(self._proposer.bad)} combinations that crashed or hung in earlier studies on this "
                "build and device (search.known_failures = false tries them again)"
            )

    def _tell_news(self) -> None:
        for text in self._proposer.news():
            self._run.view.note(text)

    def _take_in(self, *, is_shown: bool) -> Sequence[TrialResult]:
        """All results so far; what is new of them is told to the proposer, and what others did to the user."""
        results = self._store.of(TrialResult)
        for result in results[len(self._told) :] if self._claims.worker is None else results:
            if result.number not in self._told:
                self._told.add(result.number)
                self._proposer.tell(result)
                if is_shown and result.by != self._claims.worker:
                    self._run.view.trial_of_other(result)
        return results

    def _mind_the_budget(self, results: Sequence[TrialResult]) -> None:
        """Ends the search when the rest of the time is needed for proofs."""
        budget_s = self._run.spec.search.time_budget
        if budget_s is None or self._claims.search_is_over():
            return
        if self._store.watch.total_s + self._proof_cost_s(results, budget_s) >= budget_s:
            self._run.view.note(f"time budget used: the search ends after {len(results)} of {self._asked} trials")
            self._claims.end_search()

    def _proof_cost_s(self, results: Sequence[TrialResult], budget_s: float) -> float:
        """Seconds to keep back for confirming, from what trials took so far; at most half of the budget."""
        spec = self._run.spec
        if not choose_finalists(self._run):
            return 0.0
        starts = [r.worker.start_s for r in results if r.worker is not None] or [5.0]
        steps = [r.comparison.reference_step_s for r in results if r.comparison is not None] or [0.05]
        block_s = max(spec.measure.block_s, spec.measure.block_steps * statistics.median(steps))
        one_s = 1.5 * statistics.median(starts) + 2 * spec.confirm.pairs * block_s
        pairs = (spec.confirm.finalists + 1) * spec.confirm.processes
        return min(BUDGET_SHARE_FOR_PROOF * budget_s, pairs * one_s)

    def _find_cause(self, results: Sequence[TrialResult]) -> bool:
        """Looks for the smallest failing part of one set that crashed or hung; whether there was one to look for.

        What was found, by whomever, is kept from the sampler.
        """
        known = self._store.of(BlameRecord)
        self._proposer.bad += [b.smallest for b in known if b.smallest not in self._proposer.bad]
        trial = next_case(results, known)
        if trial is None or (attempt := self._claims.take(key := f"blame-{trial.number:04d}")) is None:
            return False
        record = minimise_failure(self._run.bench, trial, results)
        if not self._claims.commit(key, attempt):
            return False
        self._store.append(record)
        what = "cause" if record.is_minimal else "smallest failing part found"
        self._run.view.note(f"trial {trial.number}: the {what} of the {record.failure_kind} is {record.smallest}")
        if self._run.spec.replay is None and self._run.reference is not None:
            remember(record, self._run.reference)
        return True

    def _begin_trial(self, results: Sequence[TrialResult]) -> tuple[TrialConfig, int] | None:
        """A trial that nobody else has, and the number of its attempt; None if there is none to begin now."""
        claims = self._claims
        if claims.search_is_over():
            return None
        done = {r.number for r in results}
        for number in range(1, self._asked + 1):
            if number in done or (attempt := claims.take(trial_key(number))) is None:
                continue
            # Its last owner may have recorded it, and ended, since the results were read.
            if attempt > 1 and any(r.number == number for r in self._store.of(TrialResult)):
                continue
            while True:
                taken = claims.sets()
                if number in taken:  # given back by a worker that died
                    return taken[number], attempt
                config = self._proposer.ask(number, taken=[c.settings for c in taken.values()])
                if config is None:
                    self._run.view.note(
                        f"the whole space is tried: the search ends after {len(results)} of {self._asked} trials"
                    )
                    claims.end_search()
                    return None
                if claims.take_set(config):
                    return config, attempt
        return None

    def _others_are_trying(self, results: Sequence[TrialResult]) -> bool:
        done = {r.number for r in results}
        return any(self._claims.is_taken(trial_key(n)) for n in self._claims.sets() if n not in done)

    def _try(self, config: TrialConfig, attempt: int, results: Sequence[TrialResult]) -> None:
        """Makes one trial and records it, unless another worker took it over, thinking this one dead."""
        run, key = self._run, trial_key(config.number)
        run.evaluator.compile_ahead(lambda: self._guess_after(config))
        run.view.trial_starts(config, self._asked)
        if (deaths := self._claims.deaths(key)) >= MOST_DEATHS:
            result = TrialResult(**dict(config), outcome=Failed(failure=node_lost(deaths)))
        else:
            result = run.evaluator.evaluate(config, results, attempt=attempt)
        if not self._claims.commit(key, attempt):
            run.view.note(f"trial {config.number} was given to another worker, for this one gave no sign of life")
            return
        self._store.append(result)
        run.view.trial_ends(result)

    def _guess_after(self, config: TrialConfig) -> FlagSet | None:
        """What would be proposed after a set, were that to tell nothing new."""
        following = self._proposer.ask(config.number + 1, taken=[config.settings])
        return following.settings if following is not None else None


def node_lost(deaths: int) -> Failure:
    """What is recorded of work that is not given back again."""
    message = f"{deaths} workers died over this, one after the other; it is not given to another"
    return Failure(kind=FailureKind.NODE_LOST, message=message, phase="step")
