"""The fixed proof that group-sequential ones are held against: the rule as of commit 4582ee2, in plain numpy.

The best three of a search are confirmed in five fresh process pairs each, with intervals corrected for three; the best
that is faster is proven in five more. Minimisation is left out: what is proven is what was confirmed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.stats.estimates import DEFAULT_MIN_EFFECT
from autotune.stats.intervals import Floats, student_quantile
from autotune.stats.noise_models import NoiseModel
from benchmarks.costs import Cost
from benchmarks.coverage import CONFIRM_PAIRS, FINALISTS, PROCESSES, process_centres

SEARCH_PAIRS = 40
"""Pairs of blocks of a trial that runs to its cap."""

AS_IT_WAS = 0.05 / 2
"""One-sided error of each of its two gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedProofs:
    """What came of many studies.

    Attributes:
        winner: Index of the candidate that is named in each, -1 where there is none.
        cost: Of the proofs of a study, in the mean.
    """

    winner: npt.NDArray[np.intp]
    cost: Cost


def gate_error(family_error: float) -> float:
    """One-sided error of each of both gates with which the whole rule names a wrong winner so often, at most.

    The confirmation's is shared by its finalists, so that all of them together pass it that often; the final proof is
    of other processes.
    """
    return math.sqrt(family_error)


def fixed_proofs(
    model: NoiseModel, effects: Floats, rng: np.random.Generator, *, error: float = AS_IT_WAS
) -> FixedProofs:
    """Runs the rule on many studies at once.

    Args:
        model: The machine.
        effects: True log ratios of the typical steps of each study's candidates, `[studies, candidates]`.
        rng: Where the noise is drawn from.
        error: One-sided error of each gate.
    """
    rows = np.arange(len(effects))
    searched = process_centres(model, rng, effects, processes=1, pairs=SEARCH_PAIRS)[..., 0]
    chosen = np.argsort(searched, axis=-1)[:, :FINALISTS]
    is_tried = np.take_along_axis(searched, chosen, axis=-1) < 0.0
    ratio, passes = _gate(model, np.take_along_axis(effects, chosen, axis=-1), rng, error=error / FINALISTS)
    passes &= is_tried
    best = np.where(passes, ratio, np.inf).argmin(axis=-1)
    candidate, goes_on = chosen[rows, best], passes.any(axis=-1)
    _, holds = _gate(model, effects[rows, candidate], rng, error=error)
    pairs = PROCESSES * float(is_tried.sum(axis=-1).mean() + goes_on.mean())
    return FixedProofs(
        winner=np.where(goes_on & holds, candidate, -1),
        cost=Cost(process_pairs=pairs, block_pairs=pairs * CONFIRM_PAIRS),
    )


def _gate(
    model: NoiseModel, effects: Floats, rng: np.random.Generator, *, error: float
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Mean log ratios over fresh process pairs, and whether their intervals are wholly faster."""
    centres = process_centres(model, rng, effects, processes=PROCESSES, pairs=CONFIRM_PAIRS)
    half = student_quantile(2.0 * error, PROCESSES - 1) * centres.std(axis=-1, ddof=1) / math.sqrt(PROCESSES)
    ratio = centres.mean(axis=-1)
    return ratio, ratio + half < math.log1p(-DEFAULT_MIN_EFFECT)
