"""A workload that writes down how it is treated, wherever it is built."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp


def make(*, devices: Any, folder: str) -> Any:
    told = {"niceness": os.getpriority(os.PRIO_PROCESS, 0), "processors": sorted(os.sched_getaffinity(0))}
    (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(told))

    def step(state: Any, batch: Any) -> Any:
        return state + batch, {"loss": state.sum(), "grad_norm": state.sum()}

    return SimpleNamespace(name="polite", step=step, init=lambda seed: jnp.ones(3), batch=lambda i: jnp.ones(3))
