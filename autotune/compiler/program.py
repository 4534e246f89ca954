"""A compiled program, reduced to what explaining and predicting need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from pydantic import Field

from autotune.model.measurement import Failure, Settings
from autotune.model.numbers import Record
from autotune.model.units import format_bytes

SCHEMA_VERSION = 7
"""Of cached results; raised when their form or meaning changes."""


class OpKind(StrEnum):
    """What an entry of the schedule is."""

    KERNEL = "kernel"
    COPY = "copy"
    COLLECTIVE = "collective"
    START = "start"
    DONE = "done"
    GRAPH = "graph"
    LOOP = "loop"
    BRANCH = "branch"
    OTHER = "other"


class Collective(Record):
    """One collective, as the program asks for it.

    Attributes:
        kind: ``all-gather``, ``all-reduce``, ``reduce-scatter``, ``all-to-all``, ``collective-permute`` ...
        bytes: Of the whole array: gathered, reduced, exchanged or (permute) sent by one GPU.
        node_count: Machines over which one such group spreads.
        implementation: ``nccl``, or ``kernel`` for XLA's own.
    """

    kind: str
    bytes: int
    dtype: str
    group_size: int
    node_count: int
    implementation: str = "nccl"


class Op(Record):
    """One entry of the schedule, in the order in which the host issues it.

    Attributes:
        detail: Kind of fusion, target of a custom call, or the thunk's kind.
        stream: Of a start, the stream on which its content runs.
        async_id: Pairs a start with its done.
        content: What runs inside: of a start, a graph (command buffer), a loop's body, all branches.
        condition: Of a loop, what decides whether to go on.
        trip_count: Of a loop; None if the compiler does not know it.
        flops, matrix_flops, matrix_dtype, product, bytes: Work of a kernel; see `autotune.compiler.hlo.Work`.
        xla_s: Seconds of a kernel by XLA's own cost model, if it says so.
    """

    kind: OpKind
    name: str
    detail: str = ""
    stream: str | None = None
    async_id: int | None = None
    content: tuple[Op, ...] = ()
    condition: tuple[Op, ...] = ()
    trip_count: int | None = None
    flops: float = 0.0
    matrix_flops: float = 0.0
    matrix_dtype: str | None = None
    product: tuple[int, int, int, int] | None = None
    bytes: float = 0.0
    xla_s: float | None = None
    collective: Collective | None = None


class Memory(Record):
    """Bytes of device memory that one GPU needs for the step; see ``jax.stages.Compiled.memory_analysis``."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    generated_code_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """Arguments, results in places of their own, temporaries, code: all held during the step."""
        results = self.output_bytes - self.alias_bytes
        return self.argument_bytes + results + self.temp_bytes + self.generated_code_bytes


class CompiledProgram(Record):
    """One program.

    Attributes:
        fingerprint: Equal for equal programs: optimized HLO (without metadata) and thunk sequence.
        schedule: What the host issues, in order; empty for CPU programs.
        opcodes: How many instructions of each kind the optimized module has outside of fusions.
        custom_calls: Calls of library kernels by target.
        flops_per_step: Of the model, over all GPUs, if the workload says so.
        layer_bytes: ``weights`` and ``gradients`` of one layer, if it says so.
    """

    fingerprint: str
    versions: dict[str, str]
    compile_s: float
    memory: Memory | None
    schedule: tuple[Op, ...] = ()
    opcodes: dict[str, int] = Field(default_factory=dict)
    custom_calls: dict[str, int] = Field(default_factory=dict)
    flops_per_step: float | None = None
    tokens_per_step: int | None = None
    layer_bytes: dict[str, int] = Field(default_factory=dict)


class CompileResult(Record):
    """The result of compiling one set.

    Attributes:
        settings: The set, baseline merged in.
        duration_s: Seconds it took, with its fork.
        cpu_s: Seconds of processor time it took, over all cores: what a loaded machine does not stretch.
        host_bytes: Memory of the host that it took at its height; 0 where that is not known.
    """

    settings: Settings
    program: CompiledProgram | None = None
    failure: Failure | None = None
    from_cache: bool = False
    duration_s: float = 0.0
    cpu_s: float = 0.0
    host_bytes: int = 0


def walk(ops: tuple[Op, ...], times: int = 1) -> Iterator[tuple[Op, int]]:
    """Yields every entry of a schedule and how often a step runs it; loops of unknown length count once."""
    for op in ops:
        yield op, times
        inner = times * (op.trip_count or 1) if op.kind is OpKind.LOOP else times
        yield from walk(op.condition, inner)
        yield from walk(op.content, inner)


def collectives(program: CompiledProgram) -> dict[tuple[str, bool], tuple[int, int, int]]:
    """Collectives by kind and whether they are asynchronous.

    Returns:
        (kind, is asynchronous) to (in the program, run in a step, bytes in a step).
    """
    found: dict[tuple[str, bool], tuple[int, int, int]] = {}
    inside_starts = {
        id(inner) for op, _ in walk(program.schedule) if op.kind is OpKind.START for inner, _ in walk(op.content)
    }
    for op, times in walk(program.schedule):
        if op.collective is not None:
            key = (op.collective.kind, id(op) in inside_starts)
            a, b, c = found.get(key, (0, 0, 0))
            found[key] = (a + 1, b + times, c + times * op.collective.bytes)
    return found


def graphs(program: CompiledProgram) -> list[int]:
    """Kernels and copies held by each command buffer."""
    return [
        sum(1 for inner, _ in walk(op.content) if inner.kind in (OpKind.KERNEL, OpKind.COPY, OpKind.COLLECTIVE))
        for op, _ in walk(program.schedule)
        if op.kind is OpKind.GRAPH
    ]


def loops(program: CompiledProgram) -> list[tuple[str, int | None]]:
    """Loops and their trip counts."""
    return [(op.name, op.trip_count) for op, _ in walk(program.schedule) if op.kind is OpKind.LOOP]


def kernels(program: CompiledProgram) -> Counter[str]:
    """Kernels of the schedule by what they are: kind of fusion, custom call, copy."""
    return Counter(op.detail for op, _ in walk(program.schedule) if op.kind in (OpKind.KERNEL, OpKind.COPY))


def figures(program: CompiledProgram) -> dict[str, Any]:
    """Countable figures of a program, by name."""
    if not program.schedule:  # XLA:CPU shows no thunks
        return {f"instructions: {name}": n for name, n in program.opcodes.items()} | _memory_figures(program)
    table = collectives(program)
    held = graphs(program)
    found: dict[str, Any] = {}
    for (kind, is_async), (count, _, _) in sorted(table.items()):
        found[f"{kind} ({'async' if is_async else 'sync'})"] = count
    for kind in sorted({k for k, _ in table}):
        found[f"{kind} bytes a step"] = sum(v[2] for (k, _), v in table.items() if k == kind)
        found[f"{kind} runs a step"] = sum(v[1] for (k, _), v in table.items() if k == kind)
    found["command buffers"] = len(held)
    found["kernels in command buffers"] = sum(held)
    found["loops"] = len(loops(program))
    if unknown := sum(n is None for _, n in loops(program)):
        found["loops of unknown length, counted once"] = unknown
    found["loop iterations a step"] = sum(n or 1 for _, n in loops(program))
    found |= {f"kernels: {name}": n for name, n in sorted(kernels(program).items())}
    found |= {f"custom calls: {name}": n for name, n in sorted(program.custom_calls.items())}
    found["kernel launches a step"] = sum(t for op, t in walk(program.schedule) if op.kind is OpKind.KERNEL)
    return found | _memory_figures(program)


def _memory_figures(program: CompiledProgram) -> dict[str, int]:
    if program.memory is None:
        return {}
    return {
        "argument bytes": program.memory.argument_bytes,
        "temporary bytes": program.memory.temp_bytes,
        "peak bytes": program.memory.peak_bytes,
    }


def changes(reference: CompiledProgram, candidate: CompiledProgram) -> Iterator[str]:
    """Yields the differences, such as ``all-gather (async): 9 -> 3``; none only for equal programs."""
    if reference.fingerprint == candidate.fingerprint:
        return
    before, after = figures(reference), figures(candidate)
    found = False
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            found = True
            yield _clause(name, old, new)
    if not found:
        yield "same figures, but other machine code, buffers or order"


def _clause(name: str, old: Any, new: Any) -> str:
    if "bytes" in name:
        moved = ("+" if new > old else "-") + format_bytes(abs(new - old))
        return f"{name.replace(' bytes', '')}: {format_bytes(old)} -> {format_bytes(new)} ({moved})"
    return f"{name}: {old} -> {new}"
