"""A step of two matrices that compiles at once; told to, its build starts a backend or changes an option of JAX."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

MASKS: list[Any] = []


def make(devices: Any = None, touch: bool = False, matmul: str = "") -> SimpleNamespace:
    if touch:
        MASKS.append(jnp.tril(jnp.ones((8, 8))))
    if matmul:
        jax.config.update("jax_default_matmul_precision", matmul)

    def step(weights: Any, x: Any) -> Any:
        loss = jnp.mean(jnp.tanh(x @ weights @ weights.T))
        return weights - 0.01 * loss, {"loss": loss, "grad_norm": loss}

    place = jax.sharding.SingleDeviceSharding((devices if devices is not None else jax.devices())[0])
    shape = jax.ShapeDtypeStruct((128, 128), jnp.float32, sharding=place)
    return SimpleNamespace(
        step=step, init=lambda seed: None, batch=lambda index: None, abstract_state=shape, abstract_batch=shape
    )
