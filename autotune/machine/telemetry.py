"""NVML telemetry of the GPUs while blocks run: clocks, power, throttling, energy, other processes.

The process that waits for the measured one takes the samples; none without nvidia-ml-py or driver.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import psutil

from autotune.child.gpus import VISIBLE, ask, load_nvml, visible_devices
from autotune.machine.environment import Environment
from autotune.model.measurement import (
    HELD_BACK,
    Arm,
    ArmOfGpus,
    EnergyUse,
    GpusDuring,
    Pair,
    held_in_one_arm,
)
from autotune.model.spec import StudySpec

T = TypeVar("T")

SAMPLE_EVERY_S = 0.25  # NVML's figures of power are means over up to a second
LOOK_EVERY_S = 1.0  # between two searches for other processes, which list all
PATIENCE_S = 5.0  # of the last sample: a dying GPU's driver may never answer
LOWEST_PRIORITY = 19
TOO_FAST = 1.2  # seconds per second above which a counter does not count nanoseconds of this GPU

# GPUs update their counter of energy every 20 to 100 ms (PETSc's manual, PetscLogGpuEnergyMeter).
NVML_SHORTEST_S = 2.0

# nvml.h, NVML_FI_DEV_*: nanoseconds since the driver was loaded. Old drivers lack some, MIG all.
_COUNTERS = {"sw_power_cap": 74, "sw_thermal": 269, "hw_thermal": 270, "power_brake": 271}


@dataclass(frozen=True)
class GpuSample:
    """One sample of one GPU; None for missing figures."""

    index: int
    clock_mhz: int | None
    power_mw: int | None
    temperature_c: int | None


class Telemetry(NamedTuple):
    """Figures of both arms of one measurement, None where one was not watched, and warnings."""

    during: GpusDuring | None
    warnings: tuple[str, ...]


# Throttle counters, nanoseconds, by GPU and reason (`autotune.model.measurement.HELD_BACK`).
Counters = Mapping[int, Mapping[str, int]]


class ArmWatch:
    """Samples of each GPU, and throttled seconds of the worst one, over the blocks of one arm."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples = defaultdict[int, list[GpuSample]](list)
        # By reason, those that every GPU counted in every block.
        self.held_back = dict.fromkeys(HELD_BACK, 0.0)

    def add(
        self, samples: Iterable[GpuSample], before: Counters, after: Counters, *, seconds: float
    ) -> None:
        """Adds a block: its samples, and the counters before and after it."""
        self.seconds += seconds
        for sample in samples:
            self.samples[sample.index].append(sample)
        held_back = {}
        for reason, earlier_s in self.held_back.items():
            rises = [
                after[i].get(reason, -1) - before[i].get(reason, 0)
                for i in before.keys() & after.keys()
            ]
            if min(rises, default=-1) >= 0:  # a reloaded driver counts anew
                held_back[reason] = earlier_s + max(rises) / 1e9
        self.held_back = held_back

    def figures(self) -> ArmOfGpus:
        """Sums up all GPUs."""
        held_back = {
            reason: round(min(held_s, self.seconds), 3)
            for reason, held_s in self.held_back.items()
            if held_s < TOO_FAST * self.seconds
        }
        clocks = map(statistics.fmean, self._values("clock_mhz"))
        power_w = None
        powers_mw = self._values("power_mw")
        if len(powers_mw) == len(self.samples) > 0:
            power_w = round(sum(map(statistics.fmean, powers_mw)) / 1e3, 1)
        return ArmOfGpus(
            seconds=round(self.seconds, 3),
            looks=min(map(len, self.samples.values()), default=0),
            held_back=held_back,
            clock_mhz=min(map(round, clocks), default=None),
            power_w=power_w,
            temperature_c=max(map(max, self._values("temperature_c")), default=None),
        )

    def _values(self, figure: str) -> list[list[float]]:
        """Returns the values of a figure of each GPU that reports it."""
        all_values = []
        for samples in self.samples.values():
            values = [getattr(sample, figure) for sample in samples]
            all_values.append([value for value in values if value is not None])
        return list(filter(None, all_values))


def put_together(
    arms: Mapping[str, ArmWatch], others: Mapping[int, int], trouble: Iterable[str]
) -> Telemetry:
    """Sums up one measurement; `others` is the most other processes seen on each GPU."""
    during = None
    warnings = list(trouble)
    if len(arms) == len(Arm):
        figures = {arm: arms[arm].figures() for arm in Arm}
        during = GpusDuring(**figures)
        warnings += held_in_one_arm([during])
        seconds = sum(arm.seconds for arm in figures.values())
        for reason, name in HELD_BACK.items():
            held_s = sum(arm.held_back.get(reason, 0.0) for arm in figures.values())
            if held_s >= 0.01 * seconds > 0:
                warnings.append(
                    f"a GPU was held back by {name} for {held_s:.1f} of {seconds:.1f} s"
                )
    for index, count in sorted(others.items()):
        if count:
            warnings.append(
                f"GPU {index} was shared with {count} other process{'es' if count > 1 else ''}"
            )
    return Telemetry(during, tuple(warnings))


class Stuck(Exception):
    """The last sample did not return."""


