"""Devices of this process, memory in use, and names of number formats. Standard library only."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.gpus import is_on_gpus, kernel_text, ran_on
from autotune.child.guard import descendants


def dtype_name(dtype: Any) -> str | None:
    """Name of a text, NumPy dtype or scalar type such as ``jax.numpy.bfloat16``."""
    if dtype is None or isinstance(dtype, str):
        return dtype or None
    if isinstance(name := getattr(dtype, "name", None), str):
        return name
    found = re.search(r"(\w+)'?[)>]*$", str(dtype))  # <class 'jax.numpy.bfloat16'>
    return found[1] if found else str(dtype)


OWN = ("RssAnon:", "RssShmem:")
"""Fields of memory without a backing file: the kernel may drop mapped files at any time."""


def memory_in_use(root: int | None = None) -> dict[str, int | None]:
    """Bytes used by a process (default: this one) and its descendants, and on this one's devices;
    None if unknown.
    """
    top = root or os.getpid()
    processes = [_own_bytes(pid) for pid in (top, *descendants(top))]
    host = None if processes[0] is None else sum(size or 0 for size in processes)
    return {"host_bytes": host, "device_bytes": _device_bytes() if root is None else None}


def _own_bytes(pid: int) -> int | None:
    """Bytes of one process (proc(5)); None if it ended."""
    lines = kernel_text(Path(f"/proc/{pid}/status")).splitlines()
    sizes = [int(line.split()[1]) for line in lines if line.startswith(OWN)]
    return sum(sizes) * 1024 if sizes else None


def jax_report(jax: Any, versions: Mapping[str, str], places: Iterable[int]) -> Message:
    """The fields of a `WorkerReport` that JAX tells after the steps; `places` are those among the
    visible GPUs.
    """
    devices = jax.local_devices()
    stats = [device.memory_stats() for device in devices]  # None on CPU
    memory = [
        {"peak_bytes": s.get("peak_bytes_in_use", 0), "limit_bytes": s.get("bytes_limit")}
        for s in stats
        if s
    ]
    ran = ran_on(places) if is_on_gpus() else {}
    return {
        **ran,
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "device_count": jax.device_count(),
        "process_count": jax.process_count(),
        "device_memory": memory,
        **({"peak_bytes": max(device["peak_bytes"] for device in memory)} if memory else {}),
        "versions": {**versions, **ran.get("versions", {})},
        "gpus": ran.get("gpus") or None,
    }


def jax_options(jax: Any, names: Iterable[str]) -> dict[str, str]:
    """The options of JAX in force, after any change by the program."""
    config = getattr(jax, "config", None)
    values = getattr(config, "values", {})
    return {
        n: str(getattr(config, n, values.get(n)))
        for n in names
        if n in values or hasattr(config, n)
    }


def _device_bytes() -> int | None:
    """Bytes in use on JAX's devices in this process; None if unknown."""
    jax: Any = sys.modules.get("jax")
    stats = [d.memory_stats() or {} for d in jax.local_devices()] if jax is not None else []
    told = [int(s["bytes_in_use"]) for s in stats if "bytes_in_use" in s]
    return sum(told) if told else None


class NoDeviceError(RuntimeError):
    """JAX finds no device of the requested kind."""


class _JaxLog(logging.Handler):
    """Collects JAX's log of finding devices, the only report of a failing plugin."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the logged exception, or the first line of the text."""
        error = record.exc_info[1] if record.exc_info else None
        text = f"{type(error).__name__}: {error}" if error is not None else record.getMessage()
        self.lines += text.splitlines()[:1]


def find_devices(jax: Any, platform: str) -> list[Any]:
    """All devices of JAX's default platform; NoDeviceError if a GPU is requested and JAX finds
    none.
    """
    logger = logging.getLogger("jax")
    heard = _JaxLog()
    logger.addHandler(heard)
    try:
        devices = list(jax.devices())
    except Exception as error:  # without its plugin, JAX fails an assertion without a message
        if platform != "cuda":
            raise
        said = str(error).splitlines()[0] if str(error) else ""
        raise NoDeviceError(
            _words([f"{type(error).__name__}: {said}".rstrip(": "), *heard.lines])
        ) from error
    finally:
        logger.removeHandler(heard)
    if platform == "cuda" and devices[0].platform == "cpu":
        raise NoDeviceError(_words(["it would run on the CPU", *heard.lines]))
    return devices


def _words(said: list[str]) -> str:
    return f"JAX finds no GPU though the study asks for one: {'; '.join(dict.fromkeys(said))}"[
        :1500
    ]
