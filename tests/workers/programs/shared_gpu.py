"""A training program on a pretended GPU: it reads its share with jaxlib's own function, and takes it from a ledger.

Arguments: a file, the ledger of who holds how many bytes; bytes that a step needs; then NAME=VALUE for variables that
it sets itself before it looks.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path

import autotune.hook

SIZE = 80 * 10**9
ledger, needed = Path(sys.argv[1]), int(sys.argv[2])
os.environ.update(argument.split("=", 1) for argument in sys.argv[3:])  # type: ignore[arg-type]

from jaxlib.xla_client import generate_pjrt_gpu_plugin_options  # noqa: E402 (reads what was set above)


class JaxRuntimeError(RuntimeError):
    """As JAX calls it."""


def take(wanted: int) -> int:
    """Takes so many bytes of the device, or as many as there are; what dead processes held is free."""
    with ledger.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        held = {pid: n for pid, n in json.loads(stream.read() or "{}").items() if Path(f"/proc/{pid}").exists()}
        taken = min(wanted, SIZE - sum(held.values()))
        stream.seek(0)
        stream.truncate()
        json.dump({**held, os.getpid(): taken}, stream)
    return taken


share = float(generate_pjrt_gpu_plugin_options().get("memory_fraction", 0.75))
limit = take(int(share * SIZE))
if needed > limit:
    raise JaxRuntimeError(f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {needed} bytes.")
for i, _ in enumerate(autotune.hook.steps(range(9))):
    time.sleep(0.001)
    autotune.hook.report(loss=1.0 / (1 + i % 9))
