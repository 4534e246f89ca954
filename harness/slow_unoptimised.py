"""A real step that LLVM optimises severalfold, cheap to start: ``slow_unoptimised:build``.

A study of it whose baseline is level 0 (``xla_backend_optimization_level``) has something to prove.
It stands for a transformer where a test is about the study, for a process of it starts with a
quarter of the work.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROWS, TERMS = 20_000, 24
"""So few rows that XLA leaves them to one thread: several wait for each other on a machine that is
busy.
"""


def build(devices: Any) -> SimpleNamespace:
    """Fits the coefficients of a polynomial to a curve, its terms computed one after the other."""

    def curve(weights: jax.Array, x: jax.Array) -> jax.Array:
        y = jnp.zeros_like(x)
        for i in range(TERMS):  # Horner's scheme: one kernel, all of it LLVM's own code
            y = y * x + weights[i]
        return y

    device = devices[0] if devices else None

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((curve(w, x) - jnp.abs(x)) ** 2))(
            weights
        )
        return weights - 0.05 * gradient, {"loss": loss, "grad_norm": jnp.linalg.norm(gradient)}

    # NumPy draws: JAX would compile its generator in each process, which costs a third of a start.
    def init(seed: int) -> Any:
        drawn = np.random.default_rng(seed).normal(scale=0.1, size=TERMS)
        return jax.device_put(drawn.astype(np.float32), device)

    def batch(index: int) -> Any:
        drawn = np.random.default_rng(index).uniform(-1.0, 1.0, ROWS)
        return jax.device_put(drawn.astype(np.float32), device)

    return SimpleNamespace(name="slow_unoptimised", step=step, init=init, batch=batch)
