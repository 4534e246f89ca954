"""A program with the hook, and no JAX in it, that is faster under a flag and then does what its argument says.

``late``: its loss is half as much again from step 12 on. ``norm``: its gradient norm is then thrice as large.
``nan-check``, ``nan-block``: the reference's own loss is no number at step 1, or from step 20 on.
"""

from __future__ import annotations

import os
import sys
import time

import autotune.hook

FLAG = "xla_cpu_enable_fast_min_max=true"
fault, is_candidate = sys.argv[1], FLAG in os.environ.get("XLA_FLAGS", "")

for step, _ in enumerate(autotune.hook.steps(range(1000))):
    end = time.perf_counter() + (0.001 if is_candidate else 0.002)
    loss = norm = 1.0 + 4.0 / (1 + step)
    if is_candidate and fault == "late" and step >= 12:
        loss *= 1.5
    if is_candidate and fault == "norm" and step >= 12:
        norm *= 3.0  # past what a step may be off late, where a settling made the first block late
    if not is_candidate and ((fault == "nan-check" and step == 1) or (fault == "nan-block" and step >= 20)):
        loss = float("nan")
    while time.perf_counter() < end:
        pass
    autotune.hook.report(loss=loss, grad_norm=norm)
