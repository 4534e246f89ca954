"""A loop as the README shows it, whose step returns at once and takes long on the device; says how long at least."""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp

import autotune.hook

reports = "report" in sys.argv[1:]


@jax.jit
def train_step(state: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    state = jax.lax.fori_loop(0, 30, lambda _, w: jnp.tanh(w @ batch), state)
    return state, state.mean()


state, batch = jnp.ones((300, 300)), jnp.ones((300, 300)) / 300
state, _ = jax.block_until_ready(train_step(state, batch))
truth = dispatch = 1e9
for _ in range(10):
    began = time.perf_counter()
    state, loss = train_step(state, batch)
    dispatch = min(dispatch, time.perf_counter() - began)
    jax.block_until_ready(state)
    truth = min(truth, time.perf_counter() - began)
print(f"truth {truth} dispatch {dispatch}", flush=True)
for x in autotune.hook.steps([batch]):
    state, loss = train_step(state, x)
    if reports:
        autotune.hook.report(loss=loss)
