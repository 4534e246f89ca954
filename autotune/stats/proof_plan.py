"""Proofs over fresh pairs of processes that are looked at after every pair, and still err no more than they say.

Two processes differ by more than their blocks do, so the unit is a pair of fresh processes, and its figure the log
ratio that it alone gave. How often and how far one may look is settled before the first pair: a plan spends its error
over all looks that there can ever be, so that going on later, up to a larger cap, is honest whatever was seen.

References:
    Lan, DeMets, Biometrika 70 (1983) (spending error over looks). Jennison, Turnbull, *Group Sequential Methods*,
    chapters 7 (spending), 9 (repeated confidence intervals), 10 (stochastic curtailment) and 4.4 (Student's quantile at
    the nominal levels where the variance is not known).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from autotune.stats.estimates import DEFAULT_MIN_EFFECT, Estimate, Verdict, finite, judge
from autotune.stats.intervals import Floats

FIRST_LOOK = 4
"""Pairs of processes before the first look: fewer tell too little of their own spread."""

GROWTH = 2.0
"""Power of the share of the base at which error is spent: little at first, when Student's tails are wide."""

RESERVE = 0.1
"""Share of a plan's error that is kept for looks beyond its base."""

STUDENT_MARGIN = 1.2
"""By how much the looks' error may exceed its sum, for levels are of a normal walk and intervals Student's.

Simulated (tests/stats/test_proof_plan.py): 1.16 at most, for errors from 0.005 to 0.1 and bases from 4 to 60.
"""

HOPELESS = 0.05
"""Chance of proving a gain, were the effect as good as it may still be, below which a proof ends."""

OPTIMISM = 0.1
"""One-sided level of the effect that a set is given the benefit of: that of the better end of an 80 % interval."""

PATIENCE = 6
"""Looks at which a set may be faster while something speaks against it, before the proof ends."""

_NODES = 160
_LOWEST = -8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPlan:
    """At which pairs of processes a proof is looked at, and how wide its interval must be there.

    Attributes:
        base: Pairs of processes within which most of the error is spent: the cap when the proof was planned.
        error: One-sided chance, over all looks that there can ever be, that the interval misses the truth on one side.
    """

    base: int
    error: float

    def __post_init__(self) -> None:
        """Refuses what is no plan.

        Raises:
            ValueError: If it is none.
        """
        if not (FIRST_LOOK <= self.base <= 10_000 and 0.0 < self.error < 0.5):
            raise ValueError(
                f"a proof must be planned for {FIRST_LOOK} to 10000 pairs of processes with an error between 0 and 0.5 "
                f"but got {self.base} and {self.error:g}"
            )

    def spent(self, count: int) -> float:
        """Error that may be spent by the look at so many pairs; it stays below `error` for ever."""
        if count < FIRST_LOOK:
            return 0.0
        if count <= self.base:
            return float(self.error * (1.0 - RESERVE) * (count / self.base) ** GROWTH)
        return self.error * (1.0 - RESERVE * self.base / count)

    def nominal(self, count: int) -> float:
        """One-sided level of the interval at one look; 0 before the first."""
        if count < FIRST_LOOK:
            return 0.0
        return float(_nominal_levels(self.base, self.error, _round_up(count))[count - FIRST_LOOK])

    def half_widths(self, counts: Sequence[int]) -> Floats:
        """Half width of the interval at some looks, in standard errors of the mean."""
        from scipy.special import stdtrit  # 0.2 s to import, so not before it is needed

        return np.asarray([-float(stdtrit(n - 1, self.nominal(n))) for n in counts])

    def estimate(self, log_ratios: Sequence[float] | Floats) -> Estimate:
        """Mean ratio with the interval that holds at all looks together (a repeated confidence interval).

        Args:
            log_ratios: Log ratio of each fresh pair of processes, at least two; before the first look nothing is
                excluded.
        """
        values = finite(log_ratios, least=2)
        n, level = len(values), 1.0 - 2.0 * self.error
        centre = float(np.mean(values))
        if n < FIRST_LOOK:
            return Estimate(ratio=math.exp(centre), low=0.0, high=math.inf, level=level, pair_count=n)
        half = float(self.half_widths([n])[0] * np.std(values, ddof=1)) / math.sqrt(n)
        ends = math.exp(max(-700.0, centre - half)), math.exp(min(700.0, centre + half))
        return Estimate(ratio=math.exp(centre), low=ends[0], high=ends[1], level=level, pair_count=n)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofLook:
    """What a proof's pairs say at the look at which it ended, or at the latest one.

    Attributes:
        stop: Whether it ends here.
        holds: Whether the set is surely faster by more than the smallest effect, at the plan's error.
        reason: The rule that spoke, in plain words.
        used: Pairs on which that rests; later ones do not count.
    """

    stop: bool
    holds: bool
    reason: str
    used: int


