"""A user's own workload in plain JAX; use it as ``workloads.example:build``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp


def build(devices: Any = None, *, width: int = 128, rows: int = 256) -> SimpleNamespace:
    """Fits a two-layer network to a fixed random one; needed are `step`, `init` and `batch`."""
    device = (jax.devices() if devices is None else devices)[0]

    def predict(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ weights[0]) @ weights[1]

    def step(weights: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        loss, gradients = jax.value_and_grad(
            lambda w: jnp.mean((predict(w, batch[0]) - batch[1]) ** 2)
        )(weights)
        grad_norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients))
        return tuple(w - 0.1 * g for w, g in zip(weights, gradients, strict=True)), {
            "loss": loss,
            "grad_norm": grad_norm,
        }

    def init(seed: int) -> Any:
        keys = jax.random.split(jax.random.key(seed))
        return tuple(
            jax.device_put(jax.random.normal(key, (width, width)) * width**-0.5, device)
            for key in keys
        )

    def batch(index: int) -> Any:
        x = jax.random.normal(jax.random.key(index), (rows, width))
        return jax.device_put((x, jnp.sin(x)), device)

    return SimpleNamespace(name="example", step=step, init=init, batch=batch, tokens_per_step=rows)
