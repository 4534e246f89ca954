"""How many pairs of blocks each process of a proof should run, so that a proof of given precision takes least time.

A pair of processes with `n` pairs of blocks has the variance 2 p^2 + w^2 / n (p: spread between processes, w: of one
pair of blocks) and costs `start + n * pair` seconds. The product of both, which is the time at equal precision, is
least at n = w / (sqrt(2) p) * sqrt(start / pair).

References:
    Cochran, *Sampling Techniques*, 3rd ed., 10.6 (optimum size of subsamples).
"""

from __future__ import annotations

import math

from autotune.stats.noise_floor import NoiseFloor

LEAST, MOST, DEFAULT_PROOF_SIZE = 4, 40, 20
"""Fewest and most pairs of blocks in a process, and how many where it is not known what is best."""

STARTS = 1.5
"""What starting two processes at once takes, over starting one: they share the machine that compiles them."""

MEASURED_S = 4.0
"""Seconds for which a process is measured at least, where starting a pair of them takes twice that or more: on a shared
machine what others do comes and goes within seconds, and pairs of blocks that see one moment of it tell neither their
noise nor that of processes. Where processes do differ, this costs at most half of what starting them does."""

LONG_PAIR_S, LEAST_LONG = 4.0, 2
"""From how many seconds a pair of blocks averages so much by itself that fewer of them are enough, and how few."""


def pairs_in_process(
    within_sd: float, process_sd: float, start_s: float, pair_s: float, *, least: int = LEAST, most: int = MOST
) -> int:
    """The number of pairs of blocks in each pair of processes with which a proof takes least time.

    Args:
        within_sd: Standard deviation of the log ratio of one pair of blocks within a pair of processes.
        process_sd: Standard deviation of the deviation of one process, in log.
        start_s: Seconds to start a pair of processes.
        pair_s: Seconds of one pair of blocks, above 0.
        least: Fewest.
        most: Most.

    Raises:
        ValueError: If a figure is negative or not finite, or `pair_s` is 0.
    """
    figures = (within_sd, process_sd, start_s, pair_s)
    if not all(0.0 <= x < math.inf for x in figures) or pair_s == 0.0:
        raise ValueError(f"spreads and times must be finite and 0 or more, a pair's time above 0, but got {figures}")
    if process_sd == 0.0:  # no process is like another by so much that more of them would help
        return most if within_sd and start_s else least
    best = within_sd / (math.sqrt(2.0) * process_sd) * math.sqrt(start_s / pair_s)
    return min(most, max(least, round(best)))


def proof_size(floor: NoiseFloor | None, *, starts: float = STARTS) -> int:
    """The same from a noise floor; `DEFAULT_PROOF_SIZE` where that does not tell what starting or processes cost.

    Args:
        floor: Of this machine; None where it is not known yet.
        starts: What starting a pair of processes takes, over starting one.
    """
    if floor is None or floor.process_sd is None or floor.within_sd is None or not (floor.start_s and floor.pair_s):
        return DEFAULT_PROOF_SIZE
    least = LEAST_LONG if floor.pair_s >= LONG_PAIR_S else LEAST
    least = max(least, moments(starts * floor.start_s, floor.pair_s))
    return pairs_in_process(floor.within_sd, floor.process_sd, starts * floor.start_s, floor.pair_s, least=least)


def moments(start_s: float, pair_s: float) -> int:
    """Pairs of blocks in `MEASURED_S`, or in half of what starting takes if that is less; at most `MOST`.

    Args:
        start_s: Seconds to start what runs them.
        pair_s: Seconds of one pair of blocks, above 0.
    """
    return min(MOST, round(min(MEASURED_S, start_s / 2.0) / pair_s))
