"""Is what the A/A run announces kept: a gain of 2 % found 9 times in 10, with so many processes?"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from autotune.measure.durations import power_analysis
from autotune.model.records import AaRecord, PowerAnalysis
from autotune.stats.proof import FIRST_LOOK
from autotune.study.driver import begin
from benchmarks.coverage import DEFAULTS
from benchmarks.machines import Case
from benchmarks.studies import CANDIDATES, StudyOutcome, open_study, run_one, simulated_study
from harness.proofs import study_power

GAIN = 0.02

ISOLATED_RUNS = DEFAULTS.confirm.isolated

HIGHEST = 120
"""Largest cap of process pairs that is considered."""

FINALISTS_ALONE = 3
"""So few candidates that all of them are proven: then the search, of which nothing is announced,
decides nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Studies with one candidate 2 % faster, run as their own A/A run announces.

    Mappings are by the number of candidates. `announced`: share of studies whose A/A run says what
    it takes; `pairs`: the cap of process pairs that it says; `found`: of those, the share that
    names the candidate, with the lower 95 % bound.
    """

    machine: str
    studies: int
    announced: Mapping[str, float]
    pairs: Mapping[str, float]
    found: Mapping[str, float]
    lower_bound: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One study, and what was announced in it."""

    place: int
    pairs: int
    outcome: StudyOutcome

    @property
    def is_found(self) -> bool:
        return self.outcome.winner == self.place


def announced(
    name: str, case: Case, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> Announced:
    """Runs studies with what their A/A runs announce."""
    tried = {str(n): _run(case, n, studies, rng, pool) for n in (CANDIDATES, FINALISTS_ALONE)}
    told = {key: [k for k in kept if k is not None] for key, kept in tried.items()}
    return Announced(
        machine=name,
        studies=studies,
        announced={key: len(kept) / studies for key, kept in told.items()},
        pairs={key: _mean([k.pairs for k in kept]) for key, kept in told.items()},
        found={key: _mean([k.is_found for k in kept]) for key, kept in told.items()},
        lower_bound={
            key: _lower_bound(sum(k.is_found for k in kept), len(kept))
            for key, kept in told.items()
        },
    )


def _run(
    case: Case, candidates: int, studies: int, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> list[_Kept | None]:
    places = rng.integers(candidates, size=studies).tolist()
    seeds = rng.integers(2**31, size=studies).tolist()
    return list(
        pool.map(
            _run_as_announced, [case] * studies, [candidates] * studies, places, seeds, chunksize=4
        )
    )


def _run_as_announced(case: Case, candidates: int, place: int, seed: int) -> _Kept | None:
    """The A/A run, then the whole study with the cap that it announces; None where it has none."""
    effects = [case.none_typical] * candidates
    effects[place] = math.log1p(-GAIN) - case.shift
    power = _power_of(case, effects, seed)
    pairs = pairs_to_find(GAIN, power.pair_sd) if power is not None else None
    return (
        None
        if pairs is None
        else _Kept(place=place, pairs=pairs, outcome=run_one(case, effects, seed, pairs))
    )


def _power_of(case: Case, effects: Sequence[float], seed: int) -> PowerAnalysis | None:
    """What the A/A run of the study with this seed announces; run whole, the study has the same."""
    run = open_study(simulated_study(case, effects, seed=seed))
    with contextlib.closing(run):
        begin(run)
        return power_analysis(
            run.spec, run.store.of(AaRecord)[0]
        )  # a study in memory does not work it out


def pairs_to_find(effect: float, pair_sd: float) -> int | None:
    """The least cap at which a gain is found 9 times in 10; None if above `HIGHEST`."""
    caps = range(FIRST_LOOK, HIGHEST + 1)
    at = bisect.bisect_left(
        caps, 0.9, key=lambda cap: study_power(effect, pair_sd, most=cap, isolated=ISOLATED_RUNS)
    )
    return caps[at] if at < len(caps) else None


def _lower_bound(successes: int, trials: int) -> float:
    if trials == 0:
        return 0.0
    return float(binomtest(successes, trials, alternative="greater").proportion_ci().low)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
