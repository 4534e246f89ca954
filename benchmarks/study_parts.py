"""Whole studies with and without a true winner: which are named, at what cost, with what words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from benchmarks.coverage import covers
from benchmarks.machines import Case
from benchmarks.studies import CANDIDATES, StudyOutcome, cost_columns, mean_cost, run_studies

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""True speed-ups in total, as shares of the step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullStudies:
    """Studies of 12 candidates of which none is a winner; `cost` is of the proofs."""

    machine: str
    studies: int
    false_winners: int
    false_winner_rate: float
    upper_bound: float
    search_pairs: float
    ablation_pairs: float
    cost: Mapping[str, float]


def null_studies(
    name: str, case: Case, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> NullStudies:
    """How often a study without a true winner names one, with the exact 95 % upper bound."""
    outcomes = run_studies(case, np.full((studies, CANDIDATES), case.none_typical), rng, pool)
    wrong, n = sum(o.winner is not None for o in outcomes), len(outcomes)
    return NullStudies(
        machine=name,
        studies=n,
        false_winners=wrong,
        false_winner_rate=wrong / n,
        upper_bound=float(binomtest(wrong, n, alternative="less").proportion_ci().high),
        search_pairs=_mean([o.search_pairs for o in outcomes]),
        ablation_pairs=_mean([o.ablation_pairs for o in outcomes]),
        cost=cost_columns(mean_cost([o.cost for o in outcomes])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Studies with one faster candidate among eleven others, by its true speed-up.

    `found`: share of studies that name that candidate. `found_9_in_10`: smallest effect found 9
    times in 10, interpolated (None: not within the range tried). `pairs`: process pairs of the
    proofs of a study; `cost` over all speed-ups. `winners`: studies that named it; `held`: of
    those, how many report an interval that holds the truth; `bias`: mean of log(reported / true
    ratio) over them. `coverage` over all; `typical_coverage`: of the ratio of typical steps in
    typical processes. `named_wrong`: share of studies that name another one. `search_bias`: bias of
    the search's own figure of what was proven. `minimal`: share of named sets that have lost the
    setting that does nothing.
    """

    machine: str
    studies: int
    found: Mapping[str, float]
    found_9_in_10: float | None
    named_wrong: float
    pairs: Mapping[str, float]
    cost: Mapping[str, float]
    winners: Mapping[str, int]
    held: Mapping[str, int]
    bias: Mapping[str, float]
    coverage: float
    typical_coverage: float
    search_bias: float
    minimal: float
    search_pairs: float
    ablation_pairs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtEffect:
    """What came of the studies of one true speed-up, whose log ratio is `truth`."""

    place: np.ndarray
    outcomes: Sequence[StudyOutcome]
    truth: float

    @property
    def right(self) -> list[StudyOutcome]:
        return [o for o, p in zip(self.outcomes, self.place, strict=True) if o.winner == p]

    @property
    def wrong(self) -> int:
        return sum(
            o.winner not in (None, p) for o, p in zip(self.outcomes, self.place, strict=True)
        )

    def held(self, *, shift: float = 0.0) -> list[bool]:
        return [
            covers(o.reported, self.truth - shift) for o in self.right if o.reported is not None
        ]

    def bias(self) -> float:
        return _mean(
            [math.log(o.reported.ratio) - self.truth for o in self.right if o.reported is not None]
        )

    def search_bias(self) -> list[float]:
        reached = [o for o, p in zip(self.outcomes, self.place, strict=True) if o.proven == p]
        return [
            math.log(o.search_ratio) - self.truth for o in reached if o.search_ratio is not None
        ]


def power(
    name: str, case: Case, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> Power:
    """Power curve, cost, and what is reported of winners, on one machine."""
    tried = {f"{e:g}": _at_effect(case, math.log1p(-e), studies, rng, pool) for e in EFFECTS}
    everything = [o for t in tried.values() for o in t.outcomes]
    found = {key: len(t.right) / studies for key, t in tried.items()}
    return Power(
        machine=name,
        studies=studies,
        found=found,
        found_9_in_10=crossing(EFFECTS, list(found.values())),
        named_wrong=sum(t.wrong for t in tried.values()) / len(everything),
        pairs={key: _mean([o.cost.process_pairs for o in t.outcomes]) for key, t in tried.items()},
        cost=cost_columns(mean_cost([o.cost for o in everything])),
        winners={key: len(t.right) for key, t in tried.items()},
        held={key: sum(t.held()) for key, t in tried.items()},
        bias={key: t.bias() for key, t in tried.items()},
        coverage=_mean([h for t in tried.values() for h in t.held()]),
        typical_coverage=_mean([h for t in tried.values() for h in t.held(shift=case.shift)]),
        search_bias=_mean([b for t in tried.values() for b in t.search_bias()]),
        minimal=_mean([o.is_minimal for o in everything if o.winner is not None]),
        search_pairs=_mean([o.search_pairs for o in everything]),
        ablation_pairs=_mean([o.ablation_pairs for o in everything]),
    )


def _at_effect(
    case: Case, truth: float, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> _AtEffect:
    """Studies in which one candidate has this true log ratio in total."""
    effects = np.full((studies, CANDIDATES), case.none_typical)
    place = rng.integers(CANDIDATES, size=studies)
    effects[np.arange(studies), place] = truth - case.shift
    outcomes = run_studies(case, effects, rng, pool)
    return _AtEffect(place=place, outcomes=outcomes, truth=truth)


def crossing(
    effects: Sequence[float], found: Sequence[float], *, level: float = 0.9
) -> float | None:
    """Smallest effect found at `level`, by linear interpolation of the curve; None past its end."""
    for i, share in enumerate(found):
        if share >= level:
            if i == 0:
                return effects[0]
            return float(np.interp(level, [found[i - 1], share], [effects[i - 1], effects[i]]))
    return None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
