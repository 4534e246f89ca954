"""Eight virtual CPU devices for every test here, set before anything asks for a device; and steps that compile soon."""

from __future__ import annotations

from typing import Any

import jax

from workloads.base import Workload, jit_step

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


def compile_soon(workload: Workload) -> Any:
    """The compiled step. LLVM does not optimise it: that is half of the time, and nothing here is about speed."""
    lowered = jit_step(workload).lower(workload.abstract_state, workload.abstract_batch)
    return lowered.compile({"xla_backend_optimization_level": 0})


def train(workload: Workload, steps: int) -> tuple[list[float], Any]:
    """Loss of each of so many steps, and the state after them."""
    state, step, losses = workload.init(0), compile_soon(workload), []
    for index in range(steps):
        state, metrics = step(state, workload.batch(index))
        losses.append(float(metrics["loss"]))
    return losses, state
