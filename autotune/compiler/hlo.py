"""Parses optimized HLO modules: instructions, device groups, trip counts, work of kernels.

A pass that peels a loop loses its trip count. The loop's counter, a scalar integer, is then run until the condition
ends the loop (before that xla/service/while_loop_analysis.cc counts). All else is unknown: a wrong count gives a wrong
step time. Work follows XLA's cost analysis (xla/service/hlo_cost_analysis.cc, gpu_hlo_cost_analysis.cc): a dot is 2
FLOPs for each multiplied pair, an elementwise operation 1 for each element, and an operand of which a fusion reads a
slice counts as that slice. Convolutions and custom calls but cuBLAS's and cuDNN's attention count as bytes only.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.model.files import packaged_table
from autotune.model.numbers import Record

Devices = NDArray[np.int64]

NAMES = packaged_table("hlo.toml")
"""Names of opcodes and thunks; the file says what each table is."""

_BITS = {"pred": 8, "token": 0, "opaque": 0}
"""Bits of the types whose name does not give them, as ``bf16`` and ``f8e4m3fn`` do."""

_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,<=]*)\](\{[^{}]*S\(5\)[^{}]*\})?")
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
    is_on_host: bool = False
    """In XLA's memory space 5 (``Layout::kHostMemorySpace``)."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes in device memory."""
        width = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype, int(width[0]) if width else 32)
        return math.ceil(self.elements * bits / 8)


@dataclass(slots=True)
class Instruction:
    """One instruction."""

    name: str
    opcode: str
    """``fusion``, ``all-gather-start``, ``custom-call`` ..."""
    shape: tuple[Array, ...]
    """The arrays of its result, tuples flattened."""
    operands: tuple[str, ...]
    members: tuple[int | None, ...]
    """For each operand, the index of a member of its tuple (``%while#4``); None for all of it."""
    attributes: str
    called: Mapping[str, str]
    """Attribute (``calls``, ``body``, ``condition``, ``to_apply``) to the name of a computation."""
    is_root: bool = False
    index: int | None = None
    """Number of a parameter."""
    literal: int | None = None
    """Value of a scalar integer constant."""

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return sum(a.bytes for a in self.shape)

    def attribute(self, pattern: str) -> str | None:
        """Returns the first group of a pattern in the attributes."""
        match = re.search(pattern, self.attributes)
        return match[1] if match else None


@dataclass(slots=True)
class Computation:
    """Instructions by name, in the order in which they run."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the computation's result."""
        return next(i for i in reversed(self.instructions.values()) if i.is_root)


@dataclass(slots=True)
class Module:
    """Computations by name."""

    computations: dict[str, Computation]

    @staticmethod
    def operand_arrays(computation: Computation, instruction: Instruction) -> list[tuple[Array, ...]]:
        """Returns the arrays of each operand; empty for operands outside the computation."""
        arrays = []
        for name, member in zip(instruction.operands, instruction.members, strict=True):
            shape = computation.instructions[name].shape if name in computation.instructions else ()
            arrays.append(shape if member is None else shape[member : member + 1])
        return arrays

    def index(self) -> dict[str, tuple[Computation, Instruction]]:
        """Maps each name (unique in a module) to its computation and instruction."""
        return {i.name: (c, i) for c in self.computations.values() for i in c.instructions.values()}


def parse_shape(text: str) -> tuple[Array, ...]:
    """Parses the arrays of a shape, in order, tuples flattened."""
    return tuple(
        Array(dtype, tuple(int(d.lstrip("<=")) for d in dims.split(",") if d), bool(on_host))
        for dtype, dims, on_host in _ARRAY.findall(text)
    )


def parse_module(text: str) -> Module:
    """Parses a module and skips lines of unknown form."""
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    for line in text.splitlines():
        if line and not line[0].isspace():
            match = _COMPUTATION.match(line)
            if match:
                current = Computation(match[2])
                computations[current.name] = current
            continue
        match = _INSTRUCTION.match(line)
        if match and current is not None:
            instruction = _parse_instruction(bool(match[1]), match[2], match[3])
            if instruction is not None:
                current.instructions[instruction.name] = instruction
    return Module(computations)


