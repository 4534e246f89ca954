"""Predicts the step time of a compiled program: roofline, collectives, simulated streams.

It needs no GPU and ignores kernel quality, clocks, temperature and other traffic on the network.
Use it to rank programs and to see where time goes. Sources: `autotune/data/step_time.toml`. The
interval is of `autotune/data/published.json`, written by ``python -m benchmarks.published``
(`docs/predictions.md`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from autotune.compiler.hlo import Product
from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind, changes
from autotune.compiler.screen import Fields, Screener
from autotune.compiler.targets import Network, Target, Topology
from autotune.model.errors import StudyFileError
from autotune.model.files import packaged_table, packaged_text
from autotune.model.flags import FlagSet
from autotune.model.options import Options, options_in
from autotune.settings.catalog import Stage, Texts

FIGURES = packaged_table("step_time.toml")

# How predictions agree with published step times.
#
# ``interval`` is the 95 % interval of measured over predicted step time of a framework that was not
# compared, ``words`` says it. ``families`` and ``lengths`` (by ``attention``) were compared.
PUBLISHED: Fields = json.loads(packaged_text("published.json"))

MAIN = "compute"
LINK = "link to the host"
_EXACT_TRIPS = 3  # iterations of a loop; each further one takes as long as the last


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted time of a step: kernels on the compute stream, communication they wait for ..."""

    step_s: float
    compute_s: float
    communication_s: float  # with copies to and from the host, and what is overlapped
    exposed_s: float
    idle_s: float  # of the compute stream without a pending collective: launches
    mfu: float | None  # None if the workload does not give its FLOPs
    tokens_per_s: float | None
    unknown_loops: Texts  # counted once; the step may take far longer


def predict_step(program: CompiledProgram, target: Target, topology: Topology) -> Prediction:
    """Predicts the step time of a GPU program, which launches something (`read_program`)."""
    simulation = _Simulation(target, topology)
    simulation.run(program.schedule, MAIN)
    sums = simulation.sums
    busy_s = sums["compute"] + sums["exposed"]
    step_s = max([busy_s, *simulation.clock.values()])
    peak = target.flops_per_s["bf16"] * topology.device_count
    return Prediction(
        step_s=step_s,
        compute_s=sums["compute"],
        communication_s=sums["communication"],
        exposed_s=sums["exposed"],
        idle_s=step_s - sums["compute"] - sums["exposed"],
        mfu=(program.flops_per_step or 0) / (peak * step_s) or None,
        tokens_per_s=(program.tokens_per_step or 0) / step_s or None,
        unknown_loops=tuple(sorted(simulation.unknown_loops)),
    )


def kernel_time(op: Op, target: Target) -> float:
    """Returns a kernel's or copy's seconds: the slowest of matrix units, scalar units, memory.

    Except for matrix products XLA's own estimate counts if it is near the roofline: it knows
    repeated reads and thread counts of a fusion, but is absurd for some.
    """
    roofline_s: float = max(
        _matrix_time(op, target),
        op.flops / target.flops_per_s["scalar"],
        op.bytes / (target.device["memory_bandwidth"] * FIGURES["memory_share"]),
    )
    sane = FIGURES["sane"]
    if (
        op.xla_s is None
        or op.matrix_flops
        or not roofline_s / sane <= op.xla_s <= roofline_s * sane
    ):
        return roofline_s
    return op.xla_s


def _matrix_time(op: Op, target: Target) -> float:
    """Returns the seconds of a kernel's matrix products; 0 without any."""
    dtype = op.matrix_dtype or ""
    rate = "f8" if dtype.startswith("f8") else FIGURES["rates"].get(dtype, "bf16")
    reached = target.flops_per_s.get(rate, target.flops_per_s["scalar"])
    if not op.detail.startswith("__cudnn$fmha"):
        reached *= target.matrix_share
    elif "Backward" in op.detail:
        reached *= FIGURES["attention_backward_share"]
    else:
        reached *= FIGURES["attention_share"]
    if op.product is None:
        return op.matrix_flops / reached
    alone = product_time(op.product, reached, target.core_count)
    # Several in one kernel.
    return alone * op.matrix_flops / (2.0 * math.prod(op.product))


