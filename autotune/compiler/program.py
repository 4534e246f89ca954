"""Data model of a compiled program, for comparisons and predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from pydantic import Field

from autotune.compiler.hlo import NAMES, Work
from autotune.model.measurement import Failure, Settings
from autotune.model.numbers import Record
from autotune.model.units import format_bytes

SCHEMA_VERSION = 13  # of cached results; raised when their form or meaning changes


class OpKind(StrEnum):
    """Kind of an entry of the schedule."""

    KERNEL = "kernel"
    COPY = "copy"
    COLLECTIVE = "collective"
    START = "start"
    DONE = "done"
    GRAPH = "graph"
    LOOP = "loop"
    OTHER = "other"


_LAUNCHED = (OpKind.KERNEL, OpKind.COPY, OpKind.COLLECTIVE)


class Collective(Record):
    """One collective of a program."""

    kind: str
    bytes: int  # of the whole array; of a permute, of what one GPU sends
    dtype: str
    group_size: int
    node_count: int


Counts = dict[str, int]
Ops = tuple["Op", ...]


class Op(Work):
    """One entry of the schedule, with the work of a kernel."""

    kind: OpKind
    name: str
    detail: str = ""  # kind of fusion, target of a custom call, or the thunk's kind
    stream: str | None = None
    async_id: int | None = None  # pairs a start with its done
    content: Ops = ()  # of a start, a command buffer, a loop's body, or of all branches
    condition: Ops = ()
    trip_count: int | None = None
    xla_s: float | None = None  # by XLA's own cost model; None for a matrix product
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

    fingerprint: str  # of optimized HLO (without metadata) and thunk sequence
    versions: dict[str, str]
    device_count: int
    memory: Memory | None
    schedule: Ops = ()  # in the order of issue by the host; empty for CPU programs
    opcodes: Counts = Field(default_factory=dict)  # outside of fusions
    custom_calls: Counts = Field(default_factory=dict)
    flops_per_step: float | None = None  # of the model, over all GPUs
    tokens_per_step: int | None = None
    layer_bytes: Counts = Field(default_factory=dict)
    collective_bytes: Counts = Field(default_factory=dict)  # by kind; each once


class CompileResult(Record):
    """The result of compiling one set."""

    settings: Settings  # merged into the baseline
    program: CompiledProgram | None = None
    failure: Failure | None = None
    from_cache: bool = False
    cpu_s: float = 0.0  # over all cores, which load on the machine does not stretch
    host_bytes: int = 0  # its peak


def walk(
    ops: Ops, times: int = 1, within: frozenset[OpKind] = frozenset()
) -> Iterator[tuple[Op, int, frozenset[OpKind]]]:
    """Yields each entry of a schedule, its runs a step, and the kinds of the entries around it.

    Loops of unknown length count once.
    """
    for op in ops:
        yield op, times, within
        inner_times = times
        if op.trip_count is not None:
            inner_times *= op.trip_count
        yield from walk((*op.condition, *op.content), inner_times, within | {op.kind})


def figures(program: CompiledProgram) -> Counter[str]:
    """Returns the countable figures of a program, by name; those of collectives first."""
    counts: Counter[str] = Counter()
    for op, times, within in walk(program.schedule):
        if op.collective is not None:
            kind = op.collective.kind
            how = "async" if OpKind.START in within else "sync"
            counts[f"{kind} ({how})"] += 1
            counts[f"{kind} bytes a step"] += times * op.collective.bytes
            counts[f"{kind} runs a step"] += times
        elif op.kind in (OpKind.KERNEL, OpKind.COPY):
            counts[f"kernels: {op.detail}"] += 1
        elif op.kind is OpKind.GRAPH:
            counts["command buffers"] += 1
        elif op.kind is OpKind.LOOP:
            counts["loops"] += 1
            counts["loops of unknown length, counted once"] += op.trip_count is None
        counts["kernels in command buffers"] += OpKind.GRAPH in within and op.kind in _LAUNCHED
        counts["kernel launches a step"] += times * (op.kind is OpKind.KERNEL)
    label = "custom calls"
    totals = program.custom_calls
    if not program.schedule:  # XLA:CPU shows no thunks
        label = "instructions"
        totals = program.opcodes
    counts.update({f"{label}: {name}": count for name, count in totals.items()})
    memory = program.memory
    if memory is not None:
        counts["argument bytes"] = memory.argument_bytes
        counts["temporary bytes"] = memory.temp_bytes
        counts["peak bytes"] = memory.peak_bytes
    collectives = tuple(NAMES["collectives"])
    names = sorted(counts, key=lambda name: (not name.startswith(collectives), name))
    return Counter({name: counts[name] for name in names})


def changes(reference: CompiledProgram, candidate: CompiledProgram) -> list[str]:
    """Returns the differences, such as ``all-gather (async): 9 -> 3``; none for equal programs."""
    if reference.fingerprint == candidate.fingerprint:
        return []
    before = figures(reference)
    after = figures(candidate)
    clauses = [
        _clause(name, before[name], after[name])
        for name in before | after
        if before[name] != after[name]
    ]
    return clauses or ["same figures, but other machine code, buffers or order"]


def _clause(name: str, before: int, after: int) -> str:
    if "bytes" not in name:
        return f"{name}: {before} -> {after}"
    sign = "+" if after > before else "-"
    change = f"{sign}{format_bytes(abs(after - before))}"
    label = name.replace(" bytes", "")
    return f"{label}: {format_bytes(before)} -> {format_bytes(after)} ({change})"
