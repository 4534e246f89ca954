"""Memory that a process and all that it started have in use now; standard library only, for any program imports it."""

from __future__ import annotations

import os
import sys
from typing import Any

from autotune.child.guard import descendants

OWN = (b"RssAnon:", b"RssShmem:")
"""Pages of a process that no file can give back: what is mapped of files may go whenever the machine needs room."""


def memory_in_use(root: int | None = None) -> dict[str, int | None]:
    """Bytes of a process and everything below it, and of the devices of this one; None where that is not known.

    Args:
        root: Process number; None is this process, which alone can tell of its devices.
    """
    found = [_own_bytes(pid) for pid in (root or os.getpid(), *descendants(root or os.getpid()))]
    host = None if found[0] is None else sum(n or 0 for n in found)
    return {"host_bytes": host, "device_bytes": _device_bytes() if root is None else None}


def _own_bytes(pid: int) -> int | None:
    """Bytes of one process; None where it is gone or the kernel does not tell (see proc(5))."""
    try:
        with open(f"/proc/{pid}/status", "rb") as stream:  # noqa: PTH123
            lines = [line.split() for line in stream if line.startswith(OWN)]
        return sum(int(line[1]) for line in lines) * 1024 if lines else None
    except (OSError, ValueError, IndexError):
        return None


def _device_bytes() -> int | None:
    """Bytes in use on the devices that JAX sees in this process, if it runs JAX and they tell."""
    jax: Any = sys.modules.get("jax")
    stats = [d.memory_stats() or {} for d in jax.local_devices()] if jax is not None else []
    told = [int(s["bytes_in_use"]) for s in stats if "bytes_in_use" in s]
    return sum(told) if told else None
