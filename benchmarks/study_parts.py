"""Whole studies without and with a true winner: who is named how often, at what cost, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.costs import cost_columns, mean_cost
from benchmarks.coverage import covers
from benchmarks.fixed_proof import AS_IT_WAS, FixedProofs, fixed_proofs, gate_error
from benchmarks.machines import Case
from benchmarks.proportions import binomial_upper_bound, crossing
from benchmarks.studies import CANDIDATES, StudyOutcome, run_studies

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""True speed-ups in total, as shares of the step time."""

GOAL = 0.01
"""Share of studies without a true winner that may name one; also the error at which the fixed proof is compared."""

FIXED_MOST = 800
"""Repetitions of the fixed proof for each figure, at most: it is cheap, so there are four for each study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullStudies:
    """Studies of 12 candidates of which none is a winner.

    `cost` is of the proofs; `fixed`: share of false winners of the fixed proof, as it was and at the goal's error.
    """

    machine: str
    studies: int
    false_winners: int
    false_winner_rate: float
    upper_bound: float
    fixed: Mapping[str, float]
    second_chances: int
    search_pairs: float
    ablation_pairs: float
    cost: Mapping[str, float]


def null_studies(
    name: str, case: Case, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> NullStudies:
    """How often a study without a true winner names one, with the exact 95 % upper bound."""
    outcomes = run_studies(case, np.full((studies, CANDIDATES), case.none_typical), rng, pool)
    wrong, n = sum(o.winner is not None for o in outcomes), len(outcomes)
    fixed = [p.winner for p in _fixed(case, studies, rng)]
    return NullStudies(
        machine=name,
        studies=n,
        false_winners=wrong,
        false_winner_rate=wrong / n,
        upper_bound=binomial_upper_bound(wrong, n),
        fixed={key: float(np.mean(w >= 0)) for key, w in zip(("as it was", "at 1 %"), fixed, strict=True)},
        second_chances=sum(o.had_second_chance for o in outcomes),
        search_pairs=_mean([o.search_pairs for o in outcomes]),
        ablation_pairs=_mean([o.ablation_pairs for o in outcomes]),
        cost=cost_columns(mean_cost([o.cost for o in outcomes])),
    )


def _fixed(case: Case, studies: int, rng: np.random.Generator, typical: float | None = None) -> list[FixedProofs]:
    """The fixed proof as it was, and with the error that the goal allows; the first candidate may have an effect."""
    effects = np.full((min(FIXED_MOST, 4 * studies), CANDIDATES), case.none_typical)
    effects[:, 0] = case.none_typical if typical is None else typical
    return [fixed_proofs(case.model, effects, rng, error=e) for e in (AS_IT_WAS, gate_error(GOAL))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Studies with one faster candidate among eleven that are no winners; mappings are by true speed-up.

    `found`: share of studies that name that candidate, `fixed` and `fixed_at_1_percent` likewise of the fixed proof.
    `found_9_in_10`: smallest effect found 9 times in 10, interpolated (None: not within the range tried).
    `pairs`, `fixed_pairs`: process pairs of the proofs of a study; `cost` and `fixed_cost` over all speed-ups.
    `winners`: studies that named it; `held`: of those, how many report an interval that holds the truth; `bias`: mean
    of log(reported / true ratio) over them. `coverage` over all; `typical_coverage`: of the ratio of typical steps in
    typical processes. `named_wrong`: share of studies that name another one. `search_bias`: bias of the search's own
    figure of what reached a final proof. `minimal`: share of named sets that have lost the setting that does nothing;
    `second_chances`: share of studies in which the whole set was proven because the minimal one did not hold.
    """

    machine: str
    studies: int
    found: Mapping[str, float]
    fixed: Mapping[str, float]
    fixed_at_1_percent: Mapping[str, float]
    found_9_in_10: float | None
    named_wrong: float
    pairs: Mapping[str, float]
    fixed_pairs: Mapping[str, float]
    cost: Mapping[str, float]
    fixed_cost: Mapping[str, float]
    winners: Mapping[str, int]
    held: Mapping[str, int]
    bias: Mapping[str, float]
    coverage: float
    typical_coverage: float
    search_bias: float
    minimal: float
    second_chances: float
    search_pairs: float
    ablation_pairs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtEffect:
    """What came of the studies of one true speed-up, whose log ratio is `truth`."""

    place: np.ndarray
    outcomes: Sequence[StudyOutcome]
    fixed: Sequence[FixedProofs]
    truth: float

    @property
    def right(self) -> list[StudyOutcome]:
        return [o for o, p in zip(self.outcomes, self.place, strict=True) if o.winner == p]

    @property
    def wrong(self) -> int:
        return sum(o.winner not in (None, p) for o, p in zip(self.outcomes, self.place, strict=True))

    def held(self, *, shift: float = 0.0) -> list[bool]:
        return [covers(o.reported, self.truth - shift) for o in self.right if o.reported is not None]

    def bias(self) -> float:
        return _mean([math.log(o.reported.ratio) - self.truth for o in self.right if o.reported is not None])

    def search_bias(self) -> list[float]:
        reached = [o for o, p in zip(self.outcomes, self.place, strict=True) if o.proven == p]
        return [math.log(o.search_ratio) - self.truth for o in reached if o.search_ratio is not None]


def power(name: str, case: Case, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor) -> Power:
    """Power curve, cost, and what is reported of winners, on one machine."""
    tried = {f"{e:g}": _at_effect(case, math.log1p(-e), studies, rng, pool) for e in EFFECTS}
    everything = [o for t in tried.values() for o in t.outcomes]
    found = {key: len(t.right) / studies for key, t in tried.items()}
    fixed = [{key: float(np.mean(t.fixed[i].winner == 0)) for key, t in tried.items()} for i in range(2)]
    return Power(
        machine=name,
        studies=studies,
        found=found,
        fixed=fixed[0],
        fixed_at_1_percent=fixed[1],
        found_9_in_10=crossing(EFFECTS, list(found.values())),
        named_wrong=sum(t.wrong for t in tried.values()) / len(everything),
        pairs={key: _mean([o.cost.process_pairs for o in t.outcomes]) for key, t in tried.items()},
        fixed_pairs={key: t.fixed[0].cost.process_pairs for key, t in tried.items()},
        cost=cost_columns(mean_cost([o.cost for o in everything])),
        fixed_cost=cost_columns(mean_cost([t.fixed[0].cost for t in tried.values()])),
        winners={key: len(t.right) for key, t in tried.items()},
        held={key: sum(t.held()) for key, t in tried.items()},
        bias={key: t.bias() for key, t in tried.items()},
        coverage=_mean([h for t in tried.values() for h in t.held()]),
        typical_coverage=_mean([h for t in tried.values() for h in t.held(shift=case.shift)]),
        search_bias=_mean([b for t in tried.values() for b in t.search_bias()]),
        minimal=_mean([o.is_minimal for o in everything if o.winner is not None]),
        second_chances=_mean([o.had_second_chance for o in everything]),
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
    return _AtEffect(place=place, outcomes=outcomes, fixed=_fixed(case, studies, rng, truth - case.shift), truth=truth)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
