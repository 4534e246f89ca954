"""A loop with `autotune.hook` that is a fifth faster under a planted setting, and pays for it as its argument says."""

from __future__ import annotations

import os
import sys
import time

import autotune.hook

SLOW_S, FAST_S = 0.0286, 0.0224
MEGABYTES = 2

planted = "xla_cpu_enable_fast_math=true" in os.environ.get("XLA_FLAGS", "")
fault = sys.argv[1] if planted and len(sys.argv) > 1 else ""
kept = []
for step, _ in enumerate(autotune.hook.steps(range(10_000))):
    end = time.perf_counter() + (FAST_S if planted else SLOW_S)  # what is planted may not cost a typical step anything
    if fault == "leak" or (fault == "warm-up" and step < 60):
        kept.append(b"x" * (MEGABYTES << 20))
    time.sleep(max(0.0, end - time.perf_counter()))
    has_begun = step >= {"late-stall": 90, "slowing": 90, "norm": 90}.get(fault, 0)
    if fault.endswith("stall") and has_begun and step % 40 == 39:
        time.sleep(0.5)
    if fault == "slowing" and has_begun:
        time.sleep((step - 90) * 1e-4)
    share = 1.5 if fault == "norm" and has_begun else 1.0
    autotune.hook.report(loss=3.0 + 1.0 / (step + 1), grad_norm=share * (1.0 + 1.0 / (step + 1)))
