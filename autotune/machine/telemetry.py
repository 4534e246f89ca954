"""What the GPUs of a study do while its blocks run: clocks, power, heat, what holds them back, and who else is there.

The process that looks is the one that started the measured process and waits for it, for three reasons: the measured
one shares its Python lock and its processor with nobody, a program of the user's is watched like one of ours, and both
arms are seen by the same eyes. NVML's own counters are read before and after each block, and in between a thread looks
now and then. NVML is asked through ``nvidia-ml-py`` where that is installed and a driver answers; elsewhere nothing is
asked and nothing is missing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from autotune.child import VISIBLE, NvmlDevice, ask, first_of, load_nvml, visible_devices
from autotune.machine.gpu_arms import ArmWatch, GpuSample, Looked, put_together
from autotune.machine.gpu_counters import read_counters
from autotune.machine.sampler import PATIENCE_S, Stuck, looking

FILE = "telemetry.jsonl"
EVERY_S = 1.0
"""Shortest time between two looks for other processes, which go through all of this machine's."""

SAMPLE_EVERY_S = 0.25
"""Seconds between two looks within a block: NVML's own figures of power are means over up to a second."""

# nvml.h, nvmlClocksEventReasons (until driver 535: nvmlClocksThrottleReasons); idle and chosen clocks are no trouble
_REASONS = {0x04: "sw_power_cap", 0x08: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}


class GpuWatch:
    """Looks at the GPUs that a study uses.

    Args:
        nvml: The module ``pynvml``, or None where there is none.
        visible: The value of CUDA_VISIBLE_DEVICES, or None.
        count: How many of them, the first ones, the study uses; None is all.
    """

    def __init__(self, nvml: Any, visible: str | None, count: int | None = None) -> None:
        self._nvml = nvml
        self._devices = first_of(visible_devices(nvml, visible)[:count])
        self._arms: dict[str, ArmWatch] = {}
        self._others: dict[int, int] = {}
        self._trouble: dict[str, None] = {}
        self._unsaved: list[GpuSample] = []
        self._next_s = 0.0

    def follow(self, uuids: Sequence[str]) -> None:
        """Looks at other GPUs from now on: those that a process says it runs on, if they are all of this machine.

        CUDA_VISIBLE_DEVICES does not say it where a machine has different GPUs, for CUDA counts the fastest first.
        """
        found = first_of(visible_devices(self._nvml, ",".join(uuids)))
        if uuids and len(found) == len(set(uuids)) == len(self._devices):
            self._devices = found

    @contextlib.contextmanager
    def block(self, arm: str, *, settle_s: float = 0.0) -> Iterator[None]:
        """Watches one block of an arm while the caller waits for it.

        Args:
            arm: ``reference`` or ``candidate``.
            settle_s: Seconds at its begin in which clocks and power follow the switch: looks then do not count.
        """
        if not self._devices:
            yield
            return
        watch = self._arms.setdefault(arm, ArmWatch())
        before, begun = self._counters(), time.monotonic()
        samples: list[GpuSample] = []
        try:
            with looking(lambda: samples.extend(self._samples(arm)), SAMPLE_EVERY_S, after_s=settle_s):
                yield
        except Stuck:
            self._devices = {}
            self._trouble[f"NVML gave no answer in {PATIENCE_S:g} s, so the GPUs are not watched any more"] = None
            return
        watch.add(samples, before, self._counters(), seconds=time.monotonic() - begun)
        self._unsaved += samples

    def look(self, folder: Path) -> None:
        """Looks for other processes, unless the last look is fresh, and keeps all samples in a folder's file."""
        if self._devices and time.monotonic() >= self._next_s:
            for sample in self._samples(None):
                self._others[sample.index] = max(self._others.get(sample.index, 0), sample.other_processes or 0)
                self._unsaved.append(sample)
            self._next_s = time.monotonic() + EVERY_S
        if self._unsaved:
            with contextlib.suppress(OSError), (folder / FILE).open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(asdict(sample)) + "\n" for sample in self._unsaved)
            self._unsaved = []

    def take(self) -> Looked:
        """What was seen since the last call, over all blocks of both arms; nothing of it counts for the next call."""
        arms, others, trouble = self._arms, self._others, tuple(self._trouble)
        self._arms, self._others, self._trouble, self._next_s = {}, {}, {}, 0.0
        return put_together(arms, others, trouble)

    def energy_readers(self, count: int | None) -> list[Callable[[], float | None]]:
        """For each of the first `count` GPUs (all, if None): what gives its energy counter, in joules.

        A reader gives None where the GPU or its driver has no such counter (before Volta; parts of a GPU under MIG).
        """
        return [functools.partial(self._energy_j, place) for place in range(len([*self._devices][:count]))]

    def _energy_j(self, place: int) -> float | None:
        device = next(itertools.islice(self._devices.values(), place, None), None)
        if device is None or device.part is not None:  # a whole GPU's counter is of the users of its other parts, too
            return None
        millijoules = ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", device.handle)
        return float(millijoules) / 1e3 if millijoules is not None else None

    def _counters(self) -> dict[int, dict[str, int]]:
        """The counters of all GPUs that answer."""
        found = {}
        for index, device in self._devices.items():
            if (counters := read_counters(self._nvml, device.handle)) is None:
                self._trouble[f"GPU {index} is lost: its driver does not answer for it any more"] = None
            else:
                found[index] = counters
        return found

    def _samples(self, arm: str | None) -> list[GpuSample]:
        return [self._sample(index, device, arm) for index, device in self._devices.items()]

    def _sample(self, index: int, device: NvmlDevice, arm: str | None) -> GpuSample:
        """One look; between blocks the memory and processes, too, which take longer to ask."""
        nvml = self._nvml

        def of(name: str, *more: Any) -> Any:
            return ask(nvml, f"nvmlDeviceGet{name}", device.handle, *more)

        reasons = of("CurrentClocksEventReasons")
        reasons = of("CurrentClocksThrottleReasons") if reasons is None else reasons
        power, busy = of("PowerUsage"), of("UtilizationRates")
        sample = GpuSample(
            index=index,
            arm=arm,
            sm_clock_mhz=of("ClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=of("ClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=power / 1e3 if power is not None else None,
            temperature_c=of("Temperature", nvml.NVML_TEMPERATURE_GPU),
            busy_percent=busy.gpu if busy is not None else None,
            held_back_by=None if reasons is None else tuple(r for bit, r in _REASONS.items() if reasons & bit),
        )
        return sample if arm is not None else self._with_neighbours(sample, of)

    def _with_neighbours(self, sample: GpuSample, of: Callable[[str], Any]) -> GpuSample:
        limit, memory, processes = of("EnforcedPowerLimit"), of("MemoryInfo"), of("ComputeRunningProcesses")
        more = {
            "power_limit_w": limit / 1e3 if limit is not None else None,
            "used_bytes": int(memory.used) if memory is not None else None,
            "other_processes": _strangers([p.pid for p in processes]) if processes is not None else None,
        }
        return GpuSample(**(asdict(sample) | more))


def open_watch(environment: Mapping[str, str], count: int | None = None) -> GpuWatch:
    """A watch over the GPUs of this machine; one that sees nothing where NVML is not installed or does not answer."""
    return GpuWatch(load_nvml(), environment.get(VISIBLE), count)


NO_WATCH = GpuWatch(None, None)


def _strangers(pids: Sequence[int]) -> int | None:
    """How many of some processes are not below this one; None if none is: a container sees other numbers."""
    own = {p.pid for p in psutil.Process().children(recursive=True)}
    return sum(p not in own for p in pids) if any(p in own for p in pids) else None
