"""Reads a program from a compilation's folder: the HLO, and the thunk sequence that the host issues."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child.fingerprint import HLO, METADATA, THUNKS
from autotune.compiler.hlo import (
    NAMES,
    Computation,
    Instruction,
    Module,
    device_groups,
    kernel_work,
    parse_module,
    trip_count,
)
from autotune.compiler.program import Collective, CompiledProgram, Memory, Op, OpKind
from autotune.compiler.targets import Topology
from autotune.model.errors import LaunchError
from autotune.workers.failures import read_log

_THUNK = re.compile(r"^( *)(\d+): k(\w+)\s*(?:\[[^\]]*\])?\s*(.*)$")
_SECTION = re.compile(r"^\s*(\w+):\s*$")
_NAME = re.compile(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)')
_LINKS = re.compile(r"\[(?:source|prev=)[^\]]*\]")
_KERNEL = re.compile(r"(?<=\] )\w+(?= grid: )")


@dataclass(slots=True)
class Thunk:
    """One line of the dump with its nested lines."""

    number: int
    kind: str
    text: str
    indent: int
    sections: dict[str, list[Thunk]] = field(default_factory=dict)
    current: str = ""

    @property
    def nested(self) -> list[Thunk]:
        """All nested thunks except a loop's condition."""
        return [t for name, section in self.sections.items() if name != "condition" for t in section]


def parse_thunks(text: str) -> list[Thunk]:
    """Parses the nested thunks of a dump.

    A line ``condition:`` or ``body:`` belongs to the innermost open loop; the dump does not indent it reliably.
    """
    top = Thunk(-1, "", "", -1)
    stack = [top]
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            _open_section(stack, section[1])
            continue
        match = _THUNK.match(line)
        if not match:
            continue
        thunk = Thunk(int(match[2]), match[3], match[4].strip(), len(match[1]))
        while len(stack) > 1 and stack[-1].indent >= thunk.indent:
            stack.pop()
        stack[-1].sections.setdefault(stack[-1].current, []).append(thunk)
        stack.append(thunk)
    return top.sections.get("", [])


def _open_section(stack: list[Thunk], name: str) -> None:
    """Assigns the next deeper lines to a section of the innermost open loop; branches have no sections here."""
    if name not in ("condition", "body"):
        return
    for thunk in reversed(stack):
        if thunk.kind == "While" and (name == "condition" or thunk.current == "condition"):
            if name == "condition" and thunk.current:
                continue
            thunk.current = name
            return


def fingerprint(hlo_digest: str, thunks: str) -> str:
    """Returns the digest of a program compiled for a described GPU; `thunks` counts without its notes on neighbours.

    Kernels are numbered in order, for their names depend on which of them XLA had in its cache.
    """
    kernels: dict[str, str] = {}
    numbered = _KERNEL.sub(lambda found: kernels.setdefault(found[0], f"kernel {len(kernels)}"), thunks)
    return hashlib.sha256(f"{hlo_digest}\0{_LINKS.sub('', numbered)}".encode()).hexdigest()[:16]


