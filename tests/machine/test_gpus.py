"""GPUs of this machine, with stand-ins for nvidia-smi and NVML."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pytest

from autotune.machine import gpus
from autotune.machine.gpus import Gpu, GpuFacts, find_gpus, gpu_facts, run_program, visible_gpu_ids, visible_gpus
from harness.fake_nvml import FakeNvml, missing
from tests.tables import toml_beside

H100S = """0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 13, 550.54.15, 9.0, 0
1, GPU-b, NVIDIA H100 80GB HBM3, 81559, 40000, 550.54.15, 9.0, 97
"""


def printed(text: str) -> tuple[Gpu, ...]:
    """The GPUs of a machine whose nvidia-smi prints this."""
    with mock.patch("autotune.machine.gpus.run_program", return_value=text):
        return find_gpus()


def test_gpus_are_read_from_nvidia_smi() -> None:
    first, second = printed(H100S)
    assert (first.index, first.name, first.driver) == (0, "NVIDIA H100 80GB HBM3", "550.54.15")
    assert (first.memory_bytes, first.compute_capability) == (81559 << 20, "9.0")
    assert (second.used_bytes, second.busy_percent) == (40000 << 20, 97)
    (gpu,) = printed("0, GPU-a, GPU, [N/A], [N/A], 1, 9.0, [N/A]\n")
    assert (gpu.memory_bytes, gpu.busy_percent) == (0, None)
    assert visible_gpu_ids({"CUDA_VISIBLE_DEVICES": "GPU-8f1a,3"}) == ("GPU-8f1a", "3")


@pytest.mark.parametrize("output", ["", "No devices were found\n", "a, b, c\n"])
def test_a_machine_without_gpus_has_none(output: str) -> None:
    assert printed(output) == ()


@pytest.mark.parametrize(
    ("visible", "indices"), [(None, [0, 1, 2]), ("2,0", [2, 0]), ("", []), ("2,9,0", [2]), ("GPU-b", [1])]
)
def test_gpus_are_visible_as_cuda_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, indices: list[int]
) -> None:
    tool = tmp_path / "nvidia-smi"
    lines = "".join(f"{i}, GPU-{u}, NVIDIA H200, 143771, 4, 580.65.06, 9.0, 0\\n" for i, u in enumerate("abc"))
    tool.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = visible_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [g.index for g in found] == indices
    assert {g.driver for g in found} <= {"580.65.06"}


def test_a_program_that_is_missing_or_fails_gives_nothing() -> None:
    assert run_program(["no-such-program-anywhere"]) == ""
    assert run_program([sys.executable, "-c", "print(1); raise SystemExit(3)"]) == ""
    assert run_program([sys.executable, "-c", "print(1)"]) == "1\n"


H200 = GpuFacts(name="NVIDIA H200", lanes=16896, memory_bytes=150_092_120_064, cuda="13.0.0")


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_gpu_tells_what_xla_would_read_of_it_and_leaves_open_what_it_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(tmp_path / "nvml", gpus=2)
    fake.set(1, "nvmlDeviceGetName", "NVIDIA L4")
    with fake.loaded():
        assert gpu_facts({})[0] == H200
        assert [g.name for g in gpu_facts({"CUDA_VISIBLE_DEVICES": "1"})] == ["NVIDIA L4"]
        for key, name in toml_beside(__file__)["told_by_nvml"].items():
            fake.forget(0, key)
            assert getattr(gpu_facts({})[0], name) is None, name
    monkeypatch.setattr(gpus, "load_nvml", lambda: None)
    assert gpu_facts({}) == ()
