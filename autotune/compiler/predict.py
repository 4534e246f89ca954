"""Predicts the step time of a compiled program without its GPUs: roofline, collectives, simulated
streams.

A prediction ignores kernel quality, clocks and temperature, and other traffic on the network. Use
it to rank programs and to see where time goes. Sources: `autotune/data/step_time.toml`. The
interval is of `autotune/data/published.json`, written by ``python -m benchmarks.published``
(`docs/predictions.md`).
"""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind, changes
from autotune.compiler.screen import Screener
from autotune.compiler.targets import Network, Target, Topology
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.files import packaged_table
from autotune.model.flags import FlagSet
from autotune.model.options import options_in
from autotune.settings.catalog import DATA, Stage

FIGURES = packaged_table("step_time.toml")
"""Figures of the model; the file says what each one is."""

MAIN = "compute"
LINK = "link to the host"
_EXACT_TRIPS = 3
"""Simulated iterations of a loop; each further one takes as long as the last of them."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted time of a step."""

    step_s: float
    compute_s: float
    """Kernels on the compute stream."""
    communication_s: float
    """All collectives and copies to and from the host, overlapped ones included."""
    exposed_s: float
    """Communication that computing waits for."""
    idle_s: float
    """Idle time of the compute stream without a pending collective: launches."""
    mfu: float | None
    """Model FLOPs over the peak of the matrix units; None if the workload does not give its
    FLOPs.
    """
    tokens_per_s: float | None
    unknown_loops: tuple[str, ...]
    """Loops of unknown length, counted once; the step may take far longer."""


def predict_step(program: CompiledProgram, target: Target, topology: Topology) -> Prediction:
    """Predicts the step time of a program; LaunchError if that is 0: the program is empty or could
    not be read.
    """
    simulation = _Simulation(target, topology)
    simulation.run(program.schedule, MAIN)
    compute_s = simulation.sums["compute"]
    exposed_s = simulation.sums["exposed"]
    step_s = max(simulation.end_s, compute_s + exposed_s)
    if step_s <= 0:
        raise LaunchError(
            f"a predicted step must take some time but program {program.fingerprint} launches "
            "nothing; delete the "
            "folder `screen` of the user's cache, and compile it again"
        )
    peak = target.flops_per_s["bf16"] * topology.device_count
    return Prediction(
        step_s=step_s,
        compute_s=compute_s,
        communication_s=simulation.sums["communication"],
        exposed_s=exposed_s,
        idle_s=step_s - compute_s - exposed_s,
        mfu=program.flops_per_step / (peak * step_s) if program.flops_per_step else None,
        tokens_per_s=program.tokens_per_step / step_s if program.tokens_per_step else None,
        unknown_loops=tuple(sorted(simulation.unknown_loops)),
    )


def kernel_time(op: Op, target: Target) -> float:
    """Returns the seconds of one kernel or copy: the slowest of matrix units, scalar units and
    memory.

    For kernels other than matrix products XLA's own estimate counts if it is near the roofline: it
    knows repeated reads and thread counts of a fusion, but is absurd for some, and of a product it
    takes a tiling that nobody chose.
    """
    memory_s = op.bytes / (target.memory_bytes_per_s * FIGURES["memory_share"])
    roofline_s: float = max(
        _matrix_time(op, target), op.flops / target.flops_per_s["scalar"], memory_s
    )
    sane = FIGURES["sane"]
    if (
        op.matrix_flops
        or op.xla_s is None
        or not roofline_s / sane <= op.xla_s <= roofline_s * sane
    ):
        return roofline_s
    return op.xla_s


def _matrix_time(op: Op, target: Target) -> float:
    """Returns the seconds of a kernel's matrix products; 0 without any."""
    dtype = op.matrix_dtype or ""
    rate = "f8" if dtype.startswith("f8") else FIGURES["rates"].get(dtype, "bf16")
    peak = target.flops_per_s.get(rate, target.flops_per_s["scalar"])
    share = target.matrix_share
    if op.detail.startswith("__cudnn$fmha"):
        share = FIGURES[
            "attention_backward_share" if "Backward" in op.detail else "attention_share"
        ]
    reached = peak * share
    if op.product is None:
        return op.matrix_flops / reached
    alone = product_time(op.product, reached, target.core_count)
    return alone * op.matrix_flops / (2.0 * math.prod(op.product))  # several in one kernel


