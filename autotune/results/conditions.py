"""The conditions of a proof: where it was made, what this machine offers, and in what the two differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.child import versions_in
from autotune.machine import RanOn, caller_environment, cuda_plugin, describe_machine, visible_gpus, would_run_on
from autotune.model import NOT_TOLD, Count, FloorResult, GpuState, Record, StudySpec, WorkerReport


class Conditions(Record):
    """Where a winner was proven; what `verify` compares. None stands for what is not known.

    Attributes:
        device_kind: The device's name in JAX's words, such as ``NVIDIA H200``.
        device_count: Devices of one node that the workload uses.
        devices_asked: As many of a node the study asks for, however many there are; None where it takes all.
        plugin: The CUDA plugin with its version, such as ``jax-cuda12-plugin 0.10.2``.
        driver_major: First part of the NVIDIA driver's version; counts where `driver` is not known.
        driver: The NVIDIA driver's whole version, and of `cublas`, `cudnn` and `nccl` theirs, as the process that ran
            the steps had them.
        vbios: Firmware of the boards; of several GPUs that differ each once, here and below.
        gsp: Firmware of their system processors.
        clocks: Highest clocks and those that were set, of multiprocessors and memory.
        power_limit: That was set.
        modes: Persistence, MIG and ECC.
        cpu: The processor's name; compared only where the workload ran on it.
        cpus_usable: Processors that the process may use; likewise.
        workload: `StudySpec.workload_hash`.
        packages: Folder of the jaxlib that a user's own program ran on; not compared, but its versions here are.
    """

    platform: str
    device_kind: str | None = None
    device_count: Count | None = None
    devices_asked: Count | None = None
    jax: str | None = None
    jaxlib: str | None = None
    plugin: str | None = None
    driver_major: str | None = None
    driver: str | None = None
    cublas: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    vbios: str | None = None
    gsp: str | None = None
    clocks: str | None = None
    power_limit: str | None = None
    modes: str | None = None
    cpu: str | None = None
    cpus_usable: Count | None = None
    workload: str | None = None
    packages: str | None = None

    @property
    def gpu(self) -> str:
        """Name of the device, or of the processor where the workload ran on that."""
        if self.platform == "cpu" and self.device_kind == "cpu":
            return self.cpu or "unknown CPU"
        return str(self.device_kind)


class Difference(Record):
    """One condition that is not what it was in the proof."""

    field: str
    proven: str
    here: str

    def __str__(self) -> str:
        return f"{self.field}: proven with {self.proven}, here {self.here}"


def versions_of(report: WorkerReport | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """What a run's steps ran on: as the measured process says, and as the driver has it where that says nothing.

    A program that has an interpreter of its own says all there is: none of the driver's packages was measured.
    """
    driver: Mapping[str, str] = facts.get("versions", {})
    if report is None or report.packages is None:
        return {**driver, **(report.versions if report else {})}
    return {**{name: driver[name] for name in ("optuna",) if name in driver}, **report.versions}


def conditions_of(spec: StudySpec, floor: FloorResult | None, facts: dict[str, Any]) -> Conditions:
    """The conditions of a run, from what its reference and its provenance say."""
    report = floor.reference if floor is not None else None
    # What the measured process says goes first: the driver may run on another machine, and see other libraries.
    versions = versions_of(report, facts)
    driver = versions.get("driver") or facts.get("driver")
    on_cpu = spec.device.platform == "cpu"
    asked = spec.device.count
    return Conditions(
        platform=spec.device.platform,
        device_kind=report.device_kind if report else None,
        device_count=report.device_count // spec.device.node_count if report else None,
        devices_asked=None if on_cpu or asked is None else asked // spec.device.node_count,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=None if on_cpu else cuda_plugin(versions),
        driver_major=None if on_cpu or not driver else str(driver).partition(".")[0],
        cpu=facts.get("cpu") if on_cpu else None,
        cpus_usable=facts.get("cpus_usable") if on_cpu else None,
        workload=spec.workload_hash,
        packages=report.packages if report else None,
        **({} if on_cpu else _told(versions, (report.gpus if report else None) or ())),
    )


def this_machine(*, platform: str, workload: str | None = None, like: Conditions | None = None) -> Conditions:
    """What this machine offers a workload, without starting JAX on it.

    Args:
        platform: ``cpu`` or ``cuda``.
        workload: Hash of the workload that is meant to run, if the caller names one.
        like: What it is going to be compared with: as many GPUs count, and what libraries and firmware there are is
            looked up, which takes seconds, if that knows them.
    """
    facts = describe_machine()
    count = like.devices_asked if like is not None else None
    told = RanOn(versions={}, gpus=())
    if platform == "cuda" and like is not None and any(getattr(like, name) is not None for name in _TOLD):
        told = would_run_on(caller_environment(), count)
    gpus = [g.name for g in told.gpus if g.name is not None]
    if platform == "cuda" and not gpus:
        gpus = [g.name for g in visible_gpus(caller_environment())[:count]]
    own = like.packages if like is not None else None
    versions = {**(facts["versions"] if own is None else versions_in(own)), **told.versions}
    driver = versions.get("driver") or facts.get("driver") if platform == "cuda" else None
    return Conditions(
        platform=platform if platform == "cpu" or gpus else "cpu",
        device_kind=" and ".join(sorted(set(gpus))) if gpus else "cpu",
        device_count=len(gpus) if platform == "cuda" else None,
        devices_asked=count,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=cuda_plugin(versions),
        driver_major=driver.partition(".")[0] if driver else None,
        cpu=facts["cpu"],
        cpus_usable=facts["cpus_usable"],
        workload=workload,
        packages=own,
        **_told({**versions, "driver": driver}, told.gpus),
    )


def differences(proven: Conditions, here: Conditions) -> list[Difference]:
    """The conditions in which a machine is not what the proof was made on.

    What the proof did not record is not compared, nor the workload if `here` names none. On CPU the count of
    devices is the workload's own choice.
    """
    found = []
    for field in Conditions.model_fields:
        wanted, got = getattr(proven, field), getattr(here, field)
        if field in _NOT_COMPARED or wanted in (None, NOT_TOLD, got) or (field == "workload" and got is None):
            continue
        if field == "device_count" and proven.platform == "cpu":
            continue
        if field == "driver_major" and proven.driver is not None:  # the whole version says it
            continue
        unknown = _SILENT if field in _OF_NVML else "none"
        found.append(Difference(field=field, proven=str(wanted), here=unknown if got is None else str(got)))
    return found


_NOT_COMPARED = ("devices_asked", "packages")
_OF_NVML = ("vbios", "gsp", "clocks", "power_limit", "modes")
_TOLD = ("driver", "cublas", "cudnn", "nccl", *_OF_NVML)
_SILENT = "not told: NVML must answer (pip install nvidia-ml-py)"


def _told(versions: Mapping[str, str | None], gpus: Sequence[GpuState]) -> dict[str, str | None]:
    """What a process told of its libraries and GPUs, as conditions."""

    def of_all(words: Callable[[GpuState], str | None]) -> str | None:
        known = [w for gpu in gpus if (w := words(gpu)) is not None]
        return " and ".join(sorted(set(known))) if known else None

    return {
        **{name: versions.get(name) for name in ("driver", "cublas", "cudnn", "nccl")},
        "vbios": of_all(lambda gpu: gpu.vbios),
        "gsp": of_all(lambda gpu: gpu.gsp),
        "clocks": of_all(_clocks),
        "power_limit": of_all(lambda gpu: None if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"),
        "modes": of_all(_modes),
    }


def _clocks(gpu: GpuState) -> str | None:
    kinds = {
        "up to": (gpu.max_clock_mhz, gpu.max_memory_clock_mhz),
        "set to": (gpu.application_clock_mhz, gpu.application_memory_clock_mhz),
    }
    words = [f"{word} {own or '?'} / {memory or '?'} MHz" for word, (own, memory) in kinds.items() if own or memory]
    return ", ".join(words) or None


def _modes(gpu: GpuState) -> str | None:
    told = {"persistence": gpu.persistence, "MIG": gpu.mig, "ECC": gpu.ecc}
    return ", ".join(f"{name} {'on' if is_on else 'off'}" for name, is_on in told.items() if is_on is not None) or None