def look(
    log_ratios: Sequence[float] | Floats,
    plan: ProofPlan,
    *,
    most: int,
    min_effect: float = DEFAULT_MIN_EFFECT,
    is_clear: Callable[[int], bool] | None = None,
) -> ProofLook:
    """Goes through the looks of a proof in order, up to the first at which it ends.

    Only `holds` rests on the plan's error. To end without that is always honest, and so is to go on after it.

    Args:
        log_ratios: Log ratio of each fresh pair of processes, in the order in which they were planned.
        plan: How error is spent.
        most: Pairs after which it ends in any case.
        min_effect: Smallest effect of interest.
        is_clear: Given so many pairs, whether nothing but their ratios speaks against the set; where something does, a
            proof goes on, for more pairs may clear it.
    """
    values, unclear = finite(log_ratios, least=0), 0
    for count in range(FIRST_LOOK, min(len(values), most) + 1):
        seen = values[:count]
        estimate = plan.estimate(seen)
        verdict = judge(estimate, min_effect=min_effect)
        if verdict is Verdict.FASTER and is_clear is not None and not is_clear(count):
            unclear += 1
            if unclear == PATIENCE:
                return ProofLook(stop=True, holds=False, reason="faster, but something speaks against it", used=count)
            continue
        if verdict is not Verdict.UNRESOLVED:
            return ProofLook(
                stop=True, holds=verdict is Verdict.FASTER, reason=f"verdict reached: {verdict}", used=count
            )
        if estimate.low > 1.0 - min_effect:
            return ProofLook(stop=True, holds=False, reason=f"surely no gain of {min_effect:.1%} or more", used=count)
        at = np.asarray([count])
        mean, sd = np.mean(seen, keepdims=True), np.std(seen, ddof=1, keepdims=True)
        if count < most and _is_hopeless(at, mean, sd, plan, most=most, min_effect=min_effect)[0]:
            reason = f"a gain can hardly be proven any more with {most} pairs of processes"
            return ProofLook(stop=True, holds=False, reason=reason, used=count)
    if len(values) >= most:
        return ProofLook(stop=True, holds=False, reason=f"all {most} pairs of processes run", used=most)
    return ProofLook(stop=False, holds=False, reason="not decided yet", used=len(values))


def chance_to_prove(
    log_ratios: Floats, plan: ProofPlan, *, most: int, min_effect: float, optimism: float = OPTIMISM
) -> Floats:
    """Chance of a gain proven at the cap, were the true effect as good as it may still be, `[...]`.

    Args:
        log_ratios: Of the pairs so far, `[..., n]` with n from 2 to `most` - 1.
        plan: How error is spent.
        most: The cap.
        min_effect: Smallest effect of interest.
        optimism: One-sided level of the effect that is assumed: 0.5 for the one that is seen.
    """
    mean, sd = log_ratios.mean(axis=-1), log_ratios.std(axis=-1, ddof=1)
    return _chance(log_ratios.shape[-1], mean, sd, plan, most=most, min_effect=min_effect, optimism=optimism)


def _chance(
    n: int | npt.NDArray[np.int64], mean: Floats, sd: Floats, plan: ProofPlan, *, most: int, min_effect: float,
    optimism: float = OPTIMISM,
) -> Floats:  # fmt: skip
    """The same from number, mean and standard deviation of the pairs so far."""
    from scipy.special import ndtr, stdtrit

    sd = np.maximum(sd, 1e-12)
    benefit = -stdtrit(np.asarray(n) - 1, optimism) * sd / np.sqrt(n)
    needed = math.log1p(-min_effect) - plan.half_widths([most])[0] * sd / math.sqrt(most)
    rest = most - n
    expected = (n * mean + rest * (mean - benefit)) / most
    chance: Floats = ndtr((needed - expected) / (sd * np.sqrt(rest) / most))
    return chance


