"""A training program without JAX, whose output is read or that is hooked; misbehaves as its argument says."""

from __future__ import annotations

import os
import sys
import time

import autotune.hook

fault = sys.argv[1] if len(sys.argv) > 1 else ""
count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
print("the loop begins", file=sys.stderr, flush=True)
for i, _ in enumerate(autotune.hook.steps(range(count))):
    start = time.perf_counter()
    time.sleep(0.002)
    loss = float("nan") if (fault == "nan" and i > 10) or (fault == "early-nan" and i == 3) else 1 / (1 + i)
    print(f"step {i}: {1e3 * (time.perf_counter() - start):.6f} ms", flush=True)
    print(f"  loss = {loss:.6f}", flush=True)
    if i == 13:
        if fault == "crash":
            os.abort()
        if fault == "oom":
            raise MemoryError
        if fault == "hang":
            print("E0105 10:00:00.1 7 rendezvous.cc:31] waiting for rank 3", flush=True)
            time.sleep(600)
        if fault == "status of a shell":
            sys.exit(128 + 11)
        if fault == "swallowed":
            print('Traceback:\n  File "t.py", line 9, in step\nRuntimeError: ranks differ', flush=True)
            os._exit(0)
        if fault == "raise":
            raise ValueError("the data ran out")
    autotune.hook.report(loss=loss, grad_norm=1.5)
