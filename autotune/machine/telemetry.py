"""NVML telemetry of the GPUs while blocks run: clocks, power, throttling, energy, and other
processes.

The process that waits for the measured one takes the samples. Without nvidia-ml-py or a driver
nothing is recorded.
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

SAMPLE_EVERY_S = 0.25
"""Seconds between samples within a block: NVML's figures of power are means over up to a second."""

LOOK_EVERY_S = 1.0
"""Shortest time between two searches for other processes, which list all processes of this
machine.
"""

PATIENCE_S = 5.0
"""Time limit of the last sample after the block's end: the driver of a dying GPU may never
answer.
"""

LOWEST_PRIORITY = 19
"""Niceness of the sampling thread."""

TOO_FAST = 1.2
"""Counted seconds per second above which a counter does not count nanoseconds of this GPU."""

NVML_SHORTEST_S = 2.0
"""Shortest block whose energy NVML can measure, seconds: GPUs update their counter every 20 to 100
ms (PETSc's manual, PetscLogGpuEnergyMeter).
"""

# nvml.h, NVML_FI_DEV_*: nanoseconds of throttling since the driver was loaded. Older drivers lack
# some, MIG parts all.
_COUNTERS = {"sw_power_cap": 74, "sw_thermal": 269, "hw_thermal": 270, "power_brake": 271}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One sample of one GPU; None for missing figures."""

    index: int
    clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Figures of both arms of one measurement (None where one was not watched), and warnings as
    sentences.
    """

    during: GpusDuring | None = None
    warnings: tuple[str, ...] = ()


# ---------------------------------------------------------------------- one arm


Counters = Mapping[int, Mapping[str, int]]
"""Throttle counters, nanoseconds, by GPU and reason (`autotune.model.measurement.HELD_BACK`)."""


@dataclass(slots=True)
class ArmWatch:
    """Samples of each GPU, and seconds for which the worst one was throttled, over the blocks of
    one arm.
    """

    seconds: float = 0.0
    samples: dict[int, list[GpuSample]] = field(default_factory=dict)
    held_back: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HELD_BACK, 0.0))
    """By reason, those that every GPU counted in every block."""

    def add(
        self, samples: Iterable[GpuSample], before: Counters, after: Counters, *, seconds: float
    ) -> None:
        """Adds a block: its samples, and the counters before and after it."""
        self.seconds += seconds
        for sample in samples:
            self.samples.setdefault(sample.index, []).append(sample)
        held_back = {}
        for reason, earlier_s in self.held_back.items():
            rises = [
                after[i].get(reason, -1) - before[i].get(reason, 0)
                for i in before.keys() & after.keys()
            ]
            if rises and min(rises) >= 0:  # a reloaded driver starts its counters anew
                held_back[reason] = earlier_s + max(rises) / 1e9
        self.held_back = held_back

    def figures(self) -> ArmOfGpus:
        """Sums up all GPUs."""
        clocks = self._values("clock_mhz")
        powers = self._values("power_w")
        held_back = {r: s for r, s in self.held_back.items() if s < TOO_FAST * self.seconds}
        return ArmOfGpus(
            seconds=round(self.seconds, 3),
            looks=min(map(len, self.samples.values()), default=0),
            held_back={reason: round(min(s, self.seconds), 3) for reason, s in held_back.items()},
            clock_mhz=round(min(map(statistics.fmean, clocks))) if clocks else None,
            power_w=round(sum(map(statistics.fmean, powers)), 1)
            if len(powers) == len(self.samples) > 0
            else None,
            temperature_c=max(map(max, self._values("temperature_c")), default=None),
        )

    def _values(self, figure: str) -> list[list[float]]:
        """Returns the values of a figure of each GPU that tells it."""
        values = [[getattr(s, figure) for s in of_gpu] for of_gpu in self.samples.values()]
        values = [[value for value in of_gpu if value is not None] for of_gpu in values]
        return list(filter(None, values))


def put_together(
    arms: Mapping[str, ArmWatch], others: Mapping[int, int], trouble: Iterable[str]
) -> Telemetry:
    """Sums up one measurement; `others` is the largest number of other processes seen on each
    GPU.
    """
    during = None
    warnings = list(trouble)
    if len(arms) == len(Arm):
        during = GpusDuring(**{arm: arms[arm].figures() for arm in Arm})
        warnings += [*held_in_one_arm([during]), *_throttling(during)]
    for index, count in sorted(others.items()):
        if count:
            warnings.append(
                f"GPU {index} was shared with {count} other process{'es' if count > 1 else ''}"
            )
    return Telemetry(during, tuple(warnings))


def _throttling(during: GpusDuring) -> list[str]:
    """Formats what throttled a GPU in both arms together, a sentence for each reason."""
    seconds = during.reference.seconds + during.candidate.seconds
    warnings = []
    for reason, name in HELD_BACK.items():
        held_s = during.reference.held_back.get(reason, 0.0) + during.candidate.held_back.get(
            reason, 0.0
        )
        if held_s >= 0.01 * seconds > 0:
            warnings.append(f"a GPU was held back by {name} for {held_s:.1f} of {seconds:.1f} s")
    return warnings


# ---------------------------------------------------------------------- sampling


class Stuck(Exception):
    """The last sample did not return."""


