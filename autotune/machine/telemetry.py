"""NVML telemetry of the GPUs while blocks run: clocks, power, throttling, energy, and other processes.

The process that waits for the measured one takes the samples. Without nvidia-ml-py or a driver nothing is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psutil

from autotune.child.gpus import VISIBLE, ask, load_nvml, visible_devices
from autotune.model.measurement import HELD_BACK, Arm, ArmOfGpus, EnergyUse, GpusDuring, Pair, held_in_one_arm
from autotune.model.spec import StudySpec

T = TypeVar("T")

SAMPLE_EVERY_S = 0.25
"""Seconds between samples within a block: NVML's figures of power are means over up to a second."""

LOOK_EVERY_S = 1.0
"""Shortest time between two searches for other processes, which list all processes of this machine."""

PATIENCE_S = 5.0
"""Time limit of the last sample after the block's end: the driver of a dying GPU may never answer."""

LOWEST_PRIORITY = 19
"""Niceness of the sampling thread."""

CLOCK_SPREAD = 0.05
"""Relative spread of the clock within one measurement above which a warning is given."""

LEAST_SAMPLES = 5
"""Samples of each GPU in each arm that are needed to judge a throttle reason without a counter."""

TOO_FAST = 1.2
"""Counted seconds per second above which a counter does not count nanoseconds of this GPU."""

NVML_SHORTEST_S = 2.0
"""Shortest block whose energy NVML can measure, seconds: GPUs update their counter every 20 to 100 ms (PETSc's manual,
PetscLogGpuEnergyMeter)."""

# nvml.h, nvmlClocksEventReasons (until driver 535: nvmlClocksThrottleReasons); clocks set by a user are no throttling.
_REASONS = {0x04: "sw_power_cap", 0x08: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}

# nvml.h, NVML_FI_DEV_*: nanoseconds of throttling since the driver was loaded. Older drivers lack some, MIG parts all.
_COUNTERS = {"sw_power_cap": 74, "sw_thermal": 269, "hw_thermal": 270, "power_brake": 271}

_ARMS = ("reference", "candidate")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One sample of one GPU; None for missing figures."""

    index: int
    clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled_by: tuple[str, ...] | None = None
    """Keys of `autotune.model.measurement.HELD_BACK`."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Figures of each arm of one measurement, and warnings as sentences."""

    arms: Mapping[str, ArmOfGpus] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def during(self) -> GpusDuring | None:
        """Figures of both arms; None where one was not watched."""
        return GpusDuring(**self.arms) if len(self.arms) == len(_ARMS) else None


# ---------------------------------------------------------------------- one arm


@dataclass(slots=True)
class ArmWatch:
    """Samples and throttle counters over the blocks of one arm."""

    seconds: float = 0.0
    blocks: int = 0
    samples: list[GpuSample] = field(default_factory=list)
    counted_s: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """Readings of a GPU's throttle counter, at most one of each block, in seconds, by GPU and reason."""
    indices: set[int] = field(default_factory=set)

    def add(
        self,
        samples: Sequence[GpuSample],
        before: Mapping[int, Mapping[str, int]],
        after: Mapping[int, Mapping[str, int]],
        *,
        seconds: float,
    ) -> None:
        """Adds a block: its samples, and the counters (nanoseconds, by GPU and reason) before and after it."""
        self.seconds += seconds
        self.blocks += 1
        self.samples += samples
        self.indices |= before.keys() | after.keys()
        for index in before.keys() & after.keys():
            for reason in before[index].keys() & after[index].keys():
                rise = after[index][reason] - before[index][reason]
                if rise >= 0:  # a reloaded driver starts its counters anew
                    self.counted_s.setdefault((index, reason), []).append(rise / 1e9)

    def throttled_s(self, index: int, reason: str) -> float | None:
        """Returns the seconds for which a GPU was throttled: by its counter, else by samples; None if unknown."""
        counted = self.counted_s.get((index, reason), [])
        if len(counted) == self.blocks > 0 and sum(counted) <= TOO_FAST * self.seconds:
            return min(sum(counted), self.seconds)
        reasons = [s.throttled_by for s in self.samples if s.index == index and s.throttled_by is not None]
        if len(reasons) < LEAST_SAMPLES:
            return None
        return self.seconds * sum(reason in s for s in reasons) / len(reasons)

    def figures(self, reasons: Sequence[str]) -> ArmOfGpus:
        """Sums up all GPUs, for the given throttle reasons."""
        clocks = self._means("clock_mhz")
        powers = self._means("power_w")
        return ArmOfGpus(
            seconds=round(self.seconds, 3),
            looks=min(sum(s.index == i for s in self.samples) for i in self.indices),
            held_back={r: round(max(self.throttled_s(i, r) or 0.0 for i in self.indices), 3) for r in reasons},
            clock_mhz=round(min(clocks)) if clocks else None,
            power_w=round(sum(powers), 1) if len(powers) == len(self.indices) else None,
            temperature_c=max((s.temperature_c for s in self.samples if s.temperature_c is not None), default=None),
        )

    def _means(self, figure: str) -> list[float]:
        """Returns the mean of a figure of each GPU that tells it."""
        values: dict[int, list[float]] = {}
        for sample in self.samples:
            if (value := getattr(sample, figure)) is not None:
                values.setdefault(sample.index, []).append(value)
        return [statistics.fmean(of_gpu) for of_gpu in values.values()]


