"""Eight virtual CPU devices for every test here, set before anything asks for a device; and steps that compile soon."""

from __future__ import annotations

from typing import Any

import jax

from workloads import noise
from workloads.base import Workload, jit_step

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

# LLVM does not optimise, and writes loops that XLA's own emitters would take three times as long for (JAX 0.12 has no
# others): nothing here is about speed.
SOON: dict[str, Any] = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    SOON["xla_cpu_use_fusion_emitters"] = False


uniform = jax.jit(noise.uniform, static_argnums=1, compiler_options=SOON)
"""As one program: operation by operation, each would be compiled."""


compiled: dict[str, Any] = {}
"""Programs by what they are of: several tests need one."""


def compile_soon(workload: Workload) -> Any:
    """The compiled step."""
    name = f"step of {workload.config}"
    if name not in compiled:
        lowered = jit_step(workload).lower(workload.abstract_state, workload.abstract_batch)
        compiled[name] = lowered.compile(SOON)
    return compiled[name]


def first_state(workload: Workload, seed: int) -> Any:
    """What `workload.init` gives."""
    name = f"state {seed} of {workload.config}"
    if name not in compiled:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, workload.abstract_state)
        compiled[name] = jax.jit(lambda: workload.init(seed), out_shardings=shardings, compiler_options=SOON)
    return compiled[name]()


def train(workload: Workload, steps: int) -> tuple[list[float], Any]:
    """Loss of each of so many steps, and the state after them."""
    state, step, losses = first_state(workload, 0), compile_soon(workload), []
    for index in range(steps):
        state, metrics = step(state, workload.batch(index))
        losses.append(float(metrics["loss"]))
    return losses, state
