"""Screened studies by the real command: programs that run here, and programs of GPUs that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.flags import FlagSet
from autotune.model.records import ConclusionRecord, ScreenRecord, TrialResult, TrialStatus
from autotune.rundir.store import Store
from harness.simulated_machine import write_study

FAST = """
[measure]
pairs_cap = 12
[confirm]
processes = 3
finalists = 1
alone = 0
soak = "2s"
"""
ON_CPU = f"""
name = "screened-cpu"
[workload]
entry = "workloads.example:build"
[search]
trials = 4
[search.settings]
xla_cpu_parallel_codegen_split_count = [1]
xla_cpu_max_isa = ["SSE4_2"]
{FAST}
"""
ON_GPUS = f"""
name = "screened-gpus"
[workload]
entry = "toy_workload:make"
[device]
platform = "cuda"
count = 8
[search]
trials = 4
[search.settings]
xla_gpu_enable_while_loop_double_buffering = [false, true]
xla_gpu_memory_limit_slop_factor = [95, 80]
CUDA_MODULE_LOADING = ["EAGER"]
[[search.first]]
name = "no-ops"
settings = {{ xla_gpu_memory_limit_slop_factor = 80 }}
[screen]
enabled = true
target = "h100-sxm"
topology = "8"
[simulation]
noise = "quiet"
effects = {{ "xla_gpu_enable_while_loop_double_buffering=true" = 0.9 }}
{FAST}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = (Path(__file__).parents[1] / "compiler/toy_workload.py").read_text(encoding="utf-8")
    (tmp_path / "toy_workload.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(folder: Path, text: str, *options: str) -> Store:
    """Types `autotune run`; gives the run."""
    write_study(folder / "study.toml", text)
    done = CliRunner().invoke(app, ["run", "study.toml", "--run-dir", "run", *options])
    assert done.exit_code == 0, (done.output, done.exception)
    return Store.open(Path("run"))


@pytest.mark.slow
def test_cpu_study_with_real_programs(folder: Path) -> None:
    store = run_command(folder, ON_CPU, "--screen")
    results = store.of(TrialResult)
    record = store.last(ScreenRecord)
    assert record is not None
    assert record.report is not None
    found = {s["name"]: s["effect"] for s in record.report["settings"]}
    assert found == {"xla_cpu_parallel_codegen_split_count": "no-op", "xla_cpu_max_isa": "active"}
    # What is left of the space is one setting with one value besides the default.
    assert [dict(r.settings) for r in results] == [{"xla_cpu_max_isa": "SSE4_2"}]
    assert results[0].worker is not None
    assert results[0].compiled_key is not None


@pytest.mark.aot
@pytest.mark.slow
def test_gpu_study_with_programs_compiled_for_gpus_that_are_not_here(folder: Path) -> None:
    store = run_command(folder, ON_GPUS)
    results = store.of(TrialResult)
    assert (results[0].status, results[0].same_as) == (TrialStatus.SAME_PROGRAM, 0)
    assert results[0].worker is None
    assert not any("xla_gpu_memory_limit_slop_factor" in r.settings for r in results[1:])
    assert any("CUDA_MODULE_LOADING" in r.settings for r in results)
    conclusion = store.last(ConclusionRecord)
    assert conclusion is not None
    assert conclusion.settings == FlagSet({"xla_gpu_enable_while_loop_double_buffering": True})
    again = run_command(folder, ON_GPUS, "--trials", "4")
    assert len(again.of(ScreenRecord)) == 1