@contextlib.contextmanager
def sampling(sample: Callable[[], None], every_s: float, *, after_s: float = 0.0) -> Iterator[None]:
    """Calls `sample` every `every_s` seconds, first `after_s` later, in a thread of the lowest
    priority.

    Raises:
        Stuck: If the last sample does not return; its thread is left behind.
    """
    stop = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(
                os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY
            )  # on Linux this thread only
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
    """Samples the first `count` GPUs that CUDA_VISIBLE_DEVICES (`visible`) names, by the module
    ``pynvml``.
    """

    def __init__(self, nvml: Any, visible: str | None, count: int | None = None) -> None:
        self._nvml = nvml
        self._devices = dict(itertools.islice(visible_devices(nvml, visible).items(), count))
        self._arms: dict[str, ArmWatch] = {}
        self._others: dict[int, int] = {}
        self._trouble: dict[str, None] = {}
        self._next_s = 0.0

    def follow(self, uuids: Sequence[str]) -> None:
        """Watches the GPUs that a process reports to run on, if they are all of this machine.

        CUDA_VISIBLE_DEVICES is no help on a machine with different GPUs, for CUDA numbers the
        fastest first.
        """
        devices = visible_devices(self._nvml, ",".join(uuids))
        if uuids and len(devices) == len(set(uuids)) == len(self._devices):
            self._devices = devices

    @contextlib.contextmanager
    def block(self, arm: str, *, settle_s: float = 0.0) -> Iterator[None]:
        """Watches one block of an arm (``reference`` or ``candidate``) but for its first `settle_s`
        seconds.
        """
        if not self._devices:
            yield
            return
        watch = self._arms.setdefault(arm, ArmWatch())
        before = self._counters()
        start_s = time.monotonic()
        samples: list[GpuSample] = []
        try:
            with sampling(
                lambda: samples.extend(self._samples()), SAMPLE_EVERY_S, after_s=settle_s
            ):
                yield
        except Stuck:
            self._devices = {}
            self._trouble[
                f"NVML gave no answer in {PATIENCE_S:g} s, so the GPUs are not watched any more"
            ] = None
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
        telemetry = put_together(self._arms, self._others, self._trouble)
        self._arms = {}
        self._others = {}
        self._trouble = {}
        self._next_s = 0.0
        return telemetry

    def energy_j(self, count: int | None) -> float | None:
        """Returns the sum of the energy counters of the first `count` GPUs (all, if None), joules.

        None where a GPU or its driver has no such counter (before Volta).
        """
        handles = list(self._devices.values())[:count]
        millijoules = [
            ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle) for handle in handles
        ]
        return sum(millijoules) / 1e3 if millijoules and None not in millijoules else None

    def _counters(self) -> dict[int, dict[str, int]]:
        """Reads the throttle counters of all GPUs that answer."""
        counters_of = {}
        for index, handle in self._devices.items():
            if (counters := _read_counters(self._nvml, handle)) is None:
                self._trouble[
                    f"GPU {index} is lost: its driver does not answer for it any more"
                ] = None
            else:
                counters_of[index] = counters
        return counters_of

    def _samples(self) -> list[GpuSample]:
        return [_sample(self._nvml, index, handle) for index, handle in self._devices.items()]


def _sample(nvml: Any, index: int, handle: Any) -> GpuSample:
    power = ask(nvml, "nvmlDeviceGetPowerUsage", handle)
    return GpuSample(
        index=index,
        clock_mhz=ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        power_w=power / 1e3 if power is not None else None,
        temperature_c=ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
    )


NO_WATCH = GpuWatch(None, None)


def open_watch(environment: Environment, count: int | None = None) -> GpuWatch:
    """Opens a watch over the visible GPUs; one without GPUs where NVML is not installed or does not
    answer.
    """
    return GpuWatch(load_nvml(), environment.get(VISIBLE), count)


def _read_counters(nvml: Any, handle: Any) -> dict[str, int] | None:
    """Reads the nanoseconds of throttling by reason that a GPU and its driver count; None if the
    GPU is lost.
    """
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
    """Counts the processes that are not below this one; 0 if none is, for a container sees other
    numbers.
    """
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
        """Runs `work`; returns its result, and the joules drawn meanwhile, or None where they are
        not known.
        """
        before = self.read_j()
        result = work()
        after = self.read_j()
        if before is None or after is None or after < before:  # a reloaded driver counts anew
            return result, None
        return result, after - before

    def use_of(self, pairs: Sequence[Pair]) -> EnergyUse | None:
        """Returns the mean energy of a step of both arms; None if a block was not counted or blocks
        are too short.
        """
        if not all(p.reference_j and p.candidate_j for p in pairs):
            return None
        lengths_s = [sum(p.ran_s(arm)) for p in pairs for arm in Arm]
        if not lengths_s or statistics.median_high(lengths_s) < self.shortest_s:
            return None
        return EnergyUse(
            reference_step_j=statistics.fmean(
                (p.reference_j or 0.0) / len(p.ran_s(Arm.REFERENCE)) for p in pairs
            ),
            candidate_step_j=statistics.fmean(
                (p.candidate_j or 0.0) / len(p.ran_s(Arm.CANDIDATE)) for p in pairs
            ),
        )


NO_METER = EnergyMeter()


def open_meter(spec: StudySpec, gpus: GpuWatch) -> EnergyMeter:
    """Opens the meter of a study's GPUs; one that counts nothing unless each of them can be read
    from here.
    """
    read_j = functools.partial(gpus.energy_j, spec.device.count)
    return (
        NO_METER if spec.device.node_count > 1 or read_j() is None else EnergyMeter(read_j=read_j)
    )
