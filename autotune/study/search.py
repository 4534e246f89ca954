"""The search: runs trials on all lanes until the requested number, a budget or the space is used up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.measure.durations import RECENT
from autotune.measure.failing import LONG, failing_task, most_starts, needs_search
from autotune.measure.tasks import PendingTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import EffectsRecord, FailingSetRecord, TrialConfig, TrialResult, TrialStatus
from autotune.study.budget import TRIAL_SHARE, format_timetable
from autotune.study.prefilter import Known, evaluate
from autotune.study.run import StudyRun

ENOUGH_TO_TELL = 12
"""Trials that are needed for the search to end with the best expected set."""


class Search:
    """The search of one session, whose reference is measured and whose space is known."""

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._store = run.store
        self._proposer = run.proposer
        self._asked = run.spec.search.trials
        self._known = Known(run.store)
        self._cases: list[TrialResult] = []  # failures whose cause may have to be searched
        self._causes_seen = 0
        self._tried: dict[int, FlagSet] = {}  # sets that lanes are trying now
        self._is_over = False
        self._is_exhausted = False  # every point of the space is tried
        self._table = run.time.timetable()

    def work(self) -> None:
        """Tries sets until the search is over; none in a budget without time for a trial and its proof."""
        left, table = self._asked - len(self._results()), self._table
        self._tell_news()
        if left > 0 and table is not None:
            self._run.view.note(format_timetable(table, asked=self._asked))
        if left > 0 and (table is None or table.is_enough):
            self._run.begin_stage("search", f"{left} of {self._asked} trials to go")
            self._run.lanes.work(self._next)
        self._finish()

    def go_on(self) -> bool:
        """Tries more with the time that proofs left, keeping one proof's; returns whether any trial was added."""
        before, table = len(self._results()), self._table
        if table is None or not table.is_enough or self._is_exhausted or before >= self._asked:
            return False
        self._table = replace(table, reserved_s=table.least_s)
        if self._run.time.is_used_up(self._trial_s(self._known.results), table.least_s):
            return False
        self._is_over = False
        self._run.begin_stage("search", "no finalist passed: the search continues in the remaining time")
        self._run.lanes.work(self._next)
        self._finish()
        return len(self._results()) > before

    def _tell_news(self) -> None:
        for text in self._proposer.news():
            self._run.view.note(text)

    def _finish(self) -> None:
        """Records the estimated effects, unless that was done, and brings the study's storage up to date."""
        self._read_causes()
        known = self._store.last(EffectsRecord)
        is_news = known is None or known.trials != len(self._results())
        if is_news and (found := self._proposer.effects()) is not None:
            self._store.append(found)
        self._proposer.finish()
        self._tell_news()

    def _results(self) -> Sequence[TrialResult]:
        """Returns all results so far, and tells the proposer the new ones."""
        for result in self._known.refresh():
            self._proposer.tell(result)
            if result.failure is not None:
                self._cases.append(result)
        return self._known.results

    def _next(self) -> PendingTask | None:
        """Returns the next task of a lane; records trials whose result is known without one."""
        while True:
            results = self._results()
            self._tell_news()
            if len(results) + len(self._tried) >= self._asked:
                return None
            self._mind_the_budget(results)
            if self._is_over:
                return None
            if (job := self._look_for_cause(results)) is not None:
                return job
            if (config := self._propose(results)) is None:
                return None
            if (job := self._begin(config, results)) is not None:
                return job

    def _mind_the_budget(self, results: Sequence[TrialResult]) -> None:
        """Ends the search when one more trial would reach into the time of the proofs, or the budget is used up."""
        if self._run.time.is_used_up(self._trial_s(results), self._kept_s) and not self._is_over:
            kept = ", what is left is kept for proofs" if self._kept_s else ""
            self._run.view.note(f"time budget used: the search ends after {len(results)} of {self._asked} trials{kept}")
            self._is_over = True

    def _trial_s(self, results: Sequence[TrialResult]) -> float:
        """Returns the least seconds of the next trial: as planned, or of the shortest recent one if longer."""
        if self._table is None:
            return 0.0
        took_s = [r.duration_s for r in results[-RECENT:] if r.status is TrialStatus.MEASURED and r.duration_s]
        return max(self._table.trial_s, min(took_s, default=0.0))

    @property
    def _kept_s(self) -> float:
        """Seconds that are reserved for proofs."""
        return self._run.time.still_kept(self._table) if self._table is not None else 0.0

    def _propose(self, results: Sequence[TrialResult]) -> TrialConfig | None:
        """Returns a set that was not tried and is not being tried; None if there is none now."""
        number, taken = self._known.free_number(self._tried), self._tried.values()
        config = self._proposer.ask_enqueued(number, taken=taken)
        if config is None and self._is_last(results):
            config = self._proposer.ask_best(number, taken=taken)
        config = config or self._proposer.ask(number, taken=taken)
        if config is None and not self._tried:
            self._run.view.note(
                f"the whole space is tried: the search ends after {len(results)} of {self._asked} trials"
            )
            self._is_over = self._is_exhausted = True
        return config

    def _is_last(self, results: Sequence[TrialResult]) -> bool:
        """Whether one trial is left, and there are enough to estimate the best set."""
        if len(results) < ENOUGH_TO_TELL:
            return False
        if len(results) + len(self._tried) + 1 >= self._asked:
            return True
        trial_s = self._trial_s(results)
        return trial_s > 0 and self._run.time.is_used_up(2 * trial_s, self._kept_s)

    def _begin(self, config: TrialConfig, results: Sequence[TrialResult]) -> PendingTask | None:
        """Returns a trial for a lane; None if its result is known already, which it records."""
        run = self._run
        run.view.trial_starts(config, self._asked)
        found = evaluate(run, config, self._known)
        if isinstance(found, TrialResult):
            self._end(found)
            return None
        if self._table is not None:
            most = run.time.pairs_for(self._kept_s, starts=1, share=TRIAL_SHARE)
            found = found.model_copy(update={"most": most})
        self._tried[config.number] = config.settings
        self._proposer.begin(config)
        folder = ("trials", f"{config.number:04d}")
        return PendingTask(found, folder, f"trial-{config.number}", self._end)

    def _end(self, result: TrialResult) -> None:
        self._tried.pop(result.number, None)
        self._results()  # takes in the trial that it may duplicate
        result = self._known.complete(result)
        self._store.append(result)
        self._run.view.trial_ends(result)

    def _read_causes(self) -> None:
        news = self._store.since(FailingSetRecord, self._causes_seen)
        self._causes_seen += len(news)
        failing = self._proposer.failing
        failing += [b.smallest for b in news if b.smallest not in failing]

    def _look_for_cause(self, results: Sequence[TrialResult]) -> PendingTask | None:
        """Returns the task of finding a minimal failing set, if a trial crashed or hung."""
        self._read_causes()
        known = self._store.of(FailingSetRecord)
        while self._cases:  # a failure that needs no search now needs none later
            trial = self._cases.pop(0)
            if not needs_search(trial, known) or trial.failure is None:
                continue
            kind, number = trial.failure.kind, f"{trial.number:04d}"
            if not self._has_time_for_cause(kind):
                return None
            task = failing_task(trial, kind, results)
            return PendingTask(task, ("failing", number), f"failing-{number}", self._end_failing_set)
        return None

    def _has_time_for_cause(self, kind: FailureKind) -> bool:
        """Whether that task fits beside the time reserved for proofs, even with all its starts."""
        takes, limits = self._run.time.takes, self._run.lanes.limits
        if takes is None or self._table is None:
            return True
        each_s = limits.start_s if kind in LONG and limits is not None else takes.start_s
        return not self._run.time.is_used_up(most_starts(kind) * each_s, self._kept_s)

    def _end_failing_set(self, record: FailingSetRecord) -> None:
        self._store.append(record)
        what = "minimal" if record.is_minimal else "smallest known"
        kind = record.failure_kind.replace("_", " ")
        self._run.view.note(f"trial {record.trial}: {what} failing set ({kind}): {record.smallest}")
