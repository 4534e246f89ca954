"""Noise of a machine from A/A runs, and how many pairs of blocks a proof should run for it.

Pairs of blocks have noise, which more pairs average out; each process has a constant deviation,
which only more processes average out. So the reference is started several times beside one living
process of itself, whose deviation is the zero: the centres of the others are draws of the spread of
processes.

References:
    Cochran, *Sampling Techniques*, 3rd ed., 10.6 (optimum size of subsamples).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from autotune.stats.estimates import (
    LEVEL,
    NORMAL,
    REFERENCE,
    TRIAL_FIRST_LOOK,
    Estimate,
    Floats,
    NotNegative,
    SequentialPlan,
    error_of_mean,
    finite,
    from_half,
    hodges_lehmann,
    student_quantile,
    widen,
)

CAUTION = 0.9
"""Confidence of the upper limit behind the announced power (tests/study/test_compare.py)."""

ALPHA_SETTLING = 0.001
"""Share of A/A runs without one in which a change point is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AaNoise:
    """Noise of this machine, from A/A runs of the reference."""

    __pydantic_config__ = {"extra": "forbid", "ser_json_inf_nan": "strings"}  # noqa: RUF012

    estimate: Estimate
    """A/A ratio; its interval holds what one pair of equal processes may differ by."""
    process_sd: NotNegative
    """Standard deviation of the constant deviation of one process, in log."""
    within_sd: NotNegative
    """Likewise of a pair's log ratio about its processes' centre; 0 where a run is one figure."""
    degrees: Annotated[int, Field(ge=1)]
    """Degrees of freedom of `process_sd`."""
    spread: NotNegative
    """By how much the log ratio of one pair of equal processes may be off (95 %)."""
    start_s: NotNegative
    """Seconds until a process is ready; 0 where that is not known."""
    pair_s: NotNegative
    """Seconds of one pair of blocks, or of the measured steps of two runs; 0 if not known."""
    settle_steps: int = 0
    """First steps of each process that are not measured; see `settling`."""
    settle_s: NotNegative | None = None
    """First seconds of later blocks that do not count (`settling_seconds`); None: as planned."""
    counted_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Seconds that count of each later block, over those of the A/A run; see `share_to_count`."""

    @property
    def later_sd(self) -> float:
        """The largest `within_sd` of later, shorter blocks; noise common to steps grows no more."""
        return self.within_sd / math.sqrt(self.counted_share)

    @property
    def within_degrees(self) -> int:
        """Degrees of freedom of `within_sd`: the centre of each process took one."""
        return max(1, self.estimate.pair_count - self.degrees)

    def cautious_process_sd(self) -> float:
        """Upper confidence limit of `process_sd`: few processes often agree by luck."""
        from scipy.special import chdtri  # 0.2 s to import, so not before it is needed

        noise = self.noise_of_centres
        limit = (self.process_sd**2 + noise) * self.degrees / float(chdtri(self.degrees, CAUTION))
        return math.sqrt(max(0.0, limit - noise))

    @property
    def noise_of_centres(self) -> float:
        """What pairs of blocks have added to the variance of the centres of processes."""
        return _noise_of_centres(self.within_sd, self.estimate.pair_count, self.degrees)

    @property
    def visible_sd(self) -> float:
        """What processes may differ by though they seem equal: what the A/A run could see."""
        return max(self.process_sd, math.sqrt(self.noise_of_centres))


UNKNOWN_NOISE = AaNoise(
    estimate=REFERENCE,
    process_sd=0.0,
    within_sd=0.0,
    degrees=1,
    spread=0.0,
    start_s=0.0,
    pair_s=0.0,
)
"""Before an A/A run: nothing is known of it."""


def spread_of(variance: float, degrees: int, *, noise: float = 0.0) -> float:
    """Returns by how much the log ratio of one pair of equal processes may be off (95 %).

    The noise is taken off by a normal quantile of 90 %: taken off in full, the interval would hold
    in 0.87 of trials where processes and blocks make equal noise.

    Args:
        variance: Of the centres of equal processes, with so many degrees of freedom.
        noise: What pairs of blocks have added to it.
    """
    of_processes = student_quantile(1.0 - LEVEL, degrees) ** 2 * variance
    return math.sqrt(2.0 * max(0.0, of_processes - NORMAL.inv_cdf(0.95) ** 2 * noise))


class Settling(NamedTuple):
    """How long processes are slower after their start than later."""

    steps: int
    """Age up to which they are; 0 where they are not."""
    log_ratios: list[Floats]
    """Those of the A/A run without that effect."""


def settling(log_ratios: Sequence[Floats], ages: Sequence[npt.NDArray[np.int64]]) -> Settling:
    """Finds the age at which processes become faster, by one change point common to all of them.

    The living process is older than the others, so the age shows; constant deviations of processes
    take no part.

    Args:
        log_ratios: log(second process / living one) of each pair of blocks, of each second process.
        ages: Steps that each second process and the living one had done at the end of these blocks,
            `[2, pairs]` each.
    """

    def young(age: int) -> list[Floats]:
        """Returns how much more of each block's second process is young than of the living one."""
        return [(fresh <= age).astype(float) - (living <= age) for fresh, living in ages]

    y = _centred(log_ratios)
    degrees = len(y) - len(log_ratios) - 1
    gain = 0.0
    best_age = 0
    best_cost = 0.0
    grid = np.unique(np.concatenate([a.ravel() for a in ages]))[:-1].tolist()
    for age in grid:
        g = _centred(young(age))
        size = float(np.linalg.norm(g))
        if size > 1e-5 and float(g @ y) / size > gain:
            gain = float(g @ y) / size
            best_age = age
            best_cost = gain / size
    sd = math.sqrt(max(float(y @ y) - gain**2, 1e-18) / max(1, degrees))
    if gain < student_quantile(2 * ALPHA_SETTLING / max(1, len(grid)), degrees) * sd:
        return Settling(0, list(log_ratios))
    settled = [r - best_cost * x for r, x in zip(log_ratios, young(best_age), strict=True)]
    return Settling(best_age, settled)


