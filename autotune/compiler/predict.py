"""Predicts the step time of a compiled program without its GPUs: roofline, collectives, simulated streams.

A prediction ignores kernel quality, clocks and temperature, and other traffic on the network. Use it to rank programs
and to see where time goes.

Sources:
    Roofline: Williams, Waterman, Patterson, doi:10.1145/1498765.1498785.
    Kernels: xla/service/gpu/model/gpu_performance_model.cc, as XLA writes it into `reification_cost`.
    Matrix products: XLA's measured ``kDefaultMatmulPTable`` (xla/service/gpu/model/matmul_interpolator_data.h).
        `_TILES` and `WAVE_S` were fitted to its bf16 products of 256 to 4096 on a side on H100 and B200; above 10 GFLOP
        the error is 3.5 and 3.7 % (root mean square of the log ratio). Its float8 figures exceed peaks.
    Launches: developer.nvidia.com/blog/cuda-graphs: gaps of 0.9 us between kernels of a stream, 0.5 us inside a graph.
    Streams: xla/backends/gpu/runtime: a start waits for earlier work of its stream; the stream waits for a done.
    Overlap: each of NCCL's channels holds a multiprocessor (github.com/NVIDIA/nccl issues 689 and 1656): 16 with
        NVLink (kMaxNumChannelsRing in xla/service/gpu/model), 2 over PCIe (NCCL's log of such machines).
    Collectives: NCCL's own tuning model, src/graph/tuning.cc (v2.10): latencies and bandwidth factors of ring and tree,
        LL, LL128 and Simple; the fastest algorithm and protocol counts.
    NVLS: XLA's measured table, see `NCCL_LAUNCH_S`: all-reduces of 1 and 2 GB on 8 GPUs. NCCL assumes more
        (src/graph/tuning.cc v2.19 on: 85 % of the links with NVLink SHARP on Hopper).
    Networks: xla/service/gpu/model/sol_gpu_cost_model.cc (header overhead, one-shot kernels, barrier).
    Interval: ``autotune/data/published.json``, written by ``python -m benchmarks.published`` (`docs/predictions.md`).
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind, changes
from autotune.compiler.screen import Screener
from autotune.compiler.targets import Network, Target, Topology
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.flags import FlagSet

MAIN = "compute"
_EXACT_TRIPS = 3
"""Simulated iterations of a loop; each further one takes as long as the last of them."""

NVLINK_CORES, PCIE_CORES = 16, 2
"""Multiprocessors that a collective occupies: one for each of NCCL's channels."""

ATTENTION_SHARE, ATTENTION_BACKWARD_SHARE = 0.57, 0.45
"""Share of the matrix units' peak that cuDNN's attention reaches. FlashAttention-3 (arXiv:2407.08608, figures 5 and
6) has 0.5 to 0.6 forward and 0.4 to 0.5 backward, for heads of 128 under a causal mask on H100."""

MEMORY_SHARE = 0.90
"""Share of the memory bandwidth: BabelStream reaches 0.9 to 0.93 on A100 and H100 (github.com/UoB-HPC/BabelStream)."""

KERNEL_GAP_S, GRAPH_GAP_S = 0.9e-6, 0.5e-6
"""Gaps between kernels of a stream, and of a command buffer."""

HOST_LAUNCH_S = 2.5e-6
"""Host time of one launch; a graph is one launch."""

SANE = 4.0
"""Largest factor between the roofline and XLA's estimate of a kernel at which XLA's is used."""

