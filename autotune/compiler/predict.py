"""Predicts the step time of a compiled program without its GPUs: roofline, collectives, simulated streams.

A prediction is no measurement: nothing here knows how good a kernel is, how warm a GPU runs or what else
uses the network. It is for ranking programs and for seeing where time goes.

Sources:
    Roofline: Williams, Waterman, Patterson, doi:10.1145/1498765.1498785.
    Kernels: xla/service/gpu/model/gpu_performance_model.cc, as XLA writes it into `reification_cost`.
    Matrix products: `autotune.compiler.product_time`.
    Reachable shares: `Shares`.
    Launches: "Getting Started with CUDA Graphs", developer.nvidia.com/blog/cuda-graphs: gaps of 0.9 us
        between
        kernels of a stream, 0.5 us inside a graph.
    Streams: xla/backends/gpu/runtime: a start waits for what its stream has been given so far, a done
        makes it wait.
    Overlap: NCCL's kernels share no multiprocessor with others, and each of its channels holds one
        (github.com/NVIDIA/nccl issues 689 and 1656): 16 with NVLink (XLA's own model of NCCL counts on as many,
        kMaxNumChannelsRing in xla/service/gpu/model), 2 over PCIe (NCCL's log of such machines).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.compiler.collective_time import collective_time
from autotune.compiler.product_time import product_time
from autotune.compiler.program import CompiledProgram, Op, OpKind
from autotune.compiler.published import published_error
from autotune.compiler.targets import Network, Target, Topology
from autotune.model import LaunchError, StudyFileError

MAIN = "compute"
_EXACT_TRIPS = 3
"""Iterations of a loop that are simulated; the rest take as long as the last of them."""

NVLINK_CORES, PCIE_CORES = 16, 2
"""Multiprocessors that a collective keeps from the kernels beside it: one for each of NCCL's channels."""

SANE = 4.0
"""Largest factor between a roofline and XLA's own estimate of a kernel without products at which that is believed."""