def _centred(groups: Sequence[Floats]) -> Floats:
    """All values, each less the mean of its group."""
    return np.concatenate([group - np.mean(group) for group in groups])


SETTLED = 0.002
"""Share by which the steps of a settled block are off at most, on average."""

SETTLING_MARGIN = 1.5
"""How many times as long as blocks took to settle they are not counted."""

SETTLING_CUTS = 12
"""Parts of the planned seconds between which a block may have settled."""


def settling_seconds(
    blocks: Sequence[tuple[Sequence[float], Sequence[float]]], planned_s: float
) -> float | None:
    """Returns the seconds after which blocks have settled, with a margin; None if they hide it.

    A device that follows its power shows by its first steps after a pause how long it takes. Where
    these are like the later ones nothing is known of it, for both arms of an A/A run draw the same
    power.

    Args:
        blocks: Seconds of the settling steps of each block, and of those that count.
        planned_s: Seconds of a block that are not counted so far.
    """
    if planned_s <= 0.0 or len(blocks) < 2:
        return None
    steps = [_settling_steps(*block) for block in blocks]
    cuts = np.linspace(0.0, planned_s, SETTLING_CUTS, endpoint=False)[1:].tolist()
    low, _ = _off([share_off[begin_s < cuts[0]] for begin_s, _, share_off in steps])
    if low <= SETTLED:
        return None
    settled_s = planned_s
    for cut_s in reversed(cuts):
        _, high = _off([share_off[begin_s >= cut_s] for begin_s, _, share_off in steps])
        if high > SETTLED:
            break
        settled_s = statistics.fmean(
            float(np.max(end_s[begin_s < cut_s])) for begin_s, end_s, _ in steps
        )
    return min(planned_s, SETTLING_MARGIN * settled_s)


def _settling_steps(settling_s: Sequence[float], counted_s: Sequence[float]) -> Floats:
    """Begin and end of each settling step of a block, and how far it is off those that count."""
    end_s = np.cumsum(settling_s)
    share_off = np.log(settling_s) - np.mean(np.log(counted_s))
    return np.asarray([end_s - settling_s, end_s, share_off])


def _off(shares_of_blocks: Sequence[Floats]) -> tuple[float, float]:
    """Both ends of the interval of how far steps are off on average, as a share of a step."""
    shares = [float(np.mean(shares)) for shares in shares_of_blocks if len(shares)]
    if len(shares) < 2:
        return 0.0, math.inf if shares else 0.0  # no step begins there
    half = student_quantile(1.0 - LEVEL, len(shares) - 1) * error_of_mean(shares)
    size = abs(statistics.fmean(shares))
    return size - half, size + half


def read_aa_noise(
    processes: Sequence[Sequence[float] | Floats],
    *,
    start_s: float = 0.0,
    pair_s: float = 0.0,
    least: int = 8,
    settle_steps: int = 0,
) -> AaNoise:
    """Reads the noise of this machine from A/A pairs of processes, each against one living process.

    Args:
        processes: log(second process / living one) of each pair of blocks, of each second process.
        least: Fewest pairs of blocks that each of them may have: 4 are enough where each averages
            seconds.

    Raises:
        ValueError: If there is no process, one has fewer than `least` pairs, or a figure is not
            finite.
    """
    if not processes:
        raise ValueError("an A/A run needs at least one second process but got none")
    groups = [finite(p, least=least) for p in processes]
    centres = np.asarray([hodges_lehmann(g, level=LEVEL)[0] for g in groups])
    residuals = [g - c for g, c in zip(groups, centres, strict=True)]
    degrees = len(groups)
    count = sum(map(len, groups))
    # Each centre took one degree of freedom.
    within_sd = math.sqrt(sum(float(r @ r) for r in residuals) / (count - degrees))
    noise = _noise_of_centres(within_sd, count, degrees)
    # The living process is one draw more, at 0: its deviation is what all centres have in common.
    variance = float(np.var([0.0, *centres], ddof=1))
    spread = spread_of(variance, degrees, noise=noise)
    half = NORMAL.inv_cdf((1.0 + LEVEL) / 2.0) * within_sd / math.sqrt(count)
    return AaNoise(
        estimate=widen(from_half(centres.mean(), half, count=count), spread),
        process_sd=math.sqrt(max(0.0, variance - noise)),
        within_sd=within_sd,
        degrees=degrees,
        spread=spread,
        start_s=start_s,
        pair_s=pair_s,
        settle_steps=settle_steps,
    )


