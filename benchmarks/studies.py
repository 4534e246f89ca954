"""Whole studies on simulated machines: the shipped stages, from the noise floor to the conclusion, none of them copied.

What is simulated is what lies below the stages: workers that draw step times of known truth (`ReplayLauncher`), and a
run directory in memory. Candidates are two settings each, one that carries the effect and one that does nothing, so
that a winner is minimised and, where the minimal set does not hold, the whole set gets its second chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from autotune.model import (
    AblationResult,
    ConfirmRun,
    FinalistResult,
    FlagSet,
    Outcome,
    StudySpec,
    TrialResult,
    parse_study,
)
from autotune.settings import SearchSpace
from autotune.stats import Estimate, NoiseModel
from autotune.study import run_study
from harness.simulated import GivenSetup, given_run, silent

CANDIDATES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutcome:
    """What one simulated study came to.

    Attributes:
        winner: Index of the candidate that is named, or None.
        is_minimal: Whether what is named has lost the setting that does nothing.
        had_second_chance: Whether the whole set was proven after the minimal one did not hold.
        search_ratio: The search's own estimate of the candidate that reached the final.
        truth: True log ratio of that candidate.
        final: The last proof's interval, from data that chose nothing.
        search_pairs: Pairs of blocks that the search used.
        proof_pairs: Pairs that confirmation, minimisation and final proof used.
    """

    winner: int | None
    is_minimal: bool = False
    had_second_chance: bool = False
    search_ratio: float | None = None
    truth: float | None = None
    final: Estimate | None = None
    search_pairs: int
    proof_pairs: int


def candidate(index: int) -> FlagSet:
    """The settings of one candidate: the first carries its effect, the second does nothing."""
    return FlagSet({f"xla_effect_{index}": "1", f"xla_passenger_{index}": "1"})


def simulated_study(model: NoiseModel, effects: Sequence[float], *, seed: int) -> StudySpec:
    """A study of candidates with these true log ratios; all that is not said here is the shipped default."""
    return parse_study(
        {
            "name": "simulated",
            "seed": seed,
            "workload": {"entry": "llama"},
            "device": {"platform": "cpu"},
            "search": {"trials": len(effects)},
            "confirm": {"soak": 0},
            "replay": {
                "noise": asdict(model),
                "effects": {f"xla_effect_{i}=1": math.exp(e) for i, e in enumerate(effects)},
            },
        }
    )


def run_one(model: NoiseModel, effects: Sequence[float], seed: int) -> StudyOutcome:
    """One study from its noise floor to its conclusion."""
    first = tuple((f"candidate {i}", candidate(i)) for i in range(len(effects)))
    setup = GivenSetup(given_space=SearchSpace(()), first=first)
    run = given_run(simulated_study(model, effects, seed=seed), None, setup, silent())
    conclusion = run_study(run)
    store = run.store
    trials = {r.number: r for r in store.of(TrialResult)}
    finals = [f for f in store.of(FinalistResult) if f.stage != "confirm"]
    index = finals[-1].trial - 1 if finals else None
    searched = trials[finals[-1].trial].comparison if finals else None
    ablated = [a.comparison.pair_count for a in store.of(AblationResult) if a.comparison is not None]
    is_winner = conclusion.outcome is Outcome.WINNER
    return StudyOutcome(
        winner=index if is_winner else None,
        is_minimal=is_winner and conclusion.settings is not None and len(conclusion.settings) == 1,
        had_second_chance=any(f.stage == "full" for f in finals),
        search_ratio=searched.estimate.ratio if searched is not None else None,
        truth=effects[index] if index is not None else None,
        final=finals[-1].estimate if finals else None,
        search_pairs=sum(r.comparison.pair_count for r in trials.values() if r.comparison is not None),
        proof_pairs=sum(r.pair_count for r in store.of(ConfirmRun)) + sum(ablated),
    )


def run_studies(
    model: NoiseModel, effects: npt.NDArray[np.float64], rng: np.random.Generator, pool: ProcessPoolExecutor
) -> list[StudyOutcome]:
    """One study for each row of `effects` (true log ratios of its candidates), on fresh machines of one kind."""
    seeds = rng.integers(2**31, size=len(effects)).tolist()
    return list(pool.map(run_one, [model] * len(effects), effects.tolist(), seeds, chunksize=8))
