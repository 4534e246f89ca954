"""Whether a program that does not wait for orders can be measured by pausing it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.child.read_output import PAUSED_LINES
from autotune.measure.context import MeasurementContext
from autotune.model.measurement import FailureKind, Pair, WorkerReport, block_step_s
from autotune.model.units import format_seconds
from autotune.stats.estimates import estimate_pairs
from autotune.workers.base import PAUSE_PHASE, CannotPause, WorkerFailed

# Longest planned pause of an arm: `jax.distributed` gives a process up after 100 s.
LONGEST_PAUSE_S = 30.0
# Share by which halves of a block may differ, or blocks from a long one's end beside scatter.
AFTER_PAUSE = 0.1
SCATTER = 3.0
LONG_BLOCKS = 3  # Blocks that a long one of the A/A run is as long as
# Share of a step's time before the first pause below which a program has gone on in a pause.
WENT_ON = 0.1


def refuse_long_pause(report: WorkerReport, steps: int) -> None:
    """Refuses, by `CannotPause`, blocks of so many steps that would pause others for too long."""
    block_s = report.line_s * (steps + PAUSED_LINES)
    if block_s > LONGEST_PAUSE_S:
        raise CannotPause(
            f"it prints a line every {format_seconds(report.line_s)}, so a block would pause the "
            f"other process for {format_seconds(block_s)}, longer than "
            f"{format_seconds(LONGEST_PAUSE_S)}"
        )


def refuse_dishonest(report: WorkerReport, pairs: Sequence[Pair], long_s: Sequence[float]) -> None:
    """Refuses a program that is another one after pauses; `long_s` are of a long block of it."""
    blocks = [times for pair in pairs for times in (pair.reference_s, pair.candidate_s)]
    steps_s = [block_step_s(times) for times in blocks]
    before_s = report.step_s
    after_s = statistics.median(steps_s)
    if after_s < WENT_ON * before_s:
        raise CannotPause(
            f"a step took {format_seconds(before_s)} before the first pause and "
            f"{format_seconds(after_s)} after one, as if the program had gone on meanwhile"
        )
    ratios = []
    for times in blocks:
        half = len(times) // 2
        ratios.append(math.log(block_step_s(times[:half]) / block_step_s(times[-half:])))
    early = estimate_pairs(ratios)
    if early.low > 1.0 + AFTER_PAUSE or early.high < 1.0 - AFTER_PAUSE:
        raise CannotPause(
            f"right after a pause a step takes {early.ratio:.2f} times as long as later"
        )
    later_s = block_step_s(long_s[-(len(long_s) // LONG_BLOCKS) :])
    scatter = statistics.pstdev(map(math.log, steps_s))
    if abs(math.log(after_s / later_s)) > AFTER_PAUSE + SCATTER * scatter:
        raise CannotPause(
            f"in a block a step takes {after_s / later_s:.2f} times as long as long after a pause"
        )


def why_not_paused(context: MeasurementContext, error: WorkerFailed, *, is_reference: bool) -> str:
    """Why a program that failed is to be paused no more, as a clause; empty if it may be."""
    failure = error.failure
    if failure.phase == PAUSE_PHASE:
        return failure.message
    if failure.phase != "step" or failure.kind is FailureKind.WRONG_LOSS:
        return ""
    # A living reference ends some day; what ends it twice in one comparison will end it again.
    is_lasting = context.restarts > 0 or (
        context.assignment.aa_run is None and not error.infrastructure
    )
    if failure.exit_status == 0 and (is_lasting or not is_reference):
        return f"it is too short to live through a comparison ({failure.message})"
    if is_reference and is_lasting:
        return f"after a pause it did not go on as before ({failure.message})"
    return ""
