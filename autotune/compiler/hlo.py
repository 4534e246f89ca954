"""Parses optimized HLO modules: instructions, device groups, trip counts, work of kernels.

A pass that peels a loop loses its trip count (xla/service/while_loop_analysis.cc): its counter, a
scalar integer, is then run until the condition ends the loop. Work follows XLA's cost analysis
(xla/service/hlo_cost_analysis.cc, gpu_hlo_cost_analysis.cc): a dot is 2 FLOPs for each multiplied
pair, an elementwise operation 1 for each element, and an operand of which a fusion reads a slice
counts as that slice. Convolutions, and custom calls other than cuBLAS's and cuDNN's attention,
count as bytes only.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.model.files import packaged_table
from autotune.model.numbers import Record

Devices = NDArray[np.int64]
Groups = list[list[int]]
Instructions = dict[str, "Instruction"]
Computations = dict[str, "Computation"]

NAMES = packaged_table("hlo.toml")  # of opcodes and thunks; the file says what each table is

# Bits of the types whose name does not give them, as ``bf16`` and ``f8e4m3fn`` do.
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,<=]*)\](\{[^{}]*S\(5\)[^{}]*\})?")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-~$]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-~$]+) = (?P<shape>\(.*?\)|\S+)\s+(?P<opcode>[\w.\-]+)\("
)
_OPERAND = re.compile(r"%([\w.\-~$]+)(?:#(\d+))?")
_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]<=(\[[^\]]*\](?:T\([\d,]*\))?)")
_LITERAL = re.compile(r"[su]\d+ (-?\d+)")
_REFERENCE = re.compile(
    r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-~$]+)"
)


def first_group(pattern: str, text: str) -> str | None:
    """Returns the first group of a pattern's first match in a text; None without a match."""
    match = re.search(pattern, text)
    return match[1] if match else None


def _integers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a shape: ``bf16[8,128]``."""

    dtype: str
    dims: tuple[int, ...]
    is_on_host: bool = False  # in XLA's memory space 5 (``Layout::kHostMemorySpace``)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes in device memory."""
        bits = _BITS.get(self.dtype, int(first_group(r"(\d+)", self.dtype) or 32))
        return math.ceil(self.elements * bits / 8)


class Operand(NamedTuple):
    """The instruction whose result another one takes."""

    instruction: Instruction
    member: int | None  # of its tuple (``%while#4``); None for all of it

    @property
    def arrays(self) -> tuple[Array, ...]:
        """Its arrays."""
        shape = self.instruction.shape
        return shape if self.member is None else shape[self.member : self.member + 1]


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction, linked to its operands and its users; its shape's tuples are flattened."""

    name: str
    computation: Computation
    opcode: str = ""
    shape: tuple[Array, ...] = ()
    inside: str = ""  # operands, a parameter's number, or a constant's value
    attributes: str = ""
    called: Computations = field(default_factory=dict)
    operands: list[Operand] = field(default_factory=list)
    users: list[Instruction] = field(default_factory=list)  # once for each operand

    @property
    def arguments(self) -> list[Array]:
        """The arrays of its operands."""
        return [array for operand in self.operands for array in operand.arrays]

    @property
    def bytes(self) -> int:
        """Bytes of the result."""
        return sum(a.bytes for a in self.shape)

    @property
    def call_target(self) -> str:
        """Name of the library function that a custom call runs; empty for other instructions."""
        return self.attribute(r'custom_call_target="([^"]*)"') or ""

    def attribute(self, pattern: str) -> str | None:
        """Returns the first group of a pattern in the attributes."""
        return first_group(pattern, self.attributes)


@dataclass(slots=True, eq=False)
class Computation:
    """Instructions by name, in the order in which they run."""

    instructions: Instructions = field(default_factory=dict)
    root_name: str = ""


