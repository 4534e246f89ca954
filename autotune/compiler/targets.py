"""GPUs and clusters to compile for: data files, topologies, XLA's description, CUDA plugins."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from autotune.child.packages import CUDA_PLUGINS, installed_versions
from autotune.machine.environment import caller_environment
from autotune.machine.gpus import GpuFacts, gpu_facts
from autotune.machine.host import Versions
from autotune.model.errors import StudyFileError, close_matches
from autotune.model.files import packaged_table
from autotune.model.flags import MEMORY_FRACTIONS
from autotune.settings.catalog import DATA, Scope, Texts, read_data

_COUNTED_ON = 0.80
_FOLDER = DATA / "targets"

_WHOLE_PLUGINS = [{plugin, plugin.replace("-plugin", "-pjrt")} for plugin in CUDA_PLUGINS]

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links of one GPU to the others; rates are of one direction."""

    nvlink_links: int = 0
    nvlink_bytes_per_s: float = 0.0  # of one link, as NCCL assumes it
    nvlink_domain: int = 1  # GPUs that are connected by NVLink
    gpus_per_node: int = 8  # as machines are usually sold
    nic_bytes_per_s: float = 12.5e9  # line rate per GPU
    pcie_bytes_per_s: float = 31.5e9
    host_bytes_per_s: float | None = None  # if it is not the slot (NVLink-C2C)
    nvls_share: float = 0.0  # of the links that NVLink SHARP reaches; 0 without it

    def joined_nodes(self, gpus_per_node: int) -> int:
        """Returns the number of machines that NVLink connects; 1 where it ends at the machine."""
        return max(1, self.nvlink_domain // gpus_per_node)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One kind of GPU: a file of ``autotune/data/targets``, completed by `load_target`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = ""
    title: str
    sources: Texts
    device: Fields  # of XLA's ``GpuDeviceInfoProto``
    flops_per_s: Mapping[str, float]  # of the matrix units by type of input; ``scalar``
    network: Network
    matrix_share: float = 0.65  # of the peak in large products: an H100's, docs/predictions.md
    kinds: Texts = ()  # names of the GPU in JAX
    dnn: Mapping[str, int] = field(default_factory=dict)  # version of cuDNN
    memory_share: float | None = None  # that a process takes

    @property
    def memory_bytes(self) -> int:
        """Device memory."""
        return int(self.device["device_memory_size"])

    @property
    def core_count(self) -> int:
        """Streaming multiprocessors."""
        return int(self.device["core_count"])

    @property
    def config_text(self) -> str:
        """A ``stream_executor.GpuTargetConfigProto`` for XLA, as text.

        On a GPU, JAX passes its allocator's limit to XLA's scheduler, which overlaps less where
        memory is short; without one XLA assumes 80 % of the described memory
        (xla/service/gpu/gpu_hlo_schedule.cc).
        """
        share = 1.0 if self.memory_share is None else self.memory_share / _COUNTED_ON
        memory_bytes = round(self.memory_bytes * share)
        return proto_text(
            {
                "gpu_device_info": {**self.device, "device_memory_size": memory_bytes},
                "platform_name": "CUDA",
                "dnn_version_info": self.dnn,
                "device_description_str": self.device["name"],
            }
        )

    @property
    def digest(self) -> str:
        """Digest of the description for the compiler."""
        return hashlib.sha256(self.config_text.encode()).hexdigest()[:12]

    def scopes(self, topology: Topology | None) -> dict[Scope, bool]:
        """Returns which scopes such machines have or lack; `topology` is None if unknown."""
        links = self.network
        generation = self.device["cuda_compute_capability"]["major"]
        scopes = {
            Scope.NVLINK: links.nvlink_links > 0,
            Scope.NVLS: links.nvls_share > 0,
            Scope.HOPPER: generation >= 9,
            Scope.BLACKWELL: generation >= 10,
        }
        if topology is not None:
            hosts = links.joined_nodes(links.gpus_per_node)
            scopes[Scope.NVLINK_DOMAINS] = topology.nodes > hosts
            scopes[Scope.NVLINK_OVER_HOSTS] = min(topology.nodes, hosts) > 1
        return scopes

    def on_network(self, nic_bytes_per_s: float | None) -> Target:
        """This GPU with this line rate of the network for each GPU; None changes nothing."""
        if nic_bytes_per_s is None:
            return self
        return replace(self, network=replace(self.network, nic_bytes_per_s=nic_bytes_per_s))


def memory_fraction(settings: Mapping[str, str]) -> float | None:
    """Returns the share of memory that settings give to JAX; above 1 (unified memory) is 1."""
    newer, older = MEMORY_FRACTIONS
    try:
        share = min(float(settings.get(newer, settings.get(older, ""))), 1.0)
    except ValueError:  # JAX's client will refuse it
        return None
    return share if share > 0 else None


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
        """Returns the topology for XLA's plugin: partitions x their hosts x GPUs of a host.

        A partition is an NVLink domain, so separate machines are partitions of one host. Many hosts
        in one partition crashed jaxlib 0.12.0.1 for some programs. StudyFileError if the machines
        do not fill the domains.
        """
        hosts = min(self.nodes, network.joined_nodes(self.gpus_per_node))
        if self.nodes % hosts:
            raise StudyFileError(
                f"the number of nodes must be a multiple of {hosts} (an NVLink domain of "
                f"{network.nvlink_domain} GPUs, {self.gpus_per_node} on each node) but got "
                f"{self.nodes}"
            )
        return f"{self.nodes // hosts}x{hosts}x{self.gpus_per_node}"


def parse_topology(text: str) -> Topology:
    """Parses ``8x8`` (nodes x GPUs on each) or ``8`` (GPUs of one node), else StudyFileError."""
    match = re.fullmatch(r"(?:0*([1-9]\d{0,4})x)?0*([1-9]\d{0,2})", text.strip().lower())
    if not match:
        raise StudyFileError(
            "a topology must look like 8x8 (nodes x GPUs on each) or 8 (GPUs of one node) but "
            f"got {text!r}"
        )
    return Topology(int(match[1] or 1), int(match[2]))


def target_names() -> list[str]:
    """Returns the names of the targets in the package."""
    names = [path.name for path in _FOLDER.iterdir()]
    return sorted(n.removesuffix(".toml") for n in names if n.endswith(".toml"))


def load_target(name: str, *, facts: GpuFacts | None = None) -> Target:
    """Loads one of `target_names`, or a ``.toml`` file of the same form; else StudyFileError.

    Facts that such a GPU reports override the file; CUDA and cuDNN are the installed ones.
    """
    target = _read_target(name)
    cuda = packaged_table("cuda.toml")
    versions = installed_versions([*CUDA_PLUGINS, *cuda["wheels"]])
    installed = next((p for p in CUDA_PLUGINS if p in versions), CUDA_PLUGINS[-1])
    plugin = cuda["plugins"][installed]
    device = {**cuda["limits"], **_versions(plugin, versions), **target.device}
    if facts is not None:
        reported = {
            "driver_version": facts.cuda,
            "name": facts.name,
            "device_memory_size": facts.memory_bytes,
            "core_count": (facts.lanes or 0) // device["fpus_per_core"],
        }
        device |= {name: value for name, value in reported.items() if value}
    if target.network.nvlink_links:
        device["device_interconnect_info"] = {"active_links": target.network.nvlink_links}
    dnn = _numbers(versions.get(plugin["dnn_wheel"]) or cuda["dnn"])
    return replace(
        target,
        name=name.removesuffix(".toml").rpartition("/")[2],
        device=device,
        dnn=dict(zip(("major", "minor", "patch"), dnn, strict=True)),
        kinds=(target.device["name"], *target.kinds),
    )


def _read_target(name: str) -> Target:
    if name.endswith(".toml"):
        try:
            return read_data(Path(name), Target)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise StudyFileError(
                f"the target file must be readable TOML but {name}: {error}"
            ) from error
    names = target_names()
    if name not in names:
        raise StudyFileError(
            f"a target must be one of {', '.join(names)}, or a .toml file of the same form, but "
            f"got {name!r}{close_matches(name, names)}"
        )
    return read_data(_FOLDER / f"{name}.toml", Target)


def _versions(plugin: Fields, versions: Versions) -> Fields:
    """Returns XLA's version fields of CUDA: of the installed runtime, else the plugin's own."""
    wheels = [_numbers(versions[n]) for n in plugin["runtime_wheels"] if n in versions]
    built_for = _numbers(plugin["cuda"])
    major, minor, _ = next((wheel for wheel in wheels if wheel[0] == built_for[0]), built_for)
    return {
        "driver_version": plugin["driver"],
        "runtime_version": f"{major}.{minor}.0",  # the runtime itself reports only two numbers
        "compile_time_toolkit_version": plugin["cuda"],
    }


def _numbers(version: str) -> list[int]:
    """Returns the first three numbers of a version."""
    return [*map(int, re.findall(r"\d+", version)), 0, 0][:3]


def target_of(device_kind: str) -> Target | None:
    """Returns the target of a GPU by its name in JAX (``NVIDIA H200``); None unless one fits."""
    kind = device_kind.strip()
    targets: dict[str, Target] = {}
    for target in map(load_target, target_names()):
        targets |= dict.fromkeys(target.kinds, target)
    if kind in targets:
        return targets[kind]
    alike = {
        t.name: t
        for name, t in targets.items()
        if name.startswith(f"{kind} ") or kind.startswith(f"{name} ")
    }
    return alike.popitem()[1] if len(alike) == 1 else None


def target_here(device_kind: str | None = None) -> Target | None:
    """Returns the target of a GPU (by default the first one here), by its report if attached."""
    attached = gpu_facts(caller_environment())
    if device_kind is None:
        device_kind = attached[0].name if attached else ""
    target = target_of(device_kind)
    if target is None:
        return None
    facts = next((gpu for gpu in attached if gpu.name == device_kind), None)
    return load_target(target.name, facts=facts)


def proto_text(fields: Fields, indent: str = "") -> str:
    """Formats a nested mapping as protobuf text; quotes texts but the enum `feature_extension`."""
    lines = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name} {{\n{proto_text(value, indent + '  ')}{indent}}}\n")
        elif isinstance(value, str) and name != "feature_extension":
            lines.append(f'{indent}{name}: "{value}"\n')
        else:
            lines.append(f"{indent}{name}: {value}\n")
    return "".join(lines)


def compiler_versions() -> dict[str, str]:
    """Returns the versions of jax, jaxlib and the plugin's parts, as far as they are installed."""
    return installed_versions(("jax", "jaxlib", *sorted(set().union(*_WHOLE_PLUGINS))))


def compiler_problem(versions: Versions) -> str | None:
    """Returns why these versions cannot compile for a GPU, and what to do; None if they can."""
    jaxlib = versions.get("jaxlib")
    installed = {n: v for n, v in versions.items() if n not in ("jax", "jaxlib")}
    if not any(plugin <= installed.keys() for plugin in _WHOLE_PLUGINS):
        count = f"only {', '.join(installed)}" if installed else "none"
        return (
            f"compiling for a GPU needs XLA's CUDA plugin but {count} is installed; in "
            "autotune's folder run: pip install -e '.[screen]'"
        )
    wrong = [f"{name} {version}" for name, version in installed.items() if version != jaxlib]
    if wrong:
        fix = " ".join(f"{name}=={jaxlib}" for name in installed)
        return (
            f"the CUDA plugin must be of jaxlib's version {jaxlib} but got "
            f"{', '.join(wrong)}; run: pip install {fix}"
        )
    return None
