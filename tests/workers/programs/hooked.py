"""A training program with the one line of `autotune.hook` in its loop; misbehaves as its argument says."""

from __future__ import annotations

import os
import sys
import time

import jax
import jax.numpy as jnp

import autotune.hook

fault = sys.argv[1] if len(sys.argv) > 1 else ""
if fault == "sets-option":
    jax.config.update("jax_default_matmul_precision", "highest")
step = jax.jit(lambda w, x: (w - 0.01 * w @ x @ x.T / 53, (w * w).mean()))
w, x, loss = jnp.ones((53, 53)), jnp.ones((53, 53)) / 53, jnp.zeros(())
for i, _ in enumerate(autotune.hook.steps(range(7), sync=lambda: jax.block_until_ready(loss))):  # noqa: B023
    w, loss = step(w, x)
    if i == 11:
        if fault == "crash":
            os.abort()
        if fault == "oom":
            raise MemoryError
        if fault == "hang":
            time.sleep(600)
    autotune.hook.report(loss=float("nan") if fault == "nan" and i > 10 else loss, grad_norm=1.5)
print("the loop has ended")