class _Simulation:
    """Simulates the issue of a schedule by the host, with a clock for every stream."""

    def __init__(self, target: Target, topology: Topology) -> None:
        self._target = target
        self._gpus_per_node = topology.gpus_per_node
        self._clock = defaultdict[str, float](float)
        """When each stream, the last collective (``moving``) and the last copy on `LINK` end."""
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

    @property
    def end_s(self) -> float:
        """End of the last stream."""
        return max(self._clock.values(), default=0.0)

    def run(self, ops: Sequence[Op], stream: str) -> None:
        """Issues entries on a stream."""
        for op in ops:
            if op.kind in self._special:
                self._special[op.kind](op, stream)
            elif op.collective is not None:
                seconds = collective_time(op.collective, self._target.network, self._gpus_per_node)
                self._launch(stream, seconds, "communication")
                self._wait("moving", self._clock[stream])
            elif op.host_bytes:
                self._copy(op.host_bytes, stream)
            elif op.kind in (OpKind.KERNEL, OpKind.COPY):
                self._launch(stream, kernel_time(op, self._target), "compute")
            else:
                self.run(op.content, stream)

    def _launch(self, stream: str, seconds: float, kind: str) -> None:
        if not self._in_graph:
            self.sums["host"] += FIGURES["host_launch_s"]
        gap = FIGURES["graph_gap_s" if self._in_graph else "kernel_gap_s"]
        begin = max(self._clock[stream] + gap, self.sums["host"])
        if kind == "compute":
            seconds = self._beside(begin, seconds)
        else:
            self.sums["communication"] += seconds
        self._clock[stream] = begin + seconds
        if stream == MAIN:  # nothing else runs there meanwhile
            self.sums["compute" if kind == "compute" else "exposed"] += seconds

    def _copy(self, moved: float, stream: str) -> None:
        """Runs a copy to or from the host, one at a time."""
        network = self._target.network
        rate = network.host_bytes_per_s or FIGURES["pcie_share"] * network.pcie_bytes_per_s
        self._wait(stream, self._clock[LINK])
        self._launch(stream, moved / rate, "communication")
        self._clock[LINK] = self._clock[stream]

    def _beside(self, begin: float, seconds: float) -> float:
        """Returns the seconds of a kernel that shares multiprocessors with running collectives."""
        held: float = FIGURES["nvlink_cores" if self._target.network.nvlink_links else "pcie_cores"]
        share = 1.0 - min(held / self._target.core_count, 0.5)
        moving = max(0.0, self._clock["moving"] - begin)
        return min(seconds / share, seconds + (1.0 - share) * moving)

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
        self._clock[stream] = max(self._clock[stream], until_s)

    def _start(self, op: Op, stream: str) -> None:
        """Runs the content on another stream, after all work issued on this one."""
        other = op.stream or "stream"
        self._wait(other, self._clock[stream])
        self.run(op.content, other)
        self._finished[op.async_id] = self._clock[other]

    def _done(self, op: Op, stream: str) -> None:
        waits = self._finished[op.async_id] - self._clock[stream]
        if op.async_id is not None and waits > 0:
            self._wait(stream, self._finished[op.async_id])
            if stream == MAIN:
                self.sums["exposed"] += waits

    def _loop(self, op: Op, stream: str) -> None:
        """Simulates some iterations and extrapolates the rest from the last one."""
        trips = op.trip_count
        if trips is None:
            self.unknown_loops.add(op.name)
            trips = 1
        for _ in range(min(trips, _EXACT_TRIPS)):
            before = [(seconds, seconds.copy()) for seconds in (self._clock, self.sums)]
            self.run((*op.condition, *op.content), stream)
        if trips > _EXACT_TRIPS:
            for seconds, earlier in before:
                for name, value in seconds.items():
                    seconds[name] = value + (value - earlier[name]) * (trips - _EXACT_TRIPS)


