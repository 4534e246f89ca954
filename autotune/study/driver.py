"""Runs a study: gives the steps of `study/plan.py` to lanes and records their results."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from autotune.measure.context import refuse_untold_work
from autotune.measure.tasks import AblationTask, PendingTask
from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.proofs import Report, report_of
from autotune.model.records import (
    AaRecord,
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
from autotune.study.lanes import Tasks
from autotune.study.plan import EndSearch, Give, Plan, Step, TryNext, Write
from autotune.study.preflight import Setup, prepare
from autotune.study.profile import profile_once
from autotune.study.run import StudyRun
from autotune.study.screen import StudyScreener
from autotune.study.trials import Trials

End = TypeVar("End")


def run_study(run: StudyRun, *, profiled: bool = False) -> ConclusionRecord:
    """Runs a study to its conclusion, or goes on with it; then traces its winner if `profiled`."""
    with contextlib.closing(run):
        begin(run)
        with contextlib.closing(StudyScreener(run)) as screener:
            trials = Trials(run, screener)
            trials.refresh()
            time = run.time
            if time.has_budget and len(run.store.of(TrialResult)) < run.spec.search.trials:
                run.view.note(format_timetable(time))
            end = _do(run, Plan.next_step, trials)
        conclude(run, end)
        winner = run.conclusion.settings
        if profiled and winner:
            profile_once(run, (run.spec.reference_name, str(winner)), (FlagSet(), winner))
    return run.conclusion


def begin(run: StudyRun) -> WorkerReport:
    """Checks a study, opens its run, makes the A/A run, and returns the reference's report."""
    run.open()
    if not run.store.of(AaRecord):
        run.begin_stage(
            "A/A run", "the reference against itself: smallest gain that can be detected"
        )
    reference = run.lanes.first_aa_run().reference
    refuse_untold_work(run.spec, reference)
    return reference


def prove(
    run: StudyRun, settings: FlagSet, *, stage: str, trial: int = 0, count: int = 1
) -> FinalistResult:
    """Proves one set of `count` that share the error which is left; goes on from recorded pairs."""
    return _do(run, lambda plan: plan.prove(stage, settings, trial, count))


def report_on(run: StudyRun, proven: FinalistResult) -> Report:
    """Runs each arm in isolation if that is due, and returns what to report of a proven set."""
    isolated = _do(run, lambda plan: plan.alone(proven))
    return report_of(proven, isolated, run.store.of(ConfirmRun))


def _do(run: StudyRun, choose: Callable[[Plan], Step | End], trials: Trials | None = None) -> End:
    """Does the steps that are chosen of the plan of each moment, until there is another end."""
    ends: list[End] = []

    def tasks() -> Tasks:
        while True:
            step = choose(Plan(run.time, run.lanes.in_hand))
            if isinstance(step, Step):
                yield from _begin(run, step, trials)
            else:
                ends.append(step)
                yield None

    run.lanes.work(tasks())
    return ends[-1]


def _begin(run: StudyRun, step: Step, trials: Trials | None) -> Tasks:
    """Does a step, or yields its task for a lane, or None if it must wait."""
    match step:
        case Write(records):
            for record in records:
                run.lanes.record(record)
        case TryNext() if trials:
            yield from trials.try_next(step)
        case EndSearch(reason) if trials:
            if reason:
                run.view.note(reason)
            trials.end_search()
        case Give(task, folder, name, stage, detail):
            if detail:
                run.begin_stage(stage, detail)
            if trials and isinstance(task, AblationTask) and trials.is_same_program(task):
                run.lanes.record(task.of_same_program())
            else:
                yield PendingTask(task, folder, name)
        case _:
            yield None


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
    """Creates the session of a study without starting or writing anything; see `StudyRun`."""
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