_RATES = {"f32": "tf32", "bf16": "bf16", "f16": "f16", "f64": "f64", "s8": "f8", "u8": "f8"}


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the peaks that real kernels reach, and the cost of launches; defaults are published figures.

    Attributes:
        matrix_share: Of the matrix units' peak, what large products reach while a GPU trains; None takes the target's.
            XLA's measured table has 0.87 on an H100 and 0.76 on a B200 that were idle before (see
            `autotune.compiler.product_time`); under load clocks fall.
        attention_share: Likewise of cuDNN's attention, forward; FlashAttention-3 (arXiv:2407.08608, figure 5) has 0.5
            to 0.6 for heads of 128 under a causal mask on H100.
        attention_backward_share: Likewise, backward; 0.4 to 0.5 there (figure 6).
        memory_share: Of the memory's rate: BabelStream reaches 0.9 to 0.93 on A100 and H100
            (github.com/UoB-HPC/BabelStream).
        kernel_gap_s: Between kernels of a stream.
        graph_gap_s: Between kernels of a command buffer.
        host_launch_s: Time of the host for one launch; a graph is one launch.
        collective_cores: Multiprocessors that a collective keeps from the kernels beside it, at most half of all; None
            takes `NVLINK_CORES`, or `PCIE_CORES` without NVLink.
    """

    matrix_share: float | None = None
    attention_share: float = 0.57
    attention_backward_share: float = 0.45
    memory_share: float = 0.90
    kernel_gap_s: float = 0.9e-6
    graph_gap_s: float = 0.5e-6
    host_launch_s: float = 2.5e-6
    collective_cores: int | None = None


PUBLISHED_SHARES = Shares()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that ran on a stream.

    Attributes:
        count: How many times over it stands for: later iterations of a loop are one event.
    """

    stream: str
    name: str
    kind: str
    start_s: float
    end_s: float
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a step would take.

    Attributes:
        step_s: Predicted seconds of one step.
        compute_s: Kernels on the compute stream.
        communication_s: All collectives, hidden ones included.
        exposed_s: Communication that computing waits for.
        idle_s: The compute stream has nothing to do and waits for no collective: launches.
        interval_s: Where a measured step would be in 95 % of cases, by step times that others published.
        mfu: Model FLOPs over the peak of the matrix units; None if the workload does not say its FLOPs.
        unknown_loops: Loops whose length is not known; counted once, so that the step may take far longer.
        events: The simulated time line.
    """

    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float
    interval_s: tuple[float, float]
    mfu: float | None
    tokens_per_s: float | None
    unknown_loops: tuple[str, ...]
    events: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def published(self) -> str:
        """How near the model is to what others published, in words."""
        return str(published_error())

    def to_json(self) -> dict[str, object]:
        """Plain data, the time line left out; labelled as what it is."""
        names = ("step_s", "compute_s", "communication_s", "exposed_s", "idle_s", "mfu", "tokens_per_s")
        return {
            "predicted": True,
            **{n: getattr(self, n) for n in names},
            "interval_s": list(self.interval_s),
            "published": self.published,
            "unknown_loops": list(self.unknown_loops),
        }


def predict_step(
    program: CompiledProgram, target: Target, topology: Topology, shares: Shares = PUBLISHED_SHARES
) -> Prediction:
    """Predicts one program.

    Args:
        program: Compiled for this target and topology.
        target: The GPU.
        topology: The cluster.
        shares: Of the peaks.

    Raises:
        StudyFileError: If the target's rates are not known (a file of the user's).
        LaunchError: If the step would take no time: its program is empty, or could not be read.
    """
    if target.network is None or not target.flops_per_s:
        raise StudyFileError(
            f"to predict, the rates of {target.name} must be known but its file has none; name one of "
            "`autotune targets list`, or give the file the device_description_str of one of them"
        )
    simulation = _Simulation(target, target.network, topology, shares)
    simulation.run(program.schedule, MAIN)
    done = simulation.totals
    compute_s, exposed_s = done["compute"], done["exposed"]
    idle_s = max(0.0, simulation.end_s - compute_s - exposed_s)
    step_s = compute_s + exposed_s + idle_s
    if step_s <= 0:
        raise LaunchError(
            f"a predicted step must take some time but program {program.fingerprint} takes none: its "
            f"{len(program.schedule)} operations launch nothing; compile it anew with --no-cache"
        )
    peak = target.flops_per_s["bf16"] * topology.device_count
    flops, tokens = program.flops_per_step, program.tokens_per_step
    return Prediction(
        step_s=step_s,
        compute_s=compute_s,
        communication_s=done["communication"],
        exposed_s=exposed_s,
        idle_s=idle_s,
        interval_s=published_error().interval(step_s),
        mfu=flops / (peak * step_s) if flops and step_s else None,
        tokens_per_s=tokens / step_s if tokens and step_s else None,
        unknown_loops=tuple(sorted(simulation.unknown_loops)),
        events=tuple(simulation.events),
    )


def kernel_time(op: Op, target: Target, shares: Shares) -> float:
    """Seconds of one kernel or copy.

    The slowest of matrix units, scalar units and memory; of other kernels than matrix products XLA's own estimate, if
    it is near that. XLA knows more of a fusion (which reads repeat, how many threads there are), but its models give
    absurd figures for some: those are not taken. Of a product it estimates a tiling that no autotuner has chosen.
    """
    rates, matrix_s = target.flops_per_s, _matrix_time(op, target, shares)
    other_s = max(op.flops / rates["scalar"], op.bytes / (target.memory_bytes_per_s * shares.memory_share))
    if matrix_s:
        return max(matrix_s, other_s)
    is_sane = op.xla_s is not None and other_s / SANE <= op.xla_s <= other_s * SANE
    return op.xla_s if is_sane and op.xla_s is not None else other_s


def _matrix_time(op: Op, target: Target, shares: Shares) -> float:
    """Seconds of what a kernel multiplies; 0 for one that multiplies nothing."""
    kind, rates = op.matrix_dtype or "", target.flops_per_s
    name = "f8" if kind.startswith("f8") else _RATES.get(kind, "bf16")
    peak = rates.get(name, rates["scalar"])
    if op.detail.startswith("__cudnn$fmha"):
        is_backward = "Backward" in op.detail
        share = shares.attention_backward_share if is_backward else shares.attention_share
        return op.matrix_flops / (peak * share)
    reached = peak * (target.matrix_share if shares.matrix_share is None else shares.matrix_share)
    if op.product is None:
        return op.matrix_flops / reached
    alone = product_time(op.product, reached, target.core_count)
    return alone * op.matrix_flops / (2.0 * math.prod(op.product))  # several in one kernel


class _Simulation:
    """Issues a schedule as the host does and keeps the clock of every stream."""

    def __init__(self, target: Target, network: Network, topology: Topology, shares: Shares) -> None:
        self._target = target
        self._network = network
        self._gpus_per_node = topology.gpus_per_node
        self._shares = shares
        self._host = 0.0
        self._clock: dict[str, float] = {MAIN: 0.0}
        self._moving_until = 0.0
        self._finished: dict[int, float] = {}
        self._in_graph = False
        self._is_recorded = True
        self.totals = {"compute": 0.0, "communication": 0.0, "exposed": 0.0}
        self.events: list[Event] = []
        self.unknown_loops: set[str] = set()

    @property
    def end_s(self) -> float:
        """When everything is done."""
        return max(self._clock.values())

    def run(self, ops: Sequence[Op], stream: str) -> None:
        """Issues some entries on a stream."""
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
                best = collective_time(op.collective, self._network, self._gpus_per_node)
                self._launch(op, stream, best.seconds, "communication")
            elif op.kind in (OpKind.KERNEL, OpKind.COPY):
                self._launch(op, stream, kernel_time(op, self._target, self._shares), "compute")
            else:
                self.run(op.content, stream)

    def _launch(self, op: Op, stream: str, seconds: float, kind: str) -> None:
        gap = self._shares.graph_gap_s if self._in_graph else self._shares.kernel_gap_s
        if not self._in_graph:
            self._host += self._shares.host_launch_s
        begin = max(self._clock.get(stream, 0.0) + gap, self._host)
        if kind == "compute":
            seconds = self._beside(begin, seconds)
        self._clock[stream] = begin + seconds
        if kind == "communication":
            self._moving_until = max(self._moving_until, begin + seconds)
            self.totals["communication"] += seconds
            if stream == MAIN:  # nothing else runs there meanwhile
                self.totals["exposed"] += seconds
        elif stream == MAIN:
            self.totals["compute"] += seconds
        if self._is_recorded:
            self.events.append(Event(stream, op.name, kind, begin, begin + seconds))

    def _beside(self, begin: float, seconds: float) -> float:
        """Seconds of a kernel beside collectives: while they move, it has the multiprocessors that they leave."""
        held, cores = self._shares.collective_cores, self._target.core_count
        if held is None:
            held = NVLINK_CORES if self._network.nvlink_links else PCIE_CORES
        left = 1.0 - min(held / cores, 0.5)
        moving = max(0.0, self._moving_until - begin)
        return min(seconds / left, seconds + (1.0 - left) * moving)

    def _graph(self, op: Op, stream: str) -> None:
        """One launch of the host for all that a command buffer holds."""
        if not self._in_graph:
            self._host += self._shares.host_launch_s
            self._clock[stream] = max(self._clock.get(stream, 0.0), self._host)
        outer, self._in_graph = self._in_graph, True
        self.run(op.content, stream)
        self._in_graph = outer

    def _start(self, op: Op, stream: str) -> None:
        """Content on another stream, after everything that this one has been given so far."""
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
                if self._is_recorded:
                    self.events.append(Event(stream, f"waits for {op.name}", "wait", now, ready))

    def _branch(self, op: Op, stream: str) -> None:
        """The branch that takes longest: which one is taken is not known."""
        longest = max(op.content, key=lambda b: _rough(b, self._target, self._shares), default=None)
        if longest is not None:
            self.run(longest.content, stream)

    def _loop(self, op: Op, stream: str) -> None:
        """Some iterations exactly; the clocks then move on by the last one for each that is left."""
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
        began = self._clock.get(stream, 0.0)
        self._host += (self._host - before["host"]) * left
        for name, clock in list(self._clock.items()):
            if clock > before.get("stream:" + name, 0.0):  # a stream that the loop uses
                self._clock[name] = clock + one * left
        if self._moving_until > before["moving"]:
            self._moving_until += one * left
        for name, value in self.totals.items():
            self.totals[name] = value + (value - sums[name]) * left
        if self._is_recorded:
            label = f"{left} more iterations of {op.name}"
            self.events.append(Event(stream, label, "loop", began, began + one * left, count=left))

    def _state(self) -> Mapping[str, float]:
        return {"host": self._host, "moving": self._moving_until, **{"stream:" + n: c for n, c in self._clock.items()}}


def _rough(op: Op, target: Target, shares: Shares) -> float:
    """Kernel seconds of everything below an entry, for comparing branches."""
    own = kernel_time(op, target, shares)
    return own + sum(_rough(inner, target, shares) * (op.trip_count or 1) for inner in (*op.content, *op.condition))
