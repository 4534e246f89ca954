"""GPUs of this machine, with stand-ins for nvidia-smi and NVML."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.machine.gpus import GpuFacts, find_gpus, gpu_facts, run_program, visible_gpu_ids, visible_gpus

H100S = """0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 13, 550.54.15, 9.0, 0
1, GPU-b, NVIDIA H100 80GB HBM3, 81559, 40000, 550.54.15, 9.0, 97
"""


def test_gpus_are_read_from_nvidia_smi() -> None:
    first, second = find_gpus(lambda command: H100S)
    assert (first.index, first.name, first.driver) == (0, "NVIDIA H100 80GB HBM3", "550.54.15")
    assert (first.memory_bytes, first.compute_capability) == (81559 << 20, "9.0")
    assert (second.used_bytes, second.busy_percent) == (40000 << 20, 97)


@pytest.mark.parametrize("output", ["", "No devices were found\n", "a, b, c\n"])
def test_a_machine_without_gpus_has_none(output: str) -> None:
    assert find_gpus(lambda command: output) == ()


def test_a_figure_that_a_gpu_does_not_give_is_left_open() -> None:
    (gpu,) = find_gpus(lambda command: "0, GPU-a, GPU, [N/A], [N/A], 1, 9.0, [N/A]\n")
    assert (gpu.memory_bytes, gpu.busy_percent) == (0, None)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        ("1", [1]),
        ("", []),
        ("2,9,0", [2]),
        ("GPU-b", [1]),
        ("-1", []),
    ],
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


def test_ids_are_taken_as_they_stand() -> None:
    assert visible_gpu_ids({"CUDA_VISIBLE_DEVICES": "GPU-8f1a,3"}) == "GPU-8f1a,3"


def test_a_program_that_is_missing_or_fails_gives_nothing() -> None:
    assert run_program(["no-such-program-anywhere"]) == ""
    assert run_program([sys.executable, "-c", "print(1); raise SystemExit(3)"]) == ""
    assert run_program([sys.executable, "-c", "print(1)"]) == "1\n"


# ---------------------------------------------------------------------- what programs are compiled for


class NvmlError(Exception):
    pass


class Nvml:
    """Two H100 as NVML describes them; `silent` questions are not supported, as on older drivers."""

    NVMLError = NvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    nvmlMemory_v2 = 2

    def __init__(self, *silent: str) -> None:
        self._silent = silent

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "_silent"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return ["NVIDIA H100 80GB HBM3", "NVIDIA H200"][handle]

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetMemoryBusWidth(self, handle: int) -> int:
        return 5120

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> int:
        return 16896

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None) -> Any:
        total = 85520809984
        return SimpleNamespace(total=total, **({"reserved": 577830912} if version else {}))

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 18:
            raise NvmlError("Invalid Argument")
        return 1

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040


H100 = GpuFacts(
    name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0), lanes=16896, memory_bytes=84942979072,
    memory_bytes_per_s=3352320000000.0, clock_ghz=1.98, nvlinks=18, cuda="12.4.0",
)  # fmt: skip


def test_a_gpu_tells_what_xla_would_read_of_it() -> None:
    assert gpu_facts({}, Nvml)[0] == H100
    assert [g.name for g in gpu_facts({"CUDA_VISIBLE_DEVICES": "1"}, Nvml)] == ["NVIDIA H200"]


@pytest.mark.parametrize(
    ("silent", "missing"),
    [
        ("nvmlDeviceGetNumGpuCores", "lanes"),
        ("nvmlDeviceGetMemoryBusWidth", "memory_bytes_per_s"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetNvLinkState", "nvlinks"),
        ("nvmlSystemGetCudaDriverVersion_v2", "cuda"),
        ("nvmlMemory_v2", "memory_bytes"),
    ],
)
def test_what_a_gpu_does_not_tell_is_left_open(silent: str, missing: str) -> None:
    assert gpu_facts({}, lambda: None) == ()
    found = gpu_facts({}, lambda: Nvml(silent))[0]
    assert getattr(found, missing) is None
    assert found.name == H100.name
