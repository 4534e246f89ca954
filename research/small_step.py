"""A training step of a small network that starts in seconds, as a program that prints its steps.

    python research/small_step.py [STEPS]

The milliseconds are of processor time, which other programs of a busy machine disturb least.
"""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, ROWS, LAYERS = 128, 256, 4
Arrays = list[jax.Array]


def loss_of(weights: Arrays, x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error of layers with normalisation and GELU."""
    for w in weights:
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = x + jax.nn.gelu(x @ w)
    return jnp.mean((jax.nn.softmax(x) - y) ** 2)


@jax.jit
def step(weights: Arrays, x: jax.Array, y: jax.Array) -> tuple[Arrays, jax.Array]:
    """One step of gradient descent."""
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    return [w - 10.0 * g for w, g in zip(weights, gradients, strict=True)], loss


def main() -> None:
    """Prints number, loss and milliseconds of processor time of each step."""
    draw = np.random.default_rng(0)
    weights = [jnp.asarray(draw.normal(scale=WIDTH**-0.5, size=(WIDTH, WIDTH)), jnp.float32) for _ in range(LAYERS)]
    x, y = (jnp.asarray(draw.normal(size=(ROWS, WIDTH)), jnp.float32) for _ in range(2))
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
        began = time.process_time()
        weights, loss = step(weights, x, y)
        value = float(loss)
        took_ms = 1000 * (time.process_time() - began)
        print(f"step {number}: loss {value:.6f}, step_time_ms={took_ms:.3f}", flush=True)


if __name__ == "__main__":
    main()
