"""What a study's proofs can find on this machine in which time, worked out once its noise floor is known."""

from __future__ import annotations

import math
from statistics import NormalDist

from autotune.model import (
    INTERLEAVED,
    FloorResult,
    Need,
    Promise,
    StudySpec,
)
from autotune.stats import (
    CLAIM,
    FIRST_LOOK,
    pairs_to_find,
    smallest_gain,
    study_power,
)
from autotune.study.durations import (
    pair_of_processes_s,
    pairs_of_blocks,
)

GAINS = (0.01, 0.02, 0.03)
"""Gains of which it is told what they would need."""

HIGHEST = 120
"""Pairs of processes in each proof beyond which nothing is worked out."""


def _round_up(sd: float) -> float:
    """Up by 2 % at most, to one of few figures: thousands of simulated studies share what is worked out for each."""
    return 1.02 ** math.ceil(math.log(sd) / math.log(1.02)) if sd > 0.0 else 0.0


def promise_of(spec: StudySpec, result: FloorResult) -> Promise | None:
    """What can be proven 9 times in 10, and what it costs; None where the noise floor does not tell times or spreads.

    Spreads from few processes are often too small, so it rests on an upper limit: `NoiseFloor.cautious_process_sd`.

    Args:
        spec: The study.
        result: Its noise floor.
    """
    floor, most = result.floor, spec.confirm.processes
    if not (floor.start_s and floor.pair_s):
        return None
    if most < FIRST_LOOK:
        return None
    pairs = pairs_of_blocks(spec, floor) if result.comparison.mode == INTERLEAVED else 1
    pair_s = pair_of_processes_s(spec, result)
    pair_sd = _round_up(math.hypot(math.sqrt(2.0) * floor.cautious_process_sd(), floor.within_sd / math.sqrt(pairs)))
    finalists, min_effect = spec.confirm.finalists, spec.measure.min_effect
    smallest = smallest_gain(pair_sd, most=most, finalists=finalists, min_effect=min_effect)
    cost = study_power(smallest, pair_sd, most=most, finalists=finalists, min_effect=min_effect) if smallest else None
    needs = tuple(_need(gain, pair_sd, pair_s=pair_s, finalists=finalists, min_effect=min_effect) for gain in GAINS)
    return Promise(
        pair_sd=pair_sd, pairs=pairs, pair_s=pair_s, most=most, smallest=smallest,
        proof_s=cost.pairs * pair_s if cost else None, needs=needs, highest=HIGHEST,
    )  # fmt: skip


def _need(gain: float, pair_sd: float, *, pair_s: float, finalists: int, min_effect: float) -> Need:
    """What proving a gain 9 times in 10 takes; without figures where it takes too much."""
    if not _is_out_of_reach(gain, pair_sd, min_effect=min_effect):
        found = pairs_to_find(gain, pair_sd, finalists=finalists, min_effect=min_effect, highest=HIGHEST)
        if found is not None:
            return Need(gain=gain, pairs=found.most, proof_s=found.pairs * pair_s)
    return Need(gain=gain)


def _is_out_of_reach(gain: float, pair_sd: float, *, min_effect: float) -> bool:
    """Whether even a proof that is looked at once, after `HIGHEST` pairs of a known spread, would find it too seldom.

    No proof with several looks finds more at the same error; this spares the seconds that it takes to simulate one.
    """
    normal = NormalDist()
    needed = normal.inv_cdf(1.0 - CLAIM) + normal.inv_cdf(0.9)
    return (math.log1p(-min_effect) - math.log1p(-gain)) * math.sqrt(HIGHEST) < needed * pair_sd
