"""Number formats as programs say them, in real processes: each has a tolerance or a clear refusal, none a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.context import MeasurementContext
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, WorkerReport
from autotune.rundir.store import Folders
from autotune.workers.base import WorkerFailed
from autotune.workers.local import LocalLauncher
from tests.runs import Told
from tests.workers.conftest import PROGRAMS, study

Report = Callable[..., WorkerReport]


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Report]:
    """What a real process of the workload reports, once its context has looked at it."""
    contexts: list[MeasurementContext] = []

    def make(**options: Any) -> WorkerReport:
        spec = study({"entry": "odd_dtypes:build", "options": options})
        launcher = LocalLauncher(spec, study_dir=str(PROGRAMS), base=os.environ)
        contexts.append(MeasurementContext(spec, Folders(tmp_path / "run"), launcher, Told()))
        return contexts[-1].start(FlagSet(), contexts[-1].folders.folder("one")).report

    yield make
    for context in contexts:
        context.close()


def test_formats_are_told_by_their_names(report: Report) -> None:
    found = report(says="jnp", told="float8_e4m3fn")
    assert (found.dtype, found.loss_dtype, found.norm_dtype) == ("bfloat16", "float8_e4m3fn", "float8_e4m3fn")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"told": "int32"}, r"loss: .*floating-point.*int32"),
        pytest.param({"says": "int8"}, r"arithmetic .*floating-point.*'int8'", marks=pytest.mark.slow),
    ],
)
def test_a_format_that_cannot_be_compared_is_refused(report: Report, options: dict[str, str], said: str) -> None:
    with pytest.raises(WorkerFailed, match=said) as error:
        report(**options)
    assert error.value.failure.kind is FailureKind.WORKLOAD_ERROR
