"""Where and with what a result was made: versions, machine, load, and what steered it; nothing that names a person."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from autotune.machine.environment import caller_environment, storable
from autotune.machine.gpus import find_gpus
from autotune.machine.versions import measured_versions


def describe_machine(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What is recorded of this machine beside a result.

    Args:
        environment: The caller's, of which only allow-listed variables are kept; default: this process's.
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
        "variables": storable(caller_environment() if environment is None else environment),
    }


def utc_now() -> str:
    """The present time in UTC, to the second, ISO 8601."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def processor_name() -> str:
    """Model of this machine's processor, as it says itself."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()