class Reader:
    """Converts thunks to the schedule of one program; `names` maps thunk numbers to HLO instructions."""

    def __init__(self, module: Module, names: dict[int, str], topology: Topology) -> None:
        self._module = module
        self._names = names
        self._topology = topology
        self._index: dict[str, tuple[Computation, Instruction]] = module.index()

    def schedule(self, thunks: Iterable[Thunk]) -> tuple[Op, ...]:
        """Converts thunks to entries."""
        return tuple(self._op(t) for t in thunks)

    def _op(self, thunk: Thunk) -> Op:
        name = self._names.get(thunk.number, "")
        place = self._index.get(name)
        content = self.schedule(thunk.nested)
        kind = OpKind(NAMES["thunks"].get(thunk.kind) or _unnamed(thunk, place[1] if place else None))
        number = re.search(r"async_id=(\d+)", thunk.text)
        fields: dict[str, object] = {"name": name or thunk.kind, "detail": thunk.kind, "content": content}
        fields["async_id"] = int(number[1]) if number else None
        collective = self._collective(place, thunk)
        if kind is OpKind.START:
            stream = re.search(r"stream=([\w\[\]]+)", thunk.text)
            fields["stream"] = stream[1] if stream else "stream"
        elif kind is OpKind.LOOP:
            fields["trip_count"] = trip_count(self._module, *place) if place else None
            fields["condition"] = self.schedule(thunk.sections.get("condition", ()))
        elif collective is not None:
            kind = OpKind.COLLECTIVE
            fields["collective"] = collective
        elif kind not in (OpKind.GRAPH, OpKind.DONE) and place is not None:
            if thunk.kind == "DynamicSliceFusion":  # runs its content at computed addresses; the fusion says how much
                kind = content[0].kind if len(content) == 1 else OpKind.KERNEL
                fields["content"] = ()
            if kind is not OpKind.OTHER:
                fields |= self._work(*place)
        return Op(kind=kind, **fields)

    def _work(self, computation: Computation, instruction: Instruction) -> dict[str, object]:
        """Returns the fields of an entry for a kernel or copy: its name and its work."""
        work = kernel_work(self._module, computation, instruction)
        estimate = _estimate(instruction, is_matrix=work.matrix_flops > 0)
        return {**dict(work), "detail": _what(self._module, instruction), "xla_s": estimate}

    def _collective(self, found: tuple[Computation, Instruction] | None, thunk: Thunk) -> Collective | None:
        """Returns the collective of a thunk; None for starts, dones and other thunks."""
        if found is None or thunk.sections:
            return None
        computation, instruction = found
        if instruction.opcode in ("fusion", "async-start") and "calls" in instruction.called:
            computation = self._module.computations[instruction.called["calls"]]
            inner = [i for i in computation.instructions.values() if _collective_kind(i)]
            if not inner:
                return None
            instruction = inner[0]
        kind = _collective_kind(instruction)
        if kind is None or "Done" in thunk.kind:
            return None
        operands = [a for arrays in self._module.operand_arrays(computation, instruction) for a in arrays]
        groups = device_groups(instruction, self._topology.device_count)
        size = len(groups[0]) if kind != "collective-permute" else 2
        moved = [g for g in groups if len(set(g)) > 1] or groups
        per_gpu = sum(a.bytes for a in operands)
        return Collective(
            kind=kind,
            bytes=per_gpu * size if kind == "all-gather" else per_gpu,
            dtype=operands[0].dtype if operands else "",
            group_size=size,
            node_count=max(len({d // self._topology.gpus_per_node for d in g}) for g in moved),
        )


def _unnamed(thunk: Thunk, instruction: Instruction | None) -> OpKind:
    """Returns the kind of an unlisted thunk: a kernel that moves its arrays, so that it costs time."""
    is_done = instruction is None or "Done" in thunk.kind or instruction.opcode.endswith(("-start", "-done"))
    return OpKind.OTHER if is_done or thunk.nested else OpKind.KERNEL


def _estimate(instruction: Instruction, *, is_matrix: bool) -> float | None:
    """Returns the seconds of a kernel by XLA's cost model; XLA writes microseconds, by several models."""
    text = instruction.attribute(r'"reification_cost":(\[[^\]]*\])')
    times = {e.get("name"): e.get("exec_time_us", 0.0) for e in json.loads(text)} if text else {}
    microseconds = times.get("experimental-gemm-cost-model" if is_matrix else "", 0.0)
    return float(microseconds) * 1e-6 or None


def _collective_kind(instruction: Instruction) -> str | None:
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in NAMES["collectives"] else None


def _what(module: Module, instruction: Instruction) -> str:
    """Returns the name of a kernel: the kind of fusion, or the target of a custom call."""
    if instruction.opcode == "custom-call":
        return instruction.attribute(r'custom_call_target="([^"]*)"') or "custom-call"
    if instruction.opcode == "fusion":
        kind = instruction.attribute(r'"fusion_backend_config":\{.*?"kind":"(\w+)"')
        plain = instruction.attribute(r"kind=k(\w+)") or ""
        return kind.strip("_") if kind else f"{plain.lower()} fusion"
    return instruction.opcode


def counts(module: Module) -> tuple[dict[str, int], dict[str, int]]:
    """Counts instructions outside of fusions by opcode, and custom calls by target."""
    everything = module.index().values()
    fused = {i.called.get("calls") for _, i in everything if i.opcode == "fusion"}
    outside = [i for c, i in everything if c.name not in fused]
    opcodes = Counter(i.opcode for i in outside)
    targets = Counter(_what(module, i) for i in outside if i.opcode == "custom-call")
    return dict(sorted(opcodes.items())), dict(sorted(targets.items()))


def read_program(folder: Path, found: Mapping[str, Any], topology: Topology, *, is_gpu: bool) -> CompiledProgram:
    """Reads the program in the folder of a worker's fork; LaunchError without instructions, or a GPU's thunks."""
    hlo, thunks, names = (read_log(folder / name) for name in (HLO, THUNKS, METADATA))
    module = parse_module(hlo)
    parsed = parse_thunks(thunks)
    if not any(c.instructions for c in module.computations.values()) or (is_gpu and not parsed):
        missing = "thunks" if hlo else "optimized HLO"
        raise LaunchError(
            f"a compiled step must have instructions and a GPU's must have thunks but XLA's dump holds no {missing}; "
            "a workload may have switched it off (xla_dump_to): leave XLA_FLAGS to autotune"
        )
    reader = Reader(module, {int(number): name for name, number in _NAME.findall(names)}, topology)
    opcodes, custom_calls = counts(module)
    return CompiledProgram(
        fingerprint=found.get("fingerprint") or fingerprint(found["hlo_digest"], thunks),
        versions=found["versions"],
        device_count=topology.device_count,
        compile_s=found["compile_s"],
        memory=Memory(**found["memory"]) if found["memory"] else None,
        schedule=reader.schedule(parsed),
        opcodes=opcodes,
        custom_calls=custom_calls,
        flops_per_step=found.get("flops_per_step"),
        tokens_per_step=found.get("tokens_per_step"),
        layer_bytes=found.get("layer_bytes", {}),
        collective_bytes=found.get("collective_bytes", {}),
    )
