"""A workload whose module starts a backend as soon as it is imported."""

from __future__ import annotations

import jax.numpy as jnp
from small_workload import make  # type: ignore[import-not-found]

MASK = jnp.ones((8, 8))

__all__ = ["make"]
