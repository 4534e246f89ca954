"""Lists the GPUs of this machine (nvidia-smi), and asks what XLA compiles for (NVML)."""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from autotune.child.gpus import VISIBLE, ask, load_nvml, named_devices, visible_devices
from autotune.machine.devices import parse_devices
from autotune.machine.environment import Environment

# Runs a program and returns its output; an empty text if it is missing, fails or hangs.
Runner = Callable[[Sequence[str]], str]

_QUERY = "index,uuid,name,memory.total,memory.used,driver_version,compute_cap,utilization.gpu"
_ANSWER_LIMIT_S = 30.0  # without a persistence daemon the driver starts anew


@dataclass(frozen=True, kw_only=True)
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


def run_program(
    command: Sequence[str], env: Environment | None = None, *, limit_s: float = _ANSWER_LIMIT_S
) -> str:
    """Runs a program with a time limit; see `Runner`."""
    if shutil.which(command[0]) is not None:  # no process is started to find that out
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=limit_s, check=True
            ).stdout
    return ""


def find_gpus() -> tuple[Gpu, ...]:
    """Lists all GPUs of this machine, also hidden ones; none without nvidia-smi."""
    gpus = []
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    for cells in csv.reader(run_program(command).splitlines(), skipinitialspace=True):
        if len(cells) == _QUERY.count(",") + 1 and cells[0].isdigit():
            index, uuid, name, total, used, driver, capability, busy = cells
            gpus.append(
                Gpu(
                    index=int(index),
                    uuid=uuid,
                    name=name,
                    memory_bytes=(_number(total) or 0) << 20,
                    used_bytes=(_number(used) or 0) << 20,
                    driver=driver,
                    compute_capability=capability,
                    busy_percent=_number(busy),
                )
            )
    return tuple(gpus)


def _number(cell: str) -> int | None:
    return int(cell) if cell.isdigit() else None


def visible_gpus(environment: Environment) -> tuple[Gpu, ...]:
    """Lists the GPUs that a process with this environment sees, in its order."""
    gpus = {gpu.index: gpu for gpu in find_gpus()}
    uuids = {index: gpu.uuid for index, gpu in gpus.items()}
    return tuple(gpus[i] for i in named_devices(uuids, environment.get(VISIBLE)))


def visible_gpu_ids(environment: Environment) -> Sequence[str]:
    """Returns the ids of the GPUs visible here, without starting their driver; none if unknown."""
    if VISIBLE not in environment:
        count = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        return [str(index) for index in range(count)]
    return parse_devices(environment[VISIBLE]) if environment[VISIBLE] else ()


def are_hidden(environment: Environment) -> bool:
    """Returns whether CUDA_VISIBLE_DEVICES hides every GPU."""
    return environment.get(VISIBLE, "0").strip() in ("", "-1", "NoDevFiles")


def has_device_file(root: Path = Path("/")) -> bool:
    """Returns whether there is a device file of a GPU, below the folder that stands for ``/``."""
    names = ("nvidia0", "nvidiactl", "dxg", "nvhost-gpu")
    return any((root / "dev" / name).exists() for name in names)


def is_without_gpus(environment: Environment) -> bool:
    """Returns whether a process surely sees no GPU, without asking a driver."""
    return are_hidden(environment) or not has_device_file()


class GpuFacts(NamedTuple):
    """Properties in which a GPU may differ from others of its kind; None where NVML gives none."""

    name: str  # JAX's device kind, such as ``NVIDIA H200``
    lanes: int | None  # CUDA cores: a MIG part has fewer
    memory_bytes: int | None  # without the driver's reserve
    cuda: str | None  # the newest that the driver can run, ``major.minor.0``


def gpu_facts(environment: Environment) -> tuple[GpuFacts, ...]:
    """Asks NVML for the GPUs that a process sees; none where NVML is silent or not installed."""
    nvml = load_nvml()
    facts = []
    for handle in visible_devices(nvml, environment.get(VISIBLE)).values():
        form = getattr(nvml, "nvmlMemory_v2", None)
        memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle, form)
        memory_bytes = None
        if hasattr(memory, "reserved"):
            memory_bytes = memory.total - memory.reserved
        cuda = ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        facts.append(
            GpuFacts(
                name=ask(nvml, "nvmlDeviceGetName", handle) or "",
                lanes=ask(nvml, "nvmlDeviceGetNumGpuCores", handle),
                memory_bytes=memory_bytes,
                cuda=f"{cuda // 1000}.{cuda % 1000 // 10}.0" if cuda else None,
            )
        )
    return tuple(facts)
