"""The conditions of a proof: where it was made, what this machine offers, and in what the two differ."""

from __future__ import annotations

from typing import Any

from autotune.machine import caller_environment, cuda_plugin, describe_machine, visible_gpus
from autotune.model import Count, FloorResult, Record, StudySpec


class Conditions(Record):
    """Where a winner was proven; what `verify` compares. None stands for what is not known.

    Attributes:
        device_kind: The device's name in JAX's words, such as ``NVIDIA H200``.
        device_count: Devices of one node.
        plugin: The CUDA plugin with its version, such as ``jax-cuda12-plugin 0.10.2``.
        driver_major: First part of the NVIDIA driver's version.
        cpu: The processor's name; compared only where the workload ran on it.
        cpus_usable: Processors that the process may use; likewise.
        workload: `StudySpec.workload_hash`.
    """

    platform: str
    device_kind: str | None = None
    device_count: Count | None = None
    jax: str | None = None
    jaxlib: str | None = None
    plugin: str | None = None
    driver_major: str | None = None
    cpu: str | None = None
    cpus_usable: Count | None = None
    workload: str | None = None

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


def conditions_of(spec: StudySpec, floor: FloorResult | None, facts: dict[str, Any]) -> Conditions:
    """The conditions of a run, from what its reference and its provenance say."""
    report = floor.reference if floor is not None else None
    versions = {**(report.versions if report else {}), **facts.get("versions", {})}
    driver = facts.get("driver")
    on_cpu = spec.device.platform == "cpu"
    return Conditions(
        platform=spec.device.platform,
        device_kind=report.device_kind if report else None,
        device_count=report.device_count // spec.device.node_count if report else None,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=None if on_cpu else cuda_plugin(versions),
        driver_major=None if on_cpu or not driver else str(driver).partition(".")[0],
        cpu=facts.get("cpu") if on_cpu else None,
        cpus_usable=facts.get("cpus_usable") if on_cpu else None,
        workload=spec.workload_hash,
    )


def this_machine(*, platform: str, workload: str | None = None) -> Conditions:
    """What this machine offers a workload, without starting JAX on it.

    Args:
        platform: ``cpu`` or ``cuda``.
        workload: Hash of the workload that is meant to run, if the caller names one.
    """
    facts = describe_machine()
    versions = facts["versions"]
    gpus = [g.name for g in visible_gpus(caller_environment())] if platform == "cuda" else []
    driver = facts.get("driver") if platform == "cuda" else None
    return Conditions(
        platform=platform if platform == "cpu" or gpus else "cpu",
        device_kind=" and ".join(sorted(set(gpus))) if gpus else "cpu",
        device_count=len(gpus) if platform == "cuda" else None,
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        plugin=cuda_plugin(versions),
        driver_major=driver.partition(".")[0] if driver else None,
        cpu=facts["cpu"],
        cpus_usable=facts["cpus_usable"],
        workload=workload,
    )


def differences(proven: Conditions, here: Conditions) -> list[Difference]:
    """The conditions in which a machine is not what the proof was made on.

    What the proof did not record is not compared, nor the workload if `here` names none. On CPU the count of
    devices is the workload's own choice.
    """
    found = []
    for field in Conditions.model_fields:
        wanted, got = getattr(proven, field), getattr(here, field)
        if wanted is None or wanted == got or (field == "workload" and got is None):
            continue
        if field == "device_count" and proven.platform == "cpu":
            continue
        found.append(Difference(field=field, proven=str(wanted), here="none" if got is None else str(got)))
    return found