_RATES = {"f32": "tf32", "bf16": "bf16", "f16": "f16", "f64": "f64", "s8": "f8", "u8": "f8"}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted time of a step."""

    step_s: float
    compute_s: float
    """Kernels on the compute stream."""
    communication_s: float
    """All collectives, overlapped ones included."""
    exposed_s: float
    """Communication that computing waits for."""
    idle_s: float
    """Idle time of the compute stream without a pending collective: launches."""
    mfu: float | None
    """Model FLOPs over the peak of the matrix units; None if the workload does not give its FLOPs."""
    tokens_per_s: float | None
    unknown_loops: tuple[str, ...]
    """Loops of unknown length, counted once; the step may take far longer."""


def predict_step(program: CompiledProgram, target: Target, topology: Topology) -> Prediction:
    """Predicts the step time of a program.

    Raises:
        LaunchError: If the step takes no time: its program is empty or could not be read.
    """
    simulation = _Simulation(target, topology)
    simulation.run(program.schedule, MAIN)
    done = simulation.totals
    compute_s, exposed_s = done["compute"], done["exposed"]
    idle_s = max(0.0, simulation.end_s - compute_s - exposed_s)
    step_s = compute_s + exposed_s + idle_s
    if step_s <= 0:
        raise LaunchError(
            f"a predicted step must take some time but program {program.fingerprint} launches nothing; delete the "
            "folder `screen` of the user's cache, and compile it again"
        )
    peak = target.flops_per_s["bf16"] * topology.device_count
    flops, tokens = program.flops_per_step, program.tokens_per_step
    return Prediction(
        step_s=step_s,
        compute_s=compute_s,
        communication_s=done["communication"],
        exposed_s=exposed_s,
        idle_s=idle_s,
        mfu=flops / (peak * step_s) if flops else None,
        tokens_per_s=tokens / step_s if tokens else None,
        unknown_loops=tuple(sorted(simulation.unknown_loops)),
    )


def kernel_time(op: Op, target: Target) -> float:
    """Seconds of one kernel or copy: the slowest of matrix units, scalar units and memory.

    For kernels other than matrix products XLA's own estimate counts if it is near the roofline: it knows repeated reads
    and thread counts of a fusion, but is absurd for some, and of a product it takes a tiling that nobody chose.
    """
    rates, matrix_s = target.flops_per_s, _matrix_time(op, target)
    other_s = max(op.flops / rates["scalar"], op.bytes / (target.memory_bytes_per_s * MEMORY_SHARE))
    if matrix_s:
        return max(matrix_s, other_s)
    is_sane = op.xla_s is not None and other_s / SANE <= op.xla_s <= other_s * SANE
    return op.xla_s if is_sane and op.xla_s is not None else other_s


def _matrix_time(op: Op, target: Target) -> float:
    """Seconds of a kernel's matrix products; 0 without any."""
    kind, rates = op.matrix_dtype or "", target.flops_per_s
    name = "f8" if kind.startswith("f8") else _RATES.get(kind, "bf16")
    peak = rates.get(name, rates["scalar"])
    if op.detail.startswith("__cudnn$fmha"):
        share = ATTENTION_BACKWARD_SHARE if "Backward" in op.detail else ATTENTION_SHARE
        return op.matrix_flops / (peak * share)
    reached = peak * target.matrix_share
    if op.product is None:
        return op.matrix_flops / reached
    alone = product_time(op.product, reached, target.core_count)
    return alone * op.matrix_flops / (2.0 * math.prod(op.product))  # several in one kernel


