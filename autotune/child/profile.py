"""What the instructions of a running program take, as XLA's scheduler reads it back: a profile of some steps.

JAX's own switch (``jax_enable_pgle``) profiles what `jax.jit` calls, and passes over a step that was compiled ahead of
time. The pieces that it is made of work for any program.
"""

from __future__ import annotations

import base64
import warnings
import zlib
from collections.abc import Callable

PERCENTILE = 90
"""Of the durations of each instruction, over the profiled steps: the default of ``jax_pgle_aggregation_percentile``."""


def take_profile(run_step: Callable[[], object], steps: int) -> bytes:
    """Runs steps under JAX's profiler and gives what each instruction took, as a ``ProfiledInstructionsProto``.

    Args:
        run_step: Runs one step and waits for it.
        steps: How many are profiled, each in a session of its own.

    Returns:
        Empty where the profiler saw no instruction: on a CPU, and where another program holds CUPTI.
    """
    from jax._src.profiler import PGLEProfiler

    profiler = PGLEProfiler(steps, PERCENTILE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of an empty trace: the caller says so
        for _ in range(steps):
            with PGLEProfiler.trace(profiler):
                run_step()
    return profiler.consume_fdo_profile() or b""


def pack(content: bytes) -> str:
    """A content as it travels in a message, which has a longest line: deflated and in base64."""
    return base64.b64encode(zlib.compress(content, 9)).decode()
