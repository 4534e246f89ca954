"""How much work one kernel is: floating-point operations and bytes of device memory, counted from its HLO.

The counting rules follow XLA's own cost analysis (xla/service/hlo_cost_analysis.cc and
gpu_hlo_cost_analysis.cc): a dot is 2 FLOPs for each multiplied pair, an elementwise operation 1 for each
element, and an operand of which a fusion reads a slice counts as that slice. Convolutions and custom
calls other than cuBLAS's and cuDNN's attention count as bytes only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.screen.hlo import Array, Computation, Instruction, Module

_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "broadcast", "iota", "copy",
    "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "gather", "reverse",
    "partition-id", "replica-id", "after-all", "optimization-barrier",
})  # fmt: skip
_VIEWS = frozenset({"bitcast", "reshape", "copy", "convert", "transpose"})
_SLICERS = frozenset({"dynamic-slice", "slice", "gather"})


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does.

    Attributes:
        flops: FLOPs outside of matrix products.
        matrix_flops: FLOPs of matrix products.
        matrix_dtype: Type of what is multiplied, None without a product.
        bytes: Bytes read and written in device memory.
    """

    flops: float = 0.0
    matrix_flops: float = 0.0
    matrix_dtype: str | None = None
    bytes: float = 0.0


def count(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """The work of one instruction outside of fusions."""
    operands = [computation.instructions[o] for o in instruction.operands if o in computation.instructions]
    if instruction.opcode == "fusion":
        fused = module.computations[instruction.called["calls"]]
        flops, matrix, dtype = _flops(module, fused)
        return Work(flops, matrix, dtype, _fusion_bytes(fused, instruction))
    touched = float(sum(o.bytes for o in operands) + instruction.bytes)
    if instruction.opcode == "custom-call":
        matrix, dtype = _custom_call_flops(instruction, operands)
        return Work(0.0, matrix, dtype, touched)
    flops, matrix, dtype = _flops(
        module, Computation("", False, {i.name: i for i in (*operands, instruction)}), own=instruction
    )
    return Work(flops, matrix, dtype, touched)


def _flops(
    module: Module, computation: Computation, own: Instruction | None = None
) -> tuple[float, float, str | None]:
    """Scalar and matrix FLOPs of a computation (or of one instruction of it), and the type of its dots."""
    scalar = matrix = 0.0
    dtype: str | None = None
    for instruction in [own] if own else computation.instructions.values():
        if instruction.opcode in ("dot", "scaled-dot"):
            product, kind = dot_flops(computation, instruction)
            matrix += product
            dtype = kind or dtype
        elif instruction.opcode in ("reduce", "reduce-window"):
            scalar += sum(
                computation.instructions[o].shape[0].elements
                for o in instruction.operands[:1]
                if o in computation.instructions
            )
        elif instruction.opcode == "fusion" and "calls" in instruction.called:  # Triton nests its dots
            inner = _flops(module, module.computations[instruction.called["calls"]])
            scalar, matrix, dtype = scalar + inner[0], matrix + inner[1], inner[2] or dtype
        elif instruction.opcode not in _FREE and instruction.shape:
            scalar += instruction.shape[0].elements
    return scalar, matrix, dtype


def dot_flops(computation: Computation, dot: Instruction) -> tuple[float, str | None]:
    """FLOPs of a matrix product, and the type of what it multiplies."""
    left = computation.instructions.get(dot.operands[0])
    dims = dot.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
    if left is None or not left.shape or not dot.shape:
        return 0.0, None
    depth = math.prod(left.shape[0].dims[int(d)] for d in (dims or "").split(",") if d)
    return 2.0 * dot.shape[0].elements * depth, left.shape[0].dtype


def _fusion_bytes(fused: Computation, fusion: Instruction) -> float:
    """Bytes a fusion reads and writes: of sliced operands the slice, of updates in place the update."""
    users: dict[str, list[Instruction]] = {}
    for instruction in fused.instructions.values():
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    read = sum(_read_bytes(i, users) for i in fused.instructions.values() if i.opcode == "parameter")
    written = sum(_written_bytes(fused, root) for root in _roots(fused))
    return float(read + (written or fusion.bytes))


def _read_bytes(value: Instruction, users: dict[str, list[Instruction]]) -> float:
    """How much of one operand of a fusion is read."""
    total = 0.0
    for user in users.get(value.name, ()):
        if user.opcode in _SLICERS and user.operands[0] == value.name:
            total += user.bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # overwritten in place
        elif user.opcode in _VIEWS:
            total += _read_bytes(user, users)
        elif user.opcode == "tuple":
            continue
        else:
            return float(value.bytes)
    return min(total, float(value.bytes))


def _roots(fused: Computation) -> Iterable[Instruction]:
    root = fused.root
    return (
        [fused.instructions[o] for o in root.operands if o in fused.instructions]
        if root.opcode == "tuple"
        else [root]
    )


def _written_bytes(fused: Computation, root: Instruction) -> float:
    """How much one result of a fusion writes."""
    seen = root
    while seen.opcode in _VIEWS and seen.operands and seen.operands[0] in fused.instructions:
        seen = fused.instructions[seen.operands[0]]
    if (
        seen.opcode == "dynamic-update-slice"
        and len(seen.operands) > 1
        and seen.operands[1] in fused.instructions
    ):
        return float(fused.instructions[seen.operands[1]].bytes)
    return float(root.bytes)


def _custom_call_flops(call: Instruction, operands: list[Instruction]) -> tuple[float, str | None]:
    """FLOPs of the library calls that XLA writes matrix products and attention as."""
    target = call.attribute(r'custom_call_target="([^"]*)"') or ""
    if target.startswith("__cublas") and operands and operands[0].shape:
        return _gemm_flops(call, operands[0].shape[0]), operands[0].shape[0].dtype
    if target.startswith("__cudnn$fmha") and len(operands) >= 2:
        return _attention_flops(target, operands[0].shape[0], operands[1].shape[0]), operands[0].shape[
            0
        ].dtype
    return 0.0, None


def _gemm_flops(call: Instruction, left: Array) -> float:
    found = re.search(r'"lhs_contracting_dimensions":\s*(\[[^\]]*\])', call.attributes)
    dims = [int(d) for d in json.loads(found[1])] if found else [len(left.dims) - 1]
    return 2.0 * call.shape[0].elements * math.prod(left.dims[d] for d in dims)


def _attention_flops(target: str, query: Array, key: Array) -> float:
    """Two products forward, five backward (FlashAttention-2, arXiv:2307.08691, section 3).

    All pairs count: a causal mask is not seen here. Both operands are [batch, length, heads, size].
    """
    if len(query.dims) != 4 or len(key.dims) != 4:
        return 0.0
    return (5 if "Backward" in target else 2) * 2.0 * query.elements * key.dims[1]
