"""Rotary positions, and how they are stretched to longer sequences than a model began with."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rope(NamedTuple):
    """The rotation of queries and keys.

    Attributes:
        size: The part of a head that is rotated.
        scaling: Slow frequencies are divided by ``factor``: all of them (linear), those whose wave
            is longer than the ``original`` sequence and in part those down to a quarter of it
            (llama3), or those that turn less than once over it and in part those that turn up to
            ``fast`` times (yarn).
        truncate: YaRN's limits are rounded to whole frequencies.

    References:
        RoFormer, https://arxiv.org/abs/2104.09864
        llama3: https://github.com/meta-llama/llama-models, models/llama3/model.py
        YaRN, https://arxiv.org/abs/2309.00071, section 3.2
    """

    size: int
    theta: float
    scaling: str
    factor: float
    original: int
    fast: float
    truncate: bool


def rotary(seq: int, rope: Rope) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary embedding, [T, 1, H/2] each."""
    frequency = rope.theta ** (-jnp.arange(0, rope.size, 2) / rope.size)
    if rope.scaling != "none":
        kept = _kept(frequency, rope)
        frequency = frequency * (kept + (1 - kept) / rope.factor)
    angle = (jnp.arange(seq)[:, None] * frequency[None, :])[:, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def _kept(frequency: jax.Array, rope: Rope) -> jax.Array:
    """The share of each frequency that is not scaled."""
    if rope.scaling == "linear":
        return jnp.zeros_like(frequency)
    if rope.scaling == "llama3":
        turns = rope.original * frequency / (2 * math.pi)
        return jnp.clip((turns - 1) / (4 - 1), 0, 1)

    def place(turns: float) -> float:
        """Index of the frequency of so many turns over the original sequence, up to `size` / 2."""
        return (
            rope.size * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        )

    low, high = place(rope.fast), place(1)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.size - 1)
    ramp = (jnp.arange(rope.size // 2) - low) / max(high - low, 1e-3)
    return 1 - jnp.clip(ramp, 0, 1)


def rotate(x: jax.Array, cos_sin: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns the halves of each head of [B, T, N, H] by the angles of `rotary`."""
    cos, sin = cos_sin
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos[None] - second * sin[None], second * cos[None] + first * sin[None])
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
