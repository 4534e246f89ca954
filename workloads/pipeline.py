"""Pipeline parallelism: all stages run at once on microbatches that move from stage to stage.

The layers' weights and a buffer of activations have a leading stage axis that is split over the
``pipeline`` axis of the mesh; in each tick of a scanned schedule every stage works on its slot,
then the buffer shifts by one, which the partitioner turns into a collective permute.

References: GSPMD, section 3.3, https://arxiv.org/abs/2105.04663; the schedule is GPipe's,
    https://arxiv.org/abs/1811.06965
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from workloads.mesh import Layout


def run_stages(
    stage: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]],
    params: Any,
    x: jax.Array,
    *,
    microbatches: int,
    layout: Layout,
) -> tuple[jax.Array, jax.Array]:
    """Sends a batch through all stages.

    Args:
        stage: From the weights of a stage's layers and its input [B/M, T, D] to its output and a
            mean f32[].
        params: Weights with a leading layer axis, split over the stages.
        x: The residual stream, [B, T, D].
        microbatches: M; each stage idles for ``stages - 1`` of ``M + stages - 1`` ticks.
        layout: The mesh and its rules.

    Returns:
        The residual stream after the last stage, and the mean of the second output.
    """
    stages = layout.size("stage")
    rows, *rest = x.shape

    def hold(y: jax.Array) -> jax.Array:
        return layout.constrain(y, "stage", "batch", "residual", None)

    params = jax.tree.map(lambda w: w.reshape(stages, w.shape[0] // stages, *w.shape[1:]), params)
    # every microbatch takes rows of every device, so that none moves
    parts = x.reshape(rows // microbatches, microbatches, *rest).swapaxes(0, 1)
    bubble = jnp.zeros((stages - 1, *parts.shape[1:]), x.dtype)
    arrivals = layout.constrain(jnp.concatenate([parts, bubble]), None, "batch", "residual", None)
    all_stages = jax.vmap(stage, spmd_axis_name="pipeline")

    def tick(carry: Any, arrival: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        buffer, total = carry
        time, newcomer = arrival
        buffer = hold(jnp.roll(buffer, 1, axis=0).at[0].set(newcomer))
        buffer, means = all_stages(params, buffer)
        microbatch = time - jnp.arange(stages)
        is_real = (microbatch >= 0) & (microbatch < microbatches)
        return (hold(buffer), total + jnp.sum(jnp.where(is_real, means, 0.0))), buffer[-1]

    start = (hold(jnp.zeros((stages, *parts.shape[1:]), x.dtype)), jnp.float32(0))
    (_, total), done = jax.lax.scan(tick, start, (jnp.arange(len(arrivals)), arrivals))
    done = done[stages - 1 :].swapaxes(0, 1).reshape(x.shape)
    return layout.constrain(done, "batch", "residual", None), total / (stages * microbatches)
