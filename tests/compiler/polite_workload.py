"""A workload that writes down how it is treated, wherever it is built, and a setting under which it never ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp

ENDLESS = "--xla_cpu_prefer_vector_width=64"


def make(*, devices: Any, folder: str) -> Any:
    told = {
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "goes_first": Path("/proc/self/oom_score_adj").read_text().strip(),
    }
    (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(told))
    while ENDLESS in os.environ.get("XLA_FLAGS", ""):
        pass

    def step(state: Any, batch: Any) -> Any:
        return state + batch, {"loss": state.sum(), "grad_norm": state.sum()}

    return SimpleNamespace(name="polite", step=step, init=lambda seed: jnp.ones(3), batch=lambda i: jnp.ones(3))
