"""A step of a few kernels; told to, its build starts a backend or changes an option of JAX."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from harness.tiny_steps import one_gpu

MASKS: list[Any] = []


def make(devices: Any, touch: bool = False, matmul: str = "") -> SimpleNamespace:
    if touch:
        MASKS.append(jnp.tril(jnp.ones((8, 8))))
    if matmul:
        jax.config.update("jax_default_matmul_precision", matmul)
    return one_gpu(devices[:1])
