"""What a GPU tells of itself, with a stand-in for NVML."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.machine import GpuFacts, gpu_facts


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
    found = gpu_facts({}, lambda: Nvml(silent))[0]
    assert getattr(found, missing) is None
    assert found.name == H100.name


def test_without_nvml_nothing_is_told() -> None:
    assert gpu_facts({}, lambda: None) == ()
