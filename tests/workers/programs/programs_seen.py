"""A small program whose compiled programs are seen from outside; with ``--lie`` one that would rather not."""

import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--lie", default="")
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

if arguments.lie == "flags":
    os.environ["XLA_FLAGS"] = ""

import jax  # noqa: E402 (it reads the flags)
import jax.numpy as jnp  # noqa: E402


@jax.jit
def step(w: jax.Array, x: jax.Array) -> jax.Array:
    slope: jax.Array = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - arguments.seed) ** 2))(w)
    return w - 1e-3 * slope


w, x = jnp.ones((256, 256)) / 256, jnp.ones((64, 256))
for i in range(arguments.steps):
    began = time.perf_counter()
    w = jax.block_until_ready(step(w, x))
    time.sleep(0.01)
    print(f"step {i}: {1e3 * (time.perf_counter() - began):.3f} ms loss = {float(w[0, 0]):.5f}", flush=True)
    if i == 8 and arguments.lie == "later":
        jax.block_until_ready(jax.jit(lambda w: w * 2 + 1)(w))
