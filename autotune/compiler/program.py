"""Data model of a compiled program, for comparisons and predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from autotune.compiler.hlo import Work
from autotune.model.measurement import Failure, Settings
from autotune.model.numbers import Record
from autotune.model.units import format_bytes

SCHEMA_VERSION = 10
"""Schema of cached results; raised when their form or meaning changes."""


class OpKind(StrEnum):
    """Kind of an entry of the schedule."""

    KERNEL = "kernel"
    COPY = "copy"
    COLLECTIVE = "collective"
    START = "start"
    DONE = "done"
    GRAPH = "graph"
    LOOP = "loop"
    BRANCH = "branch"
    OTHER = "other"


_LAUNCHED = (OpKind.KERNEL, OpKind.COPY, OpKind.COLLECTIVE)


class Collective(Record):
    """One collective of a program."""

    kind: str
    """``all-gather``, ``all-reduce``, ``reduce-scatter``, ``all-to-all``, ``collective-permute`` ..."""
    bytes: int
    """Of the whole array: gathered, reduced, exchanged or (permute) sent by one GPU."""
    dtype: str
    group_size: int
    node_count: int
    """Machines of one group."""
    implementation: str = "nccl"
    """``nccl``, or ``kernel`` for XLA's own."""


class Op(Work):
    """One entry of the schedule, with the work of a kernel."""

    kind: OpKind
    name: str
    detail: str = ""
    """Kind of fusion, target of a custom call, or the thunk's kind."""
    stream: str | None = None
    """The stream of a start's content."""
    async_id: int | None = None
    """Pairs a start with its done."""
    content: tuple[Op, ...] = ()
    """Entries of a start, of a graph (command buffer), of a loop's body, of all branches."""
    condition: tuple[Op, ...] = ()
    """Entries of a loop's condition."""
    trip_count: int | None = None
    """Iterations of a loop; None if unknown."""
    xla_s: float | None = None
    """Seconds of a kernel by XLA's own cost model."""
    collective: Collective | None = None


class Memory(Record):
    """Device memory of the step on one GPU; see ``jax.stages.Compiled.memory_analysis``."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    generated_code_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """Arguments, results that alias no argument, temporaries and code."""
        results = self.output_bytes - self.alias_bytes
        return self.argument_bytes + results + self.temp_bytes + self.generated_code_bytes


class CompiledProgram(Record):
    """One program."""

    fingerprint: str
    """Equal for equal programs: optimized HLO (without metadata) and thunk sequence."""
    versions: dict[str, str]
    device_count: int
    compile_s: float
    memory: Memory | None
    schedule: tuple[Op, ...] = ()
    """Entries in the order of issue by the host; empty for CPU programs."""
    opcodes: dict[str, int] = Field(default_factory=dict)
    """Number of instructions outside of fusions, by opcode."""
    custom_calls: dict[str, int] = Field(default_factory=dict)
    """Number of custom calls, by target."""
    flops_per_step: float | None = None
    """Of the model, over all GPUs, if the workload gives it."""
    tokens_per_step: int | None = None
    layer_bytes: dict[str, int] = Field(default_factory=dict)
    """``weights`` and ``gradients`` of one layer, if the workload gives them."""

    @property
    def collective_bytes(self) -> dict[str, int]:
        """Bytes that its collectives write, by kind; each once, however often it runs."""
        moved = [op.collective for op, _ in walk(self.schedule) if op.collective is not None]
        return {kind: sum(c.bytes for c in moved if c.kind == kind) for kind in sorted({c.kind for c in moved})}


class CompileResult(Record):
    """The result of compiling one set."""

    settings: Settings
    """The set merged into the baseline."""
    program: CompiledProgram | None = None
    failure: Failure | None = None
    from_cache: bool = False
    duration_s: float = 0.0
    """Wall time, fork included."""
    cpu_s: float = 0.0
    """Processor time over all cores, which load on the machine does not stretch."""
    host_bytes: int = 0
    """Peak memory on the host; 0 if unknown."""


def walk(ops: tuple[Op, ...], times: int = 1) -> Iterator[tuple[Op, int]]:
    """Yields every entry of a schedule and how often a step runs it; loops of unknown length count once."""
    for op in ops:
        yield op, times
        inner = times * (op.trip_count or 1) if op.kind is OpKind.LOOP else times
        yield from walk(op.condition, inner)
        yield from walk(op.content, inner)


def figures(program: CompiledProgram) -> Counter[str]:
    """Countable figures of a program, by name; those of collectives first."""
    found: Counter[str] = Counter()
    if program.schedule:
        _count(program.schedule, found)
        found.update({f"custom calls: {name}": n for name, n in program.custom_calls.items()})
    else:  # XLA:CPU shows no thunks
        found.update({f"instructions: {name}": n for name, n in program.opcodes.items()})
    if program.memory is not None:
        found["argument bytes"] = program.memory.argument_bytes
        found["temporary bytes"] = program.memory.temp_bytes
        found["peak bytes"] = program.memory.peak_bytes
    kinds = tuple(f"{op.collective.kind} " for op, _ in walk(program.schedule) if op.collective is not None)
    return Counter({name: found[name] for name in sorted(found, key=lambda name: (not name.startswith(kinds), name))})


def _count(
    ops: tuple[Op, ...], found: Counter[str], times: int = 1, *, is_async: bool = False, is_in_graph: bool = False
) -> None:
    """Counts the entries of a part of a schedule that a step runs so many times."""
    for op in ops:
        inner_times = times
        if op.collective is not None:
            kind = op.collective.kind
            found[f"{kind} ({'async' if is_async else 'sync'})"] += 1
            found[f"{kind} bytes a step"] += times * op.collective.bytes
            found[f"{kind} runs a step"] += times
        elif op.kind in (OpKind.KERNEL, OpKind.COPY):
            found[f"kernels: {op.detail}"] += 1
        elif op.kind is OpKind.GRAPH:
            found["command buffers"] += 1
        elif op.kind is OpKind.LOOP:
            inner_times = times * (op.trip_count or 1)
            found["loops"] += 1
            found["loops of unknown length, counted once"] += op.trip_count is None
        found["kernels in command buffers"] += is_in_graph and op.kind in _LAUNCHED
        found["kernel launches a step"] += times * (op.kind is OpKind.KERNEL)
        starts, captures = is_async or op.kind is OpKind.START, is_in_graph or op.kind is OpKind.GRAPH
        for part in (op.condition, op.content):
            _count(part, found, inner_times, is_async=starts, is_in_graph=captures)


def changes(reference: CompiledProgram, candidate: CompiledProgram) -> list[str]:
    """The differences, such as ``all-gather (async): 9 -> 3``; none only for equal programs."""
    if reference.fingerprint == candidate.fingerprint:
        return []
    before, after = figures(reference), figures(candidate)
    found = [_clause(name, before[name], after[name]) for name in before | after if before[name] != after[name]]
    return found or ["same figures, but other machine code, buffers or order"]


def _clause(name: str, old: int, new: int) -> str:
    if "bytes" in name:
        moved = ("+" if new > old else "-") + format_bytes(abs(new - old))
        return f"{name.replace(' bytes', '')}: {format_bytes(old)} -> {format_bytes(new)} ({moved})"
    return f"{name}: {old} -> {new}"