def collective_time(collective: Collective, network: Network, gpus_per_node: int) -> float:
    """Returns the seconds of one collective with its launch, by the fastest algorithm and
    protocol.
    """
    launch_s: float = FIGURES["nccl_launch_s"]
    if collective.group_size < 2 or collective.bytes == 0:
        return launch_s
    link = _Links(collective, network, gpus_per_node)
    if collective.kind in FIGURES["rounds"]:
        return launch_s + min(_candidates(collective, network, link))
    return launch_s + _direct(collective, link)


class _Links:
    """Links that one GPU of a collective's group can use; `hop` is the place of a local one in
    NCCL's latencies.
    """

    def __init__(self, collective: Collective, network: Network, gpus_per_node: int) -> None:
        self.local_count = max(1, collective.group_size // collective.node_count)
        self.nic_bytes_per_s: float = network.nic_bytes_per_s / (1 + FIGURES["header_overhead"])
        # A group within one NVLink domain never uses the network, whatever machines it spreads
        # over.
        joined = network.joined_nodes(gpus_per_node)
        self.crosses = collective.node_count > joined
        self.node_count = math.ceil(collective.node_count / joined)
        if network.nvlink_links > 0 and network.nvlink_domain > 1:
            self.hop = 1
            self.local_bytes_per_s: float = network.nvlink_links * network.nvlink_bytes_per_s
        else:
            self.hop = 2
            self.local_bytes_per_s = FIGURES["pcie_share"] * network.pcie_bytes_per_s

    @property
    def ring_bytes_per_s(self) -> float:
        """Rate of a ring: the slower of the local links and the group's network cards on one
        machine.
        """
        rates = []
        if not self.crosses or self.local_count > 1:
            rates.append(self.local_bytes_per_s)
        if self.crosses:
            rates.append(self.nic_bytes_per_s * self.local_count)
        return min(rates)


def _candidates(collective: Collective, network: Network, link: _Links) -> Iterator[float]:
    """Yields the seconds of a reduction or gather by each algorithm and protocol of NCCL, without
    the launch.
    """
    size = collective.group_size
    rounds = FIGURES["rounds"][collective.kind]
    steps = rounds * (size - 1)
    outside = rounds * (link.node_count - 1) if link.crosses else 0
    for name, protocol in FIGURES["protocols"].items():
        rate = link.ring_bytes_per_s * _ring_share(name, collective.kind, link)
        ring = protocol["ring"]
        yield (
            ring[0]
            + (steps - outside) * ring[link.hop]
            + outside * ring[3]
            + collective.bytes * steps / size / rate
        )
        if collective.kind == "all-reduce":
            yield _tree(collective, link, name, protocol["tree"])
    if collective.kind == "all-reduce" and network.nvls_share and not link.crosses:
        # Each GPU sends its array once for the switch to reduce, and its share of the sum once
        # more.
        moved = collective.bytes * (1 + 1 / size) / (network.nvls_share * link.local_bytes_per_s)
        yield FIGURES["protocols"]["Simple"]["ring"][0] + moved


def _ring_share(protocol: str, kind: str, link: _Links) -> float:
    """Returns the share of a ring's rate that a protocol's flags and fences leave to the data."""
    if protocol == "LL":
        return 1 / 4 if link.crosses or kind == "all-reduce" else 1 / 3
    return 0.92 if protocol == "LL128" else 1.0


def _tree(collective: Collective, link: _Links, name: str, hops_s: Sequence[float]) -> float:
    """Returns the seconds of an all-reduce by a tree over machines with chains inside each."""
    share = {"LL": 1 / 3.8, "LL128": 0.915 if link.crosses else 7 / 9, "Simple": 1.0}[name]
    rate = 0.9 * link.ring_bytes_per_s * share
    depth = math.log2(link.node_count) if link.crosses else 0
    inside = collective.group_size / max(link.node_count, 1) - 1
    wait = hops_s[0] + 2 * (inside * hops_s[link.hop] + depth * hops_s[3])
    return wait + 2 * collective.bytes / rate


def _direct(collective: Collective, link: _Links) -> float:
    """Returns the seconds of an all-to-all or permute, where each GPU sends directly to the
    others.
    """
    size = collective.group_size
    near = link.local_count if link.crosses else size
    share_out = (size - near) / size
    share_in = (near - 1) / size
    if collective.kind in ("collective-permute", "send", "recv"):
        share_out = float(link.crosses)
        share_in = 1.0 - share_out
    moved = collective.bytes * max(
        share_out / link.nic_bytes_per_s, share_in / link.local_bytes_per_s
    )
    simple = FIGURES["protocols"]["Simple"]["ring"]
    return float(simple[0] + simple[3 if link.crosses else link.hop] + moved)


def product_time(product: tuple[int, int, int, int], flops_per_s: float, core_count: int) -> float:
    """Returns the seconds of a matrix product on an idle GPU of `flops_per_s` in a large tile,
    without the launch.
    """
    batch, rows, columns, depth = product
    of_core = flops_per_s / core_count
    tiles: list[tuple[int, int, float]] = FIGURES["tiles"]
    return min(
        math.ceil(batch * math.ceil(rows / high) * math.ceil(columns / wide) / core_count)
        * (2.0 * high * wide * depth / (of_core * share) + float(FIGURES["wave_s"]))
        for high, wide, share in tiles
    )


@functools.cache
def published() -> dict[str, Any]:
    """Loads how predictions agree with published step times.

    Returns:
        ``interval``: 95 % interval of measured over predicted step time of a framework that was not
            compared;
        ``words``: the agreement as a clause; ``families`` of models and ``lengths`` of sequences
        (by the option ``attention``, empty for the default) that were compared.
    """
    agreement: dict[str, Any] = json.loads((DATA / "published.json").read_text(encoding="utf-8"))
    return agreement


def why_no_interval(entry: str, options: Mapping[str, Any]) -> str | None:
    """Returns what was not compared with published step times, so that a prediction has no
    interval; else None.
    """
    compared = published()
    attention = str(options.get("attention", ""))
    if ":" in entry:
        return "a program of your own"
    if options.get("dtype") == "float8":
        return "float8"
    if options.get("offload", "none") != "none" or "offload" in str(options.get("remat")):
        return "copying to the host"
    if entry.split("-")[0] not in compared["families"]:
        return f"a model like {entry}"
    lengths = compared["lengths"].get(attention, [])
    if (attention and options.get("seq") not in lengths) or options.get("seq", 0) > max(
        lengths, default=0
    ):
        return f"attention {attention or 'by default'} at this length"
    return None


def predict_set(screener: Screener, settings: FlagSet) -> dict[str, Any]:
    """Predicts one set as plain data; StudyFileError on the CPU.

    Returns:
        settings, target and topology; `failure` if the set does not compile, else the fingerprint
        of its `program`, `changes` in it and `not_modelled` (settings that act at run time). The
        default and sets of options alone have a step time too, with its interval: no gain of a flag
        is predicted (`docs/predictions.md`).
    """
    job = screener.job
    if job.target is None:
        raise StudyFileError(
            "times are predicted for GPUs only: add --target, such as --target h100-sxm"
        )
    row: dict[str, Any] = {
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
        "not_modelled": [name for name in flags if screener.stage(name) is not Stage.PROGRAM],
    }
    if not flags:
        prediction = predict_step(result.program, job.target, job.topology)
        why_not = why_no_interval(job.entry, {**job.options, **options_in(settings)})
        ends = published()["interval"] if why_not is None else ()
        interval_s = [prediction.step_s * end for end in ends] or None
        row |= {
            "predicted": True,
            **asdict(prediction),
            "no_interval": why_not,
            "interval_s": interval_s,
        }
    return row
