"""A training program that knows nothing of autotune and prints its steps; sets flags as its argument says."""

from __future__ import annotations

import os
import sys
import time

fault = sys.argv[1] if len(sys.argv) > 1 else ""
if fault == "sets-flags":
    os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
if fault == "adds-flags":
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_prefer_vector_width=128"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

step = jax.jit(lambda w, x: (w - 0.01 * w @ x @ x.T / 53, (w * w).mean()))
w, x = jnp.ones((53, 53)), jnp.ones((53, 53)) / 53
for i in range(1000):
    start = time.perf_counter()
    w, loss = step(w, x)
    loss = float(loss)
    print(f"step {i}: {1e3 * (time.perf_counter() - start):.6f} ms", flush=True)
    print(f"  loss = {loss:.6f}", flush=True)
    time.sleep(0.002)
