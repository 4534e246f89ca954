"""Time limits after which a process counts as hung: multiples of what the reference took."""

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
    """Time limits of a process."""

    start_s: float = UNKNOWN_START_S
    """Seconds from its start until it is ready (import, compilation, warm-up)."""
    block_s: float = LEAST_BLOCK_S
    """Seconds of one block at least."""
    step_s: float = 0.0
    """Seconds of each step of a block, where that comes to more."""

    def of_block(self, steps: int) -> float:
        """Limit of a block of so many steps, seconds."""
        return max(self.block_s, steps * self.step_s)


def limits_after(measure: MeasureSpec, *, start_s: float = 0.0, step_s: float = 0.0) -> TimeLimits:
    """The limits that the study sets, else those that follow from its reference; 0 where a time is
    not known yet.
    """
    follows_s = max(LEAST_START_S, START_FACTOR * start_s) if start_s else UNKNOWN_START_S
    return TimeLimits(
        start_s=measure.start_limit_s or follows_s,
        block_s=measure.block_limit_s or LEAST_BLOCK_S,
        step_s=0.0 if measure.block_limit_s else STEP_FACTOR * step_s,
    )


class CompileLimits(NamedTuple):
    """Wall and processor seconds of one compilation; None for no limit on the latter."""

    wall_s: float
    processor_s: float | None = None


def compile_limits(reference_s: float = 0.0) -> CompileLimits:
    """Limits of one compilation, by the processor seconds of the reference's; 0 is not known
    yet.
    """
    if not reference_s:
        return CompileLimits(UNKNOWN_COMPILE_S)
    processor_s = max(LEAST_COMPILE_S, COMPILE_FACTOR * reference_s)
    return CompileLimits(COMPILE_WAIT * processor_s, processor_s)
