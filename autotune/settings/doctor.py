"""Diagnoses software, devices, containers and environment: what is missing for which feature."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from autotune.machine.environment import Environment
from autotune.machine.gpus import Gpu, are_hidden, find_gpus, has_device_file
from autotune.machine.host import packages_of
from autotune.model.files import packaged_template
from autotune.model.units import format_bytes
from autotune.settings.catalog import DATA, TextMap, Texts, Values, read_data
from autotune.settings.check import Checks, check_variables
from autotune.settings.known import KnownSettings

_MISSING = "not installed"
ROOT = Path("/")  # of the files that tell of a container or a GPU


@dataclass(frozen=True)
class Finding:
    """A problem, the feature that suffers from it, and a command that helps."""

    feature: str
    problem: str
    command: str


@dataclass(frozen=True)
class Place:
    """A container or scheduler."""

    kind: str
    sign: str  # pattern of a variable, or a file below ``/``, that shows it
    request: str  # how to request GPUs from it


@dataclass(frozen=True)
class _Known:
    packages: Mapping[str, Texts]
    places: tuple[Place, ...]
    findings: Mapping[str, Finding]


_KNOWN = read_data(DATA / "doctor.toml", _Known)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Result of `autotune doctor`."""

    versions: TextMap  # software to its version, or ``not installed``
    cpus: int
    memory_bytes: int
    load_1min: float  # mean number of running processes over the last minute
    gpus: tuple[Gpu, ...]
    places: Texts  # schedulers and containers: SLURM, Docker, Kubernetes ...
    steering: Checks  # verdicts on variables that steer XLA, NCCL or JAX
    findings: list[Finding]


def diagnose(python: str, environment: Environment, *, known: KnownSettings | None) -> Diagnosis:
    """Diagnoses machine, software and environment; `known` is None without a build to ask."""
    gpus = find_gpus()
    versions = find_versions(python)
    wants_gpu = re.search("cuda|gpu", environment.get("JAX_PLATFORMS", "")) is not None
    steering = []
    findings = []
    if gpus:
        versions["driver"] = gpus[0].driver
    elif wants_gpu:
        findings.append(_why_no_gpu(environment))
    if known is None:
        findings.append(_finding("no_jaxlib", python=python))
    else:
        steering = check_variables(environment.items(), known)
    for library in ("flax", "optax"):
        if versions[library] == _MISSING:
            findings.append(_finding("no_library", python=python, library=library))
    findings += _plugin_findings(python, versions, wants_gpu=bool(gpus) or wants_gpu)
    if gpus and versions["nvidia-ml-py"] == _MISSING:
        findings.append(_finding("no_nvml", python=python))
    if refused := [check.name for check in steering if not check.starts]:
        findings.append(_finding("refused", names=", ".join(refused)))
    if environment.get("JAX_COMPILATION_CACHE_DIR"):
        findings.append(_finding("cache"))
    findings += nccl_file_findings(environment)
    findings += _machine_findings(gpus)
    return Diagnosis(
        versions=versions,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        load_1min=psutil.getloadavg()[0],
        gpus=gpus,
        places=tuple(place.kind for place in find_places(environment)),
        steering=steering,
        findings=findings,
    )


def gpu_findings(python: str, environment: Environment) -> list[Finding]:
    """Finds what keeps JAX from a requested GPU; see `diagnose`."""
    findings = list(_plugin_findings(python, find_versions(python), wants_gpu=True))
    if not find_gpus():
        findings.insert(0, _why_no_gpu(environment))
    return findings


def find_versions(python: str) -> Values:
    """Finds the versions of the software that a measurement depends on."""
    versions = dict.fromkeys(("Python", *_KNOWN.packages), _MISSING)
    names = [name for group in _KNOWN.packages.values() for name in group]
    try:
        packages = packages_of(python, names)
    except ValueError:
        return {**versions, "Python": "cannot be started"}
    versions["Python"] = packages.python
    for label, group in _KNOWN.packages.items():
        for name in reversed(group):
            if name in packages.versions:
                place = f" ({name})" if len(group) > 1 else ""
                versions[label] = packages.versions[name] + place
    return versions


def find_places(environment: Environment) -> list[Place]:
    """Finds schedulers and containers by variables and files, the innermost first."""
    return [
        place
        for place in _KNOWN.places
        if fnmatch.filter(environment, place.sign) or (ROOT / place.sign).is_file()
    ]


def _finding(name: str, **facts: object) -> Finding:
    return Finding(*(text.format(**facts) for text in astuple(_KNOWN.findings[name])))


def _plugin_findings(python: str, versions: TextMap, *, wants_gpu: bool) -> Iterator[Finding]:
    """Problems of the CUDA plugin, which JAX needs to run on or compile for a GPU."""
    plugin = versions["CUDA plugin"]
    jaxlib = versions["jaxlib"]
    if plugin == _MISSING:
        yield _finding("no_plugin" if wants_gpu else "no_screening", python=python, jaxlib=jaxlib)
    elif not plugin.startswith(f"{jaxlib} "):
        package = re.sub(r".*\((.*)\)", r"\1", plugin)
        yield _finding("other_plugin", python=python, plugin=plugin, jaxlib=jaxlib, package=package)


def _why_no_gpu(environment: Environment) -> Finding:
    """Why a requested GPU is missing: hidden, not given to the container or job, or no driver."""
    if are_hidden(environment):
        return _finding("hidden", visible=environment["CUDA_VISIBLE_DEVICES"])
    if has_device_file(ROOT):
        return _finding("no_answer")
    for place in find_places(environment):
        return _finding("not_handed_over", kind=place.kind, request=place.request)
    return _finding("no_gpu")


def nccl_file_findings(environment: Environment) -> Iterator[Finding]:
    """Finds files that set variables which the environment leaves unset (misc/param.cc of NCCL)."""
    user_file = Path(
        environment.get("NCCL_CONF_FILE") or Path(environment.get("HOME", "/"), ".nccl.conf")
    )
    for path in (user_file, ROOT / "etc/nccl.conf"):
        if path.is_file() and os.access(path, os.R_OK):
            text = path.read_text("utf-8", errors="replace")
            names = set(re.findall(r"(?m)^([^#=\n]+)=", text)) - environment.keys()
            if names:
                yield _finding("nccl_file", path=path, names=", ".join(sorted(names)))


def _machine_findings(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    for gpu in gpus:
        if gpu.busy_percent or gpu.used_bytes > gpu.memory_bytes // 20:
            used = format_bytes(gpu.used_bytes)
            yield _finding("gpu_in_use", index=gpu.index, busy=gpu.busy_percent, used=used)
    shm = ROOT / "dev/shm"
    if len(gpus) > 1 and shm.exists():
        size = shutil.disk_usage(shm).total
        if size < 1 << 30:
            yield _finding("small_shm", size=format_bytes(size))


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """Formats the output of `autotune doctor`."""
    return packaged_template("doctor.txt.j2", {"bytes": format_bytes}).render(diagnosis=diagnosis)
