"""Diagnoses a machine: software, devices, containers, environment, and what is missing for which feature."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.child.packages import CUDA_PLUGINS
from autotune.machine.gpus import Gpu, Runner, are_hidden, find_gpus, has_device_file, run_program
from autotune.machine.host import packages_of
from autotune.model.units import format_bytes
from autotune.settings.check import SettingCheck, find_steering
from autotune.settings.known import KnownSettings
from autotune.settings.probe import NCCL_PACKAGES

_PACKAGES = {
    "CUDA": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"),
    "cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "NCCL": NCCL_PACKAGES,
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "CUDA plugin": CUDA_PLUGINS,
    "flax": ("flax",),
    "optax": ("optax",),
    "optuna": ("optuna",),
    "nvidia-ml-py": ("nvidia-ml-py",),
}
_MISSING = "not installed"
_WITH_GPUS = {
    "Kubernetes": "resources: limits: nvidia.com/gpu: 1",
    "Apptainer": "apptainer exec --nv ...",
    "Singularity": "singularity exec --nv ...",
    "Enroot": "NVIDIA_VISIBLE_DEVICES=all enroot start ...",
    "Docker": "docker run --gpus all ...",
    "Podman": "podman run --device nvidia.com/gpu=all ...",
    "SLURM job": "srun --gpus=1 ... (ask for GPUs when the job is submitted)",
}
"""Containers and schedulers that give GPUs only on request, and how to request them."""

_ON_GPUS = "runs on the GPUs"
_SHM_NEEDED_BYTES = 1 << 30  # NCCL exchanges data between processes of a node through /dev/shm


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, the feature that suffers from it, and a command that helps."""

    feature: str
    problem: str
    command: str


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
    steering: tuple[SettingCheck, ...]
    """Verdicts on variables of the environment that steer XLA, NCCL or JAX."""
    findings: tuple[Finding, ...]


def diagnose(
    python: str,
    environment: Mapping[str, str],
    *,
    known: KnownSettings | None,
    run: Runner = run_program,
    root: Path = Path("/"),
) -> Diagnosis:
    """Diagnoses software, devices, scheduler, container and environment.

    Args:
        known: Settings of the installed build; None if it could not be asked.
    """
    gpus = find_gpus(run)
    versions = find_versions(python, run)
    is_asked = _names_gpus(environment)
    if gpus:
        versions["driver"] = gpus[0].driver
    steering = find_steering(environment, known) if known is not None else ()
    load = psutil.getloadavg()[0]
    cpus = len(os.sched_getaffinity(0))
    places = find_places(environment, root)
    findings = [
        *(_device_findings(environment, root, places) if is_asked and not gpus else []),
        *_software_findings(python, versions, gpus, is_build_known=known is not None, is_gpu_asked=is_asked),
        *_environment_findings(environment, steering),
        *_machine_findings(gpus, load, cpus, root),
    ]
    return Diagnosis(
        versions=versions,
        cpus=cpus,
        memory_bytes=psutil.virtual_memory().total,
        load_1min=load,
        gpus=gpus,
        places=places,
        steering=steering,
        findings=tuple(findings),
    )


def gpu_findings(
    python: str, environment: Mapping[str, str], *, run: Runner = run_program, root: Path = Path("/")
) -> list[Finding]:
    """Finds what keeps JAX from a requested GPU; see `diagnose`."""
    gpus, versions = find_gpus(run), find_versions(python, run)
    found = [] if gpus else _device_findings(environment, root, find_places(environment, root))
    return [*found, *_plugin_findings(python, versions, is_gpu_asked=True)]


def find_versions(python: str, run: Runner) -> dict[str, str]:
    """Finds the versions of the software that a measurement depends on."""
    try:
        here = packages_of(python, [n for group in _PACKAGES.values() for n in group], run=run)
    except ValueError:
        return {"Python": "cannot be started", **dict.fromkeys(_PACKAGES, _MISSING)}
    found = {"Python": here.python}
    for label, group in _PACKAGES.items():
        name = next((n for n in group if n in here.versions), None)
        shown = f"{here.versions[name]} ({name})" if name and len(group) > 1 else here.versions.get(group[0])
        found[label] = shown or _MISSING
    return found


