"""The next set to try: the best one under a draw of what may be true, or the most promising of several such.

Draws are Thompson sampling over a sparse model: settings that act in the draw get their best value. Those that do not
may have any, so they get one that was tried little: early trials change many settings at once and tell of all of them,
and what is good is not for ever tried in the same company. Two proposals in three compare what several draws would
have: the set with the largest expected improvement is taken (Jones, Schonlau and Welch, "Efficient Global Optimization
of Expensive Black-Box Functions", 1998), which is by how much it is faster than all that were tried, on average over
what may be true, times its chance to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.search.additive import AdditiveModel
from autotune.search.draws import Draw, smallest
from autotune.search.factors import Codes, Design, Floats
from autotune.search.hazards import SURE, Hazards
from autotune.search.joint import JointModel

IMPROVING_SHARE, IMPROVING_FROM = 2 / 3, 4
"""Chance that a proposal is the set of which the most improvement is expected, and not the best one under a draw; and
after how many trials: a few tell so little that what is expected of them is hardly another set than the default."""

DRAWN, BELIEFS = 8, 96
"""Draws whose best sets are compared, and draws by which they are."""

LEAST_GAIN = 0.003
"""Expected improvement, in typical effects, below which a draw is tried instead: it tells more."""

FAIR_CHANCE = 0.6
"""Least chance to run of a set that changes settings only to learn of them."""

FEW_TRIALS, MOST_TRIALS = 6, 0.7
"""Trials, and the share of them, after which a value that was in so many is stuck."""

EXPLORE = 0.5
"""Chance that a setting that is stuck and does not act in a draw gets a value that was tried little instead."""

FAILURE_COST = 0.5
"""What a failed trial costs, in typical effects."""

REDRAWS, LAST_TRIES = 20, 200
"""Draws of which the later ones change something at random, where a search only finds what is known or forbidden; and
sets like the last one that are looked at after that."""


def propose(
    model: AdditiveModel,
    hazards: Hazards,
    rng: np.random.Generator,
    is_open: Callable[[Codes], bool] = lambda codes: True,
    *,
    tried: Codes | None = None,
    improving_share: float = IMPROVING_SHARE,
    joint: JointModel | None = None,
    under_way: Sequence[Codes] = (),
) -> Codes:
    """The next set, as codes; one that is not open only if every draw finds one.

    Args:
        model: What trials taught of speed.
        hazards: What they taught of failures.
        rng: Draws.
        is_open: Whether a set may be tried, and is not known or being tried.
        tried: Sets that ran, shape (sets, factors); what is not faster than the fastest of them is no improvement.
        improving_share: Chance of the set of which the most improvement is expected, where there are trials enough to
            expect anything.
        joint: The model of whole sets, where it tells more than a sum of effects: it proposes then.
        under_way: Sets that are being tried: what is not faster than they are is no improvement, either.
    """
    design = model.design
    if joint is not None and (best := _by_joint(joint, hazards, rng, is_open, under_way)) is not None:
        return best
    unit = 1.0 / model.scale  # effects count in typical ones
    if hazards.trials >= IMPROVING_FROM and rng.random() < improving_share:
        known = np.array([*(tried if tried is not None else ()), *under_way], dtype=np.int64)
        best = _improving(model, unit, hazards, rng, is_open, known.reshape(-1, len(design.factors)))
        if best is not None:
            return best
    for attempt in range(REDRAWS):
        draw = model.draw(rng).times(unit)
        codes = _company(smallest(draw, *_penalties(hazards, design)), draw, hazards, rng)
        codes = _without_culprits(_within_risk(design.settle(codes), draw, hazards, rng), draw, hazards)
        if attempt >= REDRAWS // 2:
            i = int(rng.integers(len(codes)))
            codes[i] = int(rng.integers(design.sizes[i]))
            codes = _without_culprits(design.settle(codes), draw, hazards)
        if is_open(codes):
            return codes
    return _far_from(codes, draw, hazards, rng, is_open)


def _improving(
    model: AdditiveModel,
    unit: float,
    hazards: Hazards,
    rng: np.random.Generator,
    is_open: Callable[[Codes], bool],
    known: Codes,
) -> Codes | None:
    """Of some sets that are best under a draw, the one that is expected to better what is known by the most.

    Each draw gives two: one with what acts in it alone, and one in company, which tells of more. None if no set that is
    open promises anything.
    """
    design, penalties = hazards.design, _penalties(hazards, hazards.design)
    found: dict[bytes, Codes] = {}
    for attempt in range(DRAWN):
        draw = (model.mean if attempt == 0 else model.draw(rng)).times(unit)
        codes = smallest(draw, *penalties)
        alone = codes.copy()
        for i in draw.inert:
            if design.factors[i].default is not None:
                alone[i] = design.neutral[i]
        for drawn in (alone, codes if attempt == 0 else _company(codes, draw, hazards, rng)):
            settled = _without_culprits(_within_risk(design.settle(drawn), draw, hazards, rng), draw, hazards)
            if is_open(settled):
                found[key(settled)] = settled
    if not found:
        return None
    table = np.array(list(found.values()))
    beliefs = model.beliefs(rng, BELIEFS)

    def totals(codes: Codes) -> Floats:
        return np.asarray(unit * beliefs.totals(codes))

    least = totals(known).min(axis=1, keepdims=True) if len(known) else np.zeros((BELIEFS, 1))
    gains = np.maximum(least - totals(table), 0.0).mean(axis=0) * np.exp(hazards.log_survivals(table))
    best = int(np.argmax(gains))
    return table[best] if gains[best] >= LEAST_GAIN else None


def _by_joint(
    joint: JointModel,
    hazards: Hazards,
    rng: np.random.Generator,
    is_open: Callable[[Codes], bool],
    under_way: Sequence[Codes],
) -> Codes | None:
    """What the model of whole sets proposes."""
    if len(under_way):
        joint = joint.believing(np.array(under_way))
    return joint.promising(rng, chance=lambda codes: float(np.exp(hazards.log_survival(codes))), is_open=is_open)


def _far_from(
    codes: Codes, draw: Draw, hazards: Hazards, rng: np.random.Generator, is_open: Callable[[Codes], bool]
) -> Codes:
    """An open set that differs from one in ever more settings, for rules may leave little near it; else that one."""
    design = hazards.design
    for attempt in range(LAST_TRIES):
        other = codes.copy()
        for i in rng.integers(len(codes), size=1 + attempt // 10):
            other[i] = int(rng.integers(design.sizes[i]))
        other = _without_culprits(design.settle(other), draw, hazards)
        if is_open(other):
            return other
    return codes


def key(codes: Codes) -> bytes:
    """A set as something that can be looked up."""
    return codes.tobytes()


def _company(codes: Codes, draw: Draw, hazards: Hazards, rng: np.random.Generator) -> Codes:
    """The set, with some settings that do not act in the draw at another value where theirs was in most trials."""
    for i in sorted(draw.inert):
        if _is_stuck(hazards, i, codes[i]) and rng.random() < EXPLORE:
            codes[i] = _rarely_tried(hazards, i, rng)
    return codes


def _is_stuck(hazards: Hazards, i: int, code: int) -> bool:
    """Whether a value was in most trials already, so that another trial with it tells nothing of it."""
    tried = hazards.tried[i]
    return bool(hazards.trials >= FEW_TRIALS and tried[code] > MOST_TRIALS * hazards.trials)


def _rarely_tried(hazards: Hazards, i: int, rng: np.random.Generator) -> int:
    """A value of a setting, the likelier the less it was tried and the less it is suspected to fail."""
    weights = (1 - hazards.single(i)[:-1]) / (1.0 + hazards.tried[i][:-1]) ** 2
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _penalties(hazards: Hazards, design: Design) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    """What the risk of each value, and of each pair that is suspected, counts beside effects."""
    single = [_cost(hazards.single(i)) for i in range(len(design.factors))]
    return single, {pair: _cost(hazards.pair(*pair)) for pair in hazards.suspected}


def _cost(chances: Floats) -> Floats:
    return -FAILURE_COST * np.log1p(-np.minimum(chances, SURE))


def _within_risk(codes: Codes, draw: Draw, hazards: Hazards, rng: np.random.Generator) -> Codes:
    """The set, with fewer settings changed that do not act in the draw, until it has a fair chance to run."""
    design, least = hazards.design, float(np.log(FAIR_CHANCE))
    changed = [i for i in draw.inert if codes[i] != design.neutral[i] and design.factors[i].default is not None]
    rng.shuffle(changed)
    while changed and hazards.log_survival(codes) < least:
        at = max(range(len(changed)), key=lambda k: hazards.single(changed[k])[codes[changed[k]]])
        i = changed.pop(at)
        codes[i] = design.neutral[i]
        codes = design.settle(codes)
    return codes


def _without_culprits(codes: Codes, draw: Draw, hazards: Hazards) -> Codes:
    """The set, with the setting reset that costs least, of each combination that is known to fail."""
    design = hazards.design
    for _ in range(len(codes)):
        if (culprit := hazards.culprit(codes)) is None:
            break
        resets = []
        for i, _ in culprit:
            reset = codes.copy()
            reset[i] = design.neutral[i]
            resets.append(design.settle(reset))
        codes = min(resets, key=draw.total)
    return codes