def _noise_of_centres(within_sd: float, count: int, degrees: int) -> float:
    """What pairs of blocks add to the variance of the centres and the zero, which has none."""
    return within_sd**2 * degrees / count * degrees / (degrees + 1) if count else 0.0


LEAST = 4
MOST = 40
"""Fewest and most pairs of blocks in a process."""

DEFAULT_PROOF_SIZE = 20
"""Pairs of blocks in a process where it is not known what is best."""

STARTS = 1.5
"""What starting two processes at once takes, over starting one: they share the machine."""

MEASURED_S = 4.0
"""Seconds for which a process is measured at least, if starting a pair takes twice that or more.

On a shared machine what others do comes and goes within seconds.
"""


def pairs_in_process(
    within_sd: float, process_sd: float, start_s: float, pair_s: float, *, least: int = LEAST
) -> int:
    """The number of pairs of blocks in each pair of processes with which a proof takes least time.

    With `n` pairs of blocks a pair of processes has the variance 2 p^2 + w^2 / n (p: of processes,
    w: of blocks) and costs `start + n * pair` seconds; the product is least at n = w / (sqrt(2) p)
    * sqrt(start / pair).

    Args:
        within_sd: Standard deviation of the log ratio of one pair of blocks within a pair of
            processes.
        process_sd: Standard deviation of the deviation of one process, in log.
        start_s: Seconds to start a pair of processes.
    """
    if process_sd == 0.0:  # no process is like another by so much that more of them would help
        return MOST if within_sd and start_s else least
    best = within_sd / (math.sqrt(2.0) * process_sd) * math.sqrt(start_s / pair_s)
    return min(MOST, max(least, round(best)))


def proof_size(noise: AaNoise, *, starts: float = STARTS) -> int:
    """The same from an A/A run; `DEFAULT_PROOF_SIZE` where that does not tell what starting costs.

    Args:
        starts: What starting a pair of processes takes, over starting one.
    """
    if not (noise.start_s and noise.pair_s):
        return DEFAULT_PROOF_SIZE
    return _best_size(noise, starts, least=fewest_pairs(LEAST, noise.pair_s))


def trial_plan(noise: AaNoise, *, most: int, starts: float = 1.0) -> SequentialPlan:
    """When a trial is looked at: from its first pairs on, up to where another process tells more.

    Args:
        most: Pairs of blocks after which a trial ends in any case.
        starts: What the processes that are started for it take to start, over starting one.
    """
    if not (noise.start_s and noise.pair_s and noise.within_sd):
        return SequentialPlan(cap=most)
    first_look = min(TRIAL_FIRST_LOOK, max(1, moments(starts * noise.start_s, noise.pair_s)))
    return SequentialPlan(
        cap=min(most, _best_size(noise, starts, least=first_look)),
        first_look=first_look,
        pair_sd=noise.later_sd,
        degrees=noise.within_degrees,
    )


LEAST_SHARE = 0.25


def share_to_count(noise: AaNoise, *, counted_s: float, settle_s: float) -> float:
    """Share of a block's counted seconds that tells most in the time of a trial with one pair.

    Where processes differ by more than blocks do, longer ones tell nothing: with `u` counted
    seconds a trial has the variance 2 p^2 + w^2 counted / u and costs start + 2 settle + 2 u
    seconds.

    Args:
        counted_s: Of a block of the A/A run.
        settle_s: Of later blocks.
    """
    if not noise.visible_sd:
        return 1.0
    unmeasured_s = noise.start_s + 2.0 * settle_s
    best_s = noise.within_sd / (2.0 * noise.visible_sd) * math.sqrt(counted_s * unmeasured_s)
    return min(1.0, max(LEAST_SHARE, best_s / counted_s))


def _best_size(noise: AaNoise, starts: float, *, least: int) -> int:
    start_s = starts * noise.start_s
    # Processes that are taken for equal would get the most pairs, so their visible spread counts.
    return pairs_in_process(
        noise.later_sd,
        noise.visible_sd,
        start_s,
        noise.pair_s,
        least=max(least, moments(start_s, noise.pair_s)),
    )


def fewest_pairs(count: int, pair_s: float) -> int:
    """So many pairs of blocks, or as few as last `MEASURED_S` if those are fewer."""
    return min(count, max(1, math.ceil(MEASURED_S / pair_s))) if pair_s > 0.0 else count


def moments(start_s: float, pair_s: float) -> int:
    """Pairs in `MEASURED_S`, or in half of what starting takes if that is less; at most `MOST`."""
    return min(MOST, round(min(MEASURED_S, start_s / 2.0) / pair_s))
