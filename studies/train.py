"""Somebody's training program: it knows nothing of autotune and prints one line a step."""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import optax

WIDTH, ROWS, STEPS = 256, 512, 2000

optimizer = optax.adamw(1e-3)


parser = argparse.ArgumentParser()
parser.add_argument(
    "--remat", action=argparse.BooleanOptionalAction, help="compute activations a second time"
)
args = parser.parse_args()


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    """One layer of a small network."""
    return jax.nn.gelu(x @ w)


def loss_fn(params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error of a small network."""
    for w in params[:-1]:
        x = (jax.checkpoint(layer) if args.remat else layer)(x, w)
    return jnp.mean((x @ params[-1] - y) ** 2)


@jax.jit
def train_step(params, state, x, y):  # type: ignore[no-untyped-def]
    """One update."""
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), 5)
    params = [jax.random.normal(k, (WIDTH, WIDTH)) * WIDTH**-0.5 for k in keys[:4]]
    state = optimizer.init(params)
    x = jax.random.normal(keys[4], (ROWS, WIDTH))
    for step in range(STEPS):
        start = time.perf_counter()
        params, state, loss = train_step(params, state, x, jnp.sin(x))
        loss = float(loss)
        print(
            f"step {step} | {1e3 * (time.perf_counter() - start):.3f} ms | loss {loss:.6f}",
            flush=True,
        )