def put_together(arms: Mapping[str, ArmWatch], others: Mapping[int, int], trouble: Iterable[str]) -> Telemetry:
    """Sums up one measurement; `others` is the largest number of other processes seen on each GPU."""
    watches = {arm: arms[arm] for arm in _ARMS if arm in arms and arms[arm].indices}
    indices = {i for w in watches.values() for i in w.indices}
    reasons = [r for r in HELD_BACK if all(w.throttled_s(i, r) is not None for w in watches.values() for i in indices)]
    telemetry = Telemetry({arm: w.figures(reasons) for arm, w in watches.items()})
    warnings = list(trouble)
    if telemetry.during is not None:
        warnings += held_in_one_arm([telemetry.during])
    for index in sorted(indices | others.keys()):
        warnings += _warnings_of(index, list(watches.values()), others.get(index, 0))
    return Telemetry(telemetry.arms, tuple(warnings))


def _warnings_of(index: int, watches: Sequence[ArmWatch], others: int) -> list[str]:
    """Formats what casts doubt on one GPU's figures, a sentence for each reason."""
    warnings = []
    seconds = sum(w.seconds for w in watches)
    samples = [s for w in watches for s in w.samples if s.index == index]
    for reason, name in HELD_BACK.items():
        throttled = [s for w in watches if (s := w.throttled_s(index, reason)) is not None]
        if len(throttled) == len(watches) and sum(throttled) >= 0.01 * seconds > 0:
            warnings.append(f"GPU {index} was held back by {name} for {sum(throttled):.1f} of {seconds:.1f} s")
    clocks = [s.clock_mhz for s in samples if s.clock_mhz]
    if clocks and max(clocks) - min(clocks) > CLOCK_SPREAD * max(clocks):
        warnings.append(f"GPU {index} changed its clock between {min(clocks)} and {max(clocks)} MHz meanwhile")
    if others:
        warnings.append(f"GPU {index} was shared with {others} other process{'es' if others > 1 else ''}")
    return warnings


# ---------------------------------------------------------------------- sampling


class Stuck(Exception):
    """The last sample did not return."""


@contextlib.contextmanager
def sampling(sample: Callable[[], None], every_s: float, *, after_s: float = 0.0) -> Iterator[None]:
    """Calls `sample` every `every_s` seconds, first `after_s` later, in a thread of the lowest priority.

    Raises:
        Stuck: If the last sample does not return; its thread is left behind.
    """
    stop = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)  # on Linux this thread only
        ended = stop.wait(after_s)
        while not ended and not stop.wait(every_s):
            sample()

    thread = threading.Thread(target=run, daemon=True, name="gpu-samples")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    if thread.is_alive():
        raise Stuck