def parse_module(text: str) -> Instructions:
    """Parses a module's instructions by name, which is unique; skips lines of unknown form."""
    computations = {}
    current = Computation()
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            current = Computation()
            computations[header[1]] = current
        match = _INSTRUCTION.match(line)
        if match:
            _add_instruction(current, match, computations)
            if match["root"]:
                current.root_name = match["name"]
    return {i.name: i for c in computations.values() for i in c.instructions.values()}


def _add_instruction(
    computation: Computation, match: re.Match[str], computations: Computations
) -> None:
    text = match.string[match.end() :]
    close = _closing(text)
    inside = text[:close]
    attributes = text[close + 1 :]
    called = {
        kind: computations[body]
        for kind, body in _REFERENCE.findall(attributes)
        if body in computations
    }
    name, shape, opcode = match.group("name", "shape", "opcode")
    arrays = tuple(
        Array(dtype, tuple(_integers(dims)), bool(on_host))
        for dtype, dims, on_host in _ARRAY.findall(shape)
    )
    instruction = Instruction(name, computation, opcode, arrays, inside, attributes, called)
    for operand, member in _OPERAND.findall(inside):
        source = computation.instructions.get(operand) or Instruction(operand, computation)
        source.users.append(instruction)
        instruction.operands.append(Operand(source, int(member) if member else None))
    computation.instructions[name] = instruction


def _closing(text: str) -> int:
    """Returns the index of the parenthesis that closes an open one; layouts nest others."""
    depth = 1
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return i
    return len(text)


def device_groups(instruction: Instruction, device_count: int) -> Groups:
    """Returns the device groups of a collective (not of its start); for a permute, its pairs."""
    listed = instruction.attribute(r"(?:source_target_pairs|replica_groups)=\{(\{.*?\})\}")
    if listed is not None:
        return [_integers(group) for group in re.findall(r"\{[\d,]+\}", listed)]
    iota = _IOTA.search(instruction.attributes)
    if iota:
        return _rows(_iota(iota[2]), int(iota[1]))
    mesh = instruction.attribute(r"replica_groups=(mesh\[.*)")
    return [list(range(device_count))] if mesh is None else _mesh_groups(mesh)


def _iota(text: str) -> Devices:
    """Returns the devices of ``[4,2]T(1,0)``: an iota over the dims, transposed, row-major."""
    dims, axes = map(_integers, text.partition("T")[::2])
    return np.arange(math.prod(dims)).reshape(dims).transpose(axes or range(len(dims))).ravel()


