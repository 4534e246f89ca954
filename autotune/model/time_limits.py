"""Time limits after which a process counts as hung: multiples of what the reference took."""

from __future__ import annotations

from typing import NamedTuple

from autotune.model.numbers import Record
from autotune.model.sections import MeasureSpec

START_FACTOR = 4.0  # a candidate may choose kernels longer, or have no cache
LEAST_START_S = 120.0
UNKNOWN_START_S = 600.0  # before the reference has run once
STEP_FACTOR = 10.0  # nobody looks for a step ten times the reference's
LEAST_BLOCK_S = 120.0

COMPILE_FACTOR = 8.0  # of processor time, which no other load on the machine lengthens
LEAST_COMPILE_S = 60.0
UNKNOWN_COMPILE_S = 900.0
COMPILE_WAIT = 4.0  # wall time for one second of processor time on a busy machine


class TimeLimits(Record):
    """Time limits of a process."""

    start_s: float = UNKNOWN_START_S  # import, compilation and warm-up
    block_s: float = LEAST_BLOCK_S  # seconds of one block at least
    step_s: float = 0.0  # seconds of each step of a block, where that comes to more

    def of_block(self, steps: int) -> float:
        """Limit of a block of so many steps, seconds."""
        return max(self.block_s, steps * self.step_s)


def limits_after(measure: MeasureSpec, *, start_s: float = 0.0, step_s: float = 0.0) -> TimeLimits:
    """Returns the study's limits, else those by its reference's times, 0 where not known yet."""
    limit_s = max(LEAST_START_S, START_FACTOR * start_s) if start_s else UNKNOWN_START_S
    limit_s = measure.start_limit_s or limit_s
    if measure.block_limit_s is not None:
        return TimeLimits(start_s=limit_s, block_s=measure.block_limit_s)
    return TimeLimits(start_s=limit_s, step_s=STEP_FACTOR * step_s)


class CompileLimits(NamedTuple):
    """Wall and processor seconds of one compilation; None for no limit on the latter."""

    wall_s: float
    processor_s: float | None = None


def compile_limits(reference_s: float = 0.0) -> CompileLimits:
    """Limits of one compilation, by the reference's processor seconds, 0 if not known yet."""
    if not reference_s:
        return CompileLimits(UNKNOWN_COMPILE_S)
    processor_s = max(LEAST_COMPILE_S, COMPILE_FACTOR * reference_s)
    return CompileLimits(COMPILE_WAIT * processor_s, processor_s)
