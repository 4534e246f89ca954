"""What is compiled while something is measured: on processors to spare, and nothing of it during a proof."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.program import CompileResult
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.records import ConfirmRun
from autotune.model.spec import StudySpec
from autotune.study import screen as stage
from autotune.study.search import Search
from autotune.study.stages import run_study
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker
from tests.compiler.rules import BUFFER, COMBINE, SLOP, Rules, screen, space
from tests.runs import Diary, asking, replay_study

LAST = 3
ENDLESS = FlagSet({COMBINE: "11", SLOP: "23"})


class Slow(Rules):
    """A compiler that never comes to an end with one set, unless it is told to stop.

    Attributes:
        kept_to: Processors to which it is to keep now.
        kept: To which it was to keep when it began with that set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept_to: frozenset[int] = frozenset()
        self.kept: list[frozenset[int]] = []
        self.busy = threading.Event()
        self.stopped = threading.Event()

    def compile(self, sets: Sequence[FlagSet]) -> Iterator[CompileResult]:
        if not any(s.get(SLOP) == ENDLESS[SLOP] for s in sets):
            return super().compile(sets)
        self.kept.append(self.kept_to)
        self.busy.set()
        is_stopped = self.stopped.wait(60)
        self.busy.clear()
        raise LaunchError("compiling was stopped" if is_stopped else "nobody stopped it")

    def abort(self) -> None:
        self.stopped.set()

    def resume(self) -> None:
        self.stopped.clear()


class Watching(SimulatedLauncher):
    """Notes of each start in a proof whether the compiler is at work."""

    def __init__(self, spec: StudySpec, rules: Slow) -> None:
        super().__init__(spec)
        self._rules = rules
        self.busy_in_proofs: list[bool] = []

    def start(self, settings: FlagSet, folder: Path, *, progress: Any) -> SimulatedWorker:
        if {"confirm", "minimise", "soak"} & set(folder.parts):
            self.busy_in_proofs.append(self._rules.busy.is_set())
        elif folder.parts[-2:] == ("trials", f"{LAST:04d}"):
            assert self._rules.busy.wait(60)  # what comes after the last trial is being compiled
        return super().start(settings, folder, progress=progress)


def test_no_proof_runs_beside_a_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 2b61fbc what was compiled ahead of the last trial ran on into the proofs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    spec = replay_study(
        effects={f"{COMBINE}=11": 0.8, f"{BUFFER}=true": 1.1},
        noise={"white_sd": 1e-4},
        study={
            "device": {"platform": "cuda", "count": 8},
            "screen": {"enabled": True, "target": "h100-sxm"},
            "confirm": {"processes": 4},
        },
    )
    rules = Slow()
    monkeypatch.setattr(stage, "open_screener", lambda *_, **__: contextlib.nullcontext((spec, screen(rules))))
    monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))
    launcher = Watching(spec, rules)
    first = (("one", FlagSet({COMBINE: "11"})),)
    monkeypatch.setattr(Search, "_guess_after", lambda _, config: ENDLESS if config.number == LAST else None)
    setup = GivenSetup(given_space=space(), first=first, given_launcher=launcher)
    made = given_run(asking(spec, LAST), tmp_path / "run", setup, Diary())
    run_study(made)
    assert made.store.of(ConfirmRun)
    assert launcher.busy_in_proofs
    assert not any(launcher.busy_in_proofs)
    assert rules.kept == [frozenset(range(16, 32))]  # half of the cores, and eight GPUs have one each
