"""How many joules the devices drew while a block ran, from the counters that they keep themselves.

On GPUs NVML's total energy counter, on Linux CPUs the RAPL counters where they may be read. The number is that of the
whole device between the start and the end of the block: it holds what the device draws when it idles, and what any
other process does on it meanwhile. Where turns are taken the other arm's process waits, in both arms alike.
"""

from __future__ import annotations

import math
from collections.abc import (
    Callable,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from autotune.machine.telemetry import GpuWatch
from autotune.model import (
    Arm,
    EnergyUse,
    Pair,
    StudySpec,
    WorkPerStep,
    format_seconds,
)
from autotune.stats import (
    estimate_aba,
    estimate_pairs,
)

T = TypeVar("T")

POWERCAP = Path("/sys/class/powercap")

NVML_SHORTEST_S = 2.0
"""Shortest block whose energy NVML can tell, seconds: GPUs move their counter every 20 to 100 ms (PETSc's manual,
PetscLogGpuEnergyMeter), and what falls between two moves counts for the neighbouring block, which is the other arm's:
of a block of twenty such times at most a twentieth, so that a difference between arms shrinks by no more than that."""

RAPL_SHORTEST_S = 0.02
"""Likewise of RAPL, which moves about a thousand times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One counter of energy that only rises.

    Attributes:
        read_j: Gives its reading in joules; None if it does not answer now.
        range_j: Where it starts again from 0, joules; None if it does not.
    """

    read_j: Callable[[], float | None]
    range_j: float | None = None

    def used_j(self, before: float | None, after: float | None) -> float | None:
        """Joules between two readings that are less than one range apart."""
        if before is None or after is None:
            return None
        if after >= before:
            return after - before
        return after - before + self.range_j if self.range_j is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyMeter:
    """Counts what the devices of a study draw while something runs.

    Attributes:
        counters: Of all devices; empty where none can be read.
        source: Who counts, in words.
        shortest_s: Shortest time, in seconds, over which the counters can be trusted.
        problem: Why nothing is counted, and what can be done; empty where something is.
    """

    counters: tuple[Counter, ...] = ()
    source: str = "nothing"
    shortest_s: float = 0.0
    problem: str = ""

    @property
    def is_counting(self) -> bool:
        """Whether there is anything to read."""
        return bool(self.counters)

    def measure(self, work: Callable[[], T]) -> tuple[T, float | None]:
        """Does something; gives its result, and the joules drawn meanwhile or None where they are not known."""
        before = [counter.read_j() for counter in self.counters]
        result = work()
        used = [c.used_j(b, c.read_j()) for c, b in zip(self.counters, before, strict=True)]
        known = [j for j in used if j is not None]
        return result, sum(known) if known and len(known) == len(used) else None

    def problem_of(self, pairs: Sequence[Pair]) -> str | None:
        """Why the energy of some pairs cannot be told although it was counted; None if it can, or nothing counts.

        The block that stands in the middle of all by its length decides.
        """
        durations = sorted(sum(p.ran_s(arm)) for p in pairs for arm in Arm)
        if not self.is_counting or not durations or (typical := durations[len(durations) // 2]) >= self.shortest_s:
            return None
        return f"energy is not resolvable: blocks of {self.shortest_s:g} s needed, these took {format_seconds(typical)}"

    def use_of(
        self, pairs: Sequence[Pair], *, is_aba: bool = False, work: WorkPerStep | None = None
    ) -> EnergyUse | None:
        """Energy of both arms; None if it was not counted in every block, or blocks were too short for the counters.

        Args:
            pairs: All pairs of a measurement.
            is_aba: They are two for each ABA run.
            work: What a step of each arm does, where it differs: the ratio is then of energy per unit of it.
        """
        per_step = work.ratio if work is not None else 1.0
        reference = [j for p in pairs if (j := _step_j(p.reference_j, p.ran_s(Arm.REFERENCE)))]
        candidate = [j for p in pairs if (j := _step_j(p.candidate_j, p.ran_s(Arm.CANDIDATE)))]
        if not len(reference) == len(candidate) == len(pairs) > 0 or self.problem_of(pairs) is not None:
            return None
        if is_aba:
            runs = zip(reference[::2], candidate[::2], reference[1::2], strict=True)
            estimate = estimate_aba([(before, middle / per_step, after) for before, middle, after in runs])
        else:
            estimate = estimate_pairs([math.log(c / per_step / r) for r, c in zip(reference, candidate, strict=True)])
        return EnergyUse(
            source=self.source,
            reference_step_j=sum(reference) / len(reference),
            candidate_step_j=sum(candidate) / len(candidate),
            estimate=estimate,
        )


NO_METER = EnergyMeter(problem="nobody asked for it")

_SHARED = "several lanes share this machine, and the processor's counter is of all that runs on it; use one lane"
_NO_NVML = (
    "NVML must answer for every GPU (Volta or newer; not for parts of one that MIG made): "
    "in autotune's folder, pip install -e '.[gpu]', and see `autotune doctor`"
)
_NO_RAPL = (
    f"the RAPL counters under {POWERCAP} must be readable, which most systems allow to root only "
    f"(chmod a+r {POWERCAP}/intel-rapl*/energy_uj), and virtual machines have none"
)


def open_meter(spec: StudySpec, gpus: GpuWatch, *, is_shared: bool = False, powercap: Path = POWERCAP) -> EnergyMeter:
    """The meter of a study's devices; one that counts nothing unless every device of it can be read from here.

    Args:
        spec: The study.
        gpus: The GPUs that are visible here.
        is_shared: Several lanes are at work, perhaps on the cores of one processor, whose counter is of all.
        powercap: Where Linux has its RAPL counters.
    """
    if spec.device.node_count > 1:
        return EnergyMeter(
            problem="counters are read by the driver, which sees those of its own machine only; use "
            "device.node_count = 1"
        )
    if spec.device.platform == "cpu":
        return EnergyMeter(problem=_SHARED) if is_shared else rapl_meter(powercap)
    readers = gpus.energy_readers(spec.device.count)
    if not readers or any(read_j() is None for read_j in readers):
        return EnergyMeter(problem=_NO_NVML)
    plural = "s" if len(readers) > 1 else ""
    return EnergyMeter(
        counters=tuple(Counter(read_j=read_j) for read_j in readers),
        source=f"NVML, {len(readers)} GPU{plural}",
        shortest_s=NVML_SHORTEST_S,
    )


def rapl_meter(powercap: Path) -> EnergyMeter:
    """A meter of all processor packages and the memory beside them; one that counts nothing if any is unreadable."""
    zones = [z for z in sorted(powercap.glob("intel-rapl:*")) if _text(z / "name").startswith(("package", "dram"))]
    packages = sum(_text(z / "name").startswith("package") for z in zones)
    counters = tuple(_zone(z) for z in zones)
    if not packages or any(c.read_j() is None for c in counters):
        return EnergyMeter(problem=_NO_RAPL)
    source = f"RAPL, {packages} processor package{'s' if packages > 1 else ''}"
    if len(zones) > packages:
        source += " and memory"
    return EnergyMeter(counters=counters, source=source, shortest_s=RAPL_SHORTEST_S)


def _step_j(joules: float | None, steps: Sequence[float]) -> float | None:
    return None if joules is None else joules / len(steps)


def _zone(zone: Path) -> Counter:
    top = _text(zone / "max_energy_range_uj")
    return Counter(read_j=lambda: _joules(zone / "energy_uj"), range_j=int(top) / 1e6 if top.isdigit() else None)


def _joules(file: Path) -> float | None:
    text = _text(file)
    return int(text) / 1e6 if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
