"""A trial's program: a duplicate of a known one is not measured, and no name outlives its program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measure.compare import Compared, ComparisonRequest
from autotune.measure.runner import measure_trial
from autotune.measure.tasks import Assignment, TrialTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.records import REFERENCE_NUMBER, TrialConfig, TrialResult, TrialStatus
from autotune.rundir.store import Store
from autotune.stats.estimates import SequentialPlan
from tests.runs import there

SET = FlagSet({"xla_a": "1"})


def report(program: str) -> WorkerReport:
    return WorkerReport(
        fingerprint=program, platform="cpu", device_kind="cpu", device_count=1, start_s=1.0, losses=(), grad_norms=(),
        warmup_step_times_s=(0.1,),
    )  # fmt: skip


def tried(finished: Store, folder: Path, *, reference: str, first: str, last: str) -> tuple[TrialResult, int]:
    """A trial whose first and last process ran these programs; how often it was measured."""
    comparison = next(r.comparison for r in finished.of(TrialResult) if r.comparison is not None)
    measured = []

    def compare(request: ComparisonRequest[Any]) -> Compared[Any]:
        assert request.inspect is not None
        settled = request.inspect(report(reference), report(first))
        if settled is not None:
            return Compared(reference=report(reference), candidate=report(first), settled=settled)
        measured.append(request.candidate)
        return Compared(reference=report(reference), candidate=report(last), comparison=comparison)

    context: Any = SimpleNamespace(
        spec=finished.spec, folders=SimpleNamespace(write_beside=lambda *_: None),
        losses=SimpleNamespace(check=lambda *_: None, with_blocks=lambda *_: None),
        assignment=Assignment(programs={"known": 7}),
        program_key=lambda settings, told: told.fingerprint,
    )  # fmt: skip
    task = TrialTask(config=TrialConfig(number=9, origin="test", settings=SET))
    comparer: Any = SimpleNamespace(compare=compare, mode="aba")
    return measure_trial(context, comparer, SequentialPlan(), task, folder, name="trial-9"), len(measured)


@pytest.mark.parametrize(("program", "duplicate"), [("the default's", REFERENCE_NUMBER), ("known", 7)])
def test_a_program_that_is_known_is_not_measured_again(
    program: str, duplicate: int, finished: Store, tmp_path: Path
) -> None:
    result, count = tried(finished, tmp_path, reference="the default's", first=program, last=program)
    assert (result.status, result.same_as, count) == (TrialStatus.SAME_PROGRAM, duplicate, 0)


def test_a_program_of_its_own_is_measured_and_known_unless_it_compiles_another_later(
    finished: Store, tmp_path: Path
) -> None:
    result, count = tried(finished, tmp_path, reference="the default's", first="new", last="new")
    assert (result.status, result.program_key, count) == (TrialStatus.MEASURED, "new", 1)
    # It compiles at random, or more as it runs: another set with its first program is no duplicate of it.
    result, _ = tried(finished, tmp_path, reference="the default's", first="new", last="another")
    assert (result.status, result.program_key) == (TrialStatus.MEASURED, None)
    assert there(result.worker).fingerprint == "another"
