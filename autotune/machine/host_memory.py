"""How much memory of this host a program may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")

FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""What a container may take and takes, in either version of control groups."""


def available_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that is free, or would be if caches gave way; of a container no more than its limit leaves.

    Args:
        cgroup: Where the limits of this container are told.
    """
    free = int(psutil.virtual_memory().available)
    for limit, used in FILES:
        try:
            left = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # none is told, or it is "max"
            continue
        free = min(free, max(0, left))
    return free
