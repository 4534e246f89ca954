"""Reads a program from a compilation's folder: its HLO and its thunks, which the host issues."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.fingerprint import HLO, METADATA, THUNKS
from autotune.compiler.hlo import (
    NAMES,
    Instruction,
    Instructions,
    device_groups,
    first_group,
    kernel_work,
    parse_module,
    trip_count,
)
from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind, Ops
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
    section: str = ""  # of a loop that is being read: ``condition``, then ``body``
    condition: list[Thunk] = field(default_factory=list)
    nested: list[Thunk] = field(default_factory=list)  # without the condition's


def parse_thunks(text: str) -> list[Thunk]:
    """Parses the nested thunks of a dump.

    A line ``condition:`` or ``body:``, not indented reliably, begins a section of the innermost
    open loop. Branches have no sections here.
    """
    top = Thunk(-1, "", "", -1)
    stack = [top]
    for line in text.splitlines():
        section = _SECTION.match(line)
        match = _THUNK.match(line)
        if section:
            previous = {"condition": "", "body": "condition"}.get(section[1])
            for loop in reversed(stack):
                if loop.kind == "While" and loop.section == previous:
                    loop.section = section[1]
                    break
        elif match:
            thunk = Thunk(int(match[2]), match[3], match[4].strip(), len(match[1]))
            while stack[-1].indent >= thunk.indent:
                stack.pop()
            parent = stack[-1]
            siblings = parent.condition if parent.section == "condition" else parent.nested
            siblings.append(thunk)
            stack.append(thunk)
    return top.nested


def fingerprint(hlo_digest: str, thunks: str) -> str:
    """Returns the digest of a GPU program; notes of thunks on their neighbours do not count.

    Kernels are numbered in order, for their names depend on which of them XLA had in its cache.
    """
    kernels: dict[str, str] = {}
    numbered = _KERNEL.sub(
        lambda kernel: kernels.setdefault(kernel[0], f"kernel {len(kernels)}"), thunks
    )
    text = f"{hlo_digest}\0{_LINKS.sub('', numbered)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Reader:
    """Converts thunks to a program's schedule; `names` maps thunk numbers to HLO instructions."""

    instructions: Instructions
    names: Mapping[int, str]
    topology: Topology

    def schedule(self, thunks: Iterable[Thunk]) -> Ops:
        """Converts thunks to entries."""
        return tuple(map(self._op, thunks))

    def _op(self, thunk: Thunk) -> Op:
        name = self.names.get(thunk.number) or thunk.kind
        instruction = self.instructions.get(name)
        content = self.schedule(thunk.nested)
        kind = OpKind(NAMES["thunks"].get(thunk.kind) or _unnamed(thunk, instruction))
        fields: dict[str, Any] = {
            "detail": thunk.kind,
            "async_id": first_group(r"async_id=(\d+)", thunk.text),
            "content": content,
        }
        collective = self._collective(instruction, thunk)
        if kind is OpKind.START:
            fields["stream"] = first_group(r"stream=([\w\[\]]+)", thunk.text) or "stream"
        elif kind is OpKind.LOOP:
            fields["trip_count"] = instruction and trip_count(instruction)
            fields["condition"] = self.schedule(thunk.condition)
        elif collective is not None:
            kind = OpKind.COLLECTIVE
            fields["collective"] = collective
        elif kind not in (OpKind.GRAPH, OpKind.DONE) and instruction is not None:
            if thunk.kind == "DynamicSliceFusion":
                # It runs its content at computed addresses; the fusion says how much.
                kind = content[0].kind if len(content) == 1 else OpKind.KERNEL
                fields["content"] = ()
            if kind is not OpKind.OTHER:
                work = kernel_work(instruction)
                fields |= {**dict(work), "detail": _kernel_name(instruction)}
                if not work.matrix_flops:
                    fields["xla_s"] = _estimate(instruction)
        return Op(kind=kind, name=name, **fields)

    def _collective(self, instruction: Instruction | None, thunk: Thunk) -> Collective | None:
        """Returns the collective of a thunk; None for starts, dones and other thunks."""
        if instruction is None or thunk.nested or thunk.condition or "Done" in thunk.kind:
            return None
        if "calls" in instruction.called:
            fused = instruction.called["calls"].instructions.values()
            instruction = next((i for i in fused if _collective_kind(i)), instruction)
        kind = _collective_kind(instruction)
        if kind is None:
            return None
        groups = device_groups(instruction, self.topology.device_count)
        nodes = [{gpu // self.topology.gpus_per_node for gpu in g} for g in groups]
        size = len(groups[0]) if kind != "collective-permute" else 2
        arrays = instruction.arguments
        size_bytes = sum(array.bytes for array in arrays)
        if kind == "all-gather":
            size_bytes *= size
        return Collective(
            kind=kind,
            bytes=size_bytes,
            dtype=arrays[0].dtype if arrays else "",
            group_size=size,
            node_count=max(map(len, nodes)),
        )


def _unnamed(thunk: Thunk, instruction: Instruction | None) -> OpKind:
    """Returns the kind of an unlisted thunk: a kernel, so that moving its arrays costs time."""
    if instruction is None or thunk.nested or "Done" in thunk.kind:
        return OpKind.OTHER
    is_part = instruction.opcode.endswith(("-start", "-done"))
    return OpKind.OTHER if is_part else OpKind.KERNEL


def _estimate(instruction: Instruction) -> float | None:
    """Returns a kernel's seconds by XLA's cost model, which has no name among the estimates."""
    estimates = json.loads(instruction.attribute(r'"reification_cost":(\[[^\]]*\])') or "[]")
    total_us = sum(e.get("exec_time_us", 0.0) for e in estimates if e.get("name") == "")
    return total_us * 1e-6 or None


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


def read_program(
    folder: Path, report: Message, topology: Topology, *, is_gpu: bool
) -> CompiledProgram:
    """Reads the program in a fork's folder; LaunchError without instructions or a GPU's thunks."""
    hlo, thunks, names = (read_log(folder / name) for name in (HLO, THUNKS, METADATA))
    parsed = parse_thunks(thunks)
    instructions = parse_module(hlo)
    if not instructions or (is_gpu and not parsed):
        missing = "thunks" if hlo else "optimized HLO"
        raise LaunchError(
            "a compiled step must have instructions and a GPU's must have thunks but XLA's dump "
            f"holds no {missing}; "
            "a workload may have switched it off (xla_dump_to): leave XLA_FLAGS to autotune"
        )
    fused = {i.called.get("calls") for i in instructions.values() if i.opcode == "fusion"}
    outside = [i for i in instructions.values() if i.computation not in fused]
    reader = Reader(
        instructions, {int(number): name for name, number in _NAME.findall(names)}, topology
    )
    facts = {name: report[name] for name in CompiledProgram.model_fields if name in report}
    program = {
        **facts,
        "fingerprint": facts.get("fingerprint") or fingerprint(report["hlo_digest"], thunks),
        "device_count": topology.device_count,
        "schedule": reader.schedule(parsed),
        "opcodes": Counter(i.opcode for i in outside),
        "custom_calls": Counter(_kernel_name(i) for i in outside if i.opcode == "custom-call"),
    }
    return CompiledProgram.model_validate(program)
