"""A workload whose step calls back to the host, as those do that print or read while they train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def build(*, devices: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        loss = jax.pure_callback(lambda x: np.float32(x) + np.float32(1), shape, (state * batch).sum())
        return state * 0.99, {"loss": loss, "grad_norm": loss}

    return SimpleNamespace(name="calls", step=step, init=lambda seed: jnp.ones(7), batch=lambda i: jnp.ones(7))
