"""What NVML counts by itself, whether anybody looks or not: what lies between two readings is of a block.

A look now and then misses what happens between two looks; a counter does not. One question gets them all, and each is
answered or not by itself: older drivers lack some, and parts that MIG made have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# nvml.h, NVML_FI_DEV_*; of held back clocks the nanoseconds since the driver was loaded.
_TIMES = {"sw_power_cap": 74, "sw_thermal": 269, "hw_thermal": 270, "power_brake": 271}
_EVENTS = {"ecc_corrected": 3, "ecc_uncorrected": 4, "pcie_replays": 94}
_FIELDS = {**_TIMES, **_EVENTS}
_UNSIGNED = 1  # nvmlValueType_t: 32 bits; the others that counters have are of 64

_WRAPS_AT = 2**32
"""Where a counter of 32 bits starts again from 0: that of PCIe replays is one."""

EVENTS: Mapping[str, str] = {
    "ecc_uncorrected": "errors of its memory that could not be corrected",
    "ecc_corrected": "corrected errors of its memory",
    "pcie_replays": "repeated packets on its PCIe link",
}
"""What should not happen while anything is measured, in words."""


def read_counters(nvml: Any, handle: Any) -> dict[str, int] | None:
    """The readings of those counters that a GPU and its driver have; None if the GPU is lost."""
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS.values()))
    except AttributeError:
        return {}
    except nvml.NVMLError as error:
        return None if _is_lost(nvml, error) else {}
    found = {}
    for name, answer in zip(_FIELDS, values, strict=True):
        if answer.nvmlReturn == nvml.NVML_SUCCESS:
            found[name] = int(answer.value.uiVal if answer.valueType == _UNSIGNED else answer.value.ullVal)
    return found


def _is_lost(nvml: Any, error: BaseException) -> bool:
    """Whether an error of NVML says that the GPU fell off the bus."""
    lost = getattr(nvml, "NVML_ERROR_GPU_IS_LOST", None)
    return lost is not None and getattr(error, "value", None) == lost


def held_back_s(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Seconds for which clocks were held back between two readings, by what; without what is not known.

    A counter that fell began anew, with its driver or GPU, and nobody knows how far it had come before.
    """
    found = {n: (after[n] - before[n]) / 1e9 for n in _TIMES if n in before and n in after}
    return {name: rise for name, rise in found.items() if rise >= 0}


def events(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """How many errors and replays came between two readings; none where the counter began anew."""
    found = {}
    for name in _EVENTS:
        if name in before and name in after:
            rise = after[name] - before[name]
            if rise < 0 and name == "pcie_replays" and before[name] > _WRAPS_AT // 2:
                rise += _WRAPS_AT
            if rise > 0:
                found[name] = rise
    return found
