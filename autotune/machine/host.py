"""Processors, memory and library versions of this machine, and its provenance record, which names
no person.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from autotune.child.gpus import kernel_text
from autotune.child.packages import CUDA_PLUGINS, TOLD, installed_versions
from autotune.machine.devices import parse_devices
from autotune.machine.environment import (
    Environment,
    caller_environment,
    driver_python,
    storable,
    with_packages,
)
from autotune.machine.gpus import Runner, find_gpus, run_program
from autotune.model.measurement import GpuState

CGROUP = Path("/sys/fs/cgroup")

_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Limit and use of a container, in control groups of version 2 and 1."""

_PACKAGES = Path(__file__).parents[1] / "child" / "packages.py"
_ANSWER_LIMIT_S = 120.0  # libraries of gigabytes, perhaps on a network disk


# ---------------------------------------------------------------------- provenance


def describe_machine() -> dict[str, Any]:
    """Returns the provenance of a result: this machine, its versions, and allow-listed variables of
    the caller's.
    """
    gpus = find_gpus()
    return {
        "date": utc_now(),
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": measured_versions(),
        **({"driver": gpus[0].driver} if gpus else {}),
        "cpu": processor_name(),
        "cpu_count": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": round(psutil.getloadavg()[0], 2),
        "variables": storable(caller_environment()),
    }


def utc_now() -> str:
    """Returns the time in UTC, to the second, ISO 8601."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


# ---------------------------------------------------------------------- processors and memory


def processor_name() -> str:
    """Returns the model of this machine's processor."""
    model = re.search(r"^model name\s*:\s*(.+)$", kernel_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return model.group(1).strip() if model else platform.processor() or platform.machine()


def spare_processors(
    device_count: int, *, usable: Iterable[int] | None = None, root: Path = Path("/")
) -> set[int]:
    """Returns processors for work beside a measurement: whole cores, at most half of them; none
    where all are needed.

    At least one core for each device, whose host thread needs it, and one more are left.
    """
    cores = _cores(sorted(usable if usable is not None else os.sched_getaffinity(0)), root)
    reserved = max(math.ceil(len(cores) / 2), device_count + 1)
    return {processor for core in cores[reserved:] for processor in core}


def _cores(usable: list[int], root: Path) -> list[tuple[int, ...]]:
    """Groups processors by core; a processor without topology is a core of its own."""
    cores = {}
    for processor in usable:
        siblings = _numbers(
            root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        )
        core = tuple(sorted((siblings | {processor}) & set(usable)))
        cores[core[0]] = core
    return [cores[processor_number] for processor_number in sorted(cores)]


def _numbers(file: Path) -> set[int]:
    """Parses a list of the kernel such as ``0-3,8``; empty where the file is missing."""
    text = kernel_text(file)
    return set(map(int, parse_devices(text))) if text else set()


def available_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Returns the bytes of memory that are free or hold caches, in a container at most what its
    limit leaves.
    """
    free = int(psutil.virtual_memory().available)
    for limit, used in _CGROUP_FILES:
        try:
            room = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        free = min(free, max(0, room))
    return free


# ---------------------------------------------------------------------- versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Python's version, and versions and folders of requested distributions that are installed."""

    python: str
    versions: Mapping[str, str]
    folders: Mapping[str, str]
    libraries: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Libraries in these folders: path to size in bytes and time of the last change in ns."""


def packages_of(
    python: str, names: Sequence[str], *, folders: Sequence[str] = (), run: Runner = run_program
) -> Packages:
    """Asks a Python for its version, versions of distributions and package folders; ValueError
    without an answer.
    """
    question = json.dumps({"versions": list(names), "folders": list(folders)})
    # As a text, for the interpreter may be in a container without these files.
    return Packages(**json.loads(run([python, "-P", "-c", _PACKAGES.read_text("utf-8"), question])))


def measured_versions() -> dict[str, str]:
    """Returns the installed versions of packages that decide or measure how fast a step is."""
    return installed_versions((*TOLD, "optuna"))


def cuda_plugin(versions: Mapping[str, str]) -> str | None:
    """Returns the CUDA plugin among some versions, such as ``jax-cuda12-plugin 0.10.2``; None
    without one.
    """
    return next((f"{name} {versions[name]}" for name in CUDA_PLUGINS if name in versions), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanOn:
    """Versions of cublas, cudnn, nccl and driver, and GPUs, of a process; see
    `autotune.child.gpus`.
    """

    versions: Mapping[str, str]
    gpus: tuple[GpuState, ...]


_RAN_ON = TypeAdapter(RanOn)


def would_run_on(environment: Environment, count: int | None = None) -> RanOn:
    """Returns the libraries, driver, firmware and clocks that a workload on `count` visible GPUs
    would run on.

    A child process loads the libraries that JAX would, and starts nothing on a GPU.
    """
    command = [driver_python(), "-m", "autotune.child.gpus", json.dumps({"count": count})]
    try:
        return _RAN_ON.validate_json(
            run_program(command, with_packages(environment), limit_s=_ANSWER_LIMIT_S)
        )
    except ValueError:
        return RanOn(versions={}, gpus=())
