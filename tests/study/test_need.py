"""What compiling shows of memory is acted on before anything starts: the device never sees what does not fit twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler import load_target
from autotune.model import AblationResult, ConfirmRun, FlagSet, FloorResult, StudySpec, TrialResult
from autotune.rundir import Store
from autotune.settings import SearchSpace
from autotune.study import screen as stage
from autotune.study.stages import run_study
from harness.gpu_memory import GpuMemory, OnSharedGpu
from harness.simulated import GivenSetup, given_run
from tests.compiler.rules import BUFFER, COMBINE, GIB, Rules, screen, space
from tests.runs import Diary, asking, replay_study

SHARE = "XLA_CLIENT_MEM_FRACTION"
EFFECTS = {f"{COMBINE}=11": 0.9, f"{BUFFER}=true": 0.8}


class Needing(Rules):
    """A compiler that knows what each program needs, in GiB of 79.6 that a GPU has."""

    def __init__(self, need: Callable[[FlagSet], float]) -> None:
        super().__init__()
        self.need = need

    def _result(self, settings: FlagSet) -> Any:
        self.peak_gib = self.need(settings) - (60.0 if BUFFER in settings else 0.0)
        return super()._result(settings)


def study(**more: Any) -> StudySpec:
    return replay_study(
        effects=EFFECTS,
        noise={"white_sd": 1e-4},
        study={
            "device": {"platform": "cuda", "count": 8},
            "screen": {"enabled": True, "target": "h100-sxm"},
            "confirm": {"processes": 4},
            **more,
        },
    )


Run = Callable[..., tuple[Store, Diary, OnSharedGpu]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A study whose screen compiles by rules, on a GPU whose memory is used up; the two may disagree."""

    def go(
        need: Callable[[FlagSet], float], *, compiled: Callable[[FlagSet], float] | None = None, **more: Any
    ) -> tuple[Store, Diary, OnSharedGpu]:
        spec = study(**more)

        @contextlib.contextmanager
        def opened(*_: Any, **__: Any) -> Iterator[Any]:
            yield spec, screen(Needing(compiled or need))

        monkeypatch.setattr(stage, "open_screener", opened)
        monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))
        diary, launcher = Diary(), OnSharedGpu(spec, need=need)
        first = (("buffered", FlagSet({BUFFER: "true"})),)
        made = given_run(
            asking(spec, 2),
            tmp_path / "run",
            GivenSetup(given_space=space(), first=first, given_launcher=launcher),
            diary,
        )
        run_study(made)
        return made.store, diary, launcher

    return go


def test_a_reference_known_not_to_fit_twice_is_never_tried_so(run: Run) -> None:
    store, diary, launcher = run(lambda settings: 53.9)
    floor = store.last(FloorResult)
    assert floor is not None
    assert floor.comparison.mode == "sandwich"
    assert launcher.failed == []
    assert not any(SHARE in s for s in launcher.started)
    assert launcher.most == 1
    assert any("needs 53.9 GiB" in note and "one at a time" in note for note in diary.notes)
    assert not any(r.is_alone for r in store.of(ConfirmRun))  # the whole study measures so


def test_a_set_known_not_to_fit_twice_is_never_tried_so_in_trial_proof_and_ablation(run: Run) -> None:
    store, _, launcher = run(lambda settings: 50.0 if BUFFER in settings else 20.0)
    known = [s for s in launcher.started if s.get(COMBINE) != "13"]  # that does not compile here: its need is not known
    assert not {s for s in launcher.failed if s in known}
    assert not any(SHARE in s and BUFFER in s for s in known)
    found = {(BUFFER in r.settings, r.comparison.mode) for r in store.of(TrialResult) if r.comparison}
    assert found == {(True, "sandwich"), (False, "turns")}
    alone = {r.is_alone for r in store.of(ConfirmRun) if BUFFER in r.settings}
    assert alone == {True}
    assert {r.comparison.mode for r in store.of(AblationResult) if r.comparison} <= {"sandwich"}


def test_what_is_compiled_is_not_believed_where_the_default_takes_turns_all_the_same(run: Run) -> None:
    """A compiler without the GPU may need more: it computes attention otherwise."""
    first, _, _ = run(lambda settings: 20.0, screen={"enabled": True, "target": None})
    floor = first.last(FloorResult)
    assert floor is not None
    assert floor.comparison.mode == "turns"
    store, _, launcher = run(lambda settings: 20.0, compiled=lambda settings: 50.0)
    assert {r.comparison.mode for r in store.of(TrialResult) if r.comparison} == {"turns"}
    assert launcher.failed == []


def test_a_study_that_insists_on_turns_is_not_overruled(run: Run) -> None:
    store, _, _ = run(lambda settings: 20.0, compiled=lambda settings: 50.0, measure={"mode": "turns"})
    assert {r.comparison.mode for r in store.of(TrialResult) if r.comparison} == {"turns"}


@pytest.mark.aot
@pytest.mark.slow
def test_what_the_real_compiler_says_of_memory_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A described GPU that holds one process and a half of a small step."""
    gpu = load_target("h100-sxm")
    small = tmp_path / "small.txtpb"
    size = 56 << 20  # the step needs 32 MiB of it (jaxlib 0.10.2): more than 0.45, less than 0.75
    small.write_text(gpu.config_text.replace(f"device_memory_size: {gpu.memory_bytes}", f"device_memory_size: {size}"))
    spec = study(
        workload={"entry": "llama", "options": {"size": "small", "attention": "xla"}},
        device={"platform": "cuda", "count": 1},
        screen={"enabled": True, "target": str(small)},
    )
    monkeypatch.setattr(stage, "is_wanted", lambda spec: (True, ""))
    monkeypatch.setattr(stage.StudyScreener, "_limit_s", lambda self: 1e-9)
    launcher, diary = OnSharedGpu(spec, need=lambda settings: 32 / 1024, gpu=GpuMemory(size)), Diary()
    setup = GivenSetup(given_space=SearchSpace(()), given_launcher=launcher)
    made = given_run(asking(spec, 0), tmp_path / "run", setup, diary)
    run_study(made)
    assert launcher.failed == []
    assert launcher.most == 1
    assert any("they run one at a time" in note for note in diary.notes), diary.notes


def test_memory_of_the_target_is_that_of_the_gpu() -> None:
    gpu = Rules().job.target
    assert 79 < gpu.memory_bytes / GIB < 80
