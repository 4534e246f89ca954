"""GPUs and clusters to compile for: data files, topologies, XLA's description of a GPU, CUDA plugins."""

from __future__ import annotations

import hashlib
import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from autotune.child.packages import CUDA_PLUGINS, installed_versions
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import GpuFacts, gpu_facts
from autotune.model.errors import StudyFileError, close_matches
from autotune.settings.catalog import read_data

SHARED_FIELDS: dict[str, Any] = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
}
"""Limits shared by all described GPUs (CUDA programming guide, table of compute capabilities)."""

_COUNTED_ON = 0.80

MATRIX_SHARE = 0.65
"""Default of `Target.matrix_share`: that of an H100, see `docs/predictions.md`."""

_GENERATIONS = {"jax-cuda13-plugin": ("13.0.0", "-cu13"), "jax-cuda12-plugin": ("12.8.0", "-cu12")}
"""Plugin to the CUDA that it is built for, and the suffix of NVIDIA's wheels of that generation."""

_NEWEST_DRIVER = "13.0.0"  # of a described GPU: it can run whatever is compiled
_DNN = "9.10.0"  # of XLA's own descriptions

EXTRA = ".[screen]"
_WHOLE_PLUGINS = tuple((plugin, plugin.replace("-plugin", "-pjrt")) for plugin in CUDA_PLUGINS)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links of one GPU to the others."""

    nvlink_links: int = 0
    """0 without NVLink."""
    nvlink_bytes_per_s: float = 0.0
    """Rate of one link in one direction, as NCCL assumes it."""
    nvlink_domain: int = 1
    """GPUs that are connected by NVLink."""
    gpus_per_node: int = 8
    """GPUs of a machine as it is usually sold."""
    nic_bytes_per_s: float = 12.5e9
    """Line rate of the network per GPU, one direction."""
    pcie_bytes_per_s: float = 31.5e9
    """Rate of the GPU's slot, one direction."""
    nvls_share: float = 0.0
    """Share of the links that NVLink SHARP reaches (the NVSwitch reduces and multicasts); 0 without it."""


@dataclass(frozen=True, kw_only=True)
class _TargetFile:
    """A file of ``autotune/data/targets``.

    `device` has the fields of XLA's ``GpuDeviceInfoProto``, `kinds` further names of the GPU in JAX.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    title: str
    sources: tuple[str, ...]
    device: Mapping[str, Any]
    flops_per_s: Mapping[str, float]
    network: Network
    matrix_share: float = MATRIX_SHARE
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Target:
    """One kind of GPU."""

    name: str
    title: str
    config_text: str
    """A ``stream_executor.GpuTargetConfigProto`` for XLA, as text."""
    memory_bytes: int
    memory_bytes_per_s: float
    core_count: int
    """Streaming multiprocessors."""
    flops_per_s: Mapping[str, float]
    """Peak rate of the matrix units by type of input (``bf16``, ``f8``, ``tf32`` ...), and ``scalar``."""
    network: Network
    matrix_share: float = MATRIX_SHARE
    """Share of the matrix units' peak that large products reach during training."""
    sources: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Names of the GPU in JAX."""

    @property
    def digest(self) -> str:
        """Digest of the description for the compiler."""
        return hashlib.sha256(self.config_text.encode()).hexdigest()[:12]

    def with_memory(self, fraction: float | None) -> Target:
        """This GPU for a process that takes this fraction of its memory; None changes nothing.

        On a GPU, JAX passes its allocator's limit to XLA's scheduler, which overlaps less where memory is short;
        without one XLA assumes 80 % of the described memory (xla/service/gpu/gpu_hlo_schedule.cc).
        """
        if fraction is None:
            return self
        described = f"device_memory_size: {round(self.memory_bytes * fraction / _COUNTED_ON)}"
        return replace(self, config_text=re.sub(r"device_memory_size: \d+", described, self.config_text))

    def on_network(self, nic_bytes_per_s: float | None) -> Target:
        """This GPU with this line rate of the network for each GPU; None changes nothing."""
        if nic_bytes_per_s is None:
            return self
        return replace(self, network=replace(self.network, nic_bytes_per_s=nic_bytes_per_s))


def memory_fraction(settings: Mapping[str, str]) -> float | None:
    """The share of a GPU's memory that settings give to JAX's client; None without a valid one.

    A share above 1 means unified memory and counts as 1.
    """
    named = settings.get("XLA_CLIENT_MEM_FRACTION", settings.get("XLA_PYTHON_CLIENT_MEM_FRACTION", ""))
    try:
        share = float(named)
    except ValueError:  # JAX's client will refuse it
        return None
    return min(share, 1.0) if share > 0 else None


@dataclass(frozen=True)
class Topology:
    """Machines and GPUs on each."""

    nodes: int
    gpus_per_node: int

    @property
    def device_count(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"

    def for_xla(self, network: Network) -> str:
        """The topology for XLA's plugin: partitions x hosts of a partition x GPUs of a host.

        A partition is an NVLink domain, so separate machines are partitions of one host. Many hosts in one partition
        crashed jaxlib 0.12.0.1 for some programs.

        Raises:
            StudyFileError: If the machines do not fill the NVLink domains.
        """
        domain = network.nvlink_domain
        hosts = min(self.nodes, max(1, domain // self.gpus_per_node))
        if self.nodes % hosts:
            raise StudyFileError(
                f"the number of nodes must be a multiple of {hosts} (an NVLink domain of {domain} GPUs, "
                f"{self.gpus_per_node} on each node) but got {self.nodes}"
            )
        return f"{self.nodes // hosts}x{hosts}x{self.gpus_per_node}"


def parse_topology(text: str) -> Topology:
    """Parses ``8x8`` (nodes x GPUs on each) or ``8`` (GPUs of one node).

    Raises:
        StudyFileError: If the text has another form.
    """
    found = re.fullmatch(r"(?:(\d{1,5})x)?(\d{1,3})", text.strip().lower())
    if not found or int(found[1] or 1) < 1 or int(found[2]) < 1:
        raise StudyFileError(
            f"a topology must look like 8x8 (nodes x GPUs on each) or 8 (GPUs of one node) but got {text!r}"
        )
    return Topology(int(found[1] or 1), int(found[2]))


def target_names() -> list[str]:
    """Names of the targets in the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))


