"""What the GPUs say of themselves between measured blocks: clocks, power, heat, throttling, other people's processes.

NVML is asked through ``nvidia-ml-py`` where that is installed and a driver answers; elsewhere nothing is asked and
nothing is missing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from autotune.machine.gpus import VISIBLE, load_nvml, nvml_handles

FILE = "telemetry.jsonl"
EVERY_S = 1.0
"""Shortest time between two looks, so that looking costs little beside short blocks."""

CLOCK_SPREAD = 0.05
"""Share by which the clock may differ within one measurement before it is a warning."""

# nvml.h, nvmlClocksEventReasons (until driver 535: nvmlClocksThrottleReasons); idle and chosen clocks are no trouble
_REASONS = {
    0x04: "its power limit",
    0x08: "a hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "a power brake from outside",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One look at one GPU; None for what it does not tell.

    Attributes:
        throttled_by: Why it runs below the clock it could have, in words.
        other_processes: Processes on it that are not this driver's; None where their numbers cannot be compared.
    """

    index: int
    name: str | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    used_bytes: int | None
    throttled_by: tuple[str, ...]
    other_processes: int | None


class GpuWatch:
    """Looks at the GPUs that a study may use.

    Args:
        nvml: The module ``pynvml``, or None where there is none.
        visible: The value of CUDA_VISIBLE_DEVICES, or None.
    """

    def __init__(self, nvml: Any, visible: str | None) -> None:
        self._nvml = nvml
        self._handles = nvml_handles(nvml, visible)
        self._samples: list[GpuSample] = []
        self._next_s = 0.0

    def look(self, folder: Path) -> None:
        """Takes a sample of every GPU, unless the last one is fresh; kept for `warnings` and in the folder."""
        if not self._handles or time.monotonic() < self._next_s:
            return
        samples = [self._sample(i, handle) for i, handle in self._handles.items()]
        self._samples += samples
        with contextlib.suppress(OSError), (folder / FILE).open("a", encoding="utf-8") as stream:
            for sample in samples:
                stream.write(json.dumps(asdict(sample)) + "\n")
        self._next_s = time.monotonic() + EVERY_S

    def energy_readers(self, count: int | None) -> list[Callable[[], float | None]]:
        """For each of the first `count` GPUs (all, if None): what gives its energy counter, in joules.

        A reader gives None where the GPU or its driver has no such counter (before Volta; parts of a GPU under MIG).
        """

        def reader(handle: Any) -> Callable[[], float | None]:
            return lambda: self._energy_j(handle)

        return [reader(handle) for handle in list(self._handles.values())[:count]]

    def _energy_j(self, handle: Any) -> float | None:
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        return None

    def warnings(self) -> tuple[str, ...]:
        """What was doubtful since the last call, in words."""
        samples, self._samples, self._next_s = self._samples, [], 0.0
        return warnings_of(samples)

    def _sample(self, index: int, handle: Any) -> GpuSample:
        nvml = self._nvml

        def ask(name: str, *arguments: Any) -> Any:
            """The answer of one of NVML's functions, or None if this GPU or driver has none."""
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                return getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments)
            return None

        reasons = ask("CurrentClocksEventReasons")
        if reasons is None:
            reasons = ask("CurrentClocksThrottleReasons") or 0
        name, processes = ask("Name"), ask("ComputeRunningProcesses")
        power, limit = ask("PowerUsage"), ask("EnforcedPowerLimit")
        memory = ask("MemoryInfo")
        return GpuSample(
            index=index,
            name=str(name) if name is not None else None,
            sm_clock_mhz=ask("ClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask("ClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=power / 1e3 if power is not None else None,
            power_limit_w=limit / 1e3 if limit is not None else None,
            temperature_c=ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
            used_bytes=int(memory.used) if memory is not None else None,
            throttled_by=tuple(words for bit, words in _REASONS.items() if reasons & bit),
            other_processes=_strangers([p.pid for p in processes]) if processes is not None else None,
        )


def open_watch(environment: Mapping[str, str]) -> GpuWatch:
    """A watch over the GPUs of this machine; one that sees nothing where NVML is not installed or does not answer."""
    return GpuWatch(load_nvml(), environment.get(VISIBLE))


def warnings_of(samples: Sequence[GpuSample]) -> tuple[str, ...]:
    """What in some samples makes a measurement doubtful, one sentence for each GPU and reason."""
    found: list[str] = []
    for index in sorted({s.index for s in samples}):
        own = [s for s in samples if s.index == index]
        for words in dict.fromkeys(w for s in own for w in s.throttled_by):
            count = sum(words in s.throttled_by for s in own)
            found.append(f"GPU {index} was held back by {words} in {count} of {len(own)} looks")
        clocks = [s.sm_clock_mhz for s in own if s.sm_clock_mhz]
        if clocks and max(clocks) - min(clocks) > CLOCK_SPREAD * max(clocks):
            found.append(f"GPU {index} changed its clock between {min(clocks)} and {max(clocks)} MHz meanwhile")
        others = max((s.other_processes or 0 for s in own), default=0)
        if others:
            found.append(f"GPU {index} was shared with {others} other process{'es' if others > 1 else ''}")
    return tuple(found)


def _strangers(pids: Sequence[int]) -> int | None:
    """How many of some processes are not below this one; None if none is: a container sees other numbers."""
    own = {p.pid for p in psutil.Process().children(recursive=True)}
    return sum(p not in own for p in pids) if any(p in own for p in pids) else None
