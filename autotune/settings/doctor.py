"""Diagnoses a machine: software, devices, containers, environment, and what is missing for which
feature.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.machine.environment import Environment
from autotune.machine.gpus import Gpu, Runner, are_hidden, find_gpus, has_device_file, run_program
from autotune.machine.host import packages_of
from autotune.model.files import packaged_template
from autotune.model.units import format_bytes
from autotune.settings.catalog import DATA, read_data
from autotune.settings.check import Checks, check_variables
from autotune.settings.known import KnownSettings

_MISSING = "not installed"
_SHM_NEEDED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, the feature that suffers from it, and a command that helps."""

    feature: str
    problem: str
    command: str


@dataclass(frozen=True, slots=True)
class Place:
    """A container or scheduler."""

    kind: str
    sign: str
    """Pattern of a variable, or a file below ``/``, that shows it."""
    request: str
    """How to request GPUs from it."""


@dataclass(frozen=True, slots=True)
class _Known:
    packages: Mapping[str, tuple[str, ...]]
    places: tuple[Place, ...]
    findings: Mapping[str, Finding]


_KNOWN = read_data(DATA / "doctor.toml", _Known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of `autotune doctor`."""

    versions: Mapping[str, str]
    """Software to its version, or ``not installed``."""
    cpus: int
    memory_bytes: int
    load_1min: float
    """Mean number of running processes over the last minute."""
    gpus: tuple[Gpu, ...]
    places: tuple[str, ...]
    """Schedulers and containers: SLURM, Docker, Kubernetes ..."""
    steering: Checks
    """Verdicts on variables of the environment that steer XLA, NCCL or JAX."""
    findings: tuple[Finding, ...]


def diagnose(
    python: str,
    environment: Environment,
    *,
    known: KnownSettings | None,
    run: Runner = run_program,
    root: Path = Path("/"),
) -> Diagnosis:
    """Diagnoses software, devices, scheduler, container and environment; `known` is None without a
    build to ask.
    """
    gpus = find_gpus(run)
    versions = find_versions(python, run)
    is_asked = not {"cuda", "gpu"}.isdisjoint(environment.get("JAX_PLATFORMS", "").split(","))
    if gpus:
        versions["driver"] = gpus[0].driver
    steering = check_variables(environment.items(), known) if known is not None else []
    findings = [
        *([_why_no_gpu(environment, root)] if is_asked and not gpus else []),
        *([_finding("no_jaxlib", python=python)] if known is None else []),
        *_software_findings(python, versions, gpus, is_gpu_asked=is_asked),
        *_environment_findings(environment, steering),
        *nccl_file_findings(environment, root),
        *_machine_findings(gpus, root),
    ]
    return Diagnosis(
        versions=versions,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        load_1min=psutil.getloadavg()[0],
        gpus=gpus,
        places=tuple(place.kind for place in find_places(environment, root)),
        steering=steering,
        findings=tuple(findings),
    )


def gpu_findings(
    python: str, environment: Environment, *, run: Runner = run_program, root: Path = Path("/")
) -> list[Finding]:
    """Finds what keeps JAX from a requested GPU; see `diagnose`."""
    gpus, versions = find_gpus(run), find_versions(python, run)
    found = [] if gpus else [_why_no_gpu(environment, root)]
    return [*found, *_plugin_findings(python, versions, is_gpu_asked=True)]


def find_versions(python: str, run: Runner) -> dict[str, str]:
    """Finds the versions of the software that a measurement depends on."""
    versions = dict.fromkeys(("Python", *_KNOWN.packages), _MISSING)
    try:
        here = packages_of(
            python, [n for group in _KNOWN.packages.values() for n in group], run=run
        )
    except ValueError:
        return {**versions, "Python": "cannot be started"}
    versions["Python"] = here.python
    for label, group in _KNOWN.packages.items():
        installed = [name for name in group if name in here.versions]
        for name in installed[:1]:
            versions[label] = (
                f"{here.versions[name]} ({name})" if len(group) > 1 else here.versions[name]
            )
    return versions


def find_places(environment: Environment, root: Path) -> list[Place]:
    """Finds schedulers and containers by variables and files, the innermost first."""
    return [
        p for p in _KNOWN.places if fnmatch.filter(environment, p.sign) or (root / p.sign).is_file()
    ]


def _finding(name: str, **facts: object) -> Finding:
    """Returns a known finding with the facts of this machine."""
    known = _KNOWN.findings[name]
    return Finding(
        *(text.format(**facts) for text in (known.feature, known.problem, known.command))
    )


def _software_findings(
    python: str, versions: Mapping[str, str], gpus: Sequence[Gpu], *, is_gpu_asked: bool
) -> Iterator[Finding]:
    for library in ("flax", "optax"):
        if versions[library] == _MISSING:
            yield _finding("no_library", python=python, library=library)
    yield from _plugin_findings(python, versions, is_gpu_asked=bool(gpus) or is_gpu_asked)
    if gpus and versions["nvidia-ml-py"] == _MISSING:
        yield _finding("no_nvml", python=python)


def _plugin_findings(
    python: str, versions: Mapping[str, str], *, is_gpu_asked: bool
) -> Iterator[Finding]:
    """Problems of the CUDA plugin, which JAX needs to run on or compile for a GPU."""
    plugin, jaxlib = versions["CUDA plugin"], versions["jaxlib"]
    if plugin == _MISSING:
        yield _finding(
            "no_plugin" if is_gpu_asked else "no_screening", python=python, jaxlib=jaxlib
        )
    elif not plugin.startswith(f"{jaxlib} "):
        package = re.sub(r".*\((.*)\)", r"\1", plugin)
        yield _finding("other_plugin", python=python, plugin=plugin, jaxlib=jaxlib, package=package)


def _why_no_gpu(environment: Environment, root: Path) -> Finding:
    """Why a requested GPU is missing: hidden, not given to the container or job, or no driver."""
    if are_hidden(environment):
        return _finding("hidden", visible=environment["CUDA_VISIBLE_DEVICES"])
    if has_device_file(root):
        return _finding("no_answer")
    for place in find_places(environment, root):
        return _finding("not_handed_over", kind=place.kind, request=place.request)
    return _finding("no_gpu")


def _environment_findings(environment: Environment, steering: Checks) -> Iterator[Finding]:
    if refused := [c.name for c in steering if not c.starts]:
        yield _finding("refused", names=", ".join(refused))
    if environment.get("JAX_COMPILATION_CACHE_DIR"):
        yield _finding("cache")


def nccl_file_findings(environment: Environment, root: Path = Path("/")) -> Iterator[Finding]:
    """Finds files that set variables which the environment leaves unset (misc/param.cc of NCCL)."""
    user_file = environment.get("NCCL_CONF_FILE") or Path(
        environment.get("HOME", "/"), ".nccl.conf"
    )
    for path in (Path(user_file), root / "etc/nccl.conf"):
        if path.is_file() and os.access(path, os.R_OK):
            names = re.findall(
                r"^([^#=\n]+)=", path.read_text("utf-8", errors="replace"), re.MULTILINE
            )
            if unset := sorted(set(names) - environment.keys()):
                yield _finding("nccl_file", path=path, names=", ".join(unset))


def _machine_findings(gpus: Sequence[Gpu], root: Path) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.busy_percent or gpu.used_bytes > gpu.memory_bytes // 20:
            yield _finding(
                "gpu_in_use",
                index=gpu.index,
                busy=gpu.busy_percent,
                used=format_bytes(gpu.used_bytes),
            )
    shm = root / "dev/shm"
    if (
        len(gpus) > 1
        and shm.exists()
        and (size := shutil.disk_usage(shm).total) < _SHM_NEEDED_BYTES
    ):
        yield _finding("small_shm", size=format_bytes(size))


def format_diagnosis(found: Diagnosis) -> str:
    """Formats the output of `autotune doctor`."""
    return packaged_template("doctor.txt.j2", {"bytes": format_bytes}).render(found=found)
