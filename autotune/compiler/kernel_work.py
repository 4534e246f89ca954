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

from autotune.compiler.hlo import Array, Computation, Instruction, Module

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
    if instruction.opcode == "fusion":
        fused = module.computations[instruction.called["calls"]]
        flops, matrix, dtype = _flops(module, fused)
        return Work(flops, matrix, dtype, _fusion_bytes(fused, instruction))
    operands = module.operand_arrays(computation, instruction)
    touched = float(sum(a.bytes for arrays in operands for a in arrays) + instruction.bytes)
    if instruction.opcode == "custom-call":
        matrix, dtype = _custom_call_flops(instruction, [arrays[0] for arrays in operands if arrays])
        return Work(0.0, matrix, dtype, touched)
    return Work(*_one(module, computation, instruction), touched)


def _flops(module: Module, computation: Computation) -> tuple[float, float, str | None]:
    """Scalar and matrix FLOPs of a computation, and the type of its dots."""
    scalar = matrix = 0.0
    dtype: str | None = None
    for instruction in computation.instructions.values():
        one = _one(module, computation, instruction)
        scalar, matrix, dtype = scalar + one[0], matrix + one[1], one[2] or dtype
    return scalar, matrix, dtype


def _one(module: Module, computation: Computation, instruction: Instruction) -> tuple[float, float, str | None]:
    """Scalar and matrix FLOPs of one instruction, and the type that its dot multiplies."""
    if instruction.opcode in ("dot", "scaled-dot"):
        return 0.0, *dot_flops(module, computation, instruction)
    if instruction.opcode in ("reduce", "reduce-window"):
        arrays = module.operand_arrays(computation, instruction)
        return float(sum(a.elements for a in arrays[0][:1])) if arrays else 0.0, 0.0, None
    if instruction.opcode == "fusion" and "calls" in instruction.called:  # Triton nests its dots
        return _flops(module, module.computations[instruction.called["calls"]])
    if instruction.opcode in _FREE or not instruction.shape:
        return 0.0, 0.0, None
    return float(instruction.shape[0].elements), 0.0, None


def dot_flops(module: Module, computation: Computation, dot: Instruction) -> tuple[float, str | None]:
    """FLOPs of a matrix product, and the type of what it multiplies."""
    left = next(iter(module.operand_arrays(computation, dot)), ())
    dims = dot.attribute(r"lhs_contracting_dims=\{([\d,]*)\}")
    if not left or not dot.shape:
        return 0.0, None
    depth = math.prod(left[0].dims[int(d)] for d in (dims or "").split(",") if d)
    return 2.0 * dot.shape[0].elements * depth, left[0].dtype


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
        [fused.instructions[o] for o in root.operands if o in fused.instructions] if root.opcode == "tuple" else [root]
    )


def _written_bytes(fused: Computation, root: Instruction) -> float:
    """How much one result of a fusion writes."""
    seen = root
    while seen.opcode in _VIEWS and seen.operands and seen.operands[0] in fused.instructions:
        seen = fused.instructions[seen.operands[0]]
    if seen.opcode == "dynamic-update-slice" and len(seen.operands) > 1 and seen.operands[1] in fused.instructions:
        return float(fused.instructions[seen.operands[1]].bytes)
    return float(root.bytes)


def _custom_call_flops(call: Instruction, operands: list[Array]) -> tuple[float, str | None]:
    """FLOPs of the library calls that XLA writes matrix products and attention as."""
    target = call.attribute(r'custom_call_target="([^"]*)"') or ""
    if target.startswith("__cublas") and operands:
        return _gemm_flops(call, operands[0]), operands[0].dtype
    if target.startswith("__cudnn$fmha") and len(operands) >= 2:
        return _attention_flops(target, operands[0], operands[1]), operands[0].dtype
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
