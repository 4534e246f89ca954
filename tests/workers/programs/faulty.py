"""A workload whose step, set-up or rank goes wrong as `fault` says; used as ``faulty:build``."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def go_wrong(fault: str) -> np.float32:
    """What a step's callback does at last."""
    if fault == "crash":
        os.abort()
    if fault == "hang":
        time.sleep(600)
    return np.float32("nan" if fault == "nan" else 0)


def build(devices: Any, fault: str = "", rank: int = 0, at: int = 12) -> SimpleNamespace:
    """One matrix spread over all devices, a sum over all of them in each step, and a host callback that misbehaves."""
    if fault == "sets-flags":
        os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
    sharding = NamedSharding(Mesh(np.asarray(devices), ("data",)), PartitionSpec("data"))
    calls = iter(range(10**9))

    def misbehave() -> np.float32:
        return go_wrong(fault) if jax.process_index() == rank and next(calls) >= at else np.float32(0)

    def step(w: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        extra = jnp.float32(0)
        if fault in ("crash", "hang", "nan"):
            extra = jax.pure_callback(lambda w: misbehave(), jax.ShapeDtypeStruct((), jnp.float32), w.sum())
        w = w - 0.01 * (w + batch)
        return w, {"loss": (w * w).mean() + extra, "grad_norm": jnp.abs(w).mean()}

    def init(seed: int) -> Any:
        if fault == "oom":
            raise MemoryError("RESOURCE_EXHAUSTED: Out of memory allocating 61 bytes")
        return jax.device_put(np.full((len(devices) * 7, 5), 1.0 + seed, np.float32), sharding)

    def batch(index: int) -> Any:
        return jax.device_put(np.full((len(devices) * 7, 5), 0.1 * index, np.float32), sharding)

    return SimpleNamespace(name="faulty", step=step, init=init, batch=batch)
