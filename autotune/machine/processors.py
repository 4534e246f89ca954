"""Processors of this machine that other work may use while its devices are measured."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

NVIDIA = "0x10de"


def spare_processors(device_count: int, *, usable: Iterable[int] | None = None, root: Path = Path("/")) -> set[int]:
    """Processors for work beside a measurement: whole cores, at most half of them, farthest from the GPUs.

    Nobody is kept off them: but while they are busy, the kernel has the measured processes run on the others, of which
    at least one for each device and one more are left.

    Args:
        device_count: Devices that are measured, whose host threads need a core each.
        usable: Processors to choose from; default: those that this process may use.
        root: Where the file system begins, for tests.

    Returns:
        None of them where the measured processes need all.
    """
    cores = _cores(sorted(usable if usable is not None else os.sched_getaffinity(0)), root)
    near = _near_gpus(root)
    kept = max(math.ceil(len(cores) / 2), device_count + 1)
    far_first = sorted(cores, key=lambda core: (not near.isdisjoint(core), -core[0]))
    return {processor for core in far_first[: max(0, len(cores) - kept)] for processor in core}


def _cores(usable: list[int], root: Path) -> list[tuple[int, ...]]:
    """The processors by core: two threads of one are no two processors. One that says nothing is a core."""
    found = {}
    for processor in usable:
        siblings = _numbers(root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        core = tuple(sorted((siblings | {processor}) & set(usable)))
        found[core[0]] = core
    return list(found.values())


def _near_gpus(root: Path) -> set[int]:
    """Processors of the memory nodes to which NVIDIA devices are attached."""
    near: set[int] = set()
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        if _text(vendor) == NVIDIA:
            node = _text(vendor.with_name("numa_node"))
            near |= _numbers(root / f"sys/devices/system/node/node{node}/cpulist") if node.isdigit() else set()
    return near


def _numbers(file: Path) -> set[int]:
    """A list as the kernel writes it, such as ``0-3,8``; empty where there is none."""
    found: set[int] = set()
    for part in filter(None, _text(file).split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
