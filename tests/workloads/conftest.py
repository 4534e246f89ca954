"""Eight virtual CPU devices for every test here, set before anything asks for a device; and steps that compile soon."""

from __future__ import annotations

from typing import Any

import jax

from workloads.base import Workload, jit_step

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# LLVM does not optimise, and writes loops that XLA's own emitters would take three times as long for (JAX 0.12 has no
# others): nothing here is about speed.
SOON: dict[str, Any] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    SOON["xla_cpu_use_fusion_emitters"] = False


def compile_soon(workload: Workload) -> Any:
    """The compiled step."""
    return jit_step(workload).lower(workload.abstract_state, workload.abstract_batch).compile(SOON)


def first_state(workload: Workload, seed: int) -> Any:
    """What `workload.init` gives."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, workload.abstract_state)
    return jax.jit(lambda: workload.init(seed), out_shardings=shardings, compiler_options=SOON)()


def train(workload: Workload, steps: int) -> tuple[list[float], Any]:
    """Loss of each of so many steps, and the state after them."""
    state, step, losses = first_state(workload, 0), compile_soon(workload), []
    for index in range(steps):
        state, metrics = step(state, workload.batch(index))
        losses.append(float(metrics["loss"]))
    return losses, state
