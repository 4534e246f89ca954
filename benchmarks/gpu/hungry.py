"""A trivial step that holds a share of the device's memory, so that two processes do not fit."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

WIDTH = 1024
DEFAULT_FRACTION = 0.75
ELSEWHERE_BYTES = 64e6
"""Of a device that does not tell its memory, such as a CPU."""


def build(devices: Any = None, *, share: float = 0.6) -> SimpleNamespace:
    """A small fit beside an array that takes this share of the whole device.

    Args:
        devices: The first one is used.
        share: Of its memory, whatever this process may take of that.
    """
    device = (jax.devices() if devices is None else devices)[0]
    taken = float(os.environ.get("XLA_CLIENT_MEM_FRACTION", DEFAULT_FRACTION))
    limit = (device.memory_stats() or {}).get("bytes_limit")
    rows = int(share * (limit / taken if limit else ELSEWHERE_BYTES)) // (4 * WIDTH)

    def step(state: Any, batch: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        weights, ballast = state
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(batch @ w) - batch) ** 2))(
            weights
        )
        return (weights - 0.1 * gradient, ballast), {
            "loss": loss,
            "grad_norm": jnp.linalg.norm(gradient),
        }

    def init(seed: int) -> Any:
        weights = jax.random.normal(jax.random.key(seed), (WIDTH, WIDTH)) * WIDTH**-0.5
        ballast = jax.jit(lambda: jnp.zeros((rows, WIDTH)))()
        return jax.device_put((weights, ballast), device)

    def batch(index: int) -> Any:
        return jax.device_put(jax.random.normal(jax.random.key(index), (WIDTH, WIDTH)), device)

    return SimpleNamespace(name="hungry", step=step, init=init, batch=batch, tokens_per_step=WIDTH)