def _is_hopeless(
    n: npt.NDArray[np.int64], mean: Floats, sd: Floats, plan: ProofPlan, *, most: int, min_effect: float
) -> npt.NDArray[np.bool_]:
    """Whether a gain can hardly be proven any more; not where as many pairs again tell that there is none.

    To know that two sets are alike, or that one is slower, is worth a few pairs, where that is all it takes.
    """
    soon = np.minimum(2 * n, most)
    half = plan.half_widths(soon.tolist()) * sd / np.sqrt(soon)
    is_told_soon = (abs(mean) + half < math.log1p(min_effect)) | (mean - half > math.log1p(min_effect))
    hopeless: npt.NDArray[np.bool_] = _chance(n, mean, sd, plan, most=most, min_effect=min_effect) < HOPELESS
    return hopeless & ~is_told_soon


def simulate_looks(
    plan: ProofPlan,
    *,
    effect: float,
    pair_sd: float,
    most: int,
    min_effect: float = DEFAULT_MIN_EFFECT,
    repeats: int = 2000,
    stream: int = 0,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """The rule of `look` on many made-up proofs at once: whether each holds, and after how many pairs it ended.

    Args:
        plan: How error is spent.
        effect: True log ratio.
        pair_sd: Standard deviation of the log ratio from one fresh pair of processes to the next.
        most: The cap.
        min_effect: Smallest effect of interest.
        repeats: How many; the same ones every time.
        stream: Of random numbers; proofs of different sets have different ones.
    """
    rng = np.random.default_rng([stream, 20261122])
    return looks_of(effect + pair_sd * rng.standard_normal((repeats, most)), plan, min_effect=min_effect)


def looks_of(
    log_ratios: Floats, plan: ProofPlan, *, min_effect: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """`look` for many proofs of equal length at once, `[repeats, most]`; whether each holds, and where it ended."""
    most = log_ratios.shape[-1]
    counts = np.arange(FIRST_LOOK, most + 1)
    centred = log_ratios - log_ratios.mean()  # sums of squares lose nothing to what all have in common
    sums, squares = (np.cumsum(x, axis=-1)[:, FIRST_LOOK - 1 :] for x in (centred, centred**2))
    sd = np.sqrt(np.maximum(squares - sums**2 / counts, 0.0) / (counts - 1))
    mean, half = sums / counts + log_ratios.mean(), plan.half_widths(counts.tolist()) * sd / np.sqrt(counts)
    won = mean + half < math.log1p(-min_effect)
    stop = won | (mean - half > math.log1p(-min_effect))
    stop[:, :-1] |= _is_hopeless(counts[:-1], mean[:, :-1], sd[:, :-1], plan, most=most, min_effect=min_effect)
    stop[:, -1] = True
    first = stop.argmax(axis=-1)
    holds, ended = won[np.arange(len(won)), first], counts[first]
    return holds, ended


# ---------------------------------------------------------------------- levels of the looks


def _round_up(count: int) -> int:
    """Up to which look levels are worked out at once, so that few lists are kept."""
    return max(24, 1 << (max(1, count) - 1).bit_length())


@lru_cache(maxsize=64)
def _nominal_levels(base: int, error: float, most: int) -> tuple[float, ...]:
    """One-sided levels at the looks from `FIRST_LOOK` to `most` that spend the plan's error, no more and no less.

    A standard normal walk is followed by its density, by Gauss-Legendre quadrature, below the bounds so far; each
    bound is where the error of its look is spent. Ending without proof takes nothing back of it.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    plan = ProofPlan(base=base, error=error)
    x, w = np.polynomial.legendre.leggauss(_NODES)
    walk, density, previous, levels = np.zeros(1), np.ones(1), 0, []
    for n in range(FIRST_LOOK, most + 1):
        step_sd, root = math.sqrt(n - previous), math.sqrt(n)
        due = (plan.spent(n) - (plan.spent(previous) if previous else 0.0)) / STUDENT_MARGIN

        def over(bound: float) -> float:
            return float(density @ ndtr((walk - bound * root) / step_sd)) - due  # noqa: B023  # solved within the turn

        bound = float(brentq(over, 0.0, 12.0))
        levels.append(float(ndtr(-bound)))
        middle, reach = (bound + _LOWEST) * root / 2.0, (bound - _LOWEST) * root / 2.0
        ahead = middle + reach * x
        kernel = np.exp(-0.5 * ((ahead[:, None] - walk) / step_sd) ** 2) / (step_sd * math.sqrt(2.0 * math.pi))
        density = (kernel @ density) * w * reach
        walk, previous = ahead, n
    return tuple(levels)
