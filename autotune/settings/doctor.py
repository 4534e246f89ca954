"""What this machine, its software and its environment offer, and what is missing for which feature."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.machine import CUDA_PLUGINS, Gpu, Runner, find_gpus, gpu_topology, packages_of, run_program
from autotune.model import format_bytes
from autotune.settings.check import SettingCheck, check_setting, check_xla_flags
from autotune.settings.known import KnownSettings

_PACKAGES = {
    "CUDA": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"),
    "cuDNN": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "jax": ("jax",),
    "jaxlib": ("jaxlib",),
    "CUDA plugin": CUDA_PLUGINS,
    "flax": ("flax",),
    "optax": ("optax",),
    "optuna": ("optuna",),
    "nvidia-ml-py": ("nvidia-ml-py",),
    "psycopg": ("psycopg",),
}
_MISSING = "not installed"
_SHM_NEEDED_BYTES = 1 << 30  # NCCL exchanges data between processes of a node through /dev/shm


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is missing or in the way: for which feature, and the command that mends it."""

    feature: str
    problem: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that `autotune doctor` found.

    Attributes:
        versions: Software to its version; ``not installed`` if it is missing.
        cpus: CPUs that this process may use.
        memory_bytes: Memory of the machine.
        load_1min: Mean number of running processes over the last minute.
        gpus: The GPUs.
        topology: How they are connected, as ``nvidia-smi topo -m`` shows it; empty without GPUs.
        places: Schedulers and containers seen: SLURM, Docker, Kubernetes ...
        steering: Verdicts on the variables that already steer XLA, NCCL or JAX.
        findings: What is missing or in the way.
    """

    versions: Mapping[str, str]
    cpus: int
    memory_bytes: int
    load_1min: float
    gpus: tuple[Gpu, ...]
    topology: str
    places: tuple[str, ...]
    steering: tuple[SettingCheck, ...]
    findings: tuple[Finding, ...]


def diagnose(
    python: str,
    environment: Mapping[str, str],
    *,
    known: KnownSettings | None,
    run: Runner = run_program,
    root: Path = Path("/"),
) -> Diagnosis:
    """Looks at software, devices, scheduler, container and environment.

    Args:
        python: Interpreter whose packages are meant.
        environment: The caller's environment.
        known: What is known of settings on the installed build; None if it could not be asked.
        run: Runs nvidia-smi and the like.
        root: Where the file system begins, for tests.
    """
    gpus = find_gpus(run)
    versions = find_versions(python, run)
    if gpus:
        versions["driver"] = gpus[0].driver
    steering = find_steering(environment, known) if known is not None else ()
    load = psutil.getloadavg()[0]
    cpus = len(os.sched_getaffinity(0))
    places = find_places(environment, root)
    findings = [
        *_software_findings(python, versions, gpus, is_build_known=known is not None),
        *_environment_findings(environment, steering),
        *_machine_findings(gpus, load, cpus, root),
    ]
    return Diagnosis(
        versions=versions,
        cpus=cpus,
        memory_bytes=psutil.virtual_memory().total,
        load_1min=load,
        gpus=gpus,
        topology=gpu_topology(run) if gpus else "",
        places=places,
        steering=steering,
        findings=tuple(findings),
    )


def find_versions(python: str, run: Runner) -> dict[str, str]:
    """Versions of the software that a measurement depends on."""
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
    """Schedulers and containers, as far as variables and files show them."""
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


def find_steering(environment: Mapping[str, str], known: KnownSettings) -> tuple[SettingCheck, ...]:
    """Verdicts on all variables that the catalogue or the build knows, XLA_FLAGS taken apart."""
    checks = list(check_xla_flags(environment.get("XLA_FLAGS", ""), known))
    for variable, value in sorted(environment.items()):
        name = variable.lower() if variable.startswith("JAX_") else variable
        is_known = (name in known.catalog and name.isupper()) or name in known.build.jax_options
        if variable != "XLA_FLAGS" and (is_known or re.match(r"(NCCL|XLA_PYTHON_CLIENT|XLA_CLIENT)_", variable)):
            checks.append(check_setting(name, value, known))
    return tuple(checks)


def _software_findings(
    python: str, versions: Mapping[str, str], gpus: Sequence[Gpu], *, is_build_known: bool
) -> list[Finding]:
    pip = f"{python} -m pip install"
    found = []

    def missing(label: str) -> bool:
        return versions[label] == _MISSING

    if not is_build_known:
        found.append(Finding(feature="everything", problem="jaxlib cannot be asked", command=f"{pip} jax"))
    for label in ("flax", "optax"):
        if missing(label):
            problem = f"{label} is not installed"
            found.append(Finding(feature="the built-in workloads", problem=problem, command=f"{pip} {label}"))
    jaxlib = versions["jaxlib"]
    if missing("CUDA plugin"):
        screening = f"jax-cuda12-plugin=={jaxlib} jax-cuda12-pjrt=={jaxlib} nvidia-cuda-nvcc-cu12"
        command = f'{pip} "jax[cuda13]=={jaxlib}"' if gpus else f"{pip} {screening}"
        feature = "runs on the GPUs" if gpus else "compiling for GPUs on this machine (screening)"
        found.append(Finding(feature=feature, problem="the CUDA plugin is not installed", command=command))
    elif not versions["CUDA plugin"].startswith(f"{jaxlib} "):
        name = re.sub(r".*\((.*)\)", r"\1", versions["CUDA plugin"])
        problem = f"the CUDA plugin is {versions['CUDA plugin']}, jaxlib is {jaxlib}"
        found.append(Finding(feature="runs on GPUs", problem=problem, command=f"{pip} {name}=={jaxlib}"))
    if gpus and missing("nvidia-ml-py"):
        problem = "nvidia-ml-py is not installed"
        feature = "clocks, power, temperature and energy of each trial"
        found.append(Finding(feature=feature, problem=problem, command=f"{pip} nvidia-ml-py"))
    if missing("psycopg"):
        problem = "psycopg is not installed"
        feature = "several drivers on one PostgreSQL storage"
        found.append(Finding(feature=feature, problem=problem, command=f'{pip} "psycopg[binary]"'))
    return found


def _environment_findings(environment: Mapping[str, str], steering: Sequence[SettingCheck]) -> list[Finding]:
    found = []
    if refused := [c.name for c in steering if not c.starts]:
        problem = f"your environment names what the build refuses: {', '.join(refused)}"
        command = "autotune flags check --env"
        found.append(Finding(feature="every process that starts JAX", problem=problem, command=command))
    if environment.get("JAX_COMPILATION_CACHE_DIR"):
        problem = "JAX_COMPILATION_CACHE_DIR is set: its key ignores NCCL, CUDA and memory variables"
        command = "unset JAX_COMPILATION_CACHE_DIR"
        found.append(Finding(feature="comparing settings by hand", problem=problem, command=command))
    return found


def _machine_findings(gpus: Sequence[Gpu], load: float, cpus: int, root: Path) -> list[Finding]:
    found = []
    if load > 0.5 * cpus:
        problem = f"the machine is busy: {load:.1f} running processes on {cpus} CPUs"
        found.append(Finding(feature="narrow intervals", problem=problem, command="top -o %CPU"))
    for gpu in gpus:
        if gpu.busy_percent or gpu.used_bytes > gpu.memory_bytes // 20:
            problem = f"GPU {gpu.index} is in use: {gpu.busy_percent} % busy, {format_bytes(gpu.used_bytes)} taken"
            found.append(Finding(feature="measuring on it", problem=problem, command="nvidia-smi"))
    shm = root / "dev/shm"
    if len(gpus) > 1 and shm.exists() and shutil.disk_usage(shm).total < _SHM_NEEDED_BYTES:
        problem = f"/dev/shm has only {format_bytes(shutil.disk_usage(shm).total)}"
        command = "docker run --shm-size=8g ..."
        found.append(Finding(feature="NCCL with one process for each GPU", problem=problem, command=command))
    return found
