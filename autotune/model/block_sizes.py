"""Sizes of blocks and isolated runs by platform.

Blocks on CPUs are short against the drift of a shared machine. A GPU's clocks follow its power
within seconds, so there blocks last seconds and their first, settling seconds do not count.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from autotune.stats.aa_noise import STARTS, AaNoise

LONGEST_BLOCK_STEPS = 10_000

BLOCK_STEPS = 3  # fewest counted steps of a block
LEAST_LINES = 5  # counted, of a block of a paused program: a pause costs two
LEAST_PAUSED_S = 0.5  # counted, of such a block: a pause costs some milliseconds
WARMUP_STEPS = 5  # steps that are run before the first block and never used
CHECK_STEPS = 5  # whose loss and gradient norm are compared with the reference
Split = tuple[tuple[float, ...], tuple[float, ...]]  # settling, counted


class BlockSizes(NamedTuple):
    """Lengths of blocks and of isolated runs."""

    block_s: float  # shortest counted part of a block, seconds
    block_steps: int = BLOCK_STEPS  # fewest counted steps of a block
    settle_s: float = 0.0  # seconds at the start of a block whose steps are not counted
    steady_s: float = 0.0  # likewise of an isolated run, which counts as long
    in_order: bool = False  # GPUs choose kernels at the start: one process at a time

    def learned(self, noise: AaNoise) -> BlockSizes:
        """Returns the sizes after an A/A run showed how long blocks settle and must count."""
        sizes = self._replace(block_s=noise.counted_share * self.block_s)
        if noise.settle_s is None or noise.settle_s >= self.settle_s:
            return sizes
        steady_s = self.steady_s * noise.settle_s / self.settle_s
        return sizes._replace(settle_s=noise.settle_s, steady_s=steady_s)

    @property
    def starts(self) -> float:
        """Time that a pair of processes takes to start, in starts of one process."""
        return 2.0 if self.in_order else STARTS

    def counted_steps(self, step_s: float) -> int:
        """Counted steps of a block, for the reference's step time."""
        return max(self.block_steps, _steps_in(self.block_s, step_s))

    def steps(self, step_s: float) -> int:
        """All steps of a block, settling ones first."""
        steps = _steps_in(self.settle_s, step_s) + self.counted_steps(step_s)
        return min(LONGEST_BLOCK_STEPS, steps)

    def isolated_steps(
        self, step_s: float, *, blocks: int, least: int, start_s: float = 0.0
    ) -> int:
        """Steps of an isolated run, settling ones first; at least `blocks` and `least` count."""
        steady = _steps_in(self.steady_s, step_s)
        # Nothing cancels noise of neighbours on a CPU.
        lasting = steady or _steps_in(start_s, step_s)
        return steady + max(least, blocks * self.counted_steps(step_s), lasting)

    def split(self, times_s: Sequence[float]) -> Split:
        """Divides a block into settling and counted steps; see `settle`."""
        share = self.settle_s / (self.settle_s + self.block_s)
        return settle(times_s, self.settle_s, most=share)

    def split_isolated(self, times_s: Sequence[float]) -> Split:
        """Divides an isolated run likewise."""
        return settle(times_s, self.steady_s, most=0.5)


# What "auto" stands for: after 3 s, clocks that follow power within 1 s have settled to 95 %.
GPU_SIZES = BlockSizes(block_s=2.0, settle_s=3.0, steady_s=10.0, in_order=True)
CPU_SIZES = BlockSizes(block_s=0.05)


def settle(times_s: Sequence[float], settle_s: float, *, most: float) -> Split:
    """Splits off the steps that begin within `settle_s`, at most a share `most` of all."""
    begins = list(itertools.accumulate(times_s, initial=0.0))
    count = min(bisect.bisect_left(begins, settle_s), int(most * len(times_s) + 1e-9))
    return tuple(times_s[:count]), tuple(times_s[count:])


def _steps_in(seconds: float, step_s: float) -> int:
    """Number of steps that begin within a time, about."""
    if seconds <= 0.0:
        return 0
    if step_s * LONGEST_BLOCK_STEPS <= seconds:
        return LONGEST_BLOCK_STEPS
    return math.ceil(seconds / step_s)