class _Simulation:
    """Simulates the issue of a schedule by the host, with a clock for every stream.

    `clock` holds the end of each, of the last collective (``moving``), the last copy on `LINK`.
    """

    def __init__(self, target: Target, topology: Topology) -> None:
        self._target = target
        self._gpus_per_node = topology.gpus_per_node
        self.clock = defaultdict[str, float](float)
        self._finished = defaultdict[int | None, float](float)
        self._in_graph = False
        self.sums = defaultdict[str, float](float)
        self.unknown_loops: set[str] = set()
        self._special = {
            OpKind.LOOP: self._loop,
            OpKind.GRAPH: self._graph,
            OpKind.START: self._start,
            OpKind.DONE: self._done,
        }

    def run(self, ops: Sequence[Op], stream: str) -> None:
        """Issues entries on a stream."""
        for op in ops:
            if op.kind in self._special:
                self._special[op.kind](op, stream)
            elif op.collective is not None:
                seconds = collective_time(op.collective, self._target.network, self._gpus_per_node)
                self._launch(stream, seconds, "exposed")
                self._wait("moving", self.clock[stream])
            elif op.host_bytes:
                self._copy(op.host_bytes, stream)
            elif op.kind in (OpKind.KERNEL, OpKind.COPY):
                self._launch(stream, kernel_time(op, self._target), "compute")
            else:
                self.run(op.content, stream)

    def _launch(self, stream: str, seconds: float, kind: str) -> None:
        """Runs a kernel, copy or collective; on `MAIN` it is ``compute`` or ``exposed``."""
        gap_s = FIGURES["graph_gap_s"]
        if not self._in_graph:
            gap_s = FIGURES["kernel_gap_s"]
            self.sums["host"] += FIGURES["host_launch_s"]
        begin_s = max(self.clock[stream] + gap_s, self.sums["host"])
        if kind == "compute":
            seconds = self._beside(begin_s, seconds)
        else:
            self.sums["communication"] += seconds
        self.clock[stream] = begin_s + seconds
        if stream == MAIN:  # nothing else runs there meanwhile
            self.sums[kind] += seconds

    def _copy(self, moved: float, stream: str) -> None:
        """Runs a copy to or from the host, one at a time."""
        network = self._target.network
        rate = network.host_bytes_per_s or FIGURES["pcie_share"] * network.pcie_bytes_per_s
        self._wait(stream, self.clock[LINK])
        self._launch(stream, moved / rate, "exposed")
        self.clock[LINK] = self.clock[stream]

    def _beside(self, begin_s: float, seconds: float) -> float:
        """Returns the seconds of a kernel that shares multiprocessors with running collectives."""
        link = "nvlink" if self._target.network.nvlink_links else "pcie"
        held: float = FIGURES[f"{link}_cores"]
        share = 1.0 - min(held / self._target.core_count, 0.5)
        moving_s = max(0.0, self.clock["moving"] - begin_s)
        return min(seconds / share, seconds + (1.0 - share) * moving_s)

    def _graph(self, op: Op, stream: str) -> None:
        """Runs a command buffer with one launch of the host."""
        is_outermost = not self._in_graph
        if is_outermost:
            self.sums["host"] += FIGURES["host_launch_s"]
            self._wait(stream, self.sums["host"])
        self._in_graph = True
        self.run(op.content, stream)
        self._in_graph = not is_outermost

    def _wait(self, stream: str, until_s: float) -> None:
        self.clock[stream] = max(self.clock[stream], until_s)

    def _start(self, op: Op, stream: str) -> None:
        """Runs the content on another stream, after all work issued on this one."""
        side_stream = op.stream or "stream"
        self._wait(side_stream, self.clock[stream])
        self.run(op.content, side_stream)
        self._finished[op.async_id] = self.clock[side_stream]

    def _done(self, op: Op, stream: str) -> None:
        wait_s = self._finished[op.async_id] - self.clock[stream]
        if op.async_id is not None and wait_s > 0:
            self.clock[stream] = self._finished[op.async_id]
            if stream == MAIN:
                self.sums["exposed"] += wait_s

    def _loop(self, op: Op, stream: str) -> None:
        """Simulates some iterations and extrapolates the rest from the last one."""
        trips = op.trip_count
        if trips is None:
            self.unknown_loops.add(op.name)
            trips = 1
        for _ in range(min(trips, _EXACT_TRIPS)):
            before = [(seconds, seconds.copy()) for seconds in (self.clock, self.sums)]
            self.run((*op.condition, *op.content), stream)
        if trips > _EXACT_TRIPS:
            for seconds, earlier in before:
                for name, value in seconds.items():
                    seconds[name] = value + (value - earlier[name]) * (trips - _EXACT_TRIPS)


