"""Runs a study: gives the steps of `study/plan.py` to lanes and records their results, until it
concludes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
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
from autotune.study.conclude import conclude
from autotune.study.plan import (
    Conclude,
    EndSearch,
    Give,
    Plan,
    Step,
    TryNext,
    Wait,
    Write,
    next_step,
)
from autotune.study.preflight import Setup, prepare
from autotune.study.profile import profile_once
from autotune.study.run import StudyRun
from autotune.study.screen import StudyScreener
from autotune.study.trials import Trials


def run_study(run: StudyRun, *, profiled: bool = False) -> ConclusionRecord:
    """Runs a study to its conclusion, or goes on with it; AutotuneError if it cannot start or go
    on; records stay.

    Args:
        profiled: Whether its reference and its winner are traced after that, once.
    """
    with contextlib.closing(run):
        begin(run)
        with contextlib.closing(StudyScreener(run)) as screener:
            end = SearchDriver(run, Trials(run, screener)).work()
        conclude(run, end)
        winner = run.conclusion.settings
        if profiled and winner:
            profile_once(run, (run.spec.reference_name, str(winner)), (FlagSet(), winner))
    return run.conclusion


def begin(run: StudyRun) -> WorkerReport:
    """Checks the study, takes devices and run directory, makes the A/A run, and returns the
    reference's report.
    """
    run.setup = run.prepare(run.view.note)
    run.open()
    if not run.store.of(AaRecord):
        run.begin_stage(
            "A/A run", "the reference against itself: smallest gain that can be detected"
        )
    reference = run.lanes.first_aa_run().reference
    refuse_untold_work(run.spec, reference)
    return reference


class Driver:
    """Does the steps of one session in which nothing is searched."""

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._store = run.store
        self._stage = ("", "")

    @property
    def _in_hand(self) -> Sequence[AnyTask]:
        return self._run.lanes.in_hand

    def prove(self, settings: FlagSet, *, trial: int, stage: str, count: int = 1) -> FinalistResult:
        """Proves one set in fresh pairs of processes; goes on from its recorded pairs.

        Args:
            stage: Name of the runs in the records; runs of another stage are never used.
            count: Proofs, with this one, that share the error which those before it left.
        """

        def plan() -> Step | None:
            now = Plan(self._run.spec, self._store, self._run.time, self._in_hand)
            return now.prove(stage, settings, trial, count=count)[0]

        self._do(plan)
        step, result = Plan(self._run.spec, self._store, self._run.time).prove(
            stage, settings, trial
        )
        assert step is None
        assert result is not None
        return result

    def report(self, proven: FinalistResult) -> Report:
        """Runs each arm in isolation, unless the proof did or none are asked for, and says what is
        to be reported.
        """
        isolated, asked = None, self._run.spec.confirm.isolated
        if is_alone_due(
            proven, self._store.last(AaRecord), self._store.of(ConfirmRun), asked=asked
        ):
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
                    return begun

        self._run.lanes.work(next_task)
        return last

    def _begin(self, step: Step) -> PendingTask | Wait | None:
        """Returns the task of a step for a lane; None if the step is done without one, Wait if it
        must wait.
        """
        match step:
            case Write(records):
                for record in records:
                    self._run.record(record)
            case Give(task=task):
                if step.detail:
                    self._begin_stage(step.stage, step.detail)
                return PendingTask(task, step.folder, step.name, self._run.record)
        return None

    def _begin_stage(self, name: str, detail: str) -> None:
        if name != self._stage[0] or (name != "search" and detail != self._stage[1]):
            self._stage = (name, detail)
            self._run.begin_stage(name, detail)


class SearchDriver(Driver):
    """Does the steps of one session of a study that searches."""

    def __init__(self, run: StudyRun, trials: Trials) -> None:
        super().__init__(run)
        self._trials = trials

    def work(self) -> Conclude:
        """Works until the study concludes."""
        spec = self._run.spec
        self._trials.refresh()
        if self._run.time.has_budget and len(self._store.of(TrialResult)) < spec.search.trials:
            self._run.view.note(format_timetable(self._run.time))

        def plan() -> Step | None:
            return next_step(spec, self._store, self._run.time, self._in_hand)

        end = self._do(plan)
        assert isinstance(end, Conclude)
        return end

    def _begin(self, step: Step) -> PendingTask | Wait | None:
        """See `Driver`."""
        match step:
            case TryNext():
                return self._try(step)
            case EndSearch(reason):
                if reason:
                    self._run.view.note(reason)
                self._trials.end_search()
            case Give(task=AblationTask() as task) if self._trials.is_same_program(
                task.settings, task.rest
            ):
                self._begin_stage(step.stage, step.detail)
                kept, reason = pays(None, self._run.spec.measure.min_effect)
                result = AblationResult(
                    settings=task.settings, left_out=task.left_out, kept=kept, reason=reason
                )
                self._run.record(result)
            case _:
                return super()._begin(step)
        return None

    def _try(self, step: TryNext) -> PendingTask | Wait | None:
        trials, asked = self._trials, self._run.spec.search.trials
        trials.refresh()
        self._begin_stage(
            "search", f"{asked - len(self._store.of(TrialResult))} of {asked} trials to go"
        )
        trying = [task.config.settings for task in self._in_hand if isinstance(task, TrialTask)]
        config = trials.propose(step, trying)
        if config is not None:
            return trials.begin(config, most=step.most)
        if self._in_hand:
            return Wait()  # what is being tried may fail, or open the space
        if not trials.settle(wait=True):
            trials.exhaust()
        return None


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
    """Creates the session of a study, for `run_study`, without starting or writing anything; see
    `StudyRun`.

    Args:
        path: The run directory, created or resumed.
        watch: Counts the study's time; the view may show it.
        setup: Default: of the build that a probe finds.
    """
    return StudyRun(
        spec=spec,
        view=view,
        open_store=functools.partial(
            Store.create_or_resume, path.resolve(), spec, study_dir=study_dir, watch=watch
        ),
        prepare=lambda note: (
            setup or prepare(spec, study_dir=study_dir, storage=storage, note=note)
        ),
        storage=storage,
        **session,
    )
