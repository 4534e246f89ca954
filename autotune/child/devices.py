"""Devices of this process, memory in use, and names of number formats. Standard library only."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.gpus import kernel_text, machine_report
from autotune.child.guard import descendants
from autotune.child.packages import Versions


def dtype_name(dtype: Any) -> str | None:
    """Returns the name of a text, NumPy dtype or scalar type such as ``jax.numpy.bfloat16``."""
    if dtype is None or isinstance(dtype, str):
        return dtype or None
    return str(getattr(dtype, "__name__", None) or getattr(dtype, "name", dtype))


def memory_in_use(root: int | None = None) -> dict[str, int | None]:
    """Returns bytes in use by a process (default: this one), those below it, and on its devices."""
    device_bytes = None
    if root is None:
        root = os.getpid()
        jax = sys.modules.get("jax")
        devices = jax.local_devices() if jax is not None else []
        stats = [device.memory_stats() or {} for device in devices]
        sizes = [int(s["bytes_in_use"]) for s in stats if "bytes_in_use" in s]
        device_bytes = sum(sizes) if sizes else None
    host_bytes = _process_bytes(root)
    if host_bytes is not None:
        host_bytes += sum(_process_bytes(pid) or 0 for pid in descendants(root))
    return {"host_bytes": host_bytes, "device_bytes": device_bytes}


def _process_bytes(pid: int) -> int | None:
    """Returns the bytes of one process (proc(5)); None if it ended."""
    lines = kernel_text(Path(f"/proc/{pid}/status")).splitlines()
    unbacked = ("RssAnon:", "RssShmem:")  # the kernel may drop mapped files at any time
    sizes = [int(line.split()[1]) for line in lines if line.startswith(unbacked)]
    return sum(sizes) * 1024 if sizes else None


def jax_report(jax: Any, versions: Versions, places: Iterable[int]) -> Message:
    """Returns the fields of a `WorkerReport` that JAX tells; `places` are those of visible GPUs."""
    devices = jax.local_devices()
    stats = [device.memory_stats() for device in devices]  # None on CPU
    memory = [
        {"peak_bytes": s.get("peak_bytes_in_use", 0), "limit_bytes": s.get("bytes_limit")}
        for s in stats
        if s
    ]
    report = {
        **machine_report(places),
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "device_count": jax.device_count(),
        "process_count": jax.process_count(),
        "device_memory": memory,
    }
    report["versions"] = {**versions, **report.get("versions", {})}
    if memory:
        report["peak_bytes"] = max(device["peak_bytes"] for device in memory)
    return report


def jax_options(jax: Any, names: Iterable[str]) -> dict[str, str]:
    """Returns the options of JAX in force, after any change by the program."""
    config = getattr(jax, "config", None)
    values = getattr(config, "values", {})
    present = [name for name in names if name in values or hasattr(config, name)]
    return {name: str(getattr(config, name, values.get(name))) for name in present}


class NoDeviceError(RuntimeError):
    """JAX finds no GPU, for some reasons."""

    def __init__(self, *reasons: str) -> None:
        text = "; ".join(dict.fromkeys(reasons))
        super().__init__(f"JAX finds no GPU though the study asks for one: {text}"[:1500])


def find_devices(jax: Any, platform: str) -> list[Any]:
    """Returns the devices of JAX's default platform; NoDeviceError if a wanted GPU is missing."""
    logged: list[str] = []  # the only report of a failing plugin

    def keep(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        logged.extend(text.splitlines()[:1])
        return False

    handler = logging.Handler(logging.WARNING)
    handler.addFilter(keep)
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        devices = list(jax.devices())
    except Exception as error:  # an assertion without text if the plugin is gone
        if platform != "cuda":
            raise
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        raise NoDeviceError(line.rstrip(": "), *logged) from error
    finally:
        logger.removeHandler(handler)
    if platform == "cuda" and devices[0].platform == "cpu":
        raise NoDeviceError("it would run on the CPU", *logged)
    return devices