@contextlib.contextmanager
def sampling(sample: Callable[[], None], after_s: float = 0.0) -> Iterator[None]:
    """Calls `sample` every `SAMPLE_EVERY_S` in a thread, which is left behind if it is `Stuck`."""
    stop = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):  # on Linux this is the priority of this thread only
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        stop.wait(after_s)
        while not stop.wait(SAMPLE_EVERY_S):
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
    """Samples the first `count` GPUs of CUDA_VISIBLE_DEVICES (`visible`) by ``pynvml``."""

    def __init__(self, nvml: Any, visible: str | None, count: int | None = None) -> None:
        self._nvml = nvml
        self._devices = dict(itertools.islice(visible_devices(nvml, visible).items(), count))
        self._forget()

    def _forget(self) -> None:
        self._arms: dict[str, ArmWatch] = {}
        self._others: dict[int, int] = {}
        self._trouble: list[str] = []
        self._next_s = 0.0

    def follow(self, uuids: Sequence[str]) -> None:
        """Watches the GPUs that a process reports to run on, if they are all of this machine.

        On a machine with different GPUs their numbers do not say: CUDA counts the fastest first.
        """
        devices = visible_devices(self._nvml, ",".join(uuids))
        if uuids and len(devices) == len(set(uuids)) == len(self._devices):
            self._devices = devices

    @contextlib.contextmanager
    def block(self, arm: str, *, settle_s: float = 0.0) -> Iterator[None]:
        """Watches a block of an arm (``reference``, ``candidate``) after its first `settle_s`."""
        if not self._devices:
            yield
            return
        watch = self._arms.setdefault(arm, ArmWatch())
        before = self._counters()
        start_s = time.monotonic()
        samples: list[GpuSample] = []
        try:
            with sampling(lambda: samples.extend(self._samples()), settle_s):
                yield
        except Stuck:
            self._devices = {}
            self._trouble.append(
                f"NVML gave no answer in {PATIENCE_S:g} s, so the GPUs are not watched any more"
            )
            return
        watch.add(samples, before, self._counters(), seconds=time.monotonic() - start_s)

    def look(self) -> None:
        """Counts other processes on the GPUs, unless it was done less than `LOOK_EVERY_S` ago."""
        if not self._devices or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + LOOK_EVERY_S
        children = {p.pid for p in psutil.Process().children(recursive=True)}
        for index, handle in self._devices.items():
            processes = ask(self._nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or []
            strangers = [p for p in processes if p.pid not in children]
            if len(strangers) < len(processes):  # else a container sees other numbers
                self._others[index] = max(self._others.get(index, 0), len(strangers))

    def take(self) -> Telemetry:
        """Returns the telemetry since the last call, over all blocks of both arms."""
        telemetry = put_together(self._arms, self._others, dict.fromkeys(self._trouble))
        self._forget()
        return telemetry

    def energy_j(self) -> float | None:
        """Returns the sum of the GPUs' energy counters in joules; None if one has none or fails."""
        millijoules = [
            ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)
            for handle in self._devices.values()
        ]
        is_known = millijoules and None not in millijoules
        return sum(millijoules) / 1e3 if is_known else None

    def _counters(self) -> Counters:
        """Reads the throttle counters of all GPUs, as far as they answer."""
        counters = {}
        for index, handle in self._devices.items():
            fields = list(_COUNTERS.values())
            values = ask(self._nvml, "nvmlDeviceGetFieldValues", handle, fields) or ()
            counters[index] = {
                reason: int(answer.value.ullVal)
                for reason, answer in zip(_COUNTERS, values, strict=False)
                if answer.nvmlReturn == self._nvml.NVML_SUCCESS
            }
        return counters

    def _samples(self) -> list[GpuSample]:
        nvml = self._nvml
        samples = []
        for index, handle in self._devices.items():
            clock = ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
            power = ask(nvml, "nvmlDeviceGetPowerUsage", handle)
            temperature = ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
            samples.append(GpuSample(index, clock, power, temperature))
        return samples


NO_WATCH = GpuWatch(None, None)


def open_watch(environment: Environment, count: int | None = None) -> GpuWatch:
    """Opens a watch over the visible GPUs; over none where NVML is missing or does not answer."""
    return GpuWatch(load_nvml(), environment.get(VISIBLE), count)


class EnergyMeter(NamedTuple):
    """Counts the energy that GPUs draw while something runs, in blocks of at least `shortest_s`."""

    # Returns the sum of the GPUs' counters, joules; None if one does not answer now.
    read_j: Callable[[], float | None] = lambda: None
    shortest_s: float = NVML_SHORTEST_S

    def measure(self, work: Callable[[], T]) -> tuple[T, float | None]:
        """Runs `work`; returns its result, and the joules drawn meanwhile, None if unknown."""
        before = self.read_j()
        result = work()
        after = self.read_j()
        if before is None or after is None or after < before:  # a reloaded driver counts anew
            return result, None
        return result, after - before

    def use_of(self, pairs: Sequence[Pair]) -> EnergyUse | None:
        """Returns both arms' mean energy of a step; None if blocks are not counted or too short."""
        lengths_s = []
        reference_j = []
        candidate_j = []
        for pair in pairs:
            if not (pair.reference_j and pair.candidate_j):
                return None
            lengths_s += [sum(pair.ran_s(arm)) for arm in Arm]
            reference_j.append(pair.reference_j / len(pair.ran_s(Arm.REFERENCE)))
            candidate_j.append(pair.candidate_j / len(pair.ran_s(Arm.CANDIDATE)))
        if not lengths_s or statistics.median_high(lengths_s) < self.shortest_s:
            return None
        return EnergyUse(
            reference_step_j=statistics.fmean(reference_j),
            candidate_step_j=statistics.fmean(candidate_j),
        )


NO_METER = EnergyMeter()


def open_meter(spec: StudySpec, gpus: GpuWatch) -> EnergyMeter:
    """Opens the meter of a study's GPUs; `NO_METER` unless each of them can be read from here."""
    if spec.device.node_count > 1 or gpus.energy_j() is None:
        return NO_METER
    return EnergyMeter(read_j=gpus.energy_j)
