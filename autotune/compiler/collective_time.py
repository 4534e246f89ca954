"""How long a collective takes: NCCL's own tuning model with the rates of the target's links.

A library picks, for each message, the algorithm and protocol that its model says is fastest; so does this
one.

Sources:
    NCCL: src/graph/tuning.cc (v2.10): latencies and bandwidth factors of ring and tree, LL, LL128 and Simple.
    NVLS: XLA's measured table, see `NCCL_LAUNCH_S`: all-reduces of 1 and 2 GB on 8 GPUs. NCCL's own tuning counts on
        more (src/graph/tuning.cc v2.19 on: 85 % of the links with NVLink SHARP on Hopper).
    XLA: xla/service/gpu/model/sol_gpu_cost_model.cc (header overhead of a network, one-shot kernels, barrier).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.compiler.program import Collective
from autotune.compiler.targets import Network

NCCL_LAUNCH_S = 23e-6
"""Launch of NCCL's kernel and the meeting of all ranks. XLA's own measured table (``kDefaultCollectivePTable`` in its
plugin: 8 H100 or B200) has 27 to 50 us for gathers, reductions and exchanges of 1 kB to 1 MB, of which NCCL's model
explains 7 to 12; gpu_performance_model_base.h counts 5 us."""

HEADER_OVERHEAD = 0.025
PCIE_SHARE = 0.76  # what NCCL counts on of a PCIe 3 slot: 12 of 15.75 GB/s (src/graph/topo.h)
ONE_SHOT_LAUNCH_S = 1e-6
BARRIER_S = 1.5e-6


@dataclass(frozen=True, slots=True)
class _Protocol:
    """Latencies of a protocol in seconds: base, and for each hop over NVLink, PCIe and the network."""

    ring: tuple[float, float, float, float]
    tree: tuple[float, float, float, float]


_PROTOCOLS = {
    "LL": _Protocol((3.6e-6, 0.47e-6, 1.0e-6, 2.7e-6), (4.4e-6, 0.52e-6, 1.0e-6, 5.0e-6)),
    "LL128": _Protocol((10.0e-6, 1.9e-6, 2.5e-6, 4.0e-6), (4.4e-6, 1.2e-6, 1.9e-6, 8.5e-6)),
    "Simple": _Protocol((8.4e-6, 3.4e-6, 5.7e-6, 9.6e-6), (0.0, 28e-6, 28e-6, 50e-6)),
}
_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "collective-broadcast": 1}


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """The fastest way to run one collective.

    Attributes:
        seconds: With the launch of its kernel.
        algorithm: ``ring``, ``tree``, ``NVLS``, ``direct`` or ``one-shot``.
        protocol: NCCL's protocol; empty where it has none.
    """

    seconds: float
    algorithm: str
    protocol: str = ""


def collective_time(collective: Collective, network: Network, gpus_per_node: int) -> CollectiveTime:
    """Predicts one collective.

    Args:
        collective: What is asked for.
        network: Links of the target.
        gpus_per_node: GPUs of one machine of the topology.
    """
    if collective.group_size < 2 or collective.bytes == 0:
        return CollectiveTime(NCCL_LAUNCH_S, "none")
    link = _Links(collective, network, gpus_per_node)
    if collective.implementation == "kernel" and not link.crosses and link.has_nvlink:
        moved = (collective.group_size - 1) * collective.bytes / link.local_bytes_per_s
        return CollectiveTime(ONE_SHOT_LAUNCH_S + moved + BARRIER_S, "one-shot")
    if collective.kind in _ROUNDS:
        return min(_candidates(collective, network, link), key=lambda c: c.seconds)
    return _direct(collective, link)


class _Links:
    """What one GPU of a collective's group can send over."""

    def __init__(self, collective: Collective, network: Network, gpus_per_node: int) -> None:
        self.local_count = max(1, collective.group_size // collective.node_count)
        reach = max(network.nvlink_domain, 1)
        nodes_of_domain = max(1, reach // gpus_per_node)
        self.has_nvlink = network.nvlink_links > 0 and reach > 1
        # A group within one NVLink domain never uses the network, whatever machines it spreads over.
        self.crosses = collective.node_count > (nodes_of_domain if self.has_nvlink else 1)
        self.node_count = (
            math.ceil(collective.node_count / nodes_of_domain) if self.has_nvlink else collective.node_count
        )
        nvlink = network.nvlink_links * network.nvlink_bytes_per_s
        self.local_bytes_per_s = nvlink if self.has_nvlink else PCIE_SHARE * network.pcie_bytes_per_s
        self.nic_bytes_per_s = network.nic_bytes_per_s / (1 + HEADER_OVERHEAD)

    @property
    def ring_bytes_per_s(self) -> float:
        """Rate of a ring: the slower of the local links and all network cards of the group on one machine."""
        if not self.crosses:
            return self.local_bytes_per_s
        outside = self.nic_bytes_per_s * self.local_count
        return outside if self.local_count == 1 else min(self.local_bytes_per_s, outside)


def _candidates(collective: Collective, network: Network, link: _Links) -> Iterator[CollectiveTime]:
    """Every algorithm and protocol that NCCL could choose for a reduction or gather."""
    size, rounds = collective.group_size, _ROUNDS[collective.kind]
    steps = rounds * (size - 1)
    outside = rounds * (link.node_count - 1) if link.crosses else 0
    local = 1 if link.has_nvlink else 2
    for name, protocol in _PROTOCOLS.items():
        rate = link.ring_bytes_per_s * _ring_share(name, collective.kind, link)
        wait = protocol.ring[0] + (steps - outside) * protocol.ring[local] + outside * protocol.ring[3]
        seconds = wait + collective.bytes * steps / size / rate
        yield CollectiveTime(NCCL_LAUNCH_S + seconds, "ring", name)
        if collective.kind == "all-reduce":
            yield CollectiveTime(NCCL_LAUNCH_S + _tree(collective, link, name, protocol, local), "tree", name)
    if collective.kind == "all-reduce" and network.nvls_share and not link.crosses:
        # Each GPU sends its array once for the switch to reduce, and its share of the sum once more.
        moved = collective.bytes * (1 + 1 / size) / (network.nvls_share * link.local_bytes_per_s)
        yield CollectiveTime(NCCL_LAUNCH_S + _PROTOCOLS["Simple"].ring[0] + moved, "NVLS", "Simple")


def _ring_share(protocol: str, kind: str, link: _Links) -> float:
    """Share of a link that a protocol's own flags and fences leave to the data, on a ring."""
    if protocol == "LL":
        return 1 / 4 if link.crosses or kind == "all-reduce" else 1 / 3
    return 0.92 if protocol == "LL128" else 1.0


def _tree(collective: Collective, link: _Links, name: str, protocol: _Protocol, local: int) -> float:
    """Two passes over a tree of machines, chains inside each."""
    share = {"LL": 1 / 3.8, "LL128": 0.915 if link.crosses else 7 / 9, "Simple": 1.0}[name]
    rate = 0.9 * link.ring_bytes_per_s * share
    depth = math.log2(link.node_count) if link.crosses else 0
    inside = collective.group_size / max(link.node_count, 1) - 1
    wait = protocol.tree[0] + 2 * (inside * protocol.tree[local] + depth * protocol.tree[3])
    return wait + 2 * collective.bytes / rate


def _direct(collective: Collective, link: _Links) -> CollectiveTime:
    """All-to-all and permute: every GPU sends its pieces straight to their places."""
    size = collective.group_size
    is_permute = collective.kind in ("collective-permute", "send", "recv")
    share_out = (1.0 if is_permute else (size - link.local_count) / size) if link.crosses else 0.0
    share_in = (0.0 if link.crosses else 1.0) if is_permute else (link.local_count - 1) / size
    if not link.crosses and not is_permute:
        share_in = (size - 1) / size
    moved = max(
        share_out * collective.bytes / link.nic_bytes_per_s,
        share_in * collective.bytes / link.local_bytes_per_s,
    )
    simple = _PROTOCOLS["Simple"].ring
    hop = simple[3] if link.crosses else simple[1 if link.has_nvlink else 2]
    return CollectiveTime(NCCL_LAUNCH_S + simple[0] + hop + moved, "direct", "Simple")
