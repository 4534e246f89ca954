"""Plays a compiled program's schedule on a made-up GPU, and writes what `jax.profiler` would have written of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.compiler.collective_time import collective_time
from autotune.compiler.predict import Calibration, kernel_time
from autotune.compiler.program import CompiledProgram, Op, OpKind
from autotune.compiler.targets import Target, Topology

MAIN = "Stream #14(Compute)"
MODULE = "jit_step"
NVIDIA = {"device_vendor": "Nvidia", "core_count": 132, "memory_size": 85_021_163_520}
_LAUNCHED = (OpKind.KERNEL, OpKind.COPY, OpKind.COLLECTIVE)


@dataclass
class Event:
    stream: str
    start_ps: int
    duration_ps: int
    kernel: str
    stats: dict[str, str | int]


@dataclass
class Player:
    """Every launch of every iteration, one after the other on each stream, with a gap before each.

    Attributes:
        seconds: Of an entry that a GPU runs.
        gap_s: Before each of them.
        has_graphs: Whether command buffers run as such: their kernels then say nothing of instructions.
    """

    seconds: Callable[[Op], float]
    gap_s: float
    has_graphs: bool = False
    module: str = MODULE
    events: list[Event] = field(default_factory=list)
    clocks: dict[str, int] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)

    def steps(self, program: CompiledProgram, count: int, *, between_s: float = 0.0, first_s: float = 0.0) -> Player:
        for number in range(count):
            self._run(program.schedule, MAIN, in_graph=False)
            end = max(self.clocks.values())
            pause = round((between_s + (first_s if number == 0 else 0.0)) * 1e12)
            self.clocks = dict.fromkeys(self.clocks, end + pause)
        return self

    def _run(self, ops: Sequence[Op], stream: str, *, in_graph: bool) -> None:
        for op in ops:
            if op.kind is OpKind.START:
                other = f"Stream #2{op.stream}"
                self.clocks[other] = max(self.clocks.get(other, 0), self.clocks.get(stream, 0))
                self._run(op.content, other, in_graph=in_graph)
                self.finished[op.async_id or 0] = self.clocks[other]
            elif op.kind is OpKind.DONE:
                self.clocks[stream] = max(self.clocks.get(stream, 0), self.finished.get(op.async_id or 0, 0))
            elif op.kind is OpKind.LOOP:
                for _ in range(op.trip_count or 1):
                    self._run(op.content, stream, in_graph=in_graph)
            elif op.kind in _LAUNCHED:
                self._launch(op, stream, in_graph=in_graph)
            else:
                self._run(op.content, stream, in_graph=in_graph or (self.has_graphs and op.kind is OpKind.GRAPH))

    def _launch(self, op: Op, stream: str, *, in_graph: bool) -> None:
        start = self.clocks.get(stream, 0) + round(self.gap_s * 1e12)
        duration = round(self.seconds(op) * 1e12)
        self.clocks[stream] = start + duration
        stats: dict[str, str | int] = {"hlo_op": op.name, "hlo_module": self.module, "correlation_id": len(self.events)}
        if in_graph:
            stats |= {"hlo_op": "command_buffer", "cuda_graph_id": 7}
        if op.collective is not None:
            kernel = "ncclDevKernel_" + "".join(w.title() for w in op.collective.kind.split("-")) + "_RING_LL(args)"
        else:
            kernel = op.name.replace(".", "_") + ("_gemm" if op.matrix_flops and in_graph else "")
        self.events.append(Event(stream, start, duration, kernel, stats))


def by_the_model(
    target: Target, topology: Topology, *, products: float = 1.0, others: float = 1.0, collectives: float = 1.0
) -> Callable[[Op], float]:
    """What the model says of each entry, times a factor of its kind."""
    assert target.network is not None
    network = target.network

    def seconds(op: Op) -> float:
        if op.collective is not None:
            return collectives * collective_time(op.collective, network, topology.gpus_per_node).seconds
        return (products if op.matrix_flops else others) * kernel_time(op, target, Calibration())

    return seconds


# --- xplane.pb, written by hand: the reader under test must not share a line with its writer ---


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def tagged(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def plane(name: str, events: Sequence[Event], facts: dict[str, Any] | None = None) -> bytes:
    """An XPlane; the texts of its stats are references, as XLA writes them."""
    stats: dict[str, int] = {}
    kernels: dict[str, int] = {}

    def stat(key: str, value: str | int) -> bytes:
        found = tagged(1, stats.setdefault(key, len(stats) + 1))
        if isinstance(value, int):
            return found + tagged(4, value)
        return found + tagged(7, stats.setdefault(value, len(stats) + 1))

    lines: dict[str, list[bytes]] = {}
    for e in events:
        body = tagged(1, kernels.setdefault(e.kernel, len(kernels) + 1))
        body += tagged(2, e.start_ps) + tagged(3, e.duration_ps)
        body += b"".join(tagged(4, stat(k, v)) for k, v in e.stats.items())
        lines.setdefault(e.stream, []).append(tagged(4, body))
    told = b"".join(tagged(6, stat(k, v)) for k, v in (facts or {}).items())
    whole = tagged(2, name)
    for number, (stream, content) in enumerate(lines.items()):
        whole += tagged(3, tagged(1, number) + tagged(2, stream) + tagged(3, 5_000) + b"".join(content))
    for number, names in ((4, kernels), (5, stats)):
        for text, key in names.items():
            whole += tagged(number, tagged(1, key) + tagged(2, tagged(1, key) + tagged(2, text)))
    return tagged(1, whole + told)


def write_xplane(folder: Path, events: Sequence[Event], facts: dict[str, Any] | None = None, gpus: int = 1) -> Path:
    """A folder as ``jax.profiler.trace(folder)`` leaves it."""
    inside = folder / "plugins" / "profile" / "2026_11_23_07_00_00"
    inside.mkdir(parents=True)
    host = plane("/host:CPU", [Event("python", 0, 10**9, "$profiler.py:1 trace", {})])
    planes = [plane(f"/device:GPU:{n}", events, NVIDIA if facts is None else facts) for n in range(gpus)]
    (inside / "node.xplane.pb").write_bytes(b"".join([host, *planes]))
    return folder


def write_trace(file: Path, events: Sequence[Event]) -> Path:
    """The same as a ``.trace.json.gz``: microseconds, and names of lines in events of their own."""
    streams = list(dict.fromkeys(e.stream for e in events))
    rows: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 701, "tid": 1, "name": "thread_name", "args": {"name": "python"}},
        {"ph": "X", "pid": 701, "tid": 1, "ts": 0.0, "dur": 5.0, "name": "$trace"},
    ]
    rows += [{"ph": "M", "pid": 1, "tid": n, "name": "thread_name", "args": {"name": s}} for n, s in enumerate(streams)]
    rows += [
        {
            "ph": "X", "pid": 1, "tid": streams.index(e.stream), "ts": e.start_ps / 1e6, "dur": e.duration_ps / 1e6,
            "name": e.kernel, "args": {k: str(v) for k, v in e.stats.items()},
        }
        for e in events
    ]  # fmt: skip
    file.write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": [*rows, {}]}).encode()))
    return file
