"""Reads a program from a compilation's folder: the HLO, and the thunk sequence that the host
issues.
"""

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
    Instruction,
    Module,
    device_groups,
    kernel_work,
    parse_module,
    trip_count,
)
from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind
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

    def word(self, pattern: str) -> str | None:
        """Returns the first group of a pattern in the text."""
        match = re.search(pattern, self.text)
        return match[1] if match else None

    @property
    def nested(self) -> list[Thunk]:
        """All nested thunks except a loop's condition."""
        return [
            t for name, section in self.sections.items() if name != "condition" for t in section
        ]


def parse_thunks(text: str) -> list[Thunk]:
    """Parses the nested thunks of a dump.

    A line ``condition:`` or ``body:`` belongs to the innermost open loop; the dump does not indent
    it reliably.
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
    """Assigns the next deeper lines to a section of the innermost open loop; branches have no
    sections here.
    """
    previous = {"condition": "", "body": "condition"}.get(name)
    loop = next((t for t in reversed(stack) if t.kind == "While" and t.current == previous), None)
    if loop is not None:
        loop.current = name


def fingerprint(hlo_digest: str, thunks: str) -> str:
    """Returns the digest of a program compiled for a described GPU; `thunks` counts without its
    notes on neighbours.

    Kernels are numbered in order, for their names depend on which of them XLA had in its cache.
    """
    kernels: dict[str, str] = {}
    numbered = _KERNEL.sub(
        lambda kernel: kernels.setdefault(kernel[0], f"kernel {len(kernels)}"), thunks
    )
    return hashlib.sha256(f"{hlo_digest}\0{_LINKS.sub('', numbered)}".encode()).hexdigest()[:16]


class Reader:
    """Converts thunks to the schedule of one program; `names` maps thunk numbers to HLO
    instructions.
    """

    def __init__(self, module: Module, names: Mapping[int, str], topology: Topology) -> None:
        self._instructions = module.instructions()
        self._names = names
        self._topology = topology

    def schedule(self, thunks: Iterable[Thunk]) -> tuple[Op, ...]:
        """Converts thunks to entries."""
        return tuple(self._op(t) for t in thunks)

    def _op(self, thunk: Thunk) -> Op:
        name = self._names.get(thunk.number) or thunk.kind
        instruction = self._instructions.get(name)
        content = self.schedule(thunk.nested)
        number = thunk.word(r"async_id=(\d+)")
        kind = OpKind(NAMES["thunks"].get(thunk.kind) or _unnamed(thunk, instruction))
        fields: dict[str, object] = {"async_id": number, "content": content}
        collective = self._collective(instruction, thunk)
        if kind is OpKind.START:
            fields["stream"] = thunk.word(r"stream=([\w\[\]]+)") or "stream"
        elif kind is OpKind.LOOP:
            fields["trip_count"] = trip_count(instruction) if instruction else None
            fields["condition"] = self.schedule(thunk.sections.get("condition", ()))
        elif collective is not None:
            kind = OpKind.COLLECTIVE
            fields["collective"] = collective
        elif kind not in (OpKind.GRAPH, OpKind.DONE) and instruction is not None:
            if (
                thunk.kind == "DynamicSliceFusion"
            ):  # runs its content at computed addresses; the fusion says how much
                kind = content[0].kind if len(content) == 1 else OpKind.KERNEL
                fields["content"] = ()
            if kind is not OpKind.OTHER:
                fields |= _kernel_fields(instruction)
        return Op(kind=kind, name=name, **{"detail": thunk.kind, **fields})

    def _collective(self, instruction: Instruction | None, thunk: Thunk) -> Collective | None:
        """Returns the collective of a thunk; None for starts, dones and other thunks."""
        if instruction is None or thunk.sections or "Done" in thunk.kind:
            return None
        if "calls" in instruction.called:
            fused = instruction.called["calls"].instructions.values()
            instruction = next((i for i in fused if _collective_kind(i)), instruction)
        kind = _collective_kind(instruction)
        if kind is None:
            return None
        groups = device_groups(instruction, self._topology.device_count)
        size = len(groups[0]) if kind != "collective-permute" else 2
        moved = [g for g in groups if len(set(g)) > 1] or groups
        arrays = [array for operand in instruction.operands for array in operand.arrays]
        per_gpu = sum(array.bytes for array in arrays)
        return Collective(
            kind=kind,
            bytes=per_gpu * size if kind == "all-gather" else per_gpu,
            dtype=arrays[0].dtype if arrays else "",
            group_size=size,
            node_count=max(len({d // self._topology.gpus_per_node for d in g}) for g in moved),
        )


def _kernel_fields(instruction: Instruction) -> dict[str, object]:
    """Returns the fields of an entry for a kernel or copy: its name and its work."""
    work = kernel_work(instruction)
    xla_s = None if work.matrix_flops else _estimate(instruction)
    return {**dict(work), "detail": _kernel_name(instruction), "xla_s": xla_s}


def _unnamed(thunk: Thunk, instruction: Instruction | None) -> OpKind:
    """Returns the kind of an unlisted thunk: a kernel that moves its arrays, so that it costs
    time.
    """
    is_done = (
        instruction is None
        or "Done" in thunk.kind
        or instruction.opcode.endswith(("-start", "-done"))
    )
    return OpKind.OTHER if is_done or thunk.nested else OpKind.KERNEL


def _estimate(instruction: Instruction) -> float | None:
    """Returns the seconds of a kernel by XLA's cost model; XLA writes microseconds, of products by
    other models too.
    """
    estimates = json.loads(instruction.attribute(r'"reification_cost":(\[[^\]]*\])') or "[]")
    microseconds = sum(
        estimate.get("exec_time_us", 0.0) for estimate in estimates if estimate.get("name") == ""
    )
    return microseconds * 1e-6 or None


def _collective_kind(instruction: Instruction) -> str | None:
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in NAMES["collectives"] else None


def _kernel_name(instruction: Instruction) -> str:
    """Returns the name of a kernel: the kind of fusion, or the target of a custom call."""
    if instruction.opcode == "custom-call":
        return instruction.call_target or "custom-call"
    if instruction.opcode == "fusion":
        kind = instruction.attribute(r'"fusion_backend_config":\{.*?"kind":"(\w+)"')
        plain = instruction.attribute(r"kind=k(\w+)") or ""
        return kind.strip("_") if kind else f"{plain.lower()} fusion"
    return instruction.opcode


def counts(module: Module) -> tuple[Counter[str], Counter[str]]:
    """Counts instructions outside of fusions by opcode, and custom calls by target."""
    everything = module.instructions().values()
    fused = {i.called.get("calls") for i in everything if i.opcode == "fusion"}
    outside = [i for i in everything if i.computation not in fused]
    targets = Counter(_kernel_name(i) for i in outside if i.opcode == "custom-call")
    return Counter(i.opcode for i in outside), targets


def read_program(
    folder: Path, report: Mapping[str, Any], topology: Topology, *, is_gpu: bool
) -> CompiledProgram:
    """Reads the program in the folder of a worker's fork; LaunchError without instructions, or a
    GPU's thunks.
    """
    hlo, thunks, names = (read_log(folder / name) for name in (HLO, THUNKS, METADATA))
    module = parse_module(hlo)
    parsed = parse_thunks(thunks)
    if not any(c.instructions for c in module.computations.values()) or (is_gpu and not parsed):
        missing = "thunks" if hlo else "optimized HLO"
        raise LaunchError(
            "a compiled step must have instructions and a GPU's must have thunks but XLA's dump "
            f"holds no {missing}; "
            "a workload may have switched it off (xla_dump_to): leave XLA_FLAGS to autotune"
        )
    reader = Reader(module, {int(number): name for name, number in _NAME.findall(names)}, topology)
    opcodes, custom_calls = counts(module)
    program = {name: report[name] for name in CompiledProgram.model_fields if name in report} | {
        "fingerprint": report.get("fingerprint") or fingerprint(report["hlo_digest"], thunks),
        "device_count": topology.device_count,
        "schedule": reader.schedule(parsed),
        "opcodes": opcodes,
        "custom_calls": custom_calls,
    }
    return CompiledProgram.model_validate(program)
