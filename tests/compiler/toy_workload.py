"""A workload of the user's own for compile tests: scanned layers, weights sharded over all devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax

from harness.tiny_steps import LAYERS, fsdp

WIDTH = 256


def make(devices: Any = None, batch: int = 2048) -> SimpleNamespace:
    made = fsdp(jax.devices() if devices is None else devices, batch, WIDTH)
    made.tokens_per_step = batch
    made.flops_per_step = 6.0 * batch * LAYERS * 2 * WIDTH * 2 * WIDTH
    return made


def broken(devices: Any = None) -> SimpleNamespace:
    raise ValueError("seven is not a size")
