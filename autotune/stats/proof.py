"""Sequential proof over fresh pairs of processes: its error, and the smallest gain that it finds.

The unit is a pair of fresh processes, for two processes differ by more than their blocks do. A plan
spends its error over all looks that there can ever be, so going on later, up to a larger cap, is
honest whatever was seen.

All finalists of a study share `ERROR`. Isolated runs of a proven set are a second proof, with an
error of their own: only they show what an idle neighbour does (`python -m research.proof_rules`
compares other rules).

References: Lan, DeMets, Biometrika 70 (1983) (spending error over looks). Jennison, Turnbull,
    *Group Sequential Methods*, chapters 7 (spending), 9 (repeated intervals), 10 (stochastic
    curtailment) and 4.4 (Student's quantile at nominal levels where the variance is not known).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autotune.stats.estimates import (
    DEFAULT_MIN_EFFECT,
    Estimate,
    Floats,
    Numbers,
    Verdict,
    Walk,
    error_of_mean,
    from_logs,
    judge,
)

# Pairs of processes before the first look: fewer tell too little of their own spread.
FIRST_LOOK = 4
# Pairs of processes before a set is called faster; ten processes with the isolated runs after.
#
# Of slow ones that are one in five, 89 % of such proofs see one (`benchmarks.truth`).
LEAST_PAIRS = 6
# One-sided error of all proofs of a study: so many studies without a better set name a winner.
ERROR = 0.005
# How many times as often a proof may call a set wrongly slower; of two variants either one.
OTHER_SIDE = 5.0
EQUAL_SIDES = 1.0
# One-sided error of the isolated runs of one proven set, and their number at the first look.
ISOLATED_ERROR = 0.005
ISOLATED_PAIRS = FIRST_LOOK
# Power of the share of the base at which error is spent: little at first, where tails are wide.
GROWTH = 2.0
RESERVE = 0.1  # Share of a plan's error that is kept for looks beyond its base
# By how much the looks' error may exceed its sum; at most 1.16 is simulated (test_proof.py).
STUDENT_MARGIN = 1.2
# A proof ends below this chance of proving a gain, were the effect as good as it may still be.
HOPELESS = 0.05
# One-sided level of the effect in whose favour a set is judged: the end of an 80 % interval.
OPTIMISM = 0.1
# Looks at which a set may be faster while something speaks against it, before the proof ends.
PATIENCE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """How a proof spends its error over its looks."""

    # Pairs of processes within which most of the error is spent: the cap as it was planned.
    base: int
    # Chance, over all looks that can ever be, that the upper end is below the true ratio.
    error: float
    # Pairs of processes before a set is called faster, or the cap if that is lower.
    least: int = FIRST_LOOK
    other_side: float = OTHER_SIDE  # How many times as often the lower end may miss

    def nominal(self, count: int, *, times: float = 1.0) -> float:
        """One-sided level at one look for so many times the error; 0 before the first look."""
        if count < FIRST_LOOK:
            return 0.0
        size = max(24, 1 << (count - 1).bit_length())  # rounded up, so that few lists are kept
        return _nominal_levels(self.base, times * self.error, size)[count - FIRST_LOOK]

    def upper(self, counts: Sequence[int]) -> Floats:
        """Distance of the interval's upper end from the mean at some looks, in standard errors."""
        return self._distances(counts, 1.0)

    def lower(self, counts: Sequence[int]) -> Floats:
        """Distance of the lower end likewise."""
        return self._distances(counts, self.other_side)

    def _distances(self, counts: Sequence[int], times: float) -> Floats:
        from scipy.special import stdtrit

        return np.asarray([-stdtrit(n - 1, self.nominal(n, times=times)) for n in counts])

    def estimate(self, log_ratios: Numbers) -> Estimate:
        """Mean ratio with the interval that holds at all looks; wide open before the first one."""
        n = len(log_ratios)
        centre = float(np.mean(log_ratios))
        low = -math.inf
        high = math.inf
        if n >= FIRST_LOOK:
            error = error_of_mean(log_ratios)
            low = max(-700.0, centre - self.lower([n])[0] * error)
            high = min(700.0, centre + self.upper([n])[0] * error)
        return from_logs(
            centre, low, high, level=1.0 - (1.0 + self.other_side) * self.error, count=n
        )

    def verdict(self, log_ratios: Numbers, *, min_effect: float) -> Verdict:
        """What the pairs say: faster at the plan's error, else at the error of the other side."""
        estimate = self.estimate(log_ratios)
        if estimate.high < 1.0 - min_effect or estimate.low <= 0.0:
            return judge(estimate, min_effect=min_effect)
        symmetric = replace(estimate, high=estimate.ratio**2 / estimate.low)
        verdict = judge(symmetric, min_effect=min_effect)
        return Verdict.UNRESOLVED if verdict is Verdict.FASTER else verdict


class ProofLook(NamedTuple):
    """State of a proof at the look at which it ended, or at the latest one."""

    stop: bool
    # Whether the set is surely faster by more than the smallest effect, at the plan's error.
    holds: bool
    reason: str
    used: int  # Pairs on which that rests


