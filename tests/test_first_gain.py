"""The first gain in nine minutes: rehearsed in virtual time, and dry on real processes under the fake CUDA driver."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.model.flags import FlagSet
from autotune.model.spec import load_study
from harness.fake_cuda import make_cuda
from harness.fake_nvml import FakeNvml, missing

ROOT = Path(__file__).parents[1]
FIRST_GAIN = importlib.import_module("benchmarks.gpu.first_gain")


@pytest.mark.parametrize("study", [FIRST_GAIN.STUDY, FIRST_GAIN.DRY_STUDY], ids=["on a GPU", "dry"])
def test_its_studies_can_be_read(study: Path) -> None:
    assert load_study(study).confirm.isolated == 0


def test_the_winner_is_used_with_its_options_beside_the_others() -> None:
    words = FIRST_GAIN.workload_of(
        FIRST_GAIN.STUDY, FlagSet({"option.remat": '"minimal"', "xla_gpu_enable_triton_gemm": "false"})
    )
    assert words[0] == "tinyllama-1.1b"
    assert {'remat="minimal"', 'dtype="bfloat16"', 'attention="cudnn"'} == {w for w in words[1:] if w != "--set"}


@pytest.mark.gate
@pytest.mark.parametrize("has_gain", [True, False])
def test_it_is_proven_within_eight_and_a_half_minutes_where_there_is_one(has_gain: bool) -> None:
    came = FIRST_GAIN.one((3, has_gain))
    assert came["is_winner"] is has_gain
    assert came["proven_s"] < 490
    assert not has_gain or came["truth"] < -0.02


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.timeout(600)
def test_a_dry_run_goes_the_whole_way_under_the_fake_driver_and_does_nothing_twice(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path / "nvml", gpus=1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(make_cuda(nvml.folder))}
    out = tmp_path / "out"
    words = [sys.executable, "-m", "benchmarks.gpu.first_gain", "--out", str(out), "--dry-run"]
    for _ in range(2):
        told = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout + told.stderr
    rows = [json.loads(line) for line in (out / "first_gain.jsonl").read_text().splitlines()]
    assert [r["unit"] for r in rows if "unit" in r] == ["study in 9 min", "export", "verify", "exec", "report"]
    assert "xla_backend_optimization_level" in (out / "winner.env").read_text()
    assert (out / "report.html").stat().st_size > 10_000
