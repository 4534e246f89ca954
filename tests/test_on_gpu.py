"""What only a machine with a GPU can show: `pytest -m gpu`. Elsewhere each of these skips, and says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.environment import caller_environment
from autotune.machine.gpus import find_gpus
from autotune.machine.host import would_run_on
from autotune.machine.telemetry import NO_METER, open_meter, open_watch
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AaRecord, TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.rundir.store import Store
from autotune.workers.base import WorkerFailed
from autotune.workers.local import LocalLauncher
from tests.runs import there

ROOT = Path(__file__).parents[1]
GPU_FOLDER = ROOT / "benchmarks" / "gpu"
SHARED = FlagSet({"XLA_CLIENT_MEM_FRACTION": "0.45"})

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Any:
    """The first GPU of this machine."""
    gpus = find_gpus()
    if not gpus:
        pytest.skip("needs an NVIDIA GPU, and nvidia-smi shows none here")
    command = [sys.executable, "-c", "import jax; print(jax.devices()[0].platform)"]
    env = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.stdout.strip() != "gpu":
        pytest.skip(f"needs a jax that uses the GPU: {done.stderr.strip().splitlines()[-1:]}")
    return gpus[0]


def study(entry: str, **options: Any) -> StudySpec:
    workload = {"entry": entry, "options": options}
    return parse_study({"name": "on-gpu", "workload": workload, "device": {"platform": "cuda", "count": 1}})


def launcher(spec: StudySpec) -> LocalLauncher:
    return LocalLauncher(spec, study_dir=str(GPU_FOLDER), base=os.environ)


def start(spec: StudySpec, folder: Path, settings: FlagSet | None = None, by: LocalLauncher | None = None) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return (by or launcher(spec)).start(settings or FlagSet(), folder, progress=lambda phase: None)


def autotune(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": paths, "XDG_DATA_HOME": str(cwd), "XDG_CACHE_HOME": str(cwd)}
    command = [sys.executable, "-m", "autotune", *arguments]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_process_tells_of_its_gpu_and_the_memory_that_it_may_take(tmp_path: Path, gpu: Any) -> None:
    worker = start(study("llama-small"), tmp_path)
    try:
        report = worker.report
        assert report.platform == "gpu"
        assert report.device_kind in gpu.name or gpu.name in report.device_kind
        (memory,) = report.device_memory
        assert 0.65 * gpu.memory_bytes < memory.limit_bytes < 0.80 * gpu.memory_bytes
        assert 0 < memory.peak_bytes < memory.limit_bytes
        assert all(0 < s < 60 for s in worker.run_block(5))
    finally:
        worker.close()


def test_two_processes_share_the_memory_and_both_run(tmp_path: Path, gpu: Any) -> None:
    spec = study("llama-small")
    both = launcher(spec)
    try:
        workers = [start(spec, tmp_path / name, SHARED, both) for name in ("one", "two")]
        limits = [w.report.device_memory[0].limit_bytes for w in workers]
        assert all(0.40 * gpu.memory_bytes < limit < 0.46 * gpu.memory_bytes for limit in limits)
        assert [len(w.run_block(4)) for w in (*workers, *workers)] == [4, 4, 4, 4]
    finally:
        both.close()


def test_what_needs_more_than_its_share_runs_out_of_memory_and_is_called_so(tmp_path: Path) -> None:
    spec = study("hungry:build", share=0.6)
    with pytest.raises(WorkerFailed) as caught:
        start(spec, tmp_path / "shared", SHARED)
    assert caught.value.failure.kind is FailureKind.OUT_OF_MEMORY
    start(spec, tmp_path / "isolated").close()


def test_a_study_that_does_not_fit_twice_is_measured_one_at_a_time(tmp_path: Path) -> None:
    done = autotune("run", str(GPU_FOLDER / "large.toml"), "--run-dir", str(tmp_path / "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    aa_run = there(Store.open(tmp_path / "run").last(AaRecord))
    assert aa_run.comparison.mode == "aba"


def test_the_doctor_sees_the_gpu_and_its_plugin(tmp_path: Path, gpu: Any) -> None:
    done = autotune("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpus"][0]["name"] == gpu.name
    assert found["versions"]["driver"] == gpu.driver
    assert found["versions"]["CUDA plugin"] != "not installed"


def test_the_build_is_asked_for_its_gpu_flags(tmp_path: Path) -> None:
    done = autotune("flags", "check", "--xla_gpu_autotune_level=0", "--xla_gpu_no_such_flag=1", "--json", cwd=tmp_path)
    found = {s["name"]: s["starts"] for s in json.loads(done.stdout)["settings"]}
    assert found == {"xla_gpu_autotune_level": True, "xla_gpu_no_such_flag": False}


def test_a_step_is_compiled_beside_the_real_driver(tmp_path: Path, gpu: Any) -> None:
    data = 'name = "p"\nworkload = { entry = "llama-small" }\ndevice = { platform = "cuda", count = 1 }\n'
    (tmp_path / "study.toml").write_text(data + "search = { groups = ['gemm'] }\n")
    done = autotune("predict", "study.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["step_s"] > 0


def test_a_small_study_by_the_real_command_line(tmp_path: Path) -> None:
    data = tomllib.loads((GPU_FOLDER / "dry.toml").read_text())
    assert data["device"]["platform"] == "cpu"
    text = (GPU_FOLDER / "dry.toml").read_text().replace('platform = "cpu"', 'platform = "cuda"')
    text += "[screen]\nenabled = false\n"
    text = text.replace("xla_cpu_enable_fast_math = [true]", "xla_gpu_autotune_level = [0]")
    (tmp_path / "study.toml").write_text(text)
    done = autotune("run", "study.toml", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (trial,) = Store.open(tmp_path / "run").of(TrialResult)
    assert trial.failure is None
    assert there(trial.worker).platform == "gpu"


def test_a_measured_process_and_a_look_at_this_machine_tell_the_same(tmp_path: Path) -> None:
    worker = start(study("llama-small"), tmp_path)
    worker.close()
    told = would_run_on(caller_environment(), 1)
    assert worker.report.gpus == told.gpus
    assert told.gpus[0].vbios is not None
    known = {"driver", "cublas", "cudnn", "nccl"} & set(worker.report.versions)
    assert {"driver", "cublas", "cudnn"} <= known
    assert {n: worker.report.versions[n] for n in known} == {n: told.versions[n] for n in known}


def test_energy_of_a_block_is_its_power_times_its_time_and_sampling_costs_the_steps_nothing(tmp_path: Path) -> None:
    spec, watch = study("gpt2-124m", batch=8, remat="none"), open_watch(caller_environment(), 1)
    meter, worker = open_meter(spec, watch), start(spec, tmp_path)
    assert meter is not NO_METER
    try:
        steps = max(10, int(6 / min(worker.report.warmup_step_times_s)))
        worker.run_block(steps)
        begun = time.monotonic()
        with watch.block("reference"):
            pass
        with watch.block("candidate"):
            times, joules = meter.measure(lambda: worker.run_block(steps))
        took_s = time.monotonic() - begun
        alone = worker.run_block(steps)
    finally:
        worker.close()
    seen = there(watch.take().during).candidate
    assert joules is not None
    assert seen.power_w is not None
    assert joules == pytest.approx(seen.power_w * took_s, rel=0.2)
    assert seen.looks >= 5
    assert seen.clock_mhz
    assert sum(times) == pytest.approx(sum(alone), rel=0.02)


def test_this_driver_counts_what_throttles() -> None:
    watch = open_watch(caller_environment())
    for arm in ("reference", "candidate"):
        with watch.block(arm):
            time.sleep(0.5)
    during = there(watch.take().during)
    assert "sw_power_cap" in during.reference.held_back
