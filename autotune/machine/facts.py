"""What one GPU of this machine is, as its driver tells: what a program is compiled for, besides the name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.child import VISIBLE, load_nvml, visible_devices
from autotune.child import ask as ask_nvml


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU; None for what it does not tell.

    Attributes:
        name: As JAX calls it, such as ``NVIDIA H200``.
        compute_capability: Such as (9, 0).
        lanes: CUDA cores, of all multiprocessors.
        memory_bytes: What programs may have: all, less what the driver keeps.
        memory_bytes_per_s: From the memory's highest clock and the width of its bus.
        clock_ghz: Highest clock of the multiprocessors.
        nvlinks: Links that are up.
        cuda: The newest CUDA that the driver can run, ``major.minor.0``.
    """

    name: str
    compute_capability: tuple[int, int] | None = None
    lanes: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    clock_ghz: float | None = None
    nvlinks: int | None = None
    cuda: str | None = None


_MOST_NVLINKS = 36


def gpu_facts(environment: Mapping[str, str], load: Callable[[], Any] = load_nvml) -> tuple[GpuFacts, ...]:
    """The GPUs that a process with this environment would see, by NVML; none where that is silent or not installed."""
    nvml = load()
    return tuple(_facts(nvml, device.handle) for device in visible_devices(nvml, environment.get(VISIBLE)))


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    ask = functools.partial(ask_nvml, nvml)
    name, capability = ask("nvmlDeviceGetName", handle), ask("nvmlDeviceGetCudaComputeCapability", handle)
    clock_mhz = ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
    memory_mhz = ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
    bus_bits = ask("nvmlDeviceGetMemoryBusWidth", handle)
    memory = ask("nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
    links = [ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(_MOST_NVLINKS)]
    cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
    return GpuFacts(
        name=name or "",
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        lanes=ask("nvmlDeviceGetNumGpuCores", handle),
        memory_bytes=memory.total - memory.reserved if hasattr(memory, "reserved") else None,
        memory_bytes_per_s=memory_mhz * 1e6 * 2 * bus_bits / 8 if memory_mhz and bus_bits else None,
        clock_ghz=clock_mhz / 1000 if clock_mhz else None,
        nvlinks=sum(bool(state) for state in links) if any(state is not None for state in links) else None,
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}.0" if cuda else None,
    )
