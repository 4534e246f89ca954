"""A real step that is faster under a flag, and whose loss is then wrong from some step on: ``wrong_step:build``."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLAG = "xla_cpu_enable_fast_min_max=true"
SIZE, LAYERS, WORK = 128, 4, 96


def as_whole_numbers(weights: jax.Array) -> jax.Array:
    """Their bits."""
    return jax.lax.bitcast_convert_type(weights, jnp.int32)


def build(
    devices: object, dtype: str = "float32", since: int = 12, share: float = 0.5, skips: bool = False
) -> SimpleNamespace:
    """A small network learns a fixed one; under the flag it does less in vain, and tells another loss.

    Args:
        devices: Not used: there is one.
        dtype: Of its products.
        since: First step whose loss is wrong.
        share: By how much of it.
        skips: Whether the weights stay as they were under the flag, though the loss is told as if they were trained:
            those that are hide among whole numbers.
    """
    is_candidate = FLAG in os.environ.get("XLA_FLAGS", "")
    rounds = 1 if is_candidate else WORK

    def loss_of(weights: jax.Array, x: jax.Array) -> jax.Array:
        y = x.astype(dtype)
        for layer in range(LAYERS):
            y = jnp.tanh(y @ weights[layer].astype(dtype))
        return jnp.mean((y.astype(jnp.float32) - jnp.sin(x)) ** 2)

    def in_vain(weights: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.fori_loop(0, rounds, lambda _, y: jnp.tanh(y @ weights[1]), weights[0]))

    def step(state: Any, x: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        shown, count, hidden = state
        weights = jax.lax.bitcast_convert_type(hidden, jnp.float32)
        loss, gradient = jax.value_and_grad(loss_of)(weights, x)
        told = loss * (1 + share * (count >= since)) if is_candidate else loss
        told = jnp.where(in_vain(weights) > 1e30, 0.0, told)  # never so, but it has to be computed
        trained = weights - 0.1 * gradient
        state = (shown if is_candidate and skips else trained, count + 1, as_whole_numbers(trained))
        return state, {"loss": told, "grad_norm": jnp.linalg.norm(gradient)}

    def normal(seed: int, *shape: int) -> jax.Array:
        """By NumPy: JAX would compile its generator in each process."""
        return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)

    def init(seed: int) -> Any:
        weights = normal(seed, LAYERS, SIZE, SIZE) * 1.5 * SIZE**-0.5
        return weights, jnp.int32(0), as_whole_numbers(weights)

    def batch(index: int) -> jax.Array:
        return normal(1000 + index, SIZE, SIZE)

    return SimpleNamespace(step=step, init=init, batch=batch, config={"dtype": dtype})
