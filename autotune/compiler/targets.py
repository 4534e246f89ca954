"""The GPUs and clusters that can be compiled for: data files, topologies, and XLA's description of a GPU."""

from __future__ import annotations

import hashlib
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from autotune.compiler.toolkit import Toolkit, installed_toolkit
from autotune.machine import GpuFacts, caller_environment, gpu_facts
from autotune.model import StudyFileError, close_matches
from autotune.settings import read_data

SHARED_FIELDS: Mapping[str, Any] = {
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
"""What all described GPUs have in common (CUDA programming guide, table of compute capabilities)."""

_COUNTED_ON = 0.80

MATRIX_SHARE = 0.65
"""Of GPUs whose file says nothing else: what an H100 reaches, see `docs/predictions.md`."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a GPU reaches the others.

    Attributes:
        nvlink_links: NVLinks of one GPU; 0 without NVLink.
        nvlink_bytes_per_s: Bytes/s of one link in one direction, as NCCL counts on it.
        nvlink_domain: GPUs that reach each other over NVLink.
        gpus_per_node: GPUs of one machine as it is usually sold.
        nic_bytes_per_s: Line rate of the network per GPU, one direction.
        pcie_bytes_per_s: Rate of the GPU's PCIe slot, one direction.
        nvls_share: Share of the links that NCCL counts on where the NVSwitch reduces and multicasts (NVLink
            SHARP); 0 where it cannot.
    """

    nvlink_links: int = 0
    nvlink_bytes_per_s: float = 0.0
    nvlink_domain: int = 1
    gpus_per_node: int = 8
    nic_bytes_per_s: float = 12.5e9
    pcie_bytes_per_s: float = 31.5e9
    nvls_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _TargetFile:
    """A file of ``autotune/data/targets``; `device` has the fields of XLA's ``GpuDeviceInfoProto``.

    `kinds` holds names that JAX gives this GPU besides ``device.name``, `matrix_share` is that of `Target`.
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
    """One kind of GPU.

    Attributes:
        name: As `load_target` takes it.
        title: For people.
        config_text: The ``stream_executor.GpuTargetConfigProto`` that is given to XLA, as text.
        memory_bytes: Device memory.
        memory_bytes_per_s: Rate of that memory.
        core_count: Streaming multiprocessors.
        flops_per_s: Peak rate of the matrix units by type of input (``bf16``, ``f8``, ``tf32`` ...), and
            ``scalar``.
        matrix_share: Of the matrix units' peak, what large products reach while the GPU trains.
        network: Its links; None if not known (a file of the user's), then no communication can be predicted.
        sources: Where the figures are from.
        kinds: Names that JAX gives it.
        asked: Fields of the description that the GPU or the installed packages told.
        assumed: Those of its kind that a table told, for nobody here could be asked.
    """

    name: str
    title: str
    config_text: str
    memory_bytes: int
    memory_bytes_per_s: float
    core_count: int
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    matrix_share: float = MATRIX_SHARE
    network: Network | None = None
    sources: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Names what the compiler is told of this GPU."""
        return hashlib.sha256(self.config_text.encode()).hexdigest()[:12]

    def with_memory(self, fraction: float | None) -> Target:
        """The same GPU for a process that takes this fraction of its memory; None leaves the description alone.

        On a GPU, JAX tells XLA's scheduler what its allocator may take; without one XLA counts on 80 % of what is
        described (`GetSchedulerMemoryLimit` in xla/service/gpu/gpu_hlo_schedule.cc). Where memory is short by its
        count, it overlaps less.
        """
        if fraction is None:
            return self
        described = f"device_memory_size: {round(self.memory_bytes * fraction / _COUNTED_ON)}"
        return replace(self, config_text=re.sub(r"device_memory_size: \d+", described, self.config_text))

    def on_network(self, nic_bytes_per_s: float | None) -> Target:
        """The same GPU in a cluster whose network has this rate for each GPU; None leaves the table's."""
        if nic_bytes_per_s is None or self.network is None:
            return self
        return replace(self, network=replace(self.network, nic_bytes_per_s=nic_bytes_per_s))


def memory_fraction(settings: Mapping[str, str]) -> float | None:
    """The share of a GPU's memory that settings give to JAX's client, at most 1; None if they name none that it takes.

    A share above 1 is unified memory, of which the device has all.
    """
    named = settings.get("XLA_CLIENT_MEM_FRACTION", settings.get("XLA_PYTHON_CLIENT_MEM_FRACTION", ""))
    try:
        share = float(named)
    except ValueError:  # the client will refuse it; not the compiler's business
        return None
    return min(share, 1.0) if share > 0 else None


@dataclass(frozen=True)
class Topology:
    """Machines and GPUs on each.

    Attributes:
        nodes: Machines.
        gpus_per_node: GPUs on each of them.
    """

    nodes: int
    gpus_per_node: int

    @property
    def device_count(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"

    def for_xla(self, network: Network | None) -> str:
        """As XLA's plugin takes it: partitions x hosts of a partition x GPUs of a host.

        A partition is what NVLink connects. Machines of their own are therefore partitions of one host;
        that form works on jaxlib 0.10.2 and 0.12.0.1, while many hosts in one partition crashed 0.12.0.1
        for some programs.

        Raises:
            StudyFileError: If the machines do not fill the NVLink domains.
        """
        domain = network.nvlink_domain if network else self.gpus_per_node
        hosts = min(self.nodes, max(1, domain // self.gpus_per_node))
        if self.nodes % hosts:
            raise StudyFileError(
                f"the number of nodes must be a multiple of {hosts} (an NVLink domain of {domain} GPUs, "
                f"{self.gpus_per_node} on each node) but got {self.nodes}"
            )
        return f"{self.nodes // hosts}x{hosts}x{self.gpus_per_node}"


def parse_topology(text: str) -> Topology:
    """Reads ``8x8`` (nodes x GPUs on each) or ``8`` (GPUs of one node).

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
    """Every target that comes with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))


def load_target(name: str, *, facts: GpuFacts | None = None, toolkit: Toolkit | None = None) -> Target:
    """The target of a name, or the one that a file describes.

    Args:
        name: One of `target_names`, or the path of a ``.txtpb`` file with a GpuTargetConfigProto.
        facts: What a GPU of this kind told of itself; that goes before the table. Of no use with a file.
        toolkit: CUDA and cuDNN; those installed here when None.

    Raises:
        StudyFileError: If there is no such target, or the file cannot be read or says too little.
    """
    if name.endswith((".txtpb", ".pbtxt", ".textproto")):
        return _from_proto_text(Path(name))
    resource = _folder() / f"{name}.toml"
    if name not in target_names():
        raise StudyFileError(
            f"a target must be one of {', '.join(target_names())}, or a .txtpb file, but got {name!r}"
            f"{close_matches(name, target_names())}"
        )
    found = read_data(resource, _TargetFile)
    network, told = found.network, _told(found, facts)
    device = {**found.device, **told}
    tools = toolkit or installed_toolkit()
    if facts is not None and facts.cuda is not None:
        tools = replace(tools, driver=facts.cuda, asked=(*tools.asked, "driver"))
    links = facts.nvlinks if facts is not None and facts.nvlinks is not None else network.nvlink_links
    config = {
        "gpu_device_info": {
            **SHARED_FIELDS,
            **tools.fields,
            **device,
            **({"device_interconnect_info": {"active_links": links}} if links else {}),
        },
        "platform_name": "CUDA",
        "dnn_version_info": tools.dnn_fields,
        "device_description_str": device["name"],
    }
    asked = (*told, *(["nvlinks"] if facts is not None and facts.nvlinks is not None else []), *tools.asked)
    return Target(
        name=name,
        title=found.title,
        config_text=proto_text(config),
        memory_bytes=device["device_memory_size"],
        memory_bytes_per_s=float(device["memory_bandwidth"]),
        core_count=device["core_count"],
        flops_per_s=found.flops_per_s,
        matrix_share=found.matrix_share,
        network=network,
        sources=found.sources,
        kinds=(found.device["name"], *found.kinds),
        asked=asked,
        assumed=tuple(n for n in (*found.device, "nvlinks", "driver", "runtime", "dnn") if n not in asked),
    )


def _told(found: _TargetFile, facts: GpuFacts | None) -> dict[str, Any]:
    """Fields of the description that a GPU told of itself."""
    if facts is None:
        return {}
    capability = dict(found.device["cuda_compute_capability"])
    if facts.compute_capability is not None:
        capability |= zip(("major", "minor"), facts.compute_capability, strict=True)
    told = {
        "name": facts.name or None,
        "core_count": facts.lanes and facts.lanes // found.device["fpus_per_core"],
        "clock_rate_ghz": facts.clock_ghz,
        "device_memory_size": facts.memory_bytes,
        "memory_bandwidth": facts.memory_bytes_per_s and int(facts.memory_bytes_per_s),
        "cuda_compute_capability": capability if facts.compute_capability is not None else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def target_of(device_kind: str) -> Target | None:
    """The target of a GPU by the name that JAX gives it, such as ``NVIDIA H200``; None if none or several fit."""
    kind = device_kind.strip()
    known = {name: t for t in map(load_target, target_names()) for name in t.kinds}
    if kind in known:
        return known[kind]
    alike = {t.name: t for name, t in known.items() if name.startswith(f"{kind} ") or kind.startswith(f"{name} ")}
    return next(iter(alike.values())) if len(alike) == 1 else None


def target_here(device_kind: str | None = None) -> Target | None:
    """The target of a GPU that is attached to this machine, as it tells of itself.

    Args:
        device_kind: Its name as JAX has it; the first GPU that this process may use when None.

    Returns:
        Of a kind that is described but not attached here, the table's; None for one that is not described.
    """
    here = {gpu.name: gpu for gpu in reversed(gpu_facts(caller_environment()))}
    kind = device_kind if device_kind is not None else next(reversed(here), "")
    known = target_of(kind)
    return load_target(known.name, facts=here[kind]) if known is not None and kind in here else known


def proto_text(fields: Mapping[str, Any], indent: str = "") -> str:
    """A nested mapping as protobuf text; upper-case words are enum values, other texts are quoted."""
    lines = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name} {{\n{proto_text(value, indent + '  ')}{indent}}}\n")
        else:
            is_enum = isinstance(value, str) and name == "feature_extension"
            shown = value if is_enum or not isinstance(value, str) else f'"{value}"'
            lines.append(f"{indent}{name}: {shown}\n")
    return "".join(lines)


def _folder() -> Any:
    return importlib.resources.files("autotune") / "data" / "targets"


def _from_proto_text(path: Path) -> Target:
    """A target from XLA's own form; rates that it lacks are those of the packaged GPU of that name."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(f"the target file must be readable text but {path}: {error}") from error

    def number(key: str) -> float:
        found = re.search(rf"\b{key}:\s*([0-9.eE+]+)", text)
        if not found:
            raise StudyFileError(
                f"{path} must hold `{key}` (a stream_executor.GpuTargetConfigProto as text) but does not; "
                "XLA's own examples: xla/backends/gpu/target_config/specs"
            )
        return float(found[1])

    title = re.search(r'device_description_str:\s*"([^"]*)"', text)
    known = {t.title: t for t in map(load_target, target_names())}
    like = next((t for t in known.values() if title and f'"{title[1]}"' in t.config_text), None)
    return Target(
        name=path.stem,
        title=title[1] if title else path.stem,
        config_text=text,
        memory_bytes=int(number("device_memory_size")),
        memory_bytes_per_s=number("memory_bandwidth"),
        core_count=int(number("core_count")),
        flops_per_s=like.flops_per_s if like else {},
        matrix_share=like.matrix_share if like else MATRIX_SHARE,
        network=like.network if like else None,
        sources=(str(path),),
    )
