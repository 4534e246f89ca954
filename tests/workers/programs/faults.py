"""A workload that goes wrong as the variable NCCL_FAULT of its trial says; used as ``faults:build``."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def leave_behind(fault: str) -> None:
    """What shows only when the process ends."""
    if fault == "hang at exit":
        atexit.register(time.sleep, 600)
    if fault == "grandchild":
        code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"
        subprocess.run([sys.executable, "-c", code], check=True)


def build(devices: Any) -> SimpleNamespace:
    """A step of one matrix; what goes wrong in it happens in a host callback, after the checks and the warm-up."""
    fault = os.environ.get("NCCL_FAULT", "")
    calls = itertools.count()
    leave_behind(fault)

    def misbehave(_: Any) -> np.float32:
        if next(calls) >= 12:
            if fault == "segmentation fault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang in step":
                time.sleep(600)
        return np.float32("nan") if fault == "nan" else np.float32(0)

    def step(w: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        if fault == "hang in compile":
            time.sleep(600)
        if fault == "compile error":
            w = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct(w.shape, w.dtype))(w)
        extra = jax.pure_callback(misbehave, jax.ShapeDtypeStruct((), jnp.float32), w.sum())
        w = w - 0.01 * (w + batch) * (-9.0 if fault == "diverging" else 1.0)
        return w, {"loss": (w * w).mean() + extra, "grad_norm": jnp.abs(w).mean()}

    def init(seed: int) -> Any:
        if fault == "device memory":
            return jnp.zeros((1 << 25, 1 << 21)) + seed
        return jnp.full((7, 11), 1.0 + seed)

    return SimpleNamespace(name="faults", step=step, init=init, batch=lambda i: jnp.full((7, 11), 0.1 * i))