class _Simulation:
    """Simulates the issue of a schedule by the host, with a clock for every stream."""

    def __init__(self, target: Target, topology: Topology) -> None:
        self._target = target
        self._gpus_per_node = topology.gpus_per_node
        self._host = 0.0
        self._clock: dict[str, float] = {MAIN: 0.0}
        self._moving_until = 0.0
        self._finished: dict[int, float] = {}
        self._in_graph = False
        self.totals = {"compute": 0.0, "communication": 0.0, "exposed": 0.0}
        self.unknown_loops: set[str] = set()

    @property
    def end_s(self) -> float:
        """End of the last stream."""
        return max(self._clock.values())

    def run(self, ops: Sequence[Op], stream: str) -> None:
        """Issues entries on a stream."""
        for op in ops:
            if op.kind is OpKind.LOOP:
                self._loop(op, stream)
            elif op.kind is OpKind.GRAPH:
                self._graph(op, stream)
            elif op.kind is OpKind.START:
                self._start(op, stream)
            elif op.kind is OpKind.DONE:
                self._done(op, stream)
            elif op.kind is OpKind.BRANCH:
                self._branch(op, stream)
            elif op.collective is not None:
                seconds = collective_time(op.collective, self._target.network, self._gpus_per_node)
                self._launch(op, stream, seconds, "communication")
            elif op.kind in (OpKind.KERNEL, OpKind.COPY):
                self._launch(op, stream, kernel_time(op, self._target), "compute")
            else:
                self.run(op.content, stream)

    def _launch(self, op: Op, stream: str, seconds: float, kind: str) -> None:
        gap = GRAPH_GAP_S if self._in_graph else KERNEL_GAP_S
        if not self._in_graph:
            self._host += HOST_LAUNCH_S
        begin = max(self._clock.get(stream, 0.0) + gap, self._host)
        if kind == "compute":
            seconds = self._beside(begin, seconds)
        else:
            self._moving_until = max(self._moving_until, begin + seconds)
            self.totals["communication"] += seconds
        self._clock[stream] = begin + seconds
        if stream == MAIN:  # nothing else runs there meanwhile
            self.totals["compute" if kind == "compute" else "exposed"] += seconds

    def _beside(self, begin: float, seconds: float) -> float:
        """Seconds of a kernel that shares multiprocessors with running collectives."""
        held = NVLINK_CORES if self._target.network.nvlink_links else PCIE_CORES
        left = 1.0 - min(held / self._target.core_count, 0.5)
        moving = max(0.0, self._moving_until - begin)
        return min(seconds / left, seconds + (1.0 - left) * moving)

    def _graph(self, op: Op, stream: str) -> None:
        """Runs a command buffer with one launch of the host."""
        if not self._in_graph:
            self._host += HOST_LAUNCH_S
            self._clock[stream] = max(self._clock.get(stream, 0.0), self._host)
        outer, self._in_graph = self._in_graph, True
        self.run(op.content, stream)
        self._in_graph = outer

    def _start(self, op: Op, stream: str) -> None:
        """Runs the content on another stream, after all work issued on this one."""
        other = op.stream or "stream"
        self._clock[other] = max(self._clock.get(other, 0.0), self._clock.get(stream, 0.0))
        self.run(op.content, other)
        if op.async_id is not None:
            self._finished[op.async_id] = self._clock[other]

    def _done(self, op: Op, stream: str) -> None:
        ready = self._finished.get(op.async_id, 0.0) if op.async_id is not None else 0.0
        now = self._clock.get(stream, 0.0)
        if ready > now:
            self._clock[stream] = ready
            if stream == MAIN:
                self.totals["exposed"] += ready - now

    def _branch(self, op: Op, stream: str) -> None:
        """Runs the longest branch, because the taken one is unknown."""
        longest = max(op.content, key=lambda b: _rough(b, self._target), default=None)
        if longest is not None:
            self.run(longest.content, stream)

    def _loop(self, op: Op, stream: str) -> None:
        """Simulates some iterations and extrapolates the rest from the last one."""
        if op.trip_count is None:
            self.unknown_loops.add(op.name)
        trips = 1 if op.trip_count is None else op.trip_count
        before, sums = self._state(), dict(self.totals)
        for _ in range(min(trips, _EXACT_TRIPS)):
            before, sums = self._state(), dict(self.totals)
            self.run(op.condition, stream)
            self.run(op.content, stream)
        left = trips - _EXACT_TRIPS
        if left <= 0:
            return
        one = self._clock.get(stream, 0.0) - before["stream:" + stream]
        self._host += (self._host - before["host"]) * left
        for name, clock in list(self._clock.items()):
            if clock > before.get("stream:" + name, 0.0):  # a stream that the loop uses
                self._clock[name] = clock + one * left
        if self._moving_until > before["moving"]:
            self._moving_until += one * left
        for name, value in self.totals.items():
            self.totals[name] = value + (value - sums[name]) * left

    def _state(self) -> Mapping[str, float]:
        return {"host": self._host, "moving": self._moving_until, **{"stream:" + n: c for n, c in self._clock.items()}}


def _rough(op: Op, target: Target) -> float:
    """Kernel seconds of an entry and its content, for comparing branches."""
    own = kernel_time(op, target)
    return own + sum(_rough(inner, target) * (op.trip_count or 1) for inner in (*op.content, *op.condition))


NCCL_LAUNCH_S = 23e-6
"""Launch of NCCL's kernel and synchronization of all ranks. XLA's own measured table (``kDefaultCollectivePTable`` in
its plugin: 8 H100 or B200) has 27 to 50 us for gathers, reductions and exchanges of 1 kB to 1 MB, of which NCCL's model
explains 7 to 12; gpu_performance_model_base.h counts 5 us."""

