"""The same training program with autotune's hook: outside a study it is just a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from train import ROWS, STEPS, WIDTH, optimizer, train_step

import autotune.hook

keys = jax.random.split(jax.random.key(0), 5)
params = [jax.random.normal(k, (WIDTH, WIDTH)) * WIDTH**-0.5 for k in keys[:4]]
state = optimizer.init(params)
x = jax.random.normal(keys[4], (ROWS, WIDTH))
loss = None
for _ in autotune.hook.steps(range(STEPS), sync=lambda: jax.block_until_ready(loss)):  # noqa: B023 (the newest)
    params, state, loss = train_step(params, state, x, jnp.sin(x))
    autotune.hook.report(loss=loss)