def _mesh_groups(text: str) -> Groups:
    """Returns the groups along some axes of a mesh; ``'x':(2)2`` is size 2 after 2 outer parts.

    The text is ``mesh['x'=4,'y'=2], device_ids=([..]T(..)) {'x':(2)2}``.
    """
    match = re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", text)
    if not match:
        return []
    axes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", match[1])}
    grouped = {
        name: (int(outer or 1), int(size or axes[name]))
        for name, outer, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", match[3])
    }
    # Of each axis the parts outside of its group, in it, and inside of it.
    shape = []
    for name, size in axes.items():
        outer, inside = grouped.get(name, (size, 1))
        shape += [outer, inside, size // (outer * inside)]
    devices = _iota(match[2] or f"{list(axes.values())}").reshape(shape)
    return _rows(
        np.moveaxis(devices, range(1, len(shape), 3), range(-len(axes), 0)), math.prod(shape[1::3])
    )


def _rows(devices: Devices, size: int) -> Groups:
    rows = devices.reshape(-1, size).tolist()
    return rows


_DOES = {
    "add": operator.add,
    "subtract": operator.sub,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
}

MOST_TRIPS = 10_000

Value = int | list[Any] | None  # a scalar, the values of a tuple's members, or unknown
Values = dict[str, Value]
Arguments = list[Value]


def trip_count(loop: Instruction) -> int | None:
    """Returns the iterations of a ``while``; None if unknown."""
    count_by_xla = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
    if count_by_xla is not None:
        return int(count_by_xla)
    if not {"condition", "body"} <= loop.called.keys():
        return None
    state = _operand_values(loop, _values(loop.computation, []))
    for count in range(MOST_TRIPS):
        goes_on = _result(loop.called["condition"], state)
        if goes_on is None:
            return None
        if not goes_on:
            return count
        state = [_result(loop.called["body"], state)]
    return None


def _result(computation: Computation, arguments: Arguments) -> Value:
    return _values(computation, arguments).get(computation.root_name)


def _values(computation: Computation, arguments: Arguments) -> Values:
    """Runs a computation as far as it is about scalars; values by name of the instruction."""
    values: Values = {}
    for instruction in computation.instructions.values():
        if any(not array.dims for array in instruction.shape):
            operands = _operand_values(instruction, values)
            values[instruction.name] = _value(instruction, operands, arguments)
    return values


def _operand_values(instruction: Instruction, values: Values) -> Arguments:
    return [_member(values.get(source.name), member) for source, member in instruction.operands]


def _member(value: Value, number: int | None) -> Value:
    """Returns a member of a tuple's value; the whole value if `number` is None."""
    if number is None:
        return value
    return value[number] if isinstance(value, list) and number < len(value) else None


def _value(instruction: Instruction, operands: Arguments, arguments: Arguments) -> Value:
    operand = _member(operands, 0)
    match instruction.opcode:
        case "parameter":
            return _member(arguments, int(instruction.inside))
        case "constant":
            literal = _LITERAL.fullmatch(f"{instruction.shape[0].dtype} {instruction.inside}")
            return int(literal[1]) if literal else None
        case "tuple":
            return operands
        case "get-tuple-element":
            return _member(operand, int(instruction.attribute(r"index=(\d+)") or 0))
        case "bitcast" | "copy" | "opt-barrier":
            return operand
        case "call" | "fusion":
            return next((_result(called, operands) for called in instruction.called.values()), None)
    does = _DOES.get(instruction.attribute(r"direction=(\w+)") or instruction.opcode)
    match operands:
        case [int(lhs), int(rhs)] if does is not None:
            return int(does(lhs, rhs))
    return None


Product = tuple[int, int, int, int]  # batch, rows, columns and depth: b x m x n x k


class Work(Record):
    """FLOPs (`flops`: outside of matrix products), bytes, bytes copied to or from the host."""

    flops: float = 0.0
    matrix_flops: float = 0.0
    matrix_dtype: str | None = None
    bytes: float = 0.0
    host_bytes: float = 0.0
    product: Product | None = None  # the largest; None without one, and of attention


def kernel_work(instruction: Instruction) -> Work:
    """Counts the work of an instruction outside of fusions."""
    arrays = (*instruction.shape, *instruction.arguments)
    if instruction.opcode == "fusion":
        touched = _fusion_bytes(instruction)
        copied = touched / 2  # reads a slice, writes a slice
    else:
        touched = sum(array.bytes for array in arrays)
        copied = sum(array.bytes for array in instruction.shape[:1])
    if instruction.opcode == "custom-call" or not any(array.is_on_host for array in arrays):
        copied = 0.0
    return _flops(instruction).model_copy(update={"bytes": touched, "host_bytes": copied})


def _flops(instruction: Instruction) -> Work:
    """Counts the FLOPs of an instruction; of a fusion with its last dtype and largest product."""
    opcode = instruction.opcode
    arrays = [operand.arrays[0] for operand in instruction.operands if operand.arrays]
    target = instruction.call_target
    if opcode == "fusion" and "calls" in instruction.called:  # Triton nests its dots
        total = Work()
        for inner in instruction.called["calls"].instructions.values():
            work = _flops(inner)
            total = Work(
                flops=total.flops + work.flops,
                matrix_flops=total.matrix_flops + work.matrix_flops,
                matrix_dtype=work.matrix_dtype or total.matrix_dtype,
                product=max((total.product, work.product), key=lambda p: math.prod(p or (0,))),
            )
        return total
    if opcode in ("dot", "scaled-dot") or target.startswith("__cublas"):
        return _product(instruction, arrays)
    if target.startswith("__cudnn$fmha"):
        return _attention(instruction, arrays)
    if opcode in NAMES["free"]:
        return Work()
    counted = arrays if opcode in ("reduce", "reduce-window") else instruction.shape
    return Work(flops=sum(array.elements for array in counted[:1]))


def _product(instruction: Instruction, factors: list[Array]) -> Work:
    """Returns the work of a matrix product: a dot, or a call of cuBLAS."""
    if not factors or not instruction.shape:
        return Work()
    lhs = factors[0]
    elements = instruction.shape[0].elements
    depth = _size_along(instruction, "lhs_contracting", lhs) or math.prod(lhs.dims[-1:])
    batch = _size_along(instruction, "lhs_batch", lhs) or 1
    rows = max(1, lhs.elements // max(1, depth * batch))
    shape = (batch, rows, max(1, elements // (rows * batch)), depth)
    return Work(matrix_flops=2.0 * elements * depth, matrix_dtype=lhs.dtype, product=shape)


def _size_along(instruction: Instruction, name: str, lhs: Array) -> int | None:
    """Returns the left operand's size along the dimensions of this name; None without any."""
    dimensions = instruction.attribute(rf'{name}_(?:dims=|dimensions":\s*)[{{\[]([\d,"\s]*)')
    if dimensions is None:
        return None
    return math.prod(lhs.dims[axis] for axis in _integers(dimensions))


def _attention(call: Instruction, operands: list[Array]) -> Work:
    """Returns the work of attention: two products forward, five backward.

    So counts FlashAttention-2 (arXiv:2307.08691, part 3). Under a causal mask half of the pairs
    count: the kernel skips tiles above the diagonal (section 3.1.1 there). Query and key are
    [batch, length, heads, size].
    """
    if [len(array.dims) for array in operands[:2]] != [4, 4]:
        return Work()
    query, key = operands[:2]
    products = 5.0 if "Backward" in call.call_target else 2.0
    # JAX writes a space behind the colon, XLA none.
    if call.attribute(r'("mask_type":\s*"(?:PADDING_)?CAUSAL")'):
        products /= 2
    return Work(
        matrix_flops=products * 2.0 * query.elements * key.dims[1], matrix_dtype=query.dtype
    )


def _fusion_bytes(fusion: Instruction) -> int:
    """Returns the bytes a fusion reads and writes; slices and in-place updates count as such."""
    fused = fusion.called["calls"]
    instructions = fused.instructions
    read = sum(_read_bytes(i) for i in instructions.values() if i.opcode == "parameter")
    root = instructions[fused.root_name]
    results = [root]
    if root.opcode == "tuple":
        results = [operand.instruction for operand in root.operands]
    return read + (sum(map(_written_bytes, results)) or fusion.bytes)


def _read_bytes(value: Instruction) -> int:
    """Returns the bytes read of one operand of a fusion."""
    total = 0
    for user in value.users:
        is_first = user.operands[0].instruction is value
        if is_first and user.opcode in NAMES["slicers"]:
            total += user.bytes
        elif user.opcode in NAMES["views"]:
            total += _read_bytes(user)
        elif user.opcode != "tuple" and not (is_first and user.opcode == "dynamic-update-slice"):
            return value.bytes  # a slice that is updated in place is not read
    return min(total, value.bytes)


def _written_bytes(result: Instruction) -> int:
    """Returns the bytes written for one result of a fusion."""
    source = result
    while source.opcode in NAMES["views"]:
        source = source.operands[0].instruction
    if source.opcode == "dynamic-update-slice":
        return source.operands[1].instruction.bytes
    return result.bytes
