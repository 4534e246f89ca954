"""Matmuls with float8 operands: scaled by their present maximum, or by those of the steps before.

The present maximum has to be known before an array can be narrowed, which reads it twice.
Transformer Engine and MaxText therefore take a scale from the steps before (delayed scaling) and
look for the maximum while they narrow. What they remember is part of the training state. It is
overwritten each step by what its "gradient" is, as flax does it.

References:
    FP8 formats for deep learning, https://arxiv.org/abs/2209.05433
    flax/linen/fp8_ops.py; Transformer Engine, user guide, "Delayed scaling"
"""

from __future__ import annotations

from functools import partial
from string import ascii_lowercase
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import fp8_ops

HISTORY = 1024
"""Steps whose largest values are kept, as in Transformer Engine, flax and MaxText."""

_KINDS = (jnp.float8_e4m3fn, jnp.float8_e4m3fn, jnp.float8_e5m2)


class Scaling(nnx.Param[jax.Array]):
    """Scales and largest values of input, weight and gradient of a matmul, f32[3, 1 + HISTORY].

    Not trained: its gradient is its next value.
    """


def new_scaling() -> Scaling:
    """Nothing remembered, scales of 1."""
    start = jnp.zeros((3, 1 + HISTORY), jnp.float32).at[:, 0].set(1.0)
    return Scaling(start, out_sharding=(None, None), eager_sharding=False)


def _narrow(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """An array in a float8 type, scaled to its range, and the scale that undoes it."""
    largest = jnp.max(jnp.abs(x)).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest, 1.0) / float(jnp.finfo(dtype).max)
    return (x.astype(jnp.float32) / scale).astype(dtype), scale


def _product(
    equation: str, x: tuple[jax.Array, jax.Array], y: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """``einsum`` of two narrowed arrays, in bfloat16.

    Written as flax and Transformer Engine write it: a product of what they stand for. XLA makes one
    call of it that takes the narrow arrays and their scales, and what is summed over devices is
    bfloat16.
    """
    wide = (narrow.astype(jnp.bfloat16) * scale.astype(jnp.bfloat16) for narrow, scale in (x, y))
    return jnp.einsum(equation, *wide)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul_current(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """``einsum`` with e4m3 operands, and e5m2 gradients, each scaled by its present maximum.

    References:
        FP8 formats for deep learning, https://arxiv.org/abs/2209.05433
    """
    return _forward(equation, x, kernel)[0]


def _forward(equation: str, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    operands = _narrow(x, jnp.float8_e4m3fn), _narrow(kernel, jnp.float8_e4m3fn)
    return _product(equation, *operands), operands


def _backward(equation: str, operands: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _transposed(equation, operands, _narrow(gradient, jnp.float8_e5m2))


def _transposed(
    equation: str, operands: Any, gradient: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Gradients of both operands, from one that is narrowed."""
    inputs, _, out = equation.partition("->")
    left, _, right = inputs.partition(",")
    return (
        _product(f"{out},{right}->{left}", gradient, operands[1]),
        _product(f"{out},{left}->{right}", gradient, operands[0]),
    )


matmul_current.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul_delayed(equation: str, x: jax.Array, kernel: jax.Array, scaling: jax.Array) -> jax.Array:
    """``einsum`` as in `matmul_current` by ``scaling``, whose gradient is its next value."""
    return _delayed_forward(equation, x, kernel, scaling)[0]


def _remembered(
    x: jax.Array, scaling: jax.Array, row: int
) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """An array narrowed by the scale in a row, with that scale; and the row for the next step."""
    kind, scale = _KINDS[row], scaling[row, 0]
    history = fp8_ops.compute_amax_history(x, scaling[row, 1:])
    following = fp8_ops.compute_scale(jnp.max(history), scale, float(jnp.finfo(kind).max))
    narrow = fp8_ops.quantize(x, kind, scale, jnp.float32)
    return (narrow, scale), jnp.concatenate([following[None], history])


def _delayed_forward(
    equation: str, x: jax.Array, kernel: jax.Array, scaling: jax.Array
) -> tuple[jax.Array, Any]:
    left, new_left = _remembered(x, scaling, 0)
    right, new_right = _remembered(kernel, scaling, 1)
    return _product(equation, left, right), ((left, right), (new_left, new_right), scaling)


def _delayed_backward(
    equation: str, kept: Any, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    operands, rows, scaling = kept
    narrow, row = _remembered(gradient, scaling, 2)
    return (*_transposed(equation, operands, narrow), jnp.stack([*rows, row]))


matmul_delayed.defvjp(_delayed_forward, _delayed_backward)


def _equation(x: jax.Array, kernel: jax.Array, dimensions: jax.lax.DotDimensionNumbers) -> str:
    """The `einsum` of a product over the last axes of ``x`` and the first ones of ``kernel``."""
    count = len(dimensions[0][0])
    rows, columns = ascii_lowercase[: x.ndim], ascii_lowercase[x.ndim - count :][: kernel.ndim]
    return f"{rows},{columns}->{rows[:-count]}{columns[count:]}"


def current_dot_general(x: jax.Array, kernel: jax.Array, dimensions: Any, **_: Any) -> jax.Array:
    """`matmul_current` in the place of `jax.lax.dot_general` in a linear layer."""
    return matmul_current(_equation(x, kernel, dimensions), x, kernel)


class DelayedDotGeneral(nnx.Module):
    """`matmul_delayed` as `jax.lax.dot_general` of a linear layer, with its memory."""

    def __init__(self) -> None:
        self.scaling = new_scaling()

    def __call__(self, x: jax.Array, kernel: jax.Array, dimensions: Any, **_: Any) -> jax.Array:
        """The product of a layer's input and its weights, in bfloat16."""
        return matmul_delayed(_equation(x, kernel, dimensions), x, kernel, self.scaling[...])
