"""A screen that begins beside the noise floor."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.targets import load_target, parse_topology
from autotune.model.flags import FlagSet
from autotune.model.records import ConclusionRecord, ScreenRecord
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.store import Store
from autotune.study import need
from autotune.study import screen as stage
from autotune.study.screen import StudyScreener
from autotune.study.stages import run_study
from autotune.workers.replay import ReplayLauncher, ReplayWorker
from harness.simulated import GivenSetup, given_run
from tests.compiler.rules import BUFFER, COMBINE, SLOP, Rules, screen, space
from tests.runs import Diary

PATIENCE_S = 20.0


def study(**more: Any) -> StudySpec:
    return parse_study(
        {
            "name": "screened",
            "workload": {"entry": "llama"},
            "device": {"platform": "cuda", "count": 8},
            "search": {"trials": 2},
            "screen": {"enabled": True, "target": "h100-sxm", **more},
            "confirm": {"processes": 3},
            "measure": {"block_s": 0.01},
            "replay": {"effects": {f"{COMBINE}=11": 0.93}, "noise": {"white_sd": 1e-4}},
        }
    )


class Waiting(ReplayLauncher):
    """Its first process is not ready before some sets were compiled."""

    def __init__(self, spec: StudySpec, enough: threading.Event | None) -> None:
        assert spec.replay is not None
        super().__init__(spec.replay, seed=spec.seed, platform=spec.device.platform)
        self._enough = enough
        self.has_waited_in_vain = False

    def start(self, settings: FlagSet, folder: Path, *, progress: Any) -> ReplayWorker:
        if self._enough is not None:
            self.has_waited_in_vain = not self._enough.wait(PATIENCE_S)
            self._enough = None
        return super().start(settings, folder, progress=progress)


class Told(Rules):
    """Tells when three settings have been compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.enough = threading.Event()

    def compile(self, sets: Any) -> Iterator[Any]:
        for result in super().compile(sets):
            yield result
            if {COMBINE, BUFFER, SLOP} <= {n for s in self.compiled for n in s}:
                self.enough.set()


Run = Callable[..., tuple[ConclusionRecord, Store, Diary, Waiting]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def go(spec: StudySpec, rules: Told, *, waits: bool = False) -> Any:
        opened = contextlib.nullcontext((spec, screen(rules)))
        monkeypatch.setattr(stage, "open_screener", lambda *_, **__: opened)
        monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))  # a replayed study is not, by itself
        cluster = (load_target("h100-sxm"), parse_topology("1x8"))
        monkeypatch.setattr(need, "cluster_to_run", lambda spec: cluster)
        diary, launcher = Diary(), Waiting(spec, rules.enough if waits else None)
        setup = GivenSetup(given_space=space(), given_launcher=launcher)
        made = given_run(spec, tmp_path / "run", setup, diary)
        return run_study(made), made.store, diary, launcher

    return go


def test_the_screen_begins_while_the_noise_floor_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))  # 8 GPUs keep one each
    rules = Told()
    _, store, diary, launcher = run(study(), rules, waits=True)
    assert not launcher.has_waited_in_vain
    assert len(rules.compiled) == len(set(rules.compiled))  # and the screen itself compiles none of them again
    assert "screen" in diary.stages
    assert len(store.of(ScreenRecord)) == 1


def test_nothing_is_compiled_beside_the_floor_without_processors_to_spare(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    begun: list[object] = []
    original = StudyScreener.compile_beside

    def beside(self: StudyScreener, wanted: Any) -> None:
        def nothing(screen: object) -> list[FlagSet]:
            begun.append(screen)
            return []

        original(self, nothing)

    monkeypatch.setattr(StudyScreener, "compile_beside", beside)
    run(study(), Told())
    assert begun == []