def find_places(environment: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Finds schedulers and containers by variables and files."""
    found = []
    if job := environment.get("SLURM_JOB_ID"):
        nodes, tasks = environment.get("SLURM_JOB_NUM_NODES", "?"), environment.get("SLURM_NTASKS", "?")
        found.append(f"SLURM job {job}: {nodes} nodes, {tasks} tasks")
    elif shutil.which("sbatch", path=environment.get("PATH")):
        found.append("SLURM commands, outside of a job")
    if "KUBERNETES_SERVICE_HOST" in environment:
        found.append("Kubernetes pod")
    for variable, name in (("APPTAINER_NAME", "Apptainer"), ("SINGULARITY_NAME", "Singularity")):
        if variable in environment:
            found.append(f"{name} container {environment[variable]}")
    if any(n.startswith("ENROOT_") for n in environment):
        found.append("Enroot container")
    if (root / ".dockerenv").exists():
        found.append("Docker container")
    elif (root / "run/.containerenv").exists():
        found.append("Podman container")
    return tuple(found)


def _software_findings(
    python: str, versions: Mapping[str, str], gpus: Sequence[Gpu], *, is_build_known: bool, is_gpu_asked: bool
) -> Iterator[Finding]:
    pip = f"{python} -m pip install"
    if not is_build_known:
        yield Finding("everything", "jaxlib cannot be asked", f"{pip} jax")
    for label in ("flax", "optax"):
        if versions[label] == _MISSING:
            yield Finding("the built-in workloads", f"{label} is not installed", f"{pip} {label}")
    yield from _plugin_findings(python, versions, is_gpu_asked=bool(gpus) or is_gpu_asked)
    if gpus and versions["nvidia-ml-py"] == _MISSING:
        feature = "clocks, power, temperature and energy of each trial"
        yield Finding(feature, "nvidia-ml-py is not installed", f"{pip} nvidia-ml-py")


def _plugin_findings(python: str, versions: Mapping[str, str], *, is_gpu_asked: bool) -> Iterator[Finding]:
    """Problems of the CUDA plugin, which JAX needs to run on or compile for a GPU."""
    pip, jaxlib = f"{python} -m pip install", versions["jaxlib"]
    if versions["CUDA plugin"] == _MISSING:
        screening = f"jax-cuda12-plugin=={jaxlib} jax-cuda12-pjrt=={jaxlib} nvidia-cuda-nvcc-cu12"
        command = f'{pip} "jax[cuda13]=={jaxlib}"' if is_gpu_asked else f"{pip} {screening}"
        feature = _ON_GPUS if is_gpu_asked else "compiling for GPUs on this machine (screening)"
        yield Finding(feature, "the CUDA plugin is not installed", command)
    elif not versions["CUDA plugin"].startswith(f"{jaxlib} "):
        name = re.sub(r".*\((.*)\)", r"\1", versions["CUDA plugin"])
        problem = f"the CUDA plugin is {versions['CUDA plugin']}, jaxlib is {jaxlib}"
        yield Finding(_ON_GPUS, problem, f"{pip} {name}=={jaxlib}")


def _names_gpus(environment: Mapping[str, str]) -> bool:
    """Whether the environment makes JAX use GPUs."""
    return not {"cuda", "gpu"}.isdisjoint(environment.get("JAX_PLATFORMS", "").split(","))


def _device_findings(environment: Mapping[str, str], root: Path, places: Sequence[str]) -> list[Finding]:
    """Why a requested GPU is missing: hidden, not given to the container or job, or no driver."""
    if are_hidden(environment):
        problem = f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']} hides every GPU"
        return [Finding(_ON_GPUS, problem, "unset CUDA_VISIBLE_DEVICES")]
    if has_device_file(root):
        problem = "there is a device file of a GPU, but nvidia-smi does not answer: driver and library may differ"
        return [Finding(_ON_GPUS, problem, "nvidia-smi; cat /proc/driver/nvidia/version")]
    for word, command in _WITH_GPUS.items():
        if any(word in place for place in places):
            return [Finding(_ON_GPUS, f"no GPU is here (no /dev/nvidia*): {word} must hand it over", command)]
    return [Finding(_ON_GPUS, "no GPU is here (no /dev/nvidia*), or its driver is not loaded", "nvidia-smi")]


def _environment_findings(environment: Mapping[str, str], steering: Sequence[SettingCheck]) -> Iterator[Finding]:
    if refused := [c.name for c in steering if not c.starts]:
        problem = f"your environment names what the build refuses: {', '.join(refused)}"
        yield Finding("every process that starts JAX", problem, "autotune flags check --env")
    if environment.get("JAX_COMPILATION_CACHE_DIR"):
        problem = "JAX_COMPILATION_CACHE_DIR is set: its key ignores NCCL, CUDA and memory variables"
        yield Finding("comparing settings by hand", problem, "unset JAX_COMPILATION_CACHE_DIR")
    if _names_gpus(environment) and "cpu" not in (own := environment["JAX_PLATFORMS"]).split(","):
        problem = f"JAX_PLATFORMS={own} leaves out the CPU, which host callbacks (jax.debug.print, pure_callback) need"
        yield Finding("host callbacks in your own programs", problem, f"export JAX_PLATFORMS={own},cpu")
    if all(environment.get(name) for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")):
        problem = "XLA_CLIENT_MEM_FRACTION and its older name XLA_PYTHON_CLIENT_MEM_FRACTION are both set: JAX refuses"
        yield Finding("your own programs on GPUs", problem, "unset XLA_PYTHON_CLIENT_MEM_FRACTION")


def _machine_findings(gpus: Sequence[Gpu], load: float, cpus: int, root: Path) -> Iterator[Finding]:
    if load > 0.5 * cpus:
        problem = f"the machine is busy: {load:.1f} running processes on {cpus} CPUs"
        yield Finding("narrow intervals", problem, "top -o %CPU")
    for gpu in gpus:
        if gpu.busy_percent or gpu.used_bytes > gpu.memory_bytes // 20:
            problem = f"GPU {gpu.index} is in use: {gpu.busy_percent} % busy, {format_bytes(gpu.used_bytes)} taken"
            yield Finding("measuring on it", problem, "nvidia-smi")
    shm = root / "dev/shm"
    if len(gpus) > 1 and shm.exists() and shutil.disk_usage(shm).total < _SHM_NEEDED_BYTES:
        problem = f"/dev/shm has only {format_bytes(shutil.disk_usage(shm).total)}"
        yield Finding("NCCL with one process for each GPU", problem, "docker run --shm-size=8g ...")


def format_diagnosis(found: Diagnosis) -> Iterator[str]:
    """Formats the output of `autotune doctor`."""
    yield "versions"
    for name, version in found.versions.items():
        yield f"  {name:14} {version}"
    yield "machine"
    yield f"  {found.cpus} CPUs, {format_bytes(found.memory_bytes)} memory, load {found.load_1min:.1f}"
    for gpu in found.gpus:
        capability = f"compute capability {gpu.compute_capability}"
        yield f"  GPU {gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}, {capability}"
    for line in found.places if found.gpus else ("no GPU", *found.places):
        yield f"  {line}"
    yield "your environment"
    for check in found.steering:
        yield f"  {check.name}={check.value}: {check.verdict}; {check.reason}"
    if not found.steering:
        yield "  nothing steers XLA, NCCL or JAX"
    yield "missing or in the way"
    for finding in found.findings:
        yield f"  {finding.feature}: {finding.problem}"
        yield f"    {finding.command}"
    if not found.findings:
        yield "  nothing"
