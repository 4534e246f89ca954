"""Studies on the programs of this folder, and the launcher that starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.records import ConclusionRecord
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.store import Store
from autotune.study.driver import new_run, run_study
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher, LocalWorker
from tests.runs import Diary

PROGRAMS = Path(__file__).parent / "programs"
PRINTED = {"pattern": r"step \d+: (?P<step_ms>[\d.]+) ms", "loss": r"loss = (?P<loss>\S+)"}
QUICK = {"start_limit_s": 120, "block_limit_s": 60}


def study(workload: dict[str, Any], **more: Any) -> StudySpec:
    """A study of one of the programs, with short limits."""
    measure = {**QUICK, **more.pop("measure", {})}
    return parse_study({"name": "launched", "workload": workload, "measure": measure, **more})


def command(*arguments: str, program: str = "train.py", **workload: Any) -> dict[str, Any]:
    """The [workload] of a program that is run as a command."""
    if "hook" not in workload:
        workload.setdefault("read", PRINTED)
    return {"command": [sys.executable, program, *arguments], **workload}


def whole_study(
    folder: Path, workload: dict[str, Any], *, soak: str = "1s", **sections: Any
) -> tuple[ConclusionRecord, Store]:
    """A study of one of the programs, to its conclusion, with one finalist and a short proof."""
    confirm = {"finalists": 1, "processes": 3, "isolated": 0, "soak": soak}
    spec = parse_study({"name": "whole", "workload": workload, "confirm": confirm, **sections})
    run = new_run(spec, folder / "run", study_dir=PROGRAMS, view=Diary(), watch=Stopwatch())
    return run_study(run), run.store


Start = Callable[..., LocalWorker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a worker of a study: `start(spec, settings)`; all are ended with the test, and nothing is left alive."""
    launchers: list[LocalLauncher] = []
    before = {p.pid for p in psutil.Process().children(recursive=True)}

    def begin(spec: StudySpec, settings: dict[str, Any] | None = None) -> LocalWorker:
        kind = CommandLauncher if spec.workload.command is not None else LocalLauncher
        launcher = kind(spec, study_dir=str(PROGRAMS), base=os.environ)
        launchers.append(launcher)
        return launcher.start(FlagSet(settings or {}), tmp_path, progress=lambda phase: None)

    yield begin
    for launcher in launchers:
        launcher.close()
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before
