"""What a proof costs: starts and blocks, in process pairs and in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from autotune.model import BLOCK_STEPS, ConfirmRun, ReplaySpec
from benchmarks.coverage import DEFAULTS

STEP_S = ReplaySpec().step_s
PAIR_S = 2 * BLOCK_STEPS * STEP_S
"""Seconds of one pair of blocks of a replayed study."""
BOTH_AT_ONCE = 1.5
"""What starting two processes at once takes, over starting one: they share the machine that compiles them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What proofs used, all stages together; means where it is of many studies.

    Attributes:
        process_pairs: Fresh pairs of processes that took turns, both started at once.
        block_pairs: Pairs of blocks in them.
        alone_pairs: Pairs of processes of which each ran alone, started one after the other.
        alone_s: Seconds of the steps of all these.
    """

    process_pairs: float
    block_pairs: float
    alone_pairs: float = 0.0
    alone_s: float = 0.0

    def minutes(self, start_s: float) -> float:
        """Minutes, where starting one process takes so many seconds, and two at once half as long again."""
        in_turns = self.process_pairs * BOTH_AT_ONCE * start_s + self.block_pairs * PAIR_S
        return (in_turns + 2 * self.alone_pairs * start_s + self.alone_s) / 60.0


def cost_of(runs: Sequence[ConfirmRun]) -> Cost:
    """What the proofs of one study used."""
    in_turns, alone = [r for r in runs if not r.is_alone], [r for r in runs if r.is_alone]
    # A run alone is as long as all blocks of its arm in turns.
    steps = max([DEFAULTS.measure.run_steps, *(BLOCK_STEPS * r.pair_count for r in in_turns)])
    return Cost(
        process_pairs=len(in_turns),
        block_pairs=sum(r.pair_count for r in in_turns),
        alone_pairs=len(alone),
        alone_s=2 * len(alone) * steps * STEP_S,
    )


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean over studies."""
    rows = [asdict(c) for c in costs]
    return Cost(**{key: float(np.mean([row[key] for row in rows])) for key in rows[0]})


def cost_columns(cost: Cost) -> dict[str, float]:
    """As tables show it."""
    return {
        "process_pairs": cost.process_pairs,
        "alone_pairs": cost.alone_pairs,
        "minutes_at_20_s": cost.minutes(20.0),
        "minutes_at_90_s": cost.minutes(90.0),
    }