def load_target(name: str, *, facts: GpuFacts | None = None, toolkit: Toolkit | None = None) -> Target:
    """Loads a target.

    Args:
        name: One of `target_names`, or the path of a ``.toml`` file of the same form.
        facts: Properties reported by such a GPU; they override the file.

    Raises:
        StudyFileError: If there is no such target, or the file is unreadable or incomplete.
    """
    found = _read_target(name)
    device = {**found.device, **_told(found, facts)}
    tools = toolkit or toolkit_of(installed_versions(toolkit_names()))
    links = found.network.nvlink_links
    if facts is not None:
        tools = replace(tools, driver=facts.cuda or tools.driver)
        links = links if facts.nvlinks is None else facts.nvlinks
    info = SHARED_FIELDS | {
        "driver_version": tools.driver,
        "runtime_version": tools.runtime,
        "compile_time_toolkit_version": tools.toolkit,
    } | device  # fmt: skip
    if links:
        info["device_interconnect_info"] = {"active_links": links}
    config = {
        "gpu_device_info": info,
        "platform_name": "CUDA",
        "dnn_version_info": dict(zip(("major", "minor", "patch"), map(int, tools.dnn.split(".")), strict=True)),
        "device_description_str": device["name"],
    }
    return Target(
        name=name.removesuffix(".toml").rpartition("/")[2],
        title=found.title,
        config_text=proto_text(config),
        memory_bytes=device["device_memory_size"],
        memory_bytes_per_s=float(device["memory_bandwidth"]),
        core_count=device["core_count"],
        flops_per_s=found.flops_per_s,
        matrix_share=found.matrix_share,
        network=found.network,
        sources=found.sources,
        kinds=(found.device["name"], *found.kinds),
    )


def _read_target(name: str) -> _TargetFile:
    if name.endswith(".toml"):
        try:
            return read_data(Path(name), _TargetFile)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise StudyFileError(f"the target file must be readable TOML but {name}: {error}") from error
    if name not in target_names():
        raise StudyFileError(
            f"a target must be one of {', '.join(target_names())}, or a .toml file of the same form, but got {name!r}"
            f"{close_matches(name, target_names())}"
        )
    return read_data(_folder() / f"{name}.toml", _TargetFile)


def _told(found: _TargetFile, facts: GpuFacts | None) -> dict[str, Any]:
    """Fields of the description from a GPU's own report."""
    if facts is None:
        return {}
    told: dict[str, Any] = {
        "name": facts.name or None,
        "core_count": facts.lanes and facts.lanes // found.device["fpus_per_core"],
        "clock_rate_ghz": facts.clock_ghz,
        "device_memory_size": facts.memory_bytes,
        "memory_bandwidth": facts.memory_bytes_per_s and int(facts.memory_bytes_per_s),
    }
    if facts.compute_capability is not None:
        numbers = dict(zip(("major", "minor"), facts.compute_capability, strict=True))
        told["cuda_compute_capability"] = found.device["cuda_compute_capability"] | numbers
    return {name: value for name, value in told.items() if value is not None}