class GpuWatch:
    """Samples the first `count` GPUs that CUDA_VISIBLE_DEVICES (`visible`) names, by the module ``pynvml``."""

    def __init__(self, nvml: Any, visible: str | None, count: int | None = None) -> None:
        self._nvml = nvml
        self._devices = dict(itertools.islice(visible_devices(nvml, visible).items(), count))
        self._arms: dict[str, ArmWatch] = {}
        self._others: dict[int, int] = {}
        self._trouble: dict[str, None] = {}
        self._next_s = 0.0

    def follow(self, uuids: Sequence[str]) -> None:
        """Watches the GPUs that a process reports to run on, if they are all of this machine.

        CUDA_VISIBLE_DEVICES is no help on a machine with different GPUs, for CUDA numbers the fastest first.
        """
        devices = visible_devices(self._nvml, ",".join(uuids))
        if uuids and len(devices) == len(set(uuids)) == len(self._devices):
            self._devices = devices

    @contextlib.contextmanager
    def block(self, arm: str, *, settle_s: float = 0.0) -> Iterator[None]:
        """Watches one block of an arm (``reference`` or ``candidate``) but for its first `settle_s` seconds."""
        if not self._devices:
            yield
            return
        watch = self._arms.setdefault(arm, ArmWatch())
        before = self._counters()
        start_s = time.monotonic()
        samples: list[GpuSample] = []
        try:
            with sampling(lambda: samples.extend(self._samples()), SAMPLE_EVERY_S, after_s=settle_s):
                yield
        except Stuck:
            self._devices = {}
            self._trouble[f"NVML gave no answer in {PATIENCE_S:g} s, so the GPUs are not watched any more"] = None
            return
        watch.add(samples, before, self._counters(), seconds=time.monotonic() - start_s)

    def look(self) -> None:
        """Counts other processes on the GPUs, unless it was done less than `LOOK_EVERY_S` ago."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + LOOK_EVERY_S
        for index, handle in self._devices.items():
            processes = ask(self._nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
            count = _strangers([p.pid for p in processes or ()])
            self._others[index] = max(self._others.get(index, 0), count)

    def take(self) -> Telemetry:
        """Returns the telemetry since the last call, over all blocks of both arms."""
        arms = self._arms
        others = self._others
        trouble = tuple(self._trouble)
        self._arms = {}
        self._others = {}
        self._trouble = {}
        self._next_s = 0.0
        return put_together(arms, others, trouble)

    def energy_j(self, count: int | None) -> float | None:
        """Returns the sum of the energy counters of the first `count` GPUs (all, if None), joules.

        None where a GPU or its driver has no such counter (before Volta).
        """
        handles = list(self._devices.values())[:count]
        millijoules = [ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle) for handle in handles]
        return sum(millijoules) / 1e3 if millijoules and None not in millijoules else None

    def _counters(self) -> dict[int, dict[str, int]]:
        """Reads the throttle counters of all GPUs that answer."""
        counters_of = {}
        for index, handle in self._devices.items():
            if (counters := _read_counters(self._nvml, handle)) is None:
                self._trouble[f"GPU {index} is lost: its driver does not answer for it any more"] = None
            else:
                counters_of[index] = counters
        return counters_of

    def _samples(self) -> list[GpuSample]:
        return [self._sample(index, handle) for index, handle in self._devices.items()]

    def _sample(self, index: int, handle: Any) -> GpuSample:
        def of(name: str, *more: Any) -> Any:
            return ask(self._nvml, f"nvmlDeviceGet{name}", handle, *more)

        reasons = of("CurrentClocksEventReasons")
        reasons = of("CurrentClocksThrottleReasons") if reasons is None else reasons
        power = of("PowerUsage")
        return GpuSample(
            index=index,
            clock_mhz=of("ClockInfo", self._nvml.NVML_CLOCK_SM),
            power_w=power / 1e3 if power is not None else None,
            temperature_c=of("Temperature", self._nvml.NVML_TEMPERATURE_GPU),
            throttled_by=None if reasons is None else tuple(r for bit, r in _REASONS.items() if reasons & bit),
        )


NO_WATCH = GpuWatch(None, None)


def open_watch(environment: Mapping[str, str], count: int | None = None) -> GpuWatch:
    """Opens a watch over the visible GPUs; one without GPUs where NVML is not installed or does not answer."""
    return GpuWatch(load_nvml(), environment.get(VISIBLE), count)


def _read_counters(nvml: Any, handle: Any) -> dict[str, int] | None:
    """Reads the nanoseconds of throttling by reason that a GPU and its driver count; None if the GPU is lost."""
    try:
        values = nvml.nvmlDeviceGetFieldValues(handle, list(_COUNTERS.values()))
    except AttributeError:
        return {}
    except nvml.NVMLError as error:
        lost = getattr(nvml, "NVML_ERROR_GPU_IS_LOST", None)
        return None if lost is not None and getattr(error, "value", None) == lost else {}
    answers = zip(_COUNTERS, values, strict=True)
    return {name: int(a.value.ullVal) for name, a in answers if a.nvmlReturn == nvml.NVML_SUCCESS}


def _strangers(pids: Sequence[int]) -> int:
    """Counts the processes that are not below this one; 0 if none is, for a container sees other numbers."""
    children = {p.pid for p in psutil.Process().children(recursive=True)}
    return sum(p not in children for p in pids) if any(p in children for p in pids) else 0


# ---------------------------------------------------------------------- energy


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyMeter:
    """Counts the energy that the GPUs of a study draw while something runs."""

    read_j: Callable[[], float | None] = lambda: None
    """Returns the sum of the GPUs' counters, joules; None if one does not answer now."""
    shortest_s: float = NVML_SHORTEST_S
    """Shortest block, in seconds, over which the counters can be trusted."""

    def measure(self, work: Callable[[], T]) -> tuple[T, float | None]:
        """Runs `work`; returns its result, and the joules drawn meanwhile, or None where they are not known."""
        before = self.read_j()
        result = work()
        after = self.read_j()
        if before is None or after is None or after < before:  # a reloaded driver counts anew
            return result, None
        return result, after - before

    def use_of(self, pairs: Sequence[Pair]) -> EnergyUse | None:
        """Returns the mean energy of a step of both arms; None if a block was not counted or blocks are too short."""
        reference = [p.reference_j / len(p.ran_s(Arm.REFERENCE)) for p in pairs if p.reference_j]
        candidate = [p.candidate_j / len(p.ran_s(Arm.CANDIDATE)) for p in pairs if p.candidate_j]
        if not len(reference) == len(candidate) == len(pairs) > 0:
            return None
        if statistics.median_high(sum(p.ran_s(arm)) for p in pairs for arm in Arm) < self.shortest_s:
            return None
        return EnergyUse(reference_step_j=statistics.fmean(reference), candidate_step_j=statistics.fmean(candidate))


NO_METER = EnergyMeter()


def open_meter(spec: StudySpec, gpus: GpuWatch) -> EnergyMeter:
    """Opens the meter of a study's GPUs; one that counts nothing unless each of them can be read from here."""
    read_j = functools.partial(gpus.energy_j, spec.device.count)
    return NO_METER if spec.device.node_count > 1 or read_j() is None else EnergyMeter(read_j=read_j)