def _parse_instruction(is_root: bool, name: str, rest: str) -> Instruction | None:
    """Parses the right-hand side of an instruction."""
    end = _matching(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape = rest[:end]
    body = rest[end:].lstrip()
    opcode, parenthesis, _ = body.partition("(")
    if not parenthesis or end <= 0:
        return None
    close = _matching(body, len(opcode))
    inside = body[len(opcode) + 1 : close]
    attributes = body[close + 1 :]
    references = _OPERAND.findall(inside)
    return Instruction(
        name=name,
        opcode=opcode,
        shape=parse_shape(shape),
        operands=tuple(n for n, _ in references),
        members=tuple(int(m) if m else None for _, m in references),
        attributes=attributes,
        called=dict(_REFERENCE.findall(attributes)),
        is_root=is_root,
        index=int(inside) if opcode == "parameter" and inside.isdigit() else None,
        literal=int(inside) if opcode == "constant" and _LITERAL.match(f"{shape} {inside}") else None,
    )


def _matching(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`; braces of layouts hold parentheses too."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == "(":
            depth += 1
        elif text[i] == ")":
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def device_groups(instruction: Instruction, device_count: int) -> list[list[int]]:
    """Returns the device groups of a collective (not of its start); for a permute, its pairs."""
    text = instruction.attributes
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text)
    if pairs:
        return _explicit(pairs[1])
    groups = re.search(r"replica_groups=(\{\{.*?\}\}|\{\}|\[[^\]]*\]<=\[[^\]]*\](?:T\([\d,]*\))?|mesh\[.*)", text)
    if not groups or groups[1] == "{}":
        return [list(range(device_count))]
    body = groups[1]
    if body.startswith("{"):
        return _explicit(body)
    if body.startswith("["):
        shape, _, source = body.partition("<=")
        count, size = (int(n) for n in re.findall(r"\d+", shape)[:2])
        groups_of_all: list[list[int]] = _iota(source).reshape(count, size).tolist()
        return groups_of_all
    return _mesh_groups(body)


def _explicit(text: str) -> list[list[int]]:
    return [[int(n) for n in group.split(",")] for group in re.findall(r"\{?([\d,]+)\}", text) if group.strip(",")]


def _iota(text: str) -> Devices:
    """Returns the device numbers of ``[4,2]T(1,0)``: an iota over the dims, transposed, in row-major order."""
    dims, axes = ([int(n) for n in re.findall(r"\d+", numbers)] for numbers in text.partition("T")[::2])
    return np.arange(math.prod(dims)).reshape(dims).transpose(axes or range(len(dims))).ravel()


def _mesh_groups(text: str) -> list[list[int]]:
    """Returns the groups of ``mesh['x'=4,'y'=2], device_ids=([..]T(..)) {'x':(2)2}`` along the axes in braces.

    ``'x':(2)2`` is a part of an axis: size 2 after 2 outer parts.
    """
    match = re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", text)
    if not match:
        return []
    axes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", match[1])}
    grouped = {
        name: (int(outer or 1), int(size or axes[name]))
        for name, outer, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", match[3])
    }
    shape: list[int] = []  # of each axis the parts outside of its group, in it, and inside of it
    for name, size in axes.items():
        outer, inside = grouped.get(name, (size, 1))
        shape += [outer, inside, size // (outer * inside)]
    order = sorted(range(len(shape)), key=lambda axis: axis % 3 == 1)
    devices = _iota(match[2] or f"{list(axes.values())}").reshape(shape).transpose(order)
    groups: list[list[int]] = devices.reshape(-1, math.prod(shape[1::3])).tolist()
    return groups


_DOES: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add, "subtract": operator.sub, "LT": operator.lt, "LE": operator.le, "GT": operator.gt,
    "GE": operator.ge, "NE": operator.ne,
}  # fmt: skip

MOST_TRIPS = 10_000
"""Longest loop whose turns are counted."""

Value = int | list[Any] | None
"""A scalar integer, the values of a tuple's members, or nothing that is known."""


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """Iterations of a ``while``; None if unknown."""
    count_by_xla = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
    if count_by_xla is not None:
        return int(count_by_xla)
    condition, body = (module.computations.get(loop.called.get(name, "")) for name in ("condition", "body"))
    if condition is None or body is None or len(loop.operands) != 1:
        return None
    (state,) = _operands(loop, _values(module, computation, []))
    for count in range(MOST_TRIPS):
        goes_on = _values(module, condition, [state]).get(condition.root.name)
        if not goes_on:
            return count if goes_on is not None else None
        state = _values(module, body, [state]).get(body.root.name)
    return None


def _values(module: Module, computation: Computation, arguments: list[Value]) -> dict[str, Value]:
    """Runs a computation as far as it is about scalars; values by name of the instruction."""
    values: dict[str, Value] = {}
    for instruction in computation.instructions.values():
        if any(not array.dims for array in instruction.shape):
            values[instruction.name] = _value(module, instruction, _operands(instruction, values), arguments)
    return values


def _operands(instruction: Instruction, known: Mapping[str, Value]) -> list[Value]:
    references = zip(instruction.operands, instruction.members, strict=True)
    return [known.get(name) if member is None else _member(known.get(name), member) for name, member in references]


def _member(value: Value, number: int) -> Value:
    return value[number] if isinstance(value, list) and number < len(value) else None


def _value(module: Module, instruction: Instruction, operands: list[Value], arguments: list[Value]) -> Value:
    """Evaluates one instruction."""
    opcode = instruction.opcode
    operand = _member(operands, 0)
    if opcode == "parameter":
        return _member(arguments, instruction.index or 0)
    if opcode == "constant":
        return instruction.literal
    if opcode == "tuple":
        return operands
    if opcode == "get-tuple-element":
        return _member(operand, int(instruction.attribute(r"index=(\d+)") or 0))
    if opcode in ("bitcast", "copy", "opt-barrier"):
        return operand
    if opcode in ("call", "fusion"):
        called = module.computations.get(instruction.called.get("calls", instruction.called.get("to_apply", "")))
        return _values(module, called, operands).get(called.root.name) if called is not None else None
    does = _DOES.get(instruction.attribute(r"direction=(\w+)") or opcode)
    numbers = [value for value in operands if isinstance(value, int)]
    return int(does(*numbers)) if does is not None and len(numbers) == len(operands) == 2 else None


Product = tuple[int, int, int, int]
"""Batch, rows, columns and depth of a matrix product: b x m x n x k."""


class Work(Record):
    """FLOPs and bytes of a kernel."""

    flops: float = 0.0
    """FLOPs outside of matrix products."""
    matrix_flops: float = 0.0
    matrix_dtype: str | None = None
    """Type of the factors; None without a product."""
    bytes: float = 0.0
    host_bytes: float = 0.0
    """Bytes that a copy moves to or from the host's memory."""
    product: Product | None = None
    """The largest matrix product; None without one, and of attention."""


def kernel_work(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """Counts the work of an instruction outside of fusions."""
    operands = module.operand_arrays(computation, instruction)
    is_on_host = any(a.is_on_host for arrays in (instruction.shape, *operands) for a in arrays)
    moved = 0.0
    if instruction.opcode == "fusion":
        fused = module.computations[instruction.called["calls"]]
        work = _of_computation(module, fused)
        touched = _fusion_bytes(fused, instruction)
        if is_on_host:
            moved = touched / 2  # reads a slice, writes a slice
    else:
        touched = float(sum(a.bytes for arrays in operands for a in arrays) + instruction.bytes)
        if instruction.opcode == "custom-call":
            work = _of_custom_call(instruction, [arrays[0] for arrays in operands if arrays])
        else:
            work = _of_one(module, computation, instruction)
            if is_on_host and instruction.shape:
                moved = float(instruction.shape[0].bytes)
    return work.model_copy(update={"bytes": touched, "host_bytes": moved})


def _of_computation(module: Module, computation: Computation) -> Work:
    """Returns the FLOPs of a computation, dtype of its last product, shape of its largest."""
    total = Work()
    for instruction in computation.instructions.values():
        work = _of_one(module, computation, instruction)
        total = Work(
            flops=total.flops + work.flops,
            matrix_flops=total.matrix_flops + work.matrix_flops,
            matrix_dtype=work.matrix_dtype or total.matrix_dtype,
            product=max((total.product, work.product), key=lambda p: math.prod(p or (0,))),
        )
    return total


def _of_one(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """Returns the FLOPs of one instruction."""
    if instruction.opcode in ("dot", "scaled-dot"):
        return _of_dot(module, computation, instruction)
    if instruction.opcode in ("reduce", "reduce-window"):
        arrays = module.operand_arrays(computation, instruction)
        return Work(flops=float(sum(a.elements for operand in arrays[:1] for a in operand[:1])))
    if instruction.opcode == "fusion" and "calls" in instruction.called:  # Triton nests its dots
        return _of_computation(module, module.computations[instruction.called["calls"]])
    if instruction.opcode in NAMES["free"] or not instruction.shape:
        return Work()
    return Work(flops=float(instruction.shape[0].elements))


def _of_dot(module: Module, computation: Computation, dot: Instruction) -> Work:
    factor = next(iter(module.operand_arrays(computation, dot)), ())
    if not factor or not dot.shape:
        return Work()
    depth, batch = (_size_along(dot, name, factor[0]) or 1 for name in ("lhs_contracting", "lhs_batch"))
    return _product(factor[0], dot.shape[0], depth, batch)


def _size_along(instruction: Instruction, name: str, left: Array) -> int | None:
    """Returns the size of the left operand along the dimensions that a dot or library call names; None without any."""
    dimensions = instruction.attribute(rf'{name}_(?:dims=|dimensions":\s*)[{{\[]([\d,"\s]*)')
    return None if dimensions is None else math.prod(left.dims[int(d)] for d in re.findall(r"\d+", dimensions))


def _product(left: Array, result: Array, depth: int, batch: int) -> Work:
    rows = max(1, left.elements // max(1, depth * batch))
    shape = (batch, rows, max(1, result.elements // (rows * batch)), depth)
    return Work(matrix_flops=2.0 * result.elements * depth, matrix_dtype=left.dtype, product=shape)


def _fusion_bytes(fused: Computation, fusion: Instruction) -> float:
    """Returns the bytes a fusion reads and writes; slices and in-place updates count as such."""
    users: dict[str, list[Instruction]] = {}
    for instruction in fused.instructions.values():
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    read = sum(_read_bytes(i, users) for i in fused.instructions.values() if i.opcode == "parameter")
    written = sum(_written_bytes(fused, root) for root in _roots(fused))
    return float(read + (written or fusion.bytes))


def _read_bytes(value: Instruction, users: dict[str, list[Instruction]]) -> float:
    """Returns the bytes read of one operand of a fusion."""
    total = 0.0
    for user in users.get(value.name, ()):
        if user.opcode in NAMES["slicers"] and user.operands[0] == value.name:
            total += user.bytes
        elif user.opcode in NAMES["views"]:
            total += _read_bytes(user, users)
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # overwritten in place
        elif user.opcode != "tuple":
            return float(value.bytes)
    return min(total, float(value.bytes))


def _roots(fused: Computation) -> Iterable[Instruction]:
    root = fused.root
    if root.opcode != "tuple":
        return [root]
    return [fused.instructions[o] for o in root.operands if o in fused.instructions]


def _written_bytes(fused: Computation, root: Instruction) -> float:
    """Returns the bytes written for one result of a fusion."""
    source = root
    while source.opcode in NAMES["views"] and source.operands and source.operands[0] in fused.instructions:
        source = fused.instructions[source.operands[0]]
    if (
        source.opcode == "dynamic-update-slice"
        and len(source.operands) > 1
        and source.operands[1] in fused.instructions
    ):
        return float(fused.instructions[source.operands[1]].bytes)
    return float(root.bytes)


def _of_custom_call(call: Instruction, operands: list[Array]) -> Work:
    """Returns the work of cuBLAS and cuDNN calls."""
    target = call.attribute(r'custom_call_target="([^"]*)"') or ""
    if target.startswith("__cublas") and operands:
        factor = operands[0]
        depth, batch = (_size_along(call, name, factor) for name in ("lhs_contracting", "lhs_batch"))
        return _product(factor, call.shape[0], depth or factor.dims[-1], batch or 1)
    if target.startswith("__cudnn$fmha") and len(operands) >= 2:
        flops = _attention_flops(call, target, operands[0], operands[1])
        return Work(matrix_flops=flops, matrix_dtype=operands[0].dtype)
    return Work()


def _attention_flops(call: Instruction, target: str, query: Array, key: Array) -> float:
    """Returns the FLOPs: two products forward, five backward (FlashAttention-2, arXiv:2307.08691, section 3).

    Under a causal mask half of the pairs count: the kernel skips tiles above the diagonal (section 3.1.1 there). Both
    operands are [batch, length, heads, size].
    """
    if len(query.dims) != 4 or len(key.dims) != 4:
        return 0.0
    # JAX writes a space behind the colon, XLA none.
    pairs = 0.5 if re.search(r'"mask_type":\s*"(PADDING_)?CAUSAL"', call.attributes) else 1.0
    return (5 if "Backward" in target else 2) * 2.0 * query.elements * key.dims[1] * pairs
