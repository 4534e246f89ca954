"""What efforts of a fixed proof buy, and why pairs are condensed by signed ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from autotune.model import BLOCK_STEPS
from autotune.stats.estimates import DEFAULT_MIN_EFFECT
from autotune.stats.intervals import hodges_lehmann, student_quantile
from autotune.stats.simulate import Machine, Process, log_ratios, run_pairs
from benchmarks.coverage import FINALISTS, PLAN, process_centres, without_process_effects
from benchmarks.machines import Case
from benchmarks.proportions import crossing


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Smallest speed-up that passes confirmation and final 9 times in 10, for several efforts of proof."""

    machine: str
    smallest: Mapping[str, float | None]


def budget(name: str, case: Case, samples: int, rng: np.random.Generator, pool: ProcessPoolExecutor) -> Budget:
    """What more processes, or more pairs in each, buy."""
    smallest: dict[str, float | None] = {}
    effects = np.geomspace(0.002, 0.2, 60)
    zeros = np.zeros((max(50, samples // 4), 2))
    for processes, pairs in ((5, 20), (5, 40), (7, 20), (7, 40), (10, 20)):
        centres = process_centres(case.model, rng, zeros, processes=processes, pairs=pairs)
        middle, spread = centres.mean(axis=-1), centres.std(axis=-1, ddof=1) / math.sqrt(processes)
        for gate, family in (("", FINALISTS), (" uncorrected", 1)):
            critical = [student_quantile(0.05 / k, processes - 1) for k in (family, 1)]
            # The largest log ratio that both stages would call faster: shares for any effect follow.
            needed = (math.log1p(-DEFAULT_MIN_EFFECT) - middle - spread * critical).min(axis=-1)
            shares = [float(np.mean(math.log1p(-e) < needed)) for e in effects]
            smallest[f"{processes}x{pairs}{gate}"] = crossing(effects.tolist(), shares)
    return Budget(machine=name, smallest=smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimators:
    """Standard error of one process pair's log ratio after 40 pairs, for several ways to get it."""

    machine: str
    signed_rank: float
    signed_rank_of_step_medians: float
    mean: float
    median: float


def estimators(name: str, case: Case, samples: int, rng: np.random.Generator, pool: ProcessPoolExecutor) -> Estimators:
    """Compares ways to condense blocks and pairs."""
    machine = Machine(without_process_effects(case.model), rng, (samples,))
    reference_s, candidate_s, _ = run_pairs(Process(machine), Process(machine), pairs=PLAN.cap, block_steps=BLOCK_STEPS)
    pairs = log_ratios(reference_s, candidate_s)
    of_medians = np.log(np.median(candidate_s, axis=-1) / np.median(reference_s, axis=-1))
    return Estimators(
        machine=name,
        signed_rank=float(hodges_lehmann(pairs, level=0.95)[0].std()),
        signed_rank_of_step_medians=float(hodges_lehmann(of_medians, level=0.95)[0].std()),
        mean=float(pairs.mean(axis=-1).std()),
        median=float(np.median(pairs, axis=-1).std()),
    )
