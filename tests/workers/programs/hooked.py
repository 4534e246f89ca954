"""A training program with the one line of `autotune.hook` in its loop; with `sets-option` it sets an option of JAX."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

import autotune.hook

if "sets-option" in sys.argv[1:]:
    jax.config.update("jax_default_matmul_precision", "highest")
step = jax.jit(lambda w, x: (w - 0.01 * w @ x @ x.T / 53, (w * w).mean()))
w, x, loss = jnp.ones((53, 53)), jnp.ones((53, 53)) / 53, jnp.zeros(())
for _ in autotune.hook.steps(range(7), sync=lambda: jax.block_until_ready(loss)):  # noqa: B023
    w, loss = step(w, x)
    autotune.hook.report(loss=loss, grad_norm=1.5)
print("the loop has ended")
