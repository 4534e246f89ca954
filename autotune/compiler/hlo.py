"""Reads the text of an optimized HLO module: computations, instructions, shapes, groups of devices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_BITS: Mapping[str, float] = {
    "pred": 8, "token": 0, "opaque": 0, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4,
    "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32, "u32": 32, "f32": 32,
    "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,<=]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-~$]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-~$]+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-~$]+)(?:#(\d+))?")
_LITERAL = re.compile(r"[su]\d+\[\](?:\{\S*\})? -?\d+$")
_REFERENCE = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-~$]+)")


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a shape: ``bf16[8,128]``."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of it in device memory."""
        bits = 8 if self.dtype.startswith("f8") else _BITS.get(self.dtype, 32)
        return math.ceil(self.elements * bits / 8)


@dataclass(slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name: Without the per cent sign.
        opcode: ``fusion``, ``all-gather-start``, ``custom-call`` ...
        shape: The arrays of its result; a tuple's are side by side.
        operands: Names of instructions of the same computation.
        members: For each operand, which member of its tuple is meant (``%while#4``); None for all of it.
        attributes: What follows the operands, as text.
        called: Attribute to the computation that it names: ``calls``, ``body``, ``condition``, ``to_apply``.
        is_root: Whether its value is that of its computation.
        index: Of a parameter, which one.
        literal: Of a scalar integer constant, its value.
        last: Of a tuple-shaped start, the arrays of the second member (the results).
    """

    name: str
    opcode: str
    shape: tuple[Array, ...]
    operands: tuple[str, ...]
    members: tuple[int | None, ...]
    attributes: str
    called: Mapping[str, str]
    is_root: bool = False
    index: int | None = None
    literal: int | None = None
    last: tuple[Array, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return sum(a.bytes for a in self.shape)

    def attribute(self, pattern: str) -> str | None:
        """The first group of a pattern in its attributes."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else None


@dataclass(slots=True)
class Computation:
    """Instructions by name, in the order in which they run."""

    name: str
    is_entry: bool
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The one whose value the computation gives."""
        return next(i for i in reversed(self.instructions.values()) if i.is_root)


@dataclass(slots=True)
class Module:
    """Computations by name."""

    computations: dict[str, Computation]

    @staticmethod
    def operand_arrays(computation: Computation, instruction: Instruction) -> list[tuple[Array, ...]]:
        """The arrays of each operand; empty for an operand that is not in the computation."""
        found = []
        for name, member in zip(instruction.operands, instruction.members, strict=True):
            shape = computation.instructions[name].shape if name in computation.instructions else ()
            found.append(shape if member is None else shape[member : member + 1])
        return found

    def index(self) -> dict[str, tuple[Computation, Instruction]]:
        """Every instruction by name (names are unique in a module), with its computation."""
        return {i.name: (c, i) for c in self.computations.values() for i in c.instructions.values()}


def parse_shape(text: str) -> tuple[Array, ...]:
    """All arrays of a shape's text, in order, tuples flattened."""
    return tuple(
        Array(dtype, tuple(int(d.lstrip("<=")) for d in dims.split(",") if d)) for dtype, dims in _ARRAY.findall(text)
    )


def parse_module(text: str) -> Module:
    """Reads a module; lines of no known form are skipped."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    for line in text.splitlines():
        if line and not line[0].isspace():
            found = _COMPUTATION.match(line)
            if found:
                current = Computation(found[2], bool(found[1]))
                computations[current.name] = current
            continue
        found = _INSTRUCTION.match(line)
        if found and current is not None:
            instruction = _parse_instruction(bool(found[1]), found[2], found[3])
            if instruction is not None:
                current.instructions[instruction.name] = instruction
    return Module(computations)


def _parse_instruction(is_root: bool, name: str, rest: str) -> Instruction | None:
    """The right-hand side of an instruction: shape, opcode, operands, attributes."""
    end = _matching(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, body = rest[:end], rest[end:].lstrip()
    opcode, parenthesis, _ = body.partition("(")
    if not parenthesis or end <= 0:
        return None
    close = _matching(body, len(opcode))
    inside, attributes = body[len(opcode) + 1 : close], body[close + 1 :]
    named = _OPERAND.findall(inside)
    return Instruction(
        name=name,
        opcode=opcode,
        shape=parse_shape(shape),
        operands=tuple(n for n, _ in named),
        members=tuple(int(m) if m else None for _, m in named),
        attributes=attributes,
        called=dict(_REFERENCE.findall(attributes)),
        is_root=is_root,
        index=int(inside) if opcode == "parameter" and inside.isdigit() else None,
        literal=int(inside) if opcode == "constant" and _LITERAL.match(f"{shape} {inside}") else None,
        last=_second_member(shape) if shape.startswith("((") else (),
    )


def _matching(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`; braces of layouts hold parentheses too."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def _second_member(shape: str) -> tuple[Array, ...]:
    """Of ``((a, b), c, ...)`` the arrays of ``c``: what an asynchronous start will give."""
    close = _matching(shape, 1)
    rest = shape[close + 1 : -1].lstrip(", ")
    return parse_shape(rest[: _matching(rest, 0) + 1] if rest.startswith("(") else rest)


def device_groups(instruction: Instruction, device_count: int) -> list[list[int]]:
    """Which devices take part together in a collective; for a permute, its pairs.

    Args:
        instruction: The collective itself, not its start.
        device_count: All devices, for the empty list that means everybody.
    """
    text = instruction.attributes
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
    if pairs:
        return _explicit(pairs[1])
    found = re.search(r"replica_groups=(\{\{.*?\}\}|\{\}|\[[^\]]*\]<=\[[^\]]*\](?:T\([\d,]*\))?|mesh\[.*)", text)
    if not found or found[1] == "{}":
        return [list(range(device_count))]
    body = found[1]
    if body.startswith("{"):
        return _explicit(body)
    if body.startswith("["):
        shape, _, source = body.partition("<=")
        groups, size = (int(n) for n in re.findall(r"\d+", shape)[:2])
        flat = list(_iota(source))
        return [flat[g * size : (g + 1) * size] for g in range(groups)]
    return list(_mesh_groups(body))


def _explicit(text: str) -> list[list[int]]:
    return [[int(n) for n in group.split(",")] for group in re.findall(r"\{?([\d,]+)\}", text) if group.strip(",")]


def _iota(text: str) -> Iterator[int]:
    """Device numbers of ``[4,2]T(1,0)``: counted up over the dims, then transposed, row by row."""
    dims_text, _, order_text = text.partition("T")
    dims = [int(n) for n in re.findall(r"\d+", dims_text)]
    order = [int(n) for n in re.findall(r"\d+", order_text)] or list(range(len(dims)))
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    for place in itertools.product(*(range(dims[i]) for i in order)):
        yield sum(p * strides[i] for p, i in zip(place, order, strict=True))


def _mesh_groups(text: str) -> Iterator[list[int]]:
    """Groups of ``mesh['x'=4,'y'=2], device_ids=([..]T(..)) {'x':(2)2}``: along the axes named in braces.

    ``'x':(2)2`` is part of an axis: its size 2 after 2 outer parts.
    """
    found = re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", text)
    if not found:
        return
    axes = [(n, int(s)) for n, s in re.findall(r"'([^']*)'=(\d+)", found[1])]
    flat = list(_iota(found[2] or f"[{','.join(str(s) for _, s in axes)}]"))
    wanted: dict[str, list[tuple[int, int]]] = {}
    for name, outer, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", found[3]):
        full = dict(axes)[name]
        wanted.setdefault(name, []).append((int(outer or 1), int(size or full)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in zip(flat, itertools.product(*(range(s) for _, s in axes)), strict=True):
        key = tuple(_rest(at, size, wanted.get(n, ())) for at, (n, size) in zip(place, axes, strict=True))
        groups.setdefault(key, []).append(device)
    yield from groups.values()


def _rest(coordinate: int, size: int, parts: Sequence[tuple[int, int]]) -> int:
    """What is left of a coordinate on an axis without the parts along which devices are grouped."""
    for outer, part in parts:
        inner = size // (outer * part)
        coordinate = coordinate // (part * inner) * inner + coordinate % inner
        size //= part
    return coordinate
