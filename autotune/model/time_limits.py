"""How long a process may take before it counts as hung: multiples of what the reference took."""

from __future__ import annotations

from typing import NamedTuple

from autotune.model.numbers import Record
from autotune.model.sections import MeasureSpec

START_FACTOR, LEAST_START_S = 4.0, 120.0
"""A candidate may choose kernels for longer than the reference, or compile without a cache."""

STEP_FACTOR, LEAST_BLOCK_S = 10.0, 120.0
"""Ten times the reference's step is no step that anybody looks for."""

COMPILE_FACTOR, LEAST_COMPILE_S = 8.0, 60.0
"""Of processor time, which no other load on the machine lengthens."""

COMPILE_WAIT = 4.0
"""Wall time for one second of that: programs are compiled beside whatever else the machine does."""

UNKNOWN_START_S, UNKNOWN_COMPILE_S = 600.0, 900.0
"""Before the reference has run once."""


class TimeLimits(Record):
    """What a process may take.

    Attributes:
        start_s: Seconds from its start until it is ready (import, compilation, warm-up).
        block_s: Seconds of one block at least.
        step_s: Seconds of each step of a block, where that comes to more.
    """

    start_s: float = UNKNOWN_START_S
    block_s: float = LEAST_BLOCK_S
    step_s: float = 0.0

    def of_block(self, steps: int) -> float:
        """Seconds that a block of so many steps may take."""
        return max(self.block_s, steps * self.step_s)


def limits_after(measure: MeasureSpec, *, start_s: float = 0.0, step_s: float = 0.0) -> TimeLimits:
    """The limits of a study: those that it sets itself, else what follows from its reference.

    Args:
        measure: Of the study.
        start_s: Seconds that the reference took until it was ready; 0 where that is not known yet.
        step_s: Seconds of its step; likewise.
    """
    follows_s = max(LEAST_START_S, START_FACTOR * start_s) if start_s else UNKNOWN_START_S
    is_set = measure.block_limit_s is not None
    return TimeLimits(
        start_s=follows_s if measure.start_limit_s is None else measure.start_limit_s,
        block_s=LEAST_BLOCK_S if measure.block_limit_s is None else measure.block_limit_s,
        step_s=0.0 if is_set else STEP_FACTOR * step_s,
    )


class CompileLimits(NamedTuple):
    """What one compilation may take.

    Attributes:
        wall_s: Seconds.
        processor_s: Seconds of processor time; None for as many as there are.
    """

    wall_s: float
    processor_s: float | None = None


def compile_limits(reference_s: float = 0.0) -> CompileLimits:
    """What one compilation may take.

    Args:
        reference_s: Seconds of processor time that the reference's took; 0 where that is not known yet.
    """
    if not reference_s:
        return CompileLimits(UNKNOWN_COMPILE_S)
    processor_s = max(LEAST_COMPILE_S, COMPILE_FACTOR * reference_s)
    return CompileLimits(COMPILE_WAIT * processor_s, processor_s)
