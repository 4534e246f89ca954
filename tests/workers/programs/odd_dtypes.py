"""A workload whose step says its number formats in some way, and tells its loss in another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp


def build(*, devices: Any, says: str = "", told: str = "float32") -> Any:
    """`says`: what its config has as dtype, a name or the object of that name; `told`: format of loss and norm."""

    def step(state: Any, batch: Any) -> Any:
        loss = (state * batch).sum()
        return state * 0.99, {"loss": loss.astype(told), "grad_norm": loss.astype(told)}

    spoken = jnp.bfloat16 if says == "jnp" else says
    return SimpleNamespace(
        name="odd", step=step, init=lambda seed: jnp.ones(7), batch=lambda i: jnp.ones(7), config={"dtype": spoken}
    )
