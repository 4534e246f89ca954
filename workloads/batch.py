"""Synthetic tokens with learnable structure, a function of (seed, index) on the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from workloads import noise
from workloads.mesh import Layout
from workloads.noise import Stream

_ALPHABET = 251  # few symbols, so that the rule is learned in tens of steps whatever the vocabulary
_STRIDE = 7
_NOISE = 0.1  # share of tokens that follow no rule: the loss has a floor above zero


def abstract_batch(layout: Layout, *, batch: int, seq: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch: ``inputs`` and ``targets``, i32[B, T] each."""
    sharding = layout.sharding(("batch", "sequence"))
    return {
        name: jax.ShapeDtypeStruct((batch, seq), jnp.int32, sharding=sharding)
        for name in ("inputs", "targets")
    }


def make_batch(
    layout: Layout, *, batch: int, seq: int, vocab: int, seed: int
) -> Callable[[int], Mapping[str, jax.Array]]:
    """Gives the function from a step's index to its batch.

    Each row counts upwards by a fixed stride from a random start within a small alphabet; a tenth
    of the tokens is replaced by random ones. The next token is thus a function of the last one,
    which any model can learn.
    """
    symbols = min(vocab, _ALPHABET)

    def tokens(index: jax.Array) -> dict[str, jax.Array]:
        stream = Stream(noise.scramble(jnp.uint32(seed)) + index)
        shape = (batch, seq + 1)
        start = noise.bits(stream(), (batch, 1)) % symbols
        rule = (start + _STRIDE * jnp.arange(seq + 1, dtype=jnp.uint32)[None, :]) % symbols
        random = noise.bits(stream(), shape) % symbols
        row = jnp.where(noise.uniform(stream(), shape) < _NOISE, random, rule).astype(jnp.int32)
        return {"inputs": row[:, :-1], "targets": row[:, 1:]}

    shardings = jax.tree.map(lambda s: s.sharding, abstract_batch(layout, batch=batch, seq=seq))
    jitted = jax.jit(tokens, out_shardings=shardings)
    return lambda index: jitted(jnp.uint32(index))
