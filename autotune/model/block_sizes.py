"""Sizes of blocks and isolated runs by platform, and what they cost in time.

A CPU's blocks are short against the drift of a shared machine. A GPU's clocks follow its power
within seconds, so a short block runs at a mixture of both arms' clocks: there blocks last seconds,
and steps in the first of them are kept raw and not counted.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.stats.aa_noise import STARTS, AaNoise

LONGEST_BLOCK_STEPS = 10_000

BLOCK_STEPS = 3
"""Fewest counted steps of a block."""

LEAST_LINES = 5
"""Fewest counted lines of a block of a paused program: a pause costs two of them."""
LEAST_PAUSED_S = 0.5
"""Fewest counted seconds of such a block: a pause costs some milliseconds."""

WARMUP_STEPS = 5
"""Steps that are run before the first block and never used."""

CHECK_STEPS = 5
"""First steps whose loss and gradient norm are compared with the reference's."""


Split = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of settling steps, and of those that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Lengths of blocks and of isolated runs."""

    block_s: float
    """Shortest counted part of a block, seconds."""
    block_steps: int = BLOCK_STEPS
    """Fewest counted steps of a block."""
    settle_s: float = 0.0
    """Steps of a block that begin within its first so many seconds are not counted."""
    steady_s: float = 0.0
    """Likewise of an isolated run, which counts at least as many seconds after them."""
    in_order: bool = False
    """Starts the second process of a pair alone: on a GPU each times kernels to choose them."""

    def learned(self, noise: AaNoise) -> BlockSizes:
        """Returns the sizes after an A/A run showed how long blocks settle and must count."""
        block_s = noise.counted_share * self.block_s
        if noise.settle_s is None or noise.settle_s >= self.settle_s:
            return replace(self, block_s=block_s)
        steady_s = self.steady_s * noise.settle_s / self.settle_s
        return replace(self, settle_s=noise.settle_s, steady_s=steady_s, block_s=block_s)

    @property
    def starts(self) -> float:
        """Time that a pair of processes takes to start, in starts of one process."""
        return 2.0 if self.in_order else STARTS

    def counted_steps(self, step_s: float) -> int:
        """Counted steps of a block, for a step of the reference of so many seconds."""
        return max(self.block_steps, _steps_in(self.block_s, step_s))

    def steps(self, step_s: float) -> int:
        """All steps of a block, settling ones first."""
        steps = _steps_in(self.settle_s, step_s) + self.counted_steps(step_s)
        return min(LONGEST_BLOCK_STEPS, steps)

    def isolated_steps(
        self, step_s: float, *, blocks: int, least: int, start_s: float = 0.0
    ) -> int:
        """Steps of an isolated run, settling ones first.

        What a CPU's neighbours do comes and goes within seconds and nothing cancels it in such a
        run, so that there it lasts as long as a process takes to start, if it is compared with
        interleaved pairs (`start_s`).

        Args:
            blocks: Number of blocks that it counts at least.
            least: Number of steps that it counts at least.
        """
        steady = _steps_in(self.steady_s, step_s)
        lasting = steady or _steps_in(start_s, step_s)
        return steady + max(least, blocks * self.counted_steps(step_s), lasting)

    def split(self, times_s: Sequence[float]) -> Split:
        """Divides a block into settling and counted steps; see `settle`."""
        return settle(times_s, self.settle_s, most=self.settle_s / (self.settle_s + self.block_s))

    def split_isolated(self, times_s: Sequence[float]) -> Split:
        """Divides an isolated run likewise."""
        return settle(times_s, self.steady_s, most=0.5)


GPU_SIZES = BlockSizes(block_s=2.0, settle_s=3.0, steady_s=10.0, in_order=True)
CPU_SIZES = BlockSizes(block_s=0.05)
"""What "auto" stands for. After 3 s clocks that follow power within 1 s are 95 % of the way to
where they stay; where they take 2 s, isolated runs (five times that long) have the last word.
"""


def settle(times_s: Sequence[float], settle_s: float, *, most: float) -> Split:
    """Splits off the steps that begin within `settle_s`, at most a share `most` of all."""
    begins = list(itertools.accumulate(times_s, initial=0.0))
    count = min(bisect.bisect_left(begins, settle_s), int(most * len(times_s) + 1e-9))
    return tuple(times_s[:count]), tuple(times_s[count:])


def _steps_in(seconds: float, step_s: float) -> int:
    """Steps that begin within so many seconds, about."""
    if seconds <= 0.0:
        return 0
    if step_s * LONGEST_BLOCK_STEPS <= seconds:
        return LONGEST_BLOCK_STEPS
    return math.ceil(seconds / step_s)
