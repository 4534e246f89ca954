"""Counter-based pseudo-random numbers by integer hashing, for initial weights and synthetic data.

Why not `jax.random`: each threefry draw takes XLA:CPU 0.7 s to compile (jaxlib 0.10.2): a worker
would spend more time on initial weights than on the step it is there to measure. Values depend on
seed and position only, not on how an array is split over devices.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp


def scramble(x: jax.Array) -> jax.Array:
    """A bijection of u32 in which every input bit reaches every output bit.

    References:
        lowbias32, https://nullprogram.com/blog/2018/07/31/
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def bits(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random u32 of a shape from a u32 seed."""
    position = jnp.zeros(shape, jnp.uint32)
    for dim in range(len(shape)):
        stride = math.prod(shape[dim + 1 :]) % (1 << 32)
        position = position + jax.lax.broadcasted_iota(jnp.uint32, shape, dim) * jnp.uint32(stride)
    return scramble(scramble(position + seed) + jnp.uint32(0x9E3779B9) * seed)


def uniform(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random f32 in the open interval (0, 1)."""
    return ((bits(seed, shape) >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


@functools.partial(
    jax.jit, static_argnames=("shape", "dtype", "in_axis")
)  # traced once for all weights of a shape
def lecun_uniform(
    seed: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32, in_axis: int = -2
) -> jax.Array:
    """As `jax.nn.initializers.lecun_uniform`, of a u32 seed: variance 1 / input size."""
    return ((uniform(seed, shape) - 0.5) * (12 / shape[in_axis]) ** 0.5).astype(dtype)


class Stream:
    """A sequence of seeds that follow from one; traced, so that one program serves every seed.

    Layers of flax take it as their ``rngs``.
    """

    def __init__(self, seed: jax.Array) -> None:
        self._seed = scramble(seed.astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
        self._drawn = 0

    def __call__(self) -> jax.Array:
        """The next seed, u32[]."""
        self._drawn += 1
        return scramble(self._seed + jnp.uint32(self._drawn))

    params = __call__  # as `nnx.Rngs` names it

    def split(self, parts: int) -> jax.Array:
        """Seeds for independent streams, u32[parts]."""
        return bits(self(), (parts,))
