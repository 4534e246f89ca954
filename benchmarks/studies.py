"""Whole studies on simulated machines by the shipped stages, from A/A run to conclusion.

What is simulated is what lies below the stages: workers that draw step times of known truth
(`SimulatedLauncher`), and a run directory in memory. Candidates are two settings each, one that
carries the effect and one that does nothing, so that finalists are minimised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from autotune.model.block_sizes import BLOCK_STEPS
from autotune.model.flags import FlagSet
from autotune.model.records import (
    CONFIRM,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import Estimate
from autotune.study.driver import run_study
from autotune.study.run import StudyRun
from benchmarks.coverage import DEFAULTS
from benchmarks.machines import Case
from harness.simulated import GivenSetup, given_run, silent
from harness.simulated_machine import Simulation, parse_simulated

STEP_S = Simulation().step_s
PAIR_S = 2 * BLOCK_STEPS * STEP_S
"""Seconds of one pair of blocks of a simulated study."""
BOTH_AT_ONCE = 1.5
"""What starting two processes at once takes, over starting one: they share the machine that
compiles them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What proofs used, all stages together; means where it is of many studies.

    Attributes:
        process_pairs: Fresh pairs of interleaved processes, both started at once.
        block_pairs: Pairs of blocks in them.
        alone_pairs: Pairs of processes of which each ran alone, started one after the other.
        alone_s: Seconds of the steps of all these.
    """

    process_pairs: float
    block_pairs: float
    alone_pairs: float = 0.0
    alone_s: float = 0.0

    def minutes(self, start_s: float) -> float:
        """Minutes for starts of given seconds, where two at once take half as long again."""
        interleaved = self.process_pairs * BOTH_AT_ONCE * start_s + self.block_pairs * PAIR_S
        return (interleaved + 2 * self.alone_pairs * start_s + self.alone_s) / 60.0


def cost_of(runs: Sequence[ConfirmRun]) -> Cost:
    """What the proofs of one study used."""
    interleaved, alone = [r for r in runs if not r.is_isolated], [r for r in runs if r.is_isolated]
    # An isolated run is as long as all interleaved blocks of its arm.
    steps = max([DEFAULTS.measure.run_steps, *(BLOCK_STEPS * r.pair_count for r in interleaved)])
    return Cost(
        process_pairs=len(interleaved),
        block_pairs=sum(r.pair_count for r in interleaved),
        alone_pairs=len(alone),
        alone_s=2 * len(alone) * steps * STEP_S,
    )


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """The mean over studies."""
    rows = [asdict(c) for c in costs]
    return Cost(**{key: float(np.mean([row[key] for row in rows])) for key in rows[0]})


def cost_columns(cost: Cost) -> dict[str, float]:
    """As tables show it."""
    return {
        "process_pairs": cost.process_pairs,
        "alone_pairs": cost.alone_pairs,
        "minutes_at_20_s": cost.minutes(20.0),
        "minutes_at_90_s": cost.minutes(90.0),
    }


CANDIDATES = 12
START_S = 20.0
"""What workers say that they take to start: a study may choose the size of its proofs by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutcome:
    """What one simulated study came to.

    Attributes:
        winner: Index of the candidate that is named, or None; -1 if what is named has lost what
            carries its effect.
        is_minimal: Whether what is named has lost the setting that does nothing.
        proven: Index of the candidate that was proven, or whose proof got furthest, whatever came
            of it.
        search_ratio: The search's own estimate of that candidate.
        reported: What the conclusion says of the winner.
        search_pairs: Pairs of blocks that the search used.
        ablation_pairs: Pairs of blocks that minimisation used.
        cost: What the proofs used.
    """

    winner: int | None
    is_minimal: bool = False
    proven: int | None = None
    search_ratio: float | None = None
    reported: Estimate | None = None
    search_pairs: int
    ablation_pairs: int
    cost: Cost


def candidate(index: int) -> FlagSet:
    """The settings of one candidate: the first carries its effect, the second does nothing."""
    return FlagSet({f"xla_effect_{index}": "1", f"xla_passenger_{index}": "1"})


def simulated_study(
    case: Case, effects: Sequence[float], *, seed: int, processes: int | None = None
) -> StudySpec:
    """A study of candidates of known log ratios of typical steps, with the shipped defaults.

    Args:
        case: The machine, and whether the winner is soaked.
        effects: Of each candidate.
        seed: Of the study and of the noise.
        processes: Pairs of processes that a proof may have at most; default: the shipped number.
    """
    return parse_simulated(
        {
            "name": "simulated",
            "seed": seed,
            "workload": {"entry": "llama"},
            "device": {"platform": "cpu"},
            "search": {"trials": len(effects)},
            "confirm": ({} if case.soaks else {"soak": 0})
            | ({} if processes is None else {"processes": processes}),
            "simulation": {
                "noise": asdict(case.model),
                "effects": {f"xla_effect_{i}=1": math.exp(e) for i, e in enumerate(effects)},
                "start_s": START_S,
            },
        }
    )


def open_study(spec: StudySpec) -> StudyRun:
    """A simulated study in memory, to be run by the shipped stages."""
    first = tuple((f"candidate {i}", candidate(i)) for i in range(spec.search.trials))
    return given_run(spec, None, GivenSetup(given_space=SearchSpace(()), first=first), silent())


def run_one(
    case: Case, effects: Sequence[float], seed: int, processes: int | None = None
) -> StudyOutcome:
    """One study from its A/A run to its conclusion."""
    run = open_study(simulated_study(case, effects, seed=seed, processes=processes))
    conclusion = run_study(run)
    store = run.store
    trials = {r.number: r for r in store.of(TrialResult)}
    finals = sorted(
        (f for f in store.of(FinalistResult) if f.stage == CONFIRM), key=lambda f: f.process_count
    )
    searched = trials[finals[-1].trial].comparison if finals else None
    ablated = [
        a.comparison.pair_count for a in store.of(AblationResult) if a.comparison is not None
    ]
    is_winner = conclusion.outcome is Outcome.WINNER
    return StudyOutcome(
        winner=_named(conclusion) if is_winner else None,
        is_minimal=is_winner and conclusion.settings is not None and len(conclusion.settings) == 1,
        proven=finals[-1].trial - 1 if finals else None,
        search_ratio=searched.estimate.ratio if searched is not None else None,
        reported=conclusion.estimate if is_winner else None,
        search_pairs=sum(
            r.comparison.pair_count for r in trials.values() if r.comparison is not None
        ),
        ablation_pairs=sum(ablated),
        cost=cost_of(store.of(ConfirmRun)),
    )


def _named(conclusion: ConclusionRecord) -> int:
    index = (conclusion.trial or 0) - 1
    return index if f"xla_effect_{index}" in (conclusion.settings or ()) else -1


def run_studies(
    case: Case,
    effects: npt.NDArray[np.float64],
    rng: np.random.Generator,
    pool: ProcessPoolExecutor,
) -> list[StudyOutcome]:
    """One study for each row of `effects` (log ratios of typical steps), on fresh machines."""
    seeds = rng.integers(2**31, size=len(effects)).tolist()
    return list(pool.map(run_one, [case] * len(effects), effects.tolist(), seeds, chunksize=8))
