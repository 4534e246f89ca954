"""Which GPUs there are: the one place that asks nvidia-smi and the driver's files."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.child import VISIBLE, named_devices

Runner = Callable[[Sequence[str]], str]
"""Runs a program and gives its output; an empty text if it is missing, fails or hangs."""

_QUERY = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "compute_cap", "utilization.gpu")
_ANSWER_LIMIT_S = 30.0  # without a daemon that keeps it loaded the driver is started anew, GPU by GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as nvidia-smi shows it; 0 or None for figures that it does not give."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    used_bytes: int
    driver: str
    compute_capability: str
    busy_percent: int | None


def run_program(command: Sequence[str]) -> str:
    """Runs a program for some time at most; see `Runner`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def find_gpus(run: Runner = run_program) -> tuple[Gpu, ...]:
    """All GPUs of this machine, those included that this process may not use; none without nvidia-smi."""
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


def gpu_topology(run: Runner = run_program) -> str:
    """How the GPUs are connected, as ``nvidia-smi topo -m`` shows it; empty without nvidia-smi."""
    return run(["nvidia-smi", "topo", "-m"]).rstrip()


def visible_gpus(environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that a process with this environment would see, in its order."""
    gpus = {g.index: g for g in find_gpus()}
    return tuple(gpus[i] for i in named_devices({i: g.uuid for i, g in gpus.items()}, environment.get(VISIBLE)))


def visible_gpu_ids(environment: Mapping[str, str]) -> str:
    """Ids of the GPUs that a process with this environment may use, without asking them; empty if none is known of."""
    if (named := environment.get(VISIBLE)) is not None:
        return named
    with contextlib.suppress(OSError):
        return ",".join(str(i) for i in range(len(list(Path("/proc/driver/nvidia/gpus").iterdir()))))
    return ""
