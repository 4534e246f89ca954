"""Runs a study: gives the steps of `study/plan.py` to lanes and records their results, until it concludes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.measure.context import refuse_untold_work
from autotune.measure.runner import pays
from autotune.measure.tasks import AblationTask, AnyTask, PendingTask, TrialTask
from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.proofs import Report, is_alone_due, report_of
from autotune.model.records import (
    ISOLATED,
    AaRecord,
    AblationResult,
    Callbacks,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.study.budget import format_timetable
from autotune.study.conclude import record_conclusion
from autotune.study.plan import Conclude, EndSearch, Give, Plan, Step, TryNext, Wait, Write, next_step
from autotune.study.preflight import Setup, prepare
from autotune.study.run import StudyRun
from autotune.study.screen import open_study_screener
from autotune.study.trials import Trials, open_trials


def run_study(run: StudyRun) -> ConclusionRecord:
    """Runs a study to its conclusion, or goes on with it; AutotuneError if it cannot start or go on; records stay."""
    with contextlib.closing(run):
        begin(run)
        with open_study_screener(run.store, run.view) as screener:
            end = Driver(run, open_trials(run, screener)).work()
        run.conclusion = record_conclusion(run, end)
    return run.conclusion


def begin(run: StudyRun) -> WorkerReport:
    """Checks the study, takes devices and run directory, makes the A/A run, and returns the reference's report."""
    run.setup = run.prepare(run.view.note)
    run.open()
    if not run.store.of(AaRecord):
        run.begin_stage("A/A run", "the reference against itself: smallest gain that can be detected")
    reference = run.lanes.first_aa_run().reference
    refuse_untold_work(run.spec, reference)
    return reference


class Driver:
    """Does the steps of one session; `trials` is None where nothing is searched."""

    def __init__(self, run: StudyRun, trials: Trials | None = None) -> None:
        self._run = run
        self._store = run.store
        self._trials = trials
        self._in_hand: list[AnyTask] = []
        self._stage = ("", "")

    def work(self) -> Conclude:
        """Works until the study concludes."""
        trials, spec, table = self._trials, self._run.spec, self._run.time.timetable()
        assert trials is not None
        trials.refresh()
        left = spec.search.trials - len(self._store.of(TrialResult))
        if left > 0 and table is not None:
            self._run.view.note(format_timetable(table, asked=spec.search.trials))

        def plan() -> Step | None:
            return next_step(spec, self._store, self._run.time, self._in_hand)

        end = self._do(plan)
        assert isinstance(end, Conclude)
        return end

    def prove(self, settings: FlagSet, *, trial: int, stage: str) -> FinalistResult:
        """Proves one set in fresh pairs of processes; goes on from its recorded pairs.

        Args:
            stage: Name of the runs in the records; runs of another stage are never used.
        """

        def plan() -> Step | None:
            now = Plan(self._run.spec, self._store, self._run.time, self._in_hand)
            return now.prove(stage, settings, trial)[0]

        self._do(plan)
        step, result = Plan(self._run.spec, self._store, self._run.time).prove(stage, settings, trial)
        assert step is None
        assert result is not None
        return result

    def report(self, proven: FinalistResult) -> Report:
        """Runs each arm in isolation, unless the proof did or none are asked for, and says what is to be reported."""
        isolated, asked = None, self._run.spec.confirm.isolated
        if is_alone_due(proven, self._store.last(AaRecord), self._store.of(ConfirmRun), asked=asked):
            isolated = self.prove(proven.settings, trial=proven.trial, stage=ISOLATED)
        return report_of(proven, isolated, self._store.of(ConfirmRun))

    def _do(self, plan: Callable[[], Step | None]) -> Step | None:
        """Does steps until `plan` returns None or a conclusion, which it returns."""
        last: Step | None = None

        def next_task() -> PendingTask | None:
            nonlocal last
            while True:
                last = step = plan()
                if step is None or isinstance(step, Wait | Conclude):
                    return None
                begun = self._begin(step)
                if isinstance(begun, Wait):
                    return None
                if begun is not None:
                    self._in_hand.append(begun.task)
                    return begun

        self._run.lanes.work(next_task)
        return last

    def _begin(self, step: Step) -> PendingTask | Wait | None:
        """Returns the task of a step for a lane; None if the step is done without one, Wait if it must wait."""
        match step:
            case TryNext():
                return self._try(step)
            case EndSearch(reason):
                if reason:
                    self._run.view.note(reason)
                if self._trials is not None:
                    self._trials.end_search()
            case Write(records):
                for record in records:
                    self._run.record(record)
            case Give(task=task):
                return self._give(step, task)
        return None

    def _try(self, step: TryNext) -> PendingTask | Wait | None:
        trials, asked = self._trials, self._run.spec.search.trials
        assert trials is not None
        trials.refresh()
        count = len(self._store.of(TrialResult))
        self._begin_stage("search", f"{asked - count} of {asked} trials to go")
        trying = [task.config.settings for task in self._in_hand if isinstance(task, TrialTask)]
        config = trials.propose(step, trying)
        if config is None and self._in_hand:
            return Wait()  # what is being tried may fail, or open the space
        if config is None and trials.settle(wait=True):
            return None
        if config is None:
            self._run.view.note(f"{trials.why_none}: the search ends after {count} of {asked} trials")
            trials.end_search(is_exhausted=True)
            return None
        pending = trials.begin(config, most=step.most)
        return self._counted(pending) if pending is not None else None

    def _give(self, step: Give, task: AnyTask) -> PendingTask | None:
        if step.detail:
            self._begin_stage(step.stage, step.detail)
        if isinstance(task, AblationTask) and self._is_same_program(task):
            kept, reason = pays(None, self._run.spec.measure.min_effect)
            self._run.record(AblationResult(settings=task.settings, left_out=task.left_out, kept=kept, reason=reason))
            return None
        return self._counted(PendingTask(task, step.folder, step.name, self._run.record))

    def _is_same_program(self, task: AblationTask) -> bool:
        return self._trials is not None and self._trials.is_same_program(task.settings, task.rest)

    def _counted(self, pending: PendingTask) -> PendingTask:
        """Takes a task out of those in hand once it is done."""
        done, task = pending.done, pending.task

        def end(record: Any) -> None:
            self._in_hand.remove(task)
            done(record)

        pending.done = end
        return pending

    def _begin_stage(self, name: str, detail: str) -> None:
        if name != self._stage[0] or (name != "search" and detail != self._stage[1]):
            self._stage = (name, detail)
            self._run.begin_stage(name, detail)


def new_run(
    spec: StudySpec,
    path: Path,
    *,
    study_dir: Path,
    view: Callbacks,
    watch: Stopwatch,
    storage: str | None = None,
    setup: Setup | None = None,
    **session: Any,
) -> StudyRun:
    """Creates the session of a study, for `run_study`, without starting or writing anything; see `StudyRun`.

    Args:
        path: The run directory, created or resumed.
        watch: Counts the study's time; the view may show it.
        setup: Default: of the build that a probe finds.
    """
    create = functools.partial(Store.create_or_resume, path.resolve(), spec, study_dir=study_dir)
    return StudyRun(
        spec=spec,
        view=view,
        open_store=lambda: create(watch=watch),
        prepare=lambda note: setup or prepare(spec, study_dir=study_dir, storage=storage, note=note),
        storage=storage,
        **session,
    )
