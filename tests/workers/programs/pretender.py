"""A workload, and with the hook a program, that takes itself for one on GPUs and loads what one would load."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace
from typing import Any


def pretend() -> None:
    """From now on this process looks like one on GPUs."""
    os.environ["JAX_PLATFORMS"] = "cuda"
    ctypes.CDLL("libcublas.so.12")


def build(devices: Any) -> SimpleNamespace:
    """One number that shrinks."""
    import jax.numpy as jnp

    pretend()

    def step(w: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        return w * 0.99 + batch, {"loss": (w * w).mean(), "grad_norm": w.mean()}

    return SimpleNamespace(
        name="pretender", step=step, init=lambda seed: jnp.ones((3,)), batch=lambda index: jnp.zeros((3,))
    )


if __name__ == "__main__":
    import jax

    import autotune.hook

    jax.devices()
    pretend()
    for _ in autotune.hook.steps(range(7), sync=lambda: None):
        autotune.hook.report(loss=1.0)
    sys.exit(0)
