"""Limits follow from what the reference took, unless the study sets them."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.spec import StudySpec
from autotune.model.time_limits import CompileLimits, TimeLimits, compile_limits, limits_after
from autotune.study.driver import run_study
from harness.simulated import GivenSetup
from harness.timed import TimedLauncher, TimedStudy
from tests.runs import SPACE, Diary, replay_study


def study(**measure: Any) -> StudySpec:
    more = {"search": {"trials": 1}, "measure": measure}
    return replay_study(step_s=2.0, start_s=45.0, noise={"white_sd": 1e-4}, study=more)


@pytest.mark.parametrize(
    ("start_s", "step_s", "limit_s", "block_s"),
    [(0.0, 0.0, 600.0, 120.0), (3.0, 0.01, 120.0, 120.0), (45.0, 0.85, 180.0, 120.0), (90.0, 85.0, 360.0, 2550.0)],
)
def test_multiples_of_the_reference_with_a_floor(start_s: float, step_s: float, limit_s: float, block_s: float) -> None:
    found = limits_after(study().measure, start_s=start_s, step_s=step_s)
    assert found.start_s == limit_s
    assert found.of_block(3) == pytest.approx(block_s)


def test_what_the_study_sets_is_kept_to_and_compilations_have_theirs() -> None:
    measure = study(start_limit_s=30, block_limit_s="5s").measure
    assert limits_after(measure, start_s=45.0, step_s=85.0) == TimeLimits(start_s=30.0, block_s=5.0)
    assert compile_limits() == CompileLimits(wall_s=900.0, processor_s=None)
    assert compile_limits(5.0) == CompileLimits(wall_s=240.0, processor_s=60.0)
    assert compile_limits(40.0) == CompileLimits(wall_s=1280.0, processor_s=320.0)


def test_the_launcher_is_told_once_the_aa_noise_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[TimeLimits] = []
    original = TimedLauncher.start

    def start(self: TimedLauncher, *args: Any, **more: Any) -> Any:
        seen.append(self.limits)
        return original(self, *args, **more)

    monkeypatch.setattr(TimedLauncher, "start", start)
    spec = study()
    run_study(TimedStudy(GivenSetup(given_space=SPACE)).session(spec, Diary()))
    assert seen[0] == TimeLimits()
    assert seen[-1].start_s == 180.0
    assert seen[-1].of_block(100) == pytest.approx(2000.0, rel=0.01)