def look(
    log_ratios: Numbers,
    plan: ProofPlan,
    *,
    most: int,
    min_effect: float = DEFAULT_MIN_EFFECT,
    is_clear: Callable[[int], bool] | None = None,
    ends_without_gain: bool = True,
) -> ProofLook:
    """Goes through the looks of a proof in order, up to the first at which it ends.

    Only `holds` rests on the plan's error. To end without that is always honest, and so is to go on
    after it.

    Args:
        log_ratios: Of fresh pairs of processes, in the order in which they were planned.
        is_clear: Whether nothing but their ratios speaks against the set after so many pairs.
        ends_without_gain: Whether it ends where a gain can hardly be proven any more.
    """
    unclear = 0
    for count in range(FIRST_LOOK, min(len(log_ratios), most) + 1):
        pairs = log_ratios[:count]
        verdict = plan.verdict(pairs, min_effect=min_effect)
        holds = verdict is Verdict.FASTER
        if holds and count < min(plan.least, most):
            continue
        if holds and is_clear is not None and not is_clear(count):
            unclear += 1
            if unclear < PATIENCE:
                continue
            holds = False
            reason = "faster, but vetoed"
        elif verdict is not Verdict.UNRESOLVED:
            reason = f"verdict reached: {verdict}"
        elif not ends_without_gain:
            continue
        elif plan.estimate(pairs).low > 1.0 - min_effect:
            reason = f"surely no gain of {min_effect:.1%} or more"
        elif count < most and _is_hopeless_after(pairs, plan, most=most, min_effect=min_effect):
            reason = f"it can hardly be proven any more with {most} pairs of processes"
        else:
            continue
        return ProofLook(stop=True, holds=holds, reason=reason, used=count)
    if len(log_ratios) < most:
        return ProofLook(stop=False, holds=False, reason="not decided yet", used=len(log_ratios))
    return ProofLook(stop=True, holds=False, reason=f"all {most} pairs of processes run", used=most)


def _is_hopeless_after(pairs: Numbers, plan: ProofPlan, *, most: int, min_effect: float) -> bool:
    n = np.asarray([len(pairs)])
    mean = np.mean(pairs, keepdims=True)
    sd = np.std(pairs, ddof=1, keepdims=True)
    return bool(is_hopeless(n, mean, sd, plan, most=most, min_effect=min_effect)[0])


def is_hopeless(
    n: npt.NDArray[np.int64],
    mean: Floats,
    sd: Floats,
    plan: ProofPlan,
    *,
    most: int,
    min_effect: float,
) -> npt.NDArray[np.bool_]:
    """Whether a gain can hardly be proven at the cap, unless as many pairs again tell of none."""
    from scipy.special import ndtr, stdtrit

    sd = np.maximum(sd, 1e-12)
    benefit = -stdtrit(n - 1, OPTIMISM) * sd / np.sqrt(n)
    needed = math.log1p(-min_effect) - plan.upper([most])[0] * sd / math.sqrt(most)
    missing = most - n
    expected = (n * mean + missing * (mean - benefit)) / most
    chance: Floats = ndtr((needed - expected) / (sd * np.sqrt(missing) / most))
    soon = np.minimum(2 * n, most)
    half = plan.lower(soon.tolist()) * sd / np.sqrt(soon)
    is_told_soon = (abs(mean) + half < math.log1p(min_effect)) | (
        mean - half > math.log1p(min_effect)
    )
    return (chance < HOPELESS) & ~is_told_soon


def share_spent(base: int, count: int) -> float:
    """Share of a plan's error that may be spent by the look at so many pairs; always below 1."""
    if count < FIRST_LOOK:
        return 0.0
    if count <= base:
        return float((1.0 - RESERVE) * (count / base) ** GROWTH)
    return 1.0 - RESERVE * base / count


@lru_cache(maxsize=64)
def _nominal_levels(base: int, error: float, most: int) -> tuple[float, ...]:
    """One-sided levels at the looks from `FIRST_LOOK` to `most` that just spend the error."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    walk = Walk()
    levels = []
    for n in range(FIRST_LOOK, most + 1):
        step_sd = math.sqrt(n - walk.age)
        root = math.sqrt(n)
        share = share_spent(base, n) - share_spent(base, walk.age)
        due = error * share / STUDENT_MARGIN

        def over(bound: float) -> float:
            return float(walk.weights @ ndtr((walk.points - bound * root) / step_sd)) - due  # noqa: B023  # solved within the turn

        bound = float(brentq(over, 0.0, 12.0))
        levels.append(float(ndtr(-bound)))
        walk = walk.go_on(n, -8.0, bound, nodes=160)
    return tuple(levels)


# Share of a study's error for the sets that it proves first; later ones get half of the rest.
FIRST_SHARE = 0.9


def allot(total: float, used: float, count: int) -> float:
    """Share of a study's error for each of `count` proofs after those that were given `used`."""
    if used == 0.0:
        return total * FIRST_SHARE / count
    return max(0.0, total - used) / 2.0 / count


def alone_plan(most: int) -> ProofPlan:
    """Plan of the isolated runs of a proven set: whether it is faster at all."""
    return ProofPlan(base=max(most, FIRST_LOOK), error=ISOLATED_ERROR, least=ISOLATED_PAIRS)


def smallest_gain(
    pair_sd: float,
    *,
    most: int,
    finalists: int = 3,
    isolated: int = 0,
    min_effect: float = DEFAULT_MIN_EFFECT,
) -> float | None:
    """The smallest gain found 9 times in 10 within a cap, to 0.1 %; None above 50 %.

    Beyond what the last look excludes by as many standard errors as keep that power in simulated
    proofs (tests/stats/test_proof.py). Isolated runs, at most `isolated` of each arm, are taken to
    spread as pairs do.
    """
    proofs = [(ProofPlan(base=most, error=allot(ERROR, 0.0, finalists)), most, min_effect)]
    if isolated:
        proofs.append((alone_plan(isolated), max(isolated, FIRST_LOOK), 0.0))
    gain = 0.0
    for plan, count, bound in proofs:
        beyond = plan.upper([count])[0] + 1.7 + 9.0 / count
        gain = max(gain, -math.expm1(math.log1p(-bound) - beyond * pair_sd / math.sqrt(count)))
    return math.ceil(1000 * gain) / 1000 if gain <= 0.5 else None
