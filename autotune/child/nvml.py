"""NVIDIA's management library: the one place that finds it, and the GPUs in it that a process may use.

``nvidia-ml-py`` asks it where that is installed and a driver answers; elsewhere there is nothing, and nothing is wrong.
Standard library only besides: a measured process says with this what it ran on.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One GPU that a process may use.

    Attributes:
        index: NVML's, that of nvidia-smi.
        handle: Of the whole GPU, even where only a part of it may be used: clocks, power and heat are the whole's.
        part: Of the part that MIG made; None where the whole may be used.
    """

    index: int
    handle: Any
    part: Any = None


def load_nvml() -> Any:
    """The module ``pynvml`` of the distribution nvidia-ml-py; None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def visible_devices(nvml: Any, visible: str | None) -> list[NvmlDevice]:
    """The GPUs that CUDA_VISIBLE_DEVICES shows, in its order.

    A GPU that is lost is left out, and the others keep their numbers.

    Args:
        nvml: The module ``pynvml``, or None.
        visible: The variable's value; None is unset, and shows all.
    """
    if nvml is None:
        return []
    handles: dict[int, Any] = {}
    uuids: dict[int, str] = {}
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        return []
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuids[index], handles[index] = plain(nvml.nvmlDeviceGetUUID(handle)), handle
    if visible is None:
        return [NvmlDevice(i, h) for i, h in handles.items()]
    found = []
    for entry in (v.strip() for v in visible.split(",")):
        device = _part(nvml, handles, uuids, entry) if entry.startswith("MIG-") else _whole(handles, uuids, entry)
        if device is None:
            break
        found.append(device)
    return found


def named_devices(uuids: Mapping[int, str], visible: str | None) -> list[int]:
    """Indices of the GPUs that CUDA_VISIBLE_DEVICES names, in its order, or of all.

    As CUDA reads it: an index or the start of a UUID each, and the first that names nothing ends the list.
    """
    if visible is None:
        return list(uuids)
    found: list[int] = []
    for entry in (v.strip() for v in visible.split(",")):
        if (index := _index(uuids, entry)) is None:
            break
        found.append(index)
    return found


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """The answer of one of NVML's functions; None where this GPU, driver or nvidia-ml-py has none."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        answer = getattr(nvml, name)(*arguments)
        return plain(answer) if isinstance(answer, bytes) else answer
    return None


def plain(text: str | bytes) -> str:
    """Text as text: some versions of nvidia-ml-py give bytes."""
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def _index(uuids: Mapping[int, str], entry: str) -> int | None:
    # CUDA takes the start of a UUID if it is the start of one alone.
    if entry.isdigit():
        return int(entry) if int(entry) in uuids else None
    fitting = [i for i, uuid in uuids.items() if entry and uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def _whole(handles: Mapping[int, Any], uuids: Mapping[int, str], entry: str) -> NvmlDevice | None:
    index = _index(uuids, entry)
    return NvmlDevice(index, handles[index]) if index is not None else None


def _part(nvml: Any, handles: Mapping[int, Any], uuids: Mapping[int, str], entry: str) -> NvmlDevice | None:
    """The GPU of a part that MIG made, named ``MIG-UUID``, or as drivers before 470 do ``MIG-GPU-UUID/1/0``."""
    if entry.startswith("MIG-GPU-"):
        index = _index(uuids, entry.removeprefix("MIG-").partition("/")[0])
        return NvmlDevice(index, handles[index], entry) if index is not None else None
    part = ask(nvml, "nvmlDeviceGetHandleByUUID", entry)
    if part is None:
        return None
    handle = ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part)
    uuid = ask(nvml, "nvmlDeviceGetUUID", handle) if handle is not None else None
    index = next((i for i, known in uuids.items() if known == uuid), None)
    return NvmlDevice(index, handles[index], part) if index is not None else None


def first_of(devices: Iterable[NvmlDevice]) -> dict[int, NvmlDevice]:
    """Each GPU once, by its index: two parts of one are one."""
    found: dict[int, NvmlDevice] = {}
    for device in devices:
        found.setdefault(device.index, device)
    return found
