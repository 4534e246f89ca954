"""What this machine, its software and its environment offer, and what is missing for which feature."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.machine import CUDA_PLUGINS, Gpu, Runner, find_gpus, gpu_topology, packages_of, run_program
from autotune.model import format_bytes
from autotune.settings.check import SettingCheck, find_steering
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
_WITH_GPUS = {
    "Kubernetes": "resources: limits: nvidia.com/gpu: 1",
    "Apptainer": "apptainer exec --nv ...",
    "Singularity": "singularity exec --nv ...",
    "Enroot": "NVIDIA_VISIBLE_DEVICES=all enroot start ...",
    "Docker": "docker run --gpus all ...",
    "Podman": "podman run --device nvidia.com/gpu=all ...",
    "SLURM job": "srun --gpus=1 ... (ask for GPUs when the job is submitted)",
}
"""Who keeps GPUs from a process unless asked, and how to ask."""

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
        load_1min: Mean number of running processes over the last minute.
        topology: How they are connected, as ``nvidia-smi topo -m`` shows it; empty without GPUs.
        places: Schedulers and containers seen: SLURM, Docker, Kubernetes ...
        steering: Verdicts on the variables that already steer XLA, NCCL or JAX.
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
        known: What is known of settings on the installed build; None if it could not be asked.
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
        topology=gpu_topology(run) if gpus else "",
        places=places,
        steering=steering,
        findings=tuple(findings),
    )


def gpu_findings(
    python: str, environment: Mapping[str, str], *, run: Runner = run_program, root: Path = Path("/")
) -> list[Finding]:
    """What keeps JAX from a GPU that was asked for, as far as it can be seen; see `diagnose`."""
    gpus, versions = find_gpus(run), find_versions(python, run)
    found = [] if gpus else _device_findings(environment, root, find_places(environment, root))
    if (problem := _plugin_finding(python, versions, is_gpu_asked=True)) is not None:
        found.append(problem)
    return found


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


def _software_findings(
    python: str, versions: Mapping[str, str], gpus: Sequence[Gpu], *, is_build_known: bool, is_gpu_asked: bool
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
    if (of_plugin := _plugin_finding(python, versions, is_gpu_asked=bool(gpus) or is_gpu_asked)) is not None:
        found.append(of_plugin)
    if gpus and missing("nvidia-ml-py"):
        problem = "nvidia-ml-py is not installed"
        feature = "clocks, power, temperature and energy of each trial"
        found.append(Finding(feature=feature, problem=problem, command=f"{pip} nvidia-ml-py"))
    if missing("psycopg"):
        problem = "psycopg is not installed"
        feature = "several drivers on one PostgreSQL storage"
        found.append(Finding(feature=feature, problem=problem, command=f'{pip} "psycopg[binary]"'))
    return found


def _plugin_finding(python: str, versions: Mapping[str, str], *, is_gpu_asked: bool) -> Finding | None:
    """What is wrong with the CUDA plugin, without which JAX has no GPU and nothing compiles for one."""
    pip, jaxlib = f"{python} -m pip install", versions["jaxlib"]
    if versions["CUDA plugin"] == _MISSING:
        screening = f"jax-cuda12-plugin=={jaxlib} jax-cuda12-pjrt=={jaxlib} nvidia-cuda-nvcc-cu12"
        command = f'{pip} "jax[cuda13]=={jaxlib}"' if is_gpu_asked else f"{pip} {screening}"
        feature = "runs on the GPUs" if is_gpu_asked else "compiling for GPUs on this machine (screening)"
        return Finding(feature=feature, problem="the CUDA plugin is not installed", command=command)
    if not versions["CUDA plugin"].startswith(f"{jaxlib} "):
        name = re.sub(r".*\((.*)\)", r"\1", versions["CUDA plugin"])
        problem = f"the CUDA plugin is {versions['CUDA plugin']}, jaxlib is {jaxlib}"
        return Finding(feature="runs on GPUs", problem=problem, command=f"{pip} {name}=={jaxlib}")
    return None


def _names_gpus(environment: Mapping[str, str]) -> bool:
    """Whether an environment tells JAX to use GPUs."""
    return not {"cuda", "gpu"}.isdisjoint(environment.get("JAX_PLATFORMS", "").split(","))


def _device_findings(environment: Mapping[str, str], root: Path, places: Sequence[str]) -> list[Finding]:
    """Why no GPU is seen where one was asked for: hidden, not handed to the container or job, or no driver."""
    feature = "runs on the GPUs"
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        problem = f"CUDA_VISIBLE_DEVICES={visible} hides every GPU"
        return [Finding(feature=feature, problem=problem, command="unset CUDA_VISIBLE_DEVICES")]
    if any((root / "dev" / name).exists() for name in ("nvidia0", "nvidiactl", "dxg")):
        problem = "there is a device file of a GPU, but nvidia-smi does not answer: driver and library may differ"
        return [Finding(feature=feature, problem=problem, command="nvidia-smi; cat /proc/driver/nvidia/version")]
    for word, command in _WITH_GPUS.items():
        if any(word in place for place in places):
            problem = f"no GPU is here (no /dev/nvidia*): {word} must hand it over"
            return [Finding(feature=feature, problem=problem, command=command)]
    problem = "no GPU is here (no /dev/nvidia*), or its driver is not loaded"
    return [Finding(feature=feature, problem=problem, command="nvidia-smi")]


def _share_findings(environment: Mapping[str, str]) -> list[Finding]:
    """What JAX itself makes of variables about platforms and memory."""
    found = []
    if _names_gpus(environment) and "cpu" not in (own := environment["JAX_PLATFORMS"]).split(","):
        problem = f"JAX_PLATFORMS={own} leaves out the CPU, which host callbacks (jax.debug.print, pure_callback) need"
        command = f"export JAX_PLATFORMS={own},cpu"
        found.append(Finding(feature="host callbacks in your own programs", problem=problem, command=command))
    if all(environment.get(name) for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")):
        problem = "XLA_CLIENT_MEM_FRACTION and its older name XLA_PYTHON_CLIENT_MEM_FRACTION are both set: JAX refuses"
        command = "unset XLA_PYTHON_CLIENT_MEM_FRACTION"
        found.append(Finding(feature="your own programs on GPUs", problem=problem, command=command))
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
    return [*found, *_share_findings(environment)]


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


def format_diagnosis(found: Diagnosis) -> Iterator[str]:
    """The lines of `autotune doctor`."""
    yield "versions"
    for name, version in found.versions.items():
        yield f"  {name:14} {version}"
    yield "machine"
    yield f"  {found.cpus} CPUs, {format_bytes(found.memory_bytes)} memory, load {found.load_1min:.1f}"
    for gpu in found.gpus:
        capability = f"compute capability {gpu.compute_capability}"
        yield f"  GPU {gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}, {capability}"
    if not found.gpus:
        yield "  no GPU"
    for line in (*found.topology.splitlines(), *found.places):
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
