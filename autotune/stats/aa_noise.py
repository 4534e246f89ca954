"""Noise of a machine from A/A runs, and how many pairs of blocks a proof should run for it.

More pairs of blocks average out the noise of pairs, only more processes the constant deviation of
each process. So the reference is started several times beside one living process of itself, whose
deviation is the zero: the centres of the others are draws of the spread of processes.

Reference: Cochran, *Sampling Techniques*, 3rd ed., 10.6 (optimum size of subsamples).
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
    Numbers,
    SequentialPlan,
    from_half,
    half_width,
    hodges_lehmann,
    student_quantile,
    widen,
)
from autotune.stats.numbers import NotNegative

# Confidence of the upper limit behind the announced power (tests/study/test_compare.py).
CAUTION = 0.9
ALPHA_SETTLING = 0.001  # Share of A/A runs without one in which a change point is found


@dataclass(frozen=True, slots=True, kw_only=True)
class AaNoise:
    """Noise of this machine, from A/A runs of the reference."""

    __pydantic_config__ = {"extra": "forbid", "ser_json_inf_nan": "strings"}  # noqa: RUF012

    # A/A ratio; its interval holds what one pair of equal processes may differ by.
    estimate: Estimate
    # Standard deviation of the constant deviation of one process, in log, of so many `degrees`.
    process_sd: NotNegative
    # Likewise of a pair's log ratio about its processes' centre; 0 where a run is one figure.
    within_sd: NotNegative
    degrees: Annotated[int, Field(ge=1)]
    # By how much the log ratio of one pair of equal processes may be off (95 %).
    spread: NotNegative
    # Seconds until a process is ready; 0 where that is not known, as in `pair_s`.
    start_s: NotNegative
    pair_s: NotNegative  # Seconds of one pair of blocks, or of the measured steps of two runs
    settle_steps: int = 0  # First steps of each process that are not measured; see `settling`
    # First seconds of later blocks that do not count; None: as planned.
    settle_s: NotNegative | None = None
    # Seconds that count of each later block, over those of the A/A run.
    counted_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    @property
    def later_sd(self) -> float:
        """The largest `within_sd` of later, shorter blocks; noise common to steps grows no more."""
        return self.within_sd / math.sqrt(self.counted_share)

    def cautious_process_sd(self) -> float:
        """Upper confidence limit of `process_sd`: few processes often agree by luck."""
        from scipy.special import chdtri

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


def spread_of(variance: float, degrees: int, *, noise: float = 0.0) -> float:
    """Returns by how much the log ratio of one pair of equal processes may be off (95 %).

    The noise that pairs of blocks have added to the variance is taken off by a normal quantile of
    90 %: in full, the interval would hold in 0.87 of trials where both make equal noise.
    """
    of_processes = student_quantile(1.0 - LEVEL, degrees) ** 2 * variance
    return math.sqrt(2.0 * max(0.0, of_processes - NORMAL.inv_cdf(0.95) ** 2 * noise))


class Settling(NamedTuple):
    """Age up to which processes are slower than later (0: none), and log ratios without that."""

    steps: int
    log_ratios: list[Floats]


def settling(log_ratios: Sequence[Floats], ages: Sequence[npt.NDArray[np.int64]]) -> Settling:
    """Finds the age at which processes become faster, by one change point common to all of them.

    The living process is older, so the age shows. Ages are in steps, those of the second and of the
    living process at the end of each pair of blocks.
    """

    def young(age: int) -> list[Floats]:
        return [(fresh <= age).astype(float) - (living <= age) for fresh, living in ages]

    ratios = _centred(log_ratios)
    limit = LARGEST_ALONE * np.median(np.abs(ratios))
    y = np.clip(ratios, -limit, limit)  # one pair that something else met is no change of age
    degrees = len(y) - len(log_ratios) - 1
    gain = 0.0
    best_age = 0
    best_cost = 0.0
    grid = np.unique(np.concatenate([a.ravel() for a in ages]))[:-1].tolist()
    for age in grid:
        g = _centred(young(age))
        size = float(np.linalg.norm(g))
        if size <= 1e-5:
            continue
        explained = float(g @ y) / size
        if explained > gain:
            gain = explained
            best_age = age
            best_cost = float(g @ ratios) / size**2
    sd = math.sqrt(max(float(y @ y) - gain**2, 1e-18) / max(1, degrees))
    if gain < student_quantile(2 * ALPHA_SETTLING / max(1, len(grid)), degrees) * sd:
        return Settling(0, list(log_ratios))
    settled = [r - best_cost * x for r, x in zip(log_ratios, young(best_age), strict=True)]
    return Settling(best_age, settled)


def _centred(groups: Sequence[Floats]) -> Floats:
    return np.concatenate([group - np.mean(group) for group in groups])


# Times the typical deviation that a pair of blocks counts at most in finding a change of age.
LARGEST_ALONE = 4.5
SETTLED = 0.002  # Share by which the steps of a settled block are off at most, on average
# How long blocks are not counted, over what they took to settle, found in so many parts of it.
SETTLING_MARGIN = 1.5
SETTLING_CUTS = 12


def settling_seconds(
    blocks: Sequence[tuple[Sequence[float], Sequence[float]]], planned_s: float
) -> float | None:
    """Seconds after which blocks have settled, with a margin; None if they do not show it.

    Where first steps after a pause are like later ones nothing is known of it, for both arms of an
    A/A run draw the same power. So far `planned_s` of each block are not counted.
    """
    if planned_s <= 0.0 or len(blocks) < 2:
        return None
    steps = []  # begin and end of each settling step, and how far it is off those that count
    for settling_s, counted_s in blocks:
        end_s = np.cumsum(settling_s)
        share_off = np.log(settling_s) - np.mean(np.log(counted_s))
        steps.append((end_s - settling_s, end_s, share_off))
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


def _off(shares_of_blocks: Sequence[Floats]) -> tuple[float, float]:
    """Both ends of the interval of how far steps are off on average, as a share of a step."""
    shares = [float(np.mean(shares)) for shares in shares_of_blocks if len(shares)]
    if len(shares) < 2:
        return 0.0, math.inf if shares else 0.0  # no step begins there
    half = half_width(shares)
    size = abs(statistics.fmean(shares))
    return size - half, size + half


def read_aa_noise(
    processes: Sequence[Numbers],
    *,
    start_s: float = 0.0,
    pair_s: float = 0.0,
    settle_steps: int = 0,
) -> AaNoise:
    """Reads the noise of this machine from A/A pairs of processes, each against one living process.

    Args:
        processes: log(second process / living one) of each pair of blocks, of each second process.
    """
    groups = [np.asarray(p) for p in processes]
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
MOST = 40  # Fewest and most pairs of blocks in a process
DEFAULT_PROOF_SIZE = 20  # Pairs of blocks in a process where it is not known what is best
STARTS = 1.5  # What starting two processes at once takes, over starting one: they share the machine
# Seconds for which a process is measured at least, if starting a pair takes twice that or more.
MEASURED_S = 4.0


def pairs_in_process(
    within_sd: float, process_sd: float, start_s: float, pair_s: float, *, least: int = LEAST
) -> int:
    """The number of pairs of blocks in each pair of processes with which a proof takes least time.

    With `n` pairs of blocks a pair of processes has the variance 2 p^2 + w^2 / n (p: of processes,
    w: of blocks) and costs `start + n * pair` seconds; the product is least at n = w / (sqrt(2) p)
    * sqrt(start / pair).
    """
    if process_sd == 0.0:  # no process is like another by so much that more of them would help
        return MOST if within_sd and start_s else least
    best = within_sd / (math.sqrt(2.0) * process_sd) * math.sqrt(start_s / pair_s)
    return min(MOST, max(least, round(best)))


def proof_size(noise: AaNoise, *, starts: float = STARTS) -> int:
    """The same from an A/A run, if it tells what starting costs; `starts` as `STARTS`."""
    if not (noise.start_s and noise.pair_s):
        return DEFAULT_PROOF_SIZE
    return _best_size(noise, starts, least=fewest_pairs(LEAST, noise.pair_s))


def trial_plan(noise: AaNoise, *, most: int, starts: float = 1.0) -> SequentialPlan:
    """When a trial is looked at: from first pairs on, up to where another process tells more."""
    if not (noise.start_s and noise.pair_s and noise.within_sd):
        return SequentialPlan(cap=most)
    first_look = min(TRIAL_FIRST_LOOK, max(1, moments(starts * noise.start_s, noise.pair_s)))
    return SequentialPlan(
        cap=min(most, _best_size(noise, starts, least=first_look)),
        first_look=first_look,
        pair_sd=noise.later_sd,
        # The centre of each process took one degree of freedom.
        degrees=max(1, noise.estimate.pair_count - noise.degrees),
    )


LEAST_SHARE = 0.25


def share_to_count(noise: AaNoise, *, counted_s: float, settle_s: float) -> float:
    """Share of a block's counted seconds that tells most in the time of a trial with one pair.

    With `u` counted seconds a trial has the variance 2 p^2 + w^2 counted / u (counted: of a block
    of the A/A run) and costs start + 2 settle + 2 u seconds.
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
