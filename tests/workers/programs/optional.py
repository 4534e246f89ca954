"""A workload with options, one of which is planted to cost time: ``optional:build``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 96


def loss_of(w: jax.Array, x: jax.Array, rounds: int) -> Any:
    """Equal for all rounds but for rounding: each round computes the same again, and keeps its share."""

    def body(total: jax.Array, shift: jax.Array) -> tuple[jax.Array, None]:
        y = jnp.tanh(x @ w + shift)
        for _ in range(6):
            y = jnp.tanh(y @ w)
        return total + (y * y).mean() / rounds, None

    total: jax.Array = jax.lax.scan(body, jnp.float32(0), jnp.zeros(rounds))[0]
    return total


def build(devices: object, rounds: int = 1, kind: str = "a") -> SimpleNamespace:
    """One step; `rounds` of work where one would do, `kind` changes nothing."""

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        loss, gradient = jax.value_and_grad(loss_of)(w, x, rounds)
        return w - 0.01 * gradient, {"loss": loss, "grad_norm": jnp.linalg.norm(gradient)}

    def init(seed: int) -> Any:
        drawn = np.random.default_rng(seed).normal(scale=SIZE**-0.5, size=(SIZE, SIZE))
        return jnp.asarray(drawn, jnp.float32)

    return SimpleNamespace(step=step, init=init, batch=lambda i: jnp.full((SIZE, SIZE), 0.1))
