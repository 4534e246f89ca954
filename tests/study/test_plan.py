"""The planner: what a study does next follows from its records alone, wherever it was stopped."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.measure.tasks import AblationTask, FailingSetTask, PairTask, SoakTask, TrialTask
from autotune.model.records import (
    AaRecord,
    AblationResult,
    AnyRecord,
    ConclusionRecord,
    ConfirmRun,
    EffectsRecord,
    FailingSetRecord,
    IncidentRecord,
    LedgerRecord,
    SearchEnd,
    SessionRecord,
    SoakRecord,
    TrialResult,
)
from autotune.study.budget import TimeLeft
from autotune.study.driver import run_study
from autotune.study.plan import Conclude, EndSearch, Give, Plan, Step, TryNext, Wait, Write
from harness.numbered_studies import study_of
from harness.simulated import MemoryStore, given_run, silent

STUDIES = [0, 1, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
"""Of `harness.numbered_studies`: with gains, without, and with failures, one lane each."""


def does(step: Step | Conclude, record: AnyRecord) -> bool:
    """Whether a record is what a step makes."""
    match step, record:
        case TryNext(number=number), TrialResult():
            return number == record.number
        case EndSearch(), EffectsRecord() | SearchEnd():
            return True
        case Write(records), _:
            return record.model_copy(update={"at_s": 0.0}) in records
        case Give(task=PairTask() as task), ConfirmRun():
            return (task.stage, task.settings, task.repeat) == (record.stage, record.settings, record.repeat)
        case Give(task=AblationTask() as task), AblationResult():
            return (task.settings, task.left_out) == (record.settings, record.left_out)
        case Give(task=SoakTask() as task), SoakRecord():
            return task.settings == record.settings
        case Give(task=FailingSetTask() as task), FailingSetRecord():
            return task.trial == record.trial
        case Conclude(), ConclusionRecord():
            return True
    return False


@pytest.mark.parametrize("number", STUDIES)
def test_after_each_record_the_next_step_is_what_the_study_did_next(number: int) -> None:
    spec, setup = study_of(number)
    run = given_run(spec, None, setup, silent())
    run_study(run)
    records = [r for r in run.store.records() if not isinstance(r, SessionRecord | LedgerRecord | IncidentRecord)]
    store = MemoryStore(spec)
    for at, record in enumerate(records):
        if at and not isinstance(records[at - 1], EffectsRecord):  # it is written together with the search's end
            step = Plan(TimeLeft(store, 0.0, 1)).next_step()
            assert does(step, record), f"before record {at}: {step} but {record}"
        store.append(record)
    assert isinstance(records[0], AaRecord)
    assert isinstance(Plan(TimeLeft(store, 0.0, 1)).next_step(), Conclude)


def test_what_is_in_hand_is_not_given_twice() -> None:
    spec, setup = study_of(0)
    run = given_run(spec, None, setup, silent())
    run_study(run)
    store, aa_run = MemoryStore(spec), run.store.of(AaRecord)[0]
    store.append(aa_run)
    clock = TimeLeft(store, 0.0, 2)
    trials = run.store.of(TrialResult)
    tasks: list[Any] = [TrialTask(config=trials[0]), TrialTask(config=trials[1])]
    third = Plan(clock, tasks).next_step()
    assert isinstance(third, TryNext)
    assert third.number == 3
    every: list[Any] = [TrialTask(config=t) for t in trials]
    assert isinstance(Plan(clock, every).next_step(), Wait)