def target_of(device_kind: str) -> Target | None:
    """The target of a GPU by its name in JAX, such as ``NVIDIA H200``; None if none or several fit."""
    kind = device_kind.strip()
    known = {name: t for t in map(load_target, target_names()) for name in t.kinds}
    if kind in known:
        return known[kind]
    alike = {t.name: t for name, t in known.items() if name.startswith(f"{kind} ") or kind.startswith(f"{name} ")}
    return next(iter(alike.values())) if len(alike) == 1 else None


def target_here(device_kind: str | None = None) -> Target | None:
    """The target of a GPU, with its own report of its properties if one is attached here; None for an unknown kind.

    Args:
        device_kind: Its name in JAX; None for the first GPU that this process may use.
    """
    here = {gpu.name: gpu for gpu in reversed(gpu_facts(caller_environment()))}
    kind = device_kind if device_kind is not None else next(reversed(here), "")
    known = target_of(kind)
    return load_target(known.name, facts=here[kind]) if known is not None and kind in here else known


def proto_text(fields: Mapping[str, Any], indent: str = "") -> str:
    """Formats a nested mapping as protobuf text; texts are quoted, except for the enum `feature_extension`."""
    lines = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name} {{\n{proto_text(value, indent + '  ')}{indent}}}\n")
        else:
            shown = f'"{value}"' if isinstance(value, str) and name != "feature_extension" else value
            lines.append(f"{indent}{name}: {shown}\n")
    return "".join(lines)


def _folder() -> Any:
    return importlib.resources.files("autotune") / "data" / "targets"


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """The CUDA and cuDNN that a program is compiled against, as ``major.minor.patch``."""

    runtime: str
    """CUDA runtime of the installed wheel, else the one that the plugin is built for."""
    toolkit: str
    dnn: str
    driver: str = _NEWEST_DRIVER
    """The newest CUDA that the driver can run."""


def toolkit_of(versions: Mapping[str, str]) -> Toolkit:
    """The toolkit of installed distributions (name to version); of several plugins the one JAX chooses."""
    plugin = next((p for p in CUDA_PLUGINS if p in versions), CUDA_PLUGINS[-1])
    built_for, suffix = _GENERATIONS[plugin]
    unsuffixed = versions.get("nvidia-cuda-runtime", "")  # the runtime's wheel of CUDA 13 and later
    is_same_major = unsuffixed.split(".")[0] == built_for.split(".")[0]
    wheel = versions.get(f"nvidia-cuda-runtime{suffix}") or (unsuffixed if is_same_major else None)
    return Toolkit(
        runtime=_numbers(wheel, 2) or built_for,  # the runtime reports only two
        toolkit=built_for,
        dnn=_numbers(versions.get(f"nvidia-cudnn{suffix}"), 3) or _DNN,
    )


def toolkit_names() -> tuple[str, ...]:
    """Distributions that decide the toolkit: plugins, and NVIDIA's wheels of runtime and cuDNN."""
    suffixes = ("", *(suffix for _, suffix in _GENERATIONS.values()))
    wheels = (f"{wheel}{suffix}" for wheel in ("nvidia-cuda-runtime", "nvidia-cudnn") for suffix in suffixes)
    return (*CUDA_PLUGINS, *wheels)


def _numbers(version: str | None, count: int) -> str | None:
    """The first numbers of a version, padded to three with zeros; None without a version."""
    numbers = re.findall(r"\d+", version or "")[:count]
    return ".".join([*numbers, "0", "0"][:3]) if numbers else None


def compiler_versions() -> dict[str, str]:
    """Versions of the installed ones of jax, jaxlib and the plugin's parts."""
    return installed_versions(("jax", "jaxlib", *(part for parts in _WHOLE_PLUGINS for part in parts)))


def compiler_problem(versions: Mapping[str, str]) -> str | None:
    """Why `compiler_versions` cannot compile for a described GPU, and what to install; None if they can."""
    jaxlib = versions.get("jaxlib")
    parts = {n: v for n, v in versions.items() if n not in ("jax", "jaxlib")}
    if not any(all(part in parts for part in whole) for whole in _WHOLE_PLUGINS):
        got = f"only {', '.join(parts)} is installed" if parts else "none is installed"
        return (
            f"compiling for a GPU needs XLA's CUDA plugin but {got}; in autotune's folder run: pip install -e '{EXTRA}'"
        )
    wrong = [f"{name} {version}" for name, version in parts.items() if version != jaxlib]
    if wrong:
        fix = " ".join(f"{name}=={jaxlib}" for name in parts)
        return (
            f"the CUDA plugin must be of jaxlib's version {jaxlib} but got {', '.join(wrong)}; run: pip install {fix}"
        )
    return None
