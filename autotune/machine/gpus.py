"""Lists the GPUs of this machine (nvidia-smi) and the properties that XLA compiles for (NVML)."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.child.gpus import VISIBLE, load_nvml, named_devices, visible_devices
from autotune.child.gpus import ask as ask_nvml

Runner = Callable[[Sequence[str]], str]
"""Runs a program and returns its output; an empty text if it is missing, fails or hangs."""

_QUERY = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "compute_cap", "utilization.gpu")
_MOST_NVLINKS = 36
_ANSWER_LIMIT_S = 30.0  # without a persistence daemon the driver starts anew, GPU by GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as nvidia-smi shows it; 0 or None for missing figures."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    used_bytes: int
    driver: str
    compute_capability: str
    busy_percent: int | None


def run_program(command: Sequence[str]) -> str:
    """Runs a program with a time limit; see `Runner`."""
    if shutil.which(command[0]) is None:  # no process is started to find that out
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def find_gpus(run: Runner = run_program) -> tuple[Gpu, ...]:
    """Lists all GPUs of this machine, even those that this process may not use; none without nvidia-smi."""
    gpus = []
    for line in run(["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]).splitlines():
        cells = [c.strip() for c in line.split(",")]
        if len(cells) == len(_QUERY) and cells[0].isdigit():
            index, uuid, name, total, used, driver, capability, busy = cells
            gpus.append(
                Gpu(
                    index=int(index),
                    uuid=uuid,
                    name=name,
                    memory_bytes=int(total) << 20 if total.isdigit() else 0,
                    used_bytes=int(used) << 20 if used.isdigit() else 0,
                    driver=driver,
                    compute_capability=capability,
                    busy_percent=int(busy) if busy.isdigit() else None,
                )
            )
    return tuple(gpus)


def visible_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Lists the GPUs that a process with this environment sees, in its order."""
    gpus = {g.index: g for g in find_gpus()}
    return tuple(gpus[i] for i in named_devices({i: g.uuid for i, g in gpus.items()}, environment.get(VISIBLE)))


def visible_gpu_ids(environment: Mapping[str, str]) -> str:
    """Returns the ids of the GPUs visible under this environment, without starting their driver; empty if unknown."""
    if (named := environment.get(VISIBLE)) is not None:
        return named
    with contextlib.suppress(OSError):
        return ",".join(str(i) for i in range(len(list(Path("/proc/driver/nvidia/gpus").iterdir()))))
    return ""


def are_hidden(environment: Mapping[str, str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU."""
    return environment.get(VISIBLE, "0").strip() in ("", "-1", "NoDevFiles")


def has_device_file(root: Path = Path("/")) -> bool:
    """Whether there is a device file of a GPU, below the folder that stands for ``/``."""
    return any((root / "dev" / name).exists() for name in ("nvidia0", "nvidiactl", "dxg", "nvhost-gpu"))


def is_without_gpus(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment certainly sees no GPU, without asking a driver."""
    return are_hidden(environment) or not has_device_file()


# ---------------------------------------------------------------------- what programs are compiled for


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Properties of one GPU that XLA compiles for; None where NVML gives none."""

    name: str
    """JAX's device kind, such as ``NVIDIA H200``."""
    compute_capability: tuple[int, int] | None = None
    """Such as (9, 0)."""
    lanes: int | None = None
    """CUDA cores, of all multiprocessors."""
    memory_bytes: int | None = None
    """Total memory without the driver's reserve."""
    memory_bytes_per_s: float | None = None
    """From the memory's highest clock and the width of its bus."""
    clock_ghz: float | None = None
    """Highest clock of the multiprocessors."""
    nvlinks: int | None = None
    """Links that are up."""
    cuda: str | None = None
    """The newest CUDA that the driver can run, ``major.minor.0``."""


def gpu_facts(environment: Mapping[str, str], load: Callable[[], Any] = load_nvml) -> tuple[GpuFacts, ...]:
    """Asks NVML for the GPUs that a process with this environment sees; none where it is silent or not installed."""
    nvml = load()
    return tuple(_facts(nvml, handle) for handle in visible_devices(nvml, environment.get(VISIBLE)).values())


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
