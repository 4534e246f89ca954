"""Machine and versions under which a set was proven, and their differences from this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.child.packages import CUDA_PLUGINS, Versions, versions_in
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import visible_gpus
from autotune.machine.host import RanOn, describe_machine, would_run_on
from autotune.model.measurement import NOT_TOLD, GpuState, WorkerReport
from autotune.model.numbers import Facts, Record
from autotune.model.spec import StudySpec
from autotune.stats.numbers import Count

MaybeText = str | None


class Conditions(Record):
    """Machine and versions of a proof, which `verify` compares; None if unknown."""

    platform: str
    device_kind: MaybeText = None  # JAX's name, such as NVIDIA H200
    device_count: Count | None = None  # of one node, used by the workload
    devices_asked: Count | None = None  # of a node, by the study; None for all
    jax: MaybeText = None
    jaxlib: MaybeText = None
    plugin: MaybeText = None  # with its version: jax-cuda12-plugin 0.10.2
    driver: MaybeText = None  # of the measured process, as the three below
    cublas: MaybeText = None
    cudnn: MaybeText = None
    nccl: MaybeText = None
    vbios: MaybeText = None  # of several GPUs different ones are joined, as below
    gsp: MaybeText = None
    clocks: MaybeText = None  # highest and set clocks of multiprocessors and memory
    power_limit: MaybeText = None
    modes: MaybeText = None  # persistence, MIG and ECC
    cpu: MaybeText = None  # known, like the next, only if the workload ran on the CPU
    cpus_usable: Count | None = None
    workload: MaybeText = None  # `StudySpec.workload_hash`
    packages: MaybeText = None  # folder of a user's own jaxlib; not compared

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


def versions_of(report: WorkerReport, facts: Facts) -> Versions:
    """Returns the versions of the measured process, with the driver's where both share packages."""
    driver: Versions = facts.get("versions", {})
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
    versions: Versions,
    gpus: Sequence[GpuState],
    **others: Any,
) -> Conditions:
    """Returns conditions by the facts of a machine, and versions and GPUs of a process there."""
    others |= {name: versions.get(name) for name in ("jax", "jaxlib")}
    if platform == "cuda":
        others |= {name: versions.get(name) for name in _LIBRARIES}
        others["driver"] = others["driver"] or facts.get("driver") or None
        plugins = (f"{name} {versions[name]}" for name in CUDA_PLUGINS if name in versions)
        others["plugin"] = next(plugins, None)
        described = [_describe_gpu(gpu) for gpu in gpus]
        for name in _OF_NVML:
            texts = {texts_of_gpu[name] for texts_of_gpu in described}
            others[name] = " and ".join(sorted(filter(None, texts))) or None
    else:
        others |= {name: facts.get(name) for name in ("cpu", "cpus_usable")}
    return Conditions(platform=platform, **others)


def this_machine(like: Conditions, *, workload: MaybeText = None) -> Conditions:
    """Returns the conditions of this machine that others (`like`) know, without starting JAX."""
    facts = describe_machine()
    versions = facts["versions"]
    if like.packages is not None:
        versions = versions_in(like.packages)
    process = RanOn()
    gpus: list[str] = []
    if like.platform == "cuda":
        environment = caller_environment()
        # Looking libraries and firmware up takes seconds.
        if any(getattr(like, name) is not None for name in (*_LIBRARIES, *_OF_NVML)):
            process = would_run_on(environment, like.devices_asked)
        gpus = [g.name for g in process.gpus if g.name is not None]
        gpus = gpus or [g.name for g in visible_gpus(environment)[: like.devices_asked]]
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

    Not compared is what NVML did not tell, an unnamed workload, and the count of CPU devices.
    """
    not_compared = {"devices_asked", "packages"}
    if here.workload is None:
        not_compared.add("workload")
    if proven.platform == "cpu":
        not_compared.add("device_count")
    differing = []
    for field, value in here.model_dump(exclude=not_compared).items():
        proven_value = getattr(proven, field)
        if proven_value in (NOT_TOLD, value):
            continue
        if proven_value is None:
            proven_value = "nothing recorded"
        if value is None:
            value = "none"
            if field in _OF_NVML:
                value = "not told: NVML must answer (pip install nvidia-ml-py)"
        differing.append(Difference(field=field, proven=str(proven_value), here=str(value)))
    return differing


_OF_NVML = ("vbios", "gsp", "clocks", "power_limit", "modes")
_LIBRARIES = ("driver", "cublas", "cudnn", "nccl")


def _describe_gpu(gpu: GpuState) -> dict[str, str | None]:
    clocks = [
        f"{kind} {multiprocessors or '?'} / {memory or '?'} MHz"
        for kind, multiprocessors, memory in (
            ("up to", gpu.max_clock_mhz, gpu.max_memory_clock_mhz),
            ("set to", gpu.application_clock_mhz, gpu.application_memory_clock_mhz),
        )
        if multiprocessors or memory
    ]
    states = {True: "on", False: "off"}
    modes = {"persistence": gpu.persistence, "MIG": gpu.mig, "ECC": gpu.ecc}
    return {
        "vbios": gpu.vbios,
        "gsp": gpu.gsp,
        "clocks": ", ".join(clocks),
        "power_limit": f"{gpu.power_limit_w:g} W" if gpu.power_limit_w else None,
        "modes": ", ".join(f"{n} {states[m]}" for n, m in modes.items() if m is not None),
    }
