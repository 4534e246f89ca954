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
from dataclasses import dataclass, replace

from autotune.compiler.hlo import Array, Computation, Instruction, Module

_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "broadcast", "iota", "copy",
    "transpose", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "gather", "reverse",
    "partition-id", "replica-id", "after-all", "optimization-barrier",
})  # fmt: skip
_VIEWS = frozenset({"bitcast", "reshape", "copy", "convert", "transpose"})
_SLICERS = frozenset({"dynamic-slice", "slice", "gather"})

Product = tuple[int, int, int, int]
"""Batch, rows, columns and depth of a matrix product: b x m x n x k."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does.

    Attributes:
        flops: FLOPs outside of matrix products.
        matrix_flops: FLOPs of matrix products.
        matrix_dtype: Type of what is multiplied, None without a product.
        bytes: Bytes read and written in device memory.
        product: Batch, rows, columns and depth of its (largest) matrix product; None without one, and of attention.
    """

    flops: float = 0.0
    matrix_flops: float = 0.0
    matrix_dtype: str | None = None
    bytes: float = 0.0
    product: Product | None = None


def count(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """The work of one instruction outside of fusions."""
    if instruction.opcode == "fusion":
        fused = module.computations[instruction.called["calls"]]
        done = _of_computation(module, fused)
        return replace(done, bytes=_fusion_bytes(fused, instruction))
    operands = module.operand_arrays(computation, instruction)
    touched = float(sum(a.bytes for arrays in operands for a in arrays) + instruction.bytes)
    if instruction.opcode == "custom-call":
        return replace(_of_custom_call(instruction, [arrays[0] for arrays in operands if arrays]), bytes=touched)
    return replace(_of_one(module, computation, instruction), bytes=touched)


def _of_computation(module: Module, computation: Computation) -> Work:
    """FLOPs of a computation; of its products the type of the last and the shape of the largest."""
    total = Work()
    for instruction in computation.instructions.values():
        one = _of_one(module, computation, instruction)
        total = Work(
            flops=total.flops + one.flops,
            matrix_flops=total.matrix_flops + one.matrix_flops,
            matrix_dtype=one.matrix_dtype or total.matrix_dtype,
            product=max((total.product, one.product), key=lambda p: math.prod(p or (0,))),
        )
    return total


def _of_one(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """FLOPs of one instruction."""
    if instruction.opcode in ("dot", "scaled-dot"):
        return _of_dot(module, computation, instruction)
    if instruction.opcode in ("reduce", "reduce-window"):
        arrays = module.operand_arrays(computation, instruction)
        return Work(float(sum(a.elements for a in arrays[0][:1])) if arrays else 0.0)
    if instruction.opcode == "fusion" and "calls" in instruction.called:  # Triton nests its dots
        return _of_computation(module, module.computations[instruction.called["calls"]])
    if instruction.opcode in _FREE or not instruction.shape:
        return Work()
    return Work(float(instruction.shape[0].elements))


def _of_dot(module: Module, computation: Computation, dot: Instruction) -> Work:
    """A matrix product of HLO."""
    left = next(iter(module.operand_arrays(computation, dot)), ())
    if not left or not dot.shape:
        return Work()
    depth, batch = (
        math.prod(left[0].dims[int(d)] for d in (dot.attribute(rf"{name}=\{{([\d,]*)\}}") or "").split(",") if d)
        for name in ("lhs_contracting_dims", "lhs_batch_dims")
    )
    return _product(left[0], dot.shape[0], depth, batch)


def _product(left: Array, result: Array, depth: int, batch: int) -> Work:
    """A matrix product of what is on its left with something of the same depth."""
    rows = max(1, left.elements // max(1, depth * batch))
    shape = (batch, rows, max(1, result.elements // (rows * batch)), depth)
    return Work(matrix_flops=2.0 * result.elements * depth, matrix_dtype=left.dtype, product=shape)


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


def _of_custom_call(call: Instruction, operands: list[Array]) -> Work:
    """The library calls that XLA writes matrix products and attention as."""
    target = call.attribute(r'custom_call_target="([^"]*)"') or ""
    if target.startswith("__cublas") and operands:
        left = operands[0]
        depth, batch = (_dims(call, name, left) for name in ("lhs_contracting", "lhs_batch"))
        return _product(left, call.shape[0], depth or left.dims[-1], batch or 1)
    if target.startswith("__cudnn$fmha") and len(operands) >= 2:
        flops = _attention_flops(call, target, operands[0], operands[1])
        return Work(matrix_flops=flops, matrix_dtype=operands[0].dtype)
    return Work()


def _dims(call: Instruction, name: str, left: Array) -> int | None:
    """Product of the sizes along the left operand's dimensions of that name; None if the call does not say."""
    found = re.search(rf'"{name}_dimensions":\s*(\[[^\]]*\])', call.attributes)
    return math.prod(left.dims[int(d)] for d in json.loads(found[1])) if found else None


def _attention_flops(call: Instruction, target: str, query: Array, key: Array) -> float:
    """Two products forward, five backward (FlashAttention-2, arXiv:2307.08691, section 3).

    Under a causal mask half of the pairs count: the kernel skips tiles above the diagonal (section 3.1.1 there). Both
    operands are [batch, length, heads, size].
    """
    if len(query.dims) != 4 or len(key.dims) != 4:
        return 0.0
    # JAX writes a space behind the colon, XLA none.
    pairs = 0.5 if re.search(r'"mask_type":\s*"(PADDING_)?CAUSAL"', call.attributes) else 1.0
    return (5 if "Backward" in target else 2) * 2.0 * query.elements * key.dims[1] * pairs
