"""Processors, memory and library versions of this machine; its provenance, which names no one."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pydantic import BaseModel

from autotune.child.gpus import kernel_text
from autotune.child.packages import RECORDED, installed_versions
from autotune.machine.devices import parse_devices
from autotune.machine.environment import (
    STORED,
    Environment,
    caller_environment,
    driver_python,
    with_packages,
)
from autotune.machine.gpus import Runner, find_gpus, run_program
from autotune.model.measurement import GpuState

_CGROUP_FILES = (  # limit and use of a container, in control groups of version 2 and 1
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)

_PACKAGES = Path(__file__).parents[1] / "child" / "packages.py"
PROCESSORS = Path("/sys/devices/system/cpu")
_ANSWER_LIMIT_S = 120.0  # libraries of gigabytes, perhaps on a network disk


def describe_machine() -> dict[str, Any]:
    """Returns a result's provenance: machine, versions, and the caller's storable variables."""
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
        "variables": {n: v for n, v in sorted(caller_environment().items()) if STORED.fullmatch(n)},
    }


def utc_now() -> str:
    """Returns the time in UTC, to the second, ISO 8601."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def processor_name() -> str:
    """Returns the model of this machine's processor."""
    model = re.search(r"^model name\s*:\s*(.+)$", kernel_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def spare_processors(device_count: int) -> set[int]:
    """Returns processors for work beside a measurement: whole cores, at most half of them.

    One core for each device, whose host thread needs it, and one more are left. A processor
    without topology is a core of its own.
    """
    processors = os.sched_getaffinity(0)
    cores = {}
    for processor in sorted(processors):
        file = PROCESSORS / f"cpu{processor}/topology/thread_siblings_list"
        siblings = map(int, parse_devices(kernel_text(file) or str(processor)))
        core = processors.intersection([processor, *siblings])
        cores[min(core)] = core
    reserved = max(math.ceil(len(cores) / 2), device_count + 1)
    return set[int]().union(*list(cores.values())[reserved:])


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the bytes that are free or hold caches; in a container at most what it may take."""
    free = int(psutil.virtual_memory().available)
    for limit, used in _CGROUP_FILES:
        try:
            room = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        free = min(free, max(0, room))
    return free


Versions = Mapping[str, str]


class Packages(NamedTuple):
    """Python's version, and versions and folders of requested distributions that are installed."""

    python: str
    versions: Versions
    folders: Mapping[str, str]
    # Libraries in these folders: path to size in bytes and time of the last change in ns.
    libraries: Mapping[str, Sequence[int]]


def packages_of(
    python: str, names: Sequence[str], *, folders: Sequence[str] = (), run: Runner = run_program
) -> Packages:
    """Asks a Python for its version, distributions and folders; ValueError without an answer."""
    question = json.dumps({"versions": list(names), "folders": list(folders)})
    # As a text, for the interpreter may be in a container without these files.
    return Packages(**json.loads(run([python, "-P", "-c", _PACKAGES.read_text("utf-8"), question])))


def measured_versions() -> Versions:
    """Returns the installed versions of packages that decide or measure how fast a step is."""
    return installed_versions((*RECORDED, "optuna"))


class RanOn(BaseModel):
    """GPUs, and versions of cublas, cudnn, nccl and driver, of a process (`child/gpus.py`)."""

    versions: Versions = {}
    gpus: tuple[GpuState, ...] = ()


def would_run_on(environment: Environment, count: int | None = None) -> RanOn:
    """Returns what a workload on `count` visible GPUs would run on; starts nothing on a GPU."""
    command = [driver_python(), "-m", "autotune.child.gpus", json.dumps({"count": count})]
    answer = run_program(command, with_packages(environment), limit_s=_ANSWER_LIMIT_S)
    try:
        return RanOn.model_validate_json(answer)
    except ValueError:
        return RanOn()
