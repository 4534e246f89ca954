"""A workload of the user's own for compile tests: scanned layers, weights sharded over all devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, HIDDEN = 4, 256, 512


def make(devices: Any = None, batch: int = 2048) -> SimpleNamespace:
    devices = jax.devices() if devices is None else devices
    mesh = Mesh(np.array(devices), ("fsdp",))

    def shaped(shape: tuple[int, ...], *spec: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    rows = NamedSharding(mesh, PartitionSpec("fsdp"))

    def loss(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            hidden = jax.nn.gelu(jax.lax.with_sharding_constraint(x, rows) @ w["up"])
            return jax.lax.with_sharding_constraint(x + hidden @ w["down"], rows), None

        out, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(jnp.square(out.astype(jnp.float32)))

    def step(weights: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x)
        new = jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient)
        return new, {"loss": value, "grad_norm": value}

    return SimpleNamespace(
        step=step,
        init=lambda seed: None,
        batch=lambda index: None,
        abstract_state={
            "up": shaped((LAYERS, WIDTH, HIDDEN), None, "fsdp", None),
            "down": shaped((LAYERS, HIDDEN, WIDTH), None, "fsdp", None),
        },
        abstract_batch=shaped((batch, WIDTH), "fsdp"),
        flops_per_step=6.0 * batch * LAYERS * 2 * WIDTH * HIDDEN,
        tokens_per_step=batch,
    )


def broken(devices: Any = None) -> SimpleNamespace:
    raise ValueError("seven is not a size")