HEADER_OVERHEAD = 0.025
PCIE_SHARE = 0.76  # NCCL assumes 12 of 15.75 GB/s of a PCIe 3 slot (src/graph/topo.h)
ONE_SHOT_LAUNCH_S = 1e-6
BARRIER_S = 1.5e-6


class _Protocol(NamedTuple):
    """Latencies of a protocol in seconds: base, and of a hop over NVLink, PCIe and the network."""

    ring: tuple[float, float, float, float]
    tree: tuple[float, float, float, float]


_PROTOCOLS = {
    "LL": _Protocol((3.6e-6, 0.47e-6, 1.0e-6, 2.7e-6), (4.4e-6, 0.52e-6, 1.0e-6, 5.0e-6)),
    "LL128": _Protocol((10.0e-6, 1.9e-6, 2.5e-6, 4.0e-6), (4.4e-6, 1.2e-6, 1.9e-6, 8.5e-6)),
    "Simple": _Protocol((8.4e-6, 3.4e-6, 5.7e-6, 9.6e-6), (0.0, 28e-6, 28e-6, 50e-6)),
}
_ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "collective-broadcast": 1}


def collective_time(collective: Collective, network: Network, gpus_per_node: int) -> float:
    """Seconds of one collective with its launch, by the fastest algorithm and protocol."""
    if collective.group_size < 2 or collective.bytes == 0:
        return NCCL_LAUNCH_S
    link = _Links(collective, network, gpus_per_node)
    if collective.implementation == "kernel" and not link.crosses and link.has_nvlink:
        moved = (collective.group_size - 1) * collective.bytes / link.local_bytes_per_s
        return ONE_SHOT_LAUNCH_S + moved + BARRIER_S
    if collective.kind in _ROUNDS:
        return NCCL_LAUNCH_S + min(_candidates(collective, network, link))
    return NCCL_LAUNCH_S + _direct(collective, link)


class _Links:
    """Links that one GPU of a collective's group can use."""

    def __init__(self, collective: Collective, network: Network, gpus_per_node: int) -> None:
        self.local_count = max(1, collective.group_size // collective.node_count)
        reach = max(network.nvlink_domain, 1)
        nodes_of_domain = max(1, reach // gpus_per_node)
        self.has_nvlink = network.nvlink_links > 0 and reach > 1
        # A group within one NVLink domain never uses the network, whatever machines it spreads over.
        self.crosses = collective.node_count > (nodes_of_domain if self.has_nvlink else 1)
        self.node_count = math.ceil(collective.node_count / (nodes_of_domain if self.has_nvlink else 1))
        nvlink = network.nvlink_links * network.nvlink_bytes_per_s
        self.local_bytes_per_s = nvlink if self.has_nvlink else PCIE_SHARE * network.pcie_bytes_per_s
        self.nic_bytes_per_s = network.nic_bytes_per_s / (1 + HEADER_OVERHEAD)

    @property
    def ring_bytes_per_s(self) -> float:
        """Rate of a ring: the slower of the local links and the group's network cards on one machine."""
        if not self.crosses:
            return self.local_bytes_per_s
        outside = self.nic_bytes_per_s * self.local_count
        return outside if self.local_count == 1 else min(self.local_bytes_per_s, outside)


def _candidates(collective: Collective, network: Network, link: _Links) -> Iterator[float]:
    """Seconds of a reduction or gather by each algorithm and protocol of NCCL, without the launch."""
    size, rounds = collective.group_size, _ROUNDS[collective.kind]
    steps = rounds * (size - 1)
    outside = rounds * (link.node_count - 1) if link.crosses else 0
    local = 1 if link.has_nvlink else 2
    for name, protocol in _PROTOCOLS.items():
        rate = link.ring_bytes_per_s * _ring_share(name, collective.kind, link)
        wait = protocol.ring[0] + (steps - outside) * protocol.ring[local] + outside * protocol.ring[3]
        yield wait + collective.bytes * steps / size / rate
        if collective.kind == "all-reduce":
            yield _tree(collective, link, name, protocol, local)
    if collective.kind == "all-reduce" and network.nvls_share and not link.crosses:
        # Each GPU sends its array once for the switch to reduce, and its share of the sum once more.
        moved = collective.bytes * (1 + 1 / size) / (network.nvls_share * link.local_bytes_per_s)
        yield _PROTOCOLS["Simple"].ring[0] + moved


def _ring_share(protocol: str, kind: str, link: _Links) -> float:
    """Share of a ring's rate that a protocol's flags and fences leave to the data."""
    if protocol == "LL":
        return 1 / 4 if link.crosses or kind == "all-reduce" else 1 / 3
    return 0.92 if protocol == "LL128" else 1.0


def _tree(collective: Collective, link: _Links, name: str, protocol: _Protocol, local: int) -> float:
    """Seconds of an all-reduce by a tree over machines with chains inside each."""
    share = {"LL": 1 / 3.8, "LL128": 0.915 if link.crosses else 7 / 9, "Simple": 1.0}[name]
    rate = 0.9 * link.ring_bytes_per_s * share
    depth = math.log2(link.node_count) if link.crosses else 0
    inside = collective.group_size / max(link.node_count, 1) - 1
    wait = protocol.tree[0] + 2 * (inside * protocol.tree[local] + depth * protocol.tree[3])
    return wait + 2 * collective.bytes / rate


def _direct(collective: Collective, link: _Links) -> float:
    """Seconds of an all-to-all or permute, where each GPU sends directly to the others."""
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
    return simple[0] + hop + moved


_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 1.0), (64, 128, 0.5), (128, 64, 0.5), (64, 64, 0.25))
"""Rows and columns of a core's tile, and its share of the rate of large tiles."""

