"""Machine and versions under which a set was proven, and their differences from this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.child.packages import versions_in
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import visible_gpus
from autotune.machine.host import RanOn, cuda_plugin, describe_machine, would_run_on
from autotune.model.measurement import NOT_TOLD, GpuState, WorkerReport
from autotune.model.numbers import Count, Facts, Record
from autotune.model.spec import StudySpec


class Conditions(Record):
    """Machine and versions of a proof, which `verify` compares; None if unknown."""

    platform: str
    device_kind: str | None = None
    """JAX's name of the device, such as ``NVIDIA H200``."""
    device_count: Count | None = None
    """Devices of one node that the workload uses."""
    devices_asked: Count | None = None
    """Devices of a node that the study asks for; None for all."""
    jax: str | None = None
    jaxlib: str | None = None
    plugin: str | None = None
    """CUDA plugin with its version, such as ``jax-cuda12-plugin 0.10.2``."""
    driver: str | None = None
    """Version of the NVIDIA driver, like cuBLAS, cuDNN and NCCL that of the measured process."""
    cublas: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    vbios: str | None = None
    """Firmware of the boards; different values of several GPUs are joined, here and below."""
    gsp: str | None = None
    """Firmware of the GPU system processors."""
    clocks: str | None = None
    """Highest and set clocks of multiprocessors and memory."""
    power_limit: str | None = None
    modes: str | None = None
    """Persistence, MIG and ECC."""
    cpu: str | None = None
    """Known, like `cpus_usable`, only if the workload ran on the CPU."""
    cpus_usable: Count | None = None
    workload: str | None = None
    """`StudySpec.workload_hash`."""
    packages: str | None = None
    """Folder of the jaxlib of a user's own program; not compared, but its versions are."""

    @property
    def gpu(self) -> str:
        """Name of the device, or of the CPU if the workload ran on it."""
        if self.platform == "cpu" and self.device_kind == "cpu":
            return self.cpu or "unknown CPU"
        return str(self.device_kind)


class Difference(Record):
    """One condition that differs from the proof."""

    field: str
    proven: str
    here: str

    def __str__(self) -> str:
        return f"{self.field}: proven with {self.proven}, here {self.here}"


def versions_of(report: WorkerReport, facts: Facts) -> dict[str, str]:
    """Returns the versions of the measured process, with the driver's where both share packages."""
    driver: Mapping[str, str] = facts.get("versions", {})
    if report.packages is not None:
        driver = {name: version for name, version in driver.items() if name == "optuna"}
    return {**driver, **report.versions}


def conditions_of(spec: StudySpec, report: WorkerReport, facts: Facts) -> Conditions:
    """Returns the conditions of a run from its reference and provenance."""
    device = spec.device
    devices_asked = None
    if device.platform != "cpu" and device.count:
        devices_asked = device.count // device.node_count
    return _conditions(
        device.platform,
        facts,
        # autotune itself may run on another machine with other libraries.
        versions_of(report, facts),
        report.gpus or (),
        device_kind=report.device_kind,
        device_count=report.device_count // device.node_count,
        devices_asked=devices_asked,
        workload=spec.workload_hash,
        packages=report.packages,
    )


def _conditions(
    platform: str,
    facts: Facts,
    versions: Mapping[str, str],
    gpus: Sequence[GpuState],
    **others: Any,
) -> Conditions:
    """Returns conditions by the facts of a machine, and versions and GPUs of a process there."""
    fields: dict[str, Any] = {name: versions.get(name) for name in ("jax", "jaxlib")}
    if platform == "cuda":
        fields |= {name: versions.get(name) for name in _LIBRARIES}
        fields["driver"] = fields["driver"] or facts.get("driver") or None
        fields["plugin"] = cuda_plugin(versions)
        of_gpus = [_of_gpu(gpu) for gpu in gpus]
        for name in _OF_NVML:
            texts = {of_gpu[name] for of_gpu in of_gpus}
            fields[name] = " and ".join(sorted(filter(None, texts))) or None
    else:
        fields |= {name: facts.get(name) for name in ("cpu", "cpus_usable")}
    return Conditions(platform=platform, **fields, **others)


def this_machine(like: Conditions, *, workload: str | None = None) -> Conditions:
    """Returns the conditions of this machine without starting JAX.

    Args:
        like: Conditions to compare with: they limit the number of GPUs, and libraries and firmware
            are looked up (seconds) only if these know them.
    """
    facts = describe_machine()
    versions = facts["versions"] if like.packages is None else versions_in(like.packages)
    process = RanOn(versions={}, gpus=())
    gpus: list[str] = []
    if like.platform == "cuda":
        if any(getattr(like, name) is not None for name in (*_LIBRARIES, *_OF_NVML)):
            process = would_run_on(caller_environment(), like.devices_asked)
        gpus = [g.name for g in process.gpus if g.name is not None]
        gpus = gpus or [g.name for g in visible_gpus(caller_environment())[: like.devices_asked]]
    conditions = _conditions(
        like.platform,
        facts,
        {**versions, **process.versions},
        process.gpus,
        device_kind=" and ".join(sorted(set(gpus))) or "cpu",
        device_count=len(gpus) if like.platform == "cuda" else None,
        devices_asked=like.devices_asked,
        workload=workload,
        packages=like.packages,
    )
    return conditions if gpus else conditions.model_copy(update={"platform": "cpu"})


def differences(proven: Conditions, here: Conditions) -> list[Difference]:
    """Lists the conditions in which a machine differs from the proof.

    What the proof did not record differs from what is known here. What NVML did not tell is not
    compared, nor the workload if `here` names none, nor the count of CPU devices, which the
    workload chooses.
    """
    not_compared = {"devices_asked", "packages"}
    if here.workload is None:
        not_compared.add("workload")
    if proven.platform == "cpu":
        not_compared.add("device_count")
    values = here.model_dump(exclude=not_compared)
    differing = []
    for field, value in values.items():
        proven_value = getattr(proven, field)
        if proven_value not in (NOT_TOLD, value):
            if proven_value is None:
                proven_value = "nothing recorded"
            if value is None:
                value = _SILENT if field in _OF_NVML else "none"
            differing.append(Difference(field=field, proven=str(proven_value), here=str(value)))
    return differing


_OF_NVML = ("vbios", "gsp", "clocks", "power_limit", "modes")
_LIBRARIES = ("driver", "cublas", "cudnn", "nccl")
_SILENT = "not told: NVML must answer (pip install nvidia-ml-py)"


def _of_gpu(gpu: GpuState) -> dict[str, str | None]:
    """Returns firmware, clocks, limit and modes of one GPU as text."""
    clocks = {
        "up to": (gpu.max_clock_mhz, gpu.max_memory_clock_mhz),
        "set to": (gpu.application_clock_mhz, gpu.application_memory_clock_mhz),
    }
    modes = {"persistence": gpu.persistence, "MIG": gpu.mig, "ECC": gpu.ecc}
    return {
        "vbios": gpu.vbios,
        "gsp": gpu.gsp,
        "clocks": ", ".join(
            f"{kind} {c or '?'} / {m or '?'} MHz" for kind, (c, m) in clocks.items() if c or m
        ),
        "power_limit": f"{gpu.power_limit_w:g} W" if gpu.power_limit_w else None,
        "modes": ", ".join(
            f"{name} {'on' if is_on else 'off'}"
            for name, is_on in modes.items()
            if is_on is not None
        ),
    }
