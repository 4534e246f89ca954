"""A screen that begins beside the noise floor, and one that was made on another machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.job import CompileJob
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
            "search": {"trials": 2, "use_environment": False},
            "screen": {"enabled": True, "target": "h100-sxm", "cache": False, **more},
            "confirm": {"processes": 3, "pairs": 6},
            "measure": {"block_s": 0.01, "settle_s": 0, "steady_s": 0},
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

    def read_also(self, job: str) -> None:
        """Its results are made anew."""


def job(jaxlib: str = "0.10.2") -> CompileJob:
    return CompileJob(
        entry="llama", options={}, target=load_target("h100-sxm"), topology=parse_topology("1x8"),
        versions={"jaxlib": jaxlib}, base={},
    )  # fmt: skip


Run = Callable[..., tuple[ConclusionRecord, Store, Diary, Waiting]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def go(spec: StudySpec, rules: Told, *, folder: str = "run", waits: bool = False) -> Any:
        opened = contextlib.nullcontext((spec, screen(rules)))
        monkeypatch.setattr(stage, "open_screener", lambda *_, **__: opened)
        monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))  # a replayed study is not, by itself
        cluster = (load_target("h100-sxm"), parse_topology("1x8"))
        monkeypatch.setattr(need, "cluster_to_run", lambda spec: cluster)
        diary, launcher = Diary(), Waiting(spec, rules.enough if waits else None)
        setup = GivenSetup(given_space=space(), given_launcher=launcher)
        made = given_run(spec, tmp_path / folder, setup, diary)
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


def test_a_screen_of_another_machine_is_taken_over(run: Run, tmp_path: Path) -> None:
    spec = study(carried=str(tmp_path / "screens"))
    first, again = Told(), Told()
    first.job = again.job = job()
    _, store, diary, _ = run(spec, first, folder="laptop")
    assert any("no screen is taken over, it is made here: there is none" in n for n in diary.notes)
    _, taken, diary, _ = run(spec, again, folder="gpu")
    assert any("the screen is taken over from" in n for n in diary.notes)
    assert "screen" not in diary.stages
    assert len(again.compiled) < len(first.compiled) / 2
    (one,), (other,) = store.of(ScreenRecord), taken.of(ScreenRecord)
    assert one.report == other.report
    assert any("dead here" in n for n in diary.notes)


def test_a_screen_of_another_version_is_told_and_made_anew(run: Run, tmp_path: Path) -> None:
    spec = study(carried=str(tmp_path / "screens"))
    old, new = Told(), Told()
    old.job, new.job = job("0.10.2"), job("0.12.0")
    run(spec, old, folder="laptop")
    _, _, diary, _ = run(spec, new, folder="gpu")
    (said,) = [n for n in diary.notes if "no screen is taken over" in n]
    assert "jaxlib 0.10.2, here 0.12.0" in said
    assert "screen" in diary.stages
    assert len(list((tmp_path / "screens").glob("screen-*.json"))) == 2


def test_a_folder_that_cannot_be_written_costs_a_note(run: Run, tmp_path: Path) -> None:
    (tmp_path / "screens").write_text("a file")
    rules = Told()
    rules.job = job()
    conclusion, _, diary, _ = run(study(carried=str(tmp_path / "screens")), rules)
    assert any("not kept for other machines" in n for n in diary.notes)
    assert conclusion is not None