def collective_time(collective: Collective, network: Network, gpus_per_node: int) -> float:
    """Returns a collective's seconds with its launch, by the fastest algorithm and protocol."""
    seconds: float = FIGURES["nccl_launch_s"]
    if collective.group_size > 1 and collective.bytes > 0:
        link = _Links(collective, network, gpus_per_node)
        seconds += min(_candidates(collective, network, link))
    return seconds


class _Links:
    """Links that one GPU of a collective's group can use; `hop` is their place among latencies.

    It reaches `near_count` GPUs without the network, itself included. `ring_bytes_per_s` is the
    slower of the local links and the group's network cards on a machine.
    """

    def __init__(self, collective: Collective, network: Network, gpus_per_node: int) -> None:
        self.near_count = collective.group_size
        self.nic_bytes_per_s: float = network.nic_bytes_per_s / (1 + FIGURES["header_overhead"])
        # A group within one NVLink domain never uses the network, however many machines it spans.
        self.domain_count = math.ceil(collective.node_count / network.joined_nodes(gpus_per_node))
        self.crosses = self.domain_count > 1
        if network.nvlink_links > 0 and network.nvlink_domain > 1:
            self.hop = 1
            self.local_bytes_per_s: float = network.nvlink_links * network.nvlink_bytes_per_s
        else:
            self.hop = 2
            self.local_bytes_per_s = FIGURES["pcie_share"] * network.pcie_bytes_per_s
        self.ring_bytes_per_s = self.local_bytes_per_s
        if self.crosses:
            self.near_count = max(1, collective.group_size // collective.node_count)
            cards_bytes_per_s = self.nic_bytes_per_s * self.near_count
            if self.near_count == 1 or cards_bytes_per_s < self.ring_bytes_per_s:
                self.ring_bytes_per_s = cards_bytes_per_s


def _candidates(collective: Collective, network: Network, link: _Links) -> Iterator[float]:
    """Yields the seconds by each way that NCCL may take, without the launch."""
    if collective.kind not in FIGURES["rounds"]:
        yield _direct(collective, link)
        return
    size = collective.group_size
    rounds = FIGURES["rounds"][collective.kind]
    steps = rounds * (size - 1)
    outside = rounds * (link.domain_count - 1)
    is_all_reduce = collective.kind == "all-reduce"
    # What a protocol's flags and fences leave of a ring's and a tree's rate to the data.
    ring_shares = {"LL": 1 / 3, "LL128": 0.92, "Simple": 1.0}
    tree_shares = {"LL": 1 / 3.8, "LL128": 7 / 9, "Simple": 1.0}
    if link.crosses or is_all_reduce:
        ring_shares["LL"] = 1 / 4
    if link.crosses:
        tree_shares["LL128"] = 0.915
    for name, protocol in FIGURES["protocols"].items():
        ring = protocol["ring"]
        yield (
            ring[0]
            + (steps - outside) * ring[link.hop]
            + outside * ring[3]
            + collective.bytes * steps / size / (link.ring_bytes_per_s * ring_shares[name])
        )
        if is_all_reduce:  # a tree over machines with chains inside each
            tree = protocol["tree"]
            inside = size / link.domain_count - 1
            hops_s = inside * tree[link.hop] + math.log2(link.domain_count) * tree[3]
            rate = 0.9 * link.ring_bytes_per_s * tree_shares[name]
            yield tree[0] + 2 * hops_s + 2 * collective.bytes / rate
    if is_all_reduce and network.nvls_share and not link.crosses:
        # Each GPU sends its array to the switch, which reduces, and its share of the sum once more.
        moved = collective.bytes * (1 + 1 / size) / (network.nvls_share * link.local_bytes_per_s)
        yield FIGURES["protocols"]["Simple"]["ring"][0] + moved


def _direct(collective: Collective, link: _Links) -> float:
    """Returns the seconds of an all-to-all or permute: each GPU sends directly to the others."""
    size = collective.group_size
    share_out = (size - link.near_count) / size
    share_in = (link.near_count - 1) / size
    if collective.kind in ("collective-permute", "send", "recv"):
        share_out = float(link.crosses)
        share_in = 1.0 - share_out
    moved_s = collective.bytes * max(
        share_out / link.nic_bytes_per_s, share_in / link.local_bytes_per_s
    )
    simple = FIGURES["protocols"]["Simple"]["ring"]
    return float(simple[0] + simple[3 if link.crosses else link.hop] + moved_s)


def product_time(product: Product, flops_per_s: float, core_count: int) -> float:
    """Returns a matrix product's seconds without the launch; `flops_per_s` is of a large tile."""
    batch, rows, columns, depth = product
    of_core = flops_per_s / core_count
    seconds: list[float] = []
    for high, wide, share in FIGURES["tiles"]:
        tiles = batch * math.ceil(rows / high) * math.ceil(columns / wide)
        tile_s = 2.0 * high * wide * depth / (of_core * share) + FIGURES["wave_s"]
        seconds.append(math.ceil(tiles / core_count) * tile_s)
    return min(seconds)


def why_no_interval(entry: str, options: Options) -> str | None:
    """Returns what of a workload was not compared with published step times; None if all was."""
    attention = str(options.get("attention", ""))
    if ":" in entry:
        return "a program of your own"
    if options.get("dtype") == "float8":
        return "float8"
    if options.get("offload", "none") != "none" or "offload" in str(options.get("remat")):
        return "copying to the host"
    if entry.split("-")[0] not in PUBLISHED["families"]:
        return f"a model like {entry}"
    lengths = PUBLISHED["lengths"].get(attention, [])
    if (attention and options.get("seq") not in lengths) or options.get("seq", 0) > max(
        lengths, default=0
    ):
        return f"attention {attention or 'by default'} at this length"
    return None


def predict_set(screener: Screener, settings: FlagSet) -> Fields:
    """Predicts one set as plain data; StudyFileError on the CPU.

    A set that compiles has the fingerprint of its `program`, `changes` in it and `not_modelled`
    (settings that act at run time). The default and sets of options alone have a step time too,
    with its interval: no gain of a flag is predicted (`docs/predictions.md`).
    """
    job = screener.job
    if job.target is None:
        raise StudyFileError(
            "times are predicted for GPUs only: add --target, such as --target h100-sxm"
        )
    row: Fields = {
        "settings": dict(settings),
        "target": job.target.name,
        "topology": str(job.topology),
    }
    result = screener.result(settings)
    if result.program is None:
        return {**row, "failure": result.failure.message if result.failure else ""}
    reference = screener.result(FlagSet()).program
    flags = settings.without(*settings.of_kind("option"))
    row |= {
        "program": result.program.fingerprint,
        "changes": changes(reference, result.program) if reference is not None else [],
        "not_modelled": [n for n in flags if screener.stage(n) is not Stage.PROGRAM],
    }
    if not flags:
        prediction = predict_step(result.program, job.target, job.topology)
        why_not = why_no_interval(job.entry, {**job.options, **options_in(settings)})
        interval_s = None
        if why_not is None:
            interval_s = [prediction.step_s * end for end in PUBLISHED["interval"]]
        row |= {"predicted": True, **asdict(prediction)}
        row |= {"no_interval": why_not, "interval_s": interval_s}
    return row
