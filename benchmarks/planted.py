"""The quickstart's workload with a known amount of extra work, for `real_truth.py`.

`PLANTED_ITERATIONS` small matrix products are appended to every step; 0 appends nothing. They cost
the same in every step, so how much slower one makes it can be calibrated by a large number of them
and scaled down.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp

from workloads.base import Workload
from workloads.loading import load

VARIABLE = "JAX_PLANTED_ITERATIONS"


def build(devices: Any = None, **options: Any) -> Workload:
    """The Llama step of `options`, plus the extra work that the environment asks for."""
    base = load("llama", options, devices)
    iterations = int(os.environ.get(VARIABLE, "0"))

    def step(state: Any, batch: Any) -> Any:
        state, metrics = base.step(state, batch)
        if iterations:
            start = jnp.full((96, 96), 1e-3, jnp.float32) + metrics["grad_norm"]
            end = jax.lax.fori_loop(0, iterations, lambda _, x: jnp.tanh(x @ x), start)
            # Times zero is not nothing to XLA (infinity times zero is not zero), so the work stays
            # in the program.
            metrics = {**metrics, "loss": metrics["loss"] + 0.0 * end[0, 0]}
        return state, metrics

    return dataclasses.replace(base, name="planted", step=step)