WAVE_S = 1.35e-6
"""Fill and drain of a core's pipeline, once a tile."""


def product_time(product: tuple[int, int, int, int], flops_per_s: float, core_count: int) -> float:
    """Seconds of a matrix product on an idle GPU that has `flops_per_s` inside a large tile, without the launch."""
    batch, rows, columns, depth = product
    of_core = flops_per_s / core_count
    return min(
        math.ceil(batch * math.ceil(rows / high) * math.ceil(columns / wide) / core_count)
        * (2.0 * high * wide * depth / (of_core * share) + WAVE_S)
        for high, wide, share in _TILES
    )


@functools.cache
def published() -> dict[str, Any]:
    """Loads how predictions agree with published step times.

    Returns:
        ``interval``: 95 % interval of measured over predicted step time of a framework that was not compared;
        ``words``: the agreement as a clause; ``families`` of models and ``lengths`` of sequences (by the option
        ``attention``, empty for the default) that were compared.
    """
    resource = importlib.resources.files("autotune") / "data" / "published.json"
    found: dict[str, Any] = json.loads(resource.read_text(encoding="utf-8"))
    return found


def why_no_interval(entry: str, options: Mapping[str, Any]) -> str | None:
    """Returns what was not compared with published step times, so that a prediction has no interval; else None."""
    known, attention = published(), str(options.get("attention", ""))
    if ":" in entry:
        return "a program of your own"
    if options.get("dtype") == "float8":
        return "float8"
    if entry.split("-")[0] not in known["families"]:
        return f"a model like {entry}"
    lengths = known["lengths"].get(attention, [])
    if (attention and options.get("seq") not in lengths) or options.get("seq", 0) > max(lengths, default=0):
        return f"attention {attention or 'by default'} at this length"
    return None


def predict_set(screener: Screener, settings: FlagSet) -> dict[str, Any]:
    """Predicts one set, as plain data with a `failure` if it does not compile.

    Raises:
        StudyFileError: If the screener compiles for the CPU.
    """
    target, topology = screener.job.target, screener.job.topology
    if target is None:
        raise StudyFileError("times are predicted for GPUs only: add --target, such as --target h100-sxm")
    row: dict[str, Any] = {"settings": dict(settings), "target": target.name, "topology": str(topology)}
    result = screener.result(settings)
    if result.program is None:
        return {**row, "failure": result.failure.message if result.failure else ""}
    found = predict_step(result.program, target, topology)
    why = why_no_interval(screener.job.entry, screener.job.options)
    interval = None if why is not None else [found.step_s * end for end in published()["interval"]]
    reference = screener.result(FlagSet()).program
    changed = list(changes(reference, result.program)) if reference is not None else []
    known = {"interval_s": interval, "no_interval": why, "published": published()["words"], "changes": changed}
    return {**row, "predicted": True, **asdict(found), **known}
