"""What only a real GPU can show; `pytest -m gpu` on a machine that has one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.child import load_nvml
from autotune.machine import caller_environment, open_meter, open_watch, would_run_on
from autotune.machine.energy import NVML_SHORTEST_S
from autotune.model import FlagSet, parse_study
from autotune.workers import LocalLauncher

pytestmark = pytest.mark.gpu

STUDY: dict[str, Any] = {
    "name": "gpu", "workload": {"entry": "llama"}, "device": {"platform": "cuda", "count": 1},
}  # fmt: skip


def test_a_measured_process_and_a_look_at_this_machine_tell_the_same(tmp_path: Path) -> None:
    launcher = LocalLauncher(parse_study(STUDY), study_dir=str(tmp_path), base=os.environ)
    try:
        report = launcher.start(FlagSet(), tmp_path, progress=lambda phase: None).report
    finally:
        launcher.close()
    told = would_run_on(caller_environment(), 1)
    assert report.gpus == told.gpus
    assert report.gpus is not None
    assert report.gpus[0].vbios is not None
    known = {"driver", "cublas", "cudnn", "nccl"} & set(report.versions)
    assert {"driver", "cublas", "cudnn"} <= known
    assert {n: report.versions[n] for n in known} == {n: told.versions[n] for n in known}


def test_energy_of_a_block_is_its_power_times_its_time_and_the_looks_cost_the_steps_nothing(tmp_path: Path) -> None:
    spec = parse_study(STUDY)
    watch = open_watch(caller_environment(), 1)
    meter = open_meter(spec, watch)
    assert meter.is_counting, meter.problem
    launcher = LocalLauncher(spec, study_dir=str(tmp_path), base=os.environ)
    try:
        worker = launcher.start(FlagSet(), tmp_path, progress=lambda phase: None)
        step_s = min(worker.report.warmup_step_times_s)
        steps = max(10, int(3 * NVML_SHORTEST_S / step_s))
        worker.run_block(steps)
        begun = time.monotonic()
        with watch.block("candidate"):
            times, joules = meter.measure(lambda: worker.run_block(steps))
        took_s = time.monotonic() - begun
        alone = worker.run_block(steps)
    finally:
        launcher.close()
    seen = watch.take().arms["candidate"]
    assert joules is not None
    assert seen.power_w is not None
    assert joules == pytest.approx(seen.power_w * took_s, rel=0.2)
    assert seen.looks >= 5
    assert seen.clock_mhz
    assert sum(times) == pytest.approx(sum(alone), rel=0.02)


def test_this_driver_counts_what_holds_clocks_back() -> None:
    assert load_nvml() is not None
    watch = open_watch(caller_environment())
    for arm in ("reference", "candidate"):
        with watch.block(arm):
            time.sleep(0.5)
    during = watch.take().during
    assert during is not None
    assert "sw_power_cap" in during.reference.held_back
