"""Coverage of every interval the tuner reports, on simulated machines."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.stats.estimates import Estimate, Sandwich, confirm, estimate_sandwiches
from autotune.stats.intervals import Floats, hodges_lehmann
from autotune.stats.simulate import Machine, NoiseModel, Process
from benchmarks.studies import (
    CONFIRM_PAIRS,
    FINALISTS,
    PLAN,
    PROCESSES,
    Effort,
    pair_data,
    process_centres,
    search_one,
)

TRUE_LOG_RATIO = math.log(0.98)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of intervals that hold the true ratio, per machine.

    `one_process_*` and the sequential ones are about the ratio of two given processes (no process effect),
    `confirmed*` about the settings themselves, over fresh processes.
    """

    machine: str
    pair_sd: float
    one_process_12: float
    one_process_40: float
    every_look: float
    at_stop: float
    confirmed: float
    confirmed_family: float
    sandwiches_1: float
    sandwiches_5: float


def coverage(name: str, model: NoiseModel, effort: Effort, rng: np.random.Generator) -> Coverage:
    """Coverage of every interval the tuner reports, on one machine."""
    n, truth = effort.samples, TRUE_LOG_RATIO
    alone = dataclasses.replace(model, process_sd=0.0)
    pairs = pair_data(alone, rng, np.full(n, truth), pairs=PLAN.cap)
    look_holds = [_holds(hodges_lehmann(pairs[:, :k], level=PLAN.nominal_level), truth) for k in PLAN.looks]
    stopped = [search_one(row, None)[0] for row in pairs]
    centres = process_centres(model, rng, np.full(n, truth), processes=PROCESSES, pairs=CONFIRM_PAIRS)
    confirmed = [confirm(row, family=FINALISTS) for row in centres]
    # For a family, every one of its corrected intervals must hold at once.
    corrected = np.asarray([covers(c.corrected, truth) for c in confirmed])
    families = corrected[: n - n % FINALISTS].reshape(-1, FINALISTS).all(axis=1)
    few = n // 2
    return Coverage(
        machine=name,
        pair_sd=float(np.median(np.abs(pairs - np.median(pairs)))) * 1.4826,
        one_process_12=float(_holds(hodges_lehmann(pairs[:, :12], level=0.95), truth).mean()),
        one_process_40=float(_holds(hodges_lehmann(pairs, level=0.95), truth).mean()),
        every_look=float(np.all(look_holds, axis=0).mean()),
        at_stop=float(np.mean([covers(e, truth) for e in stopped])),
        confirmed=float(np.mean([covers(c.ordinary, truth) for c in confirmed])),
        confirmed_family=float(families.mean()),
        sandwiches_1=_sandwich_coverage(model, rng, few, 1),
        sandwiches_5=_sandwich_coverage(model, rng, few, 5),
    )


def _holds(interval: Floats, truth: float) -> npt.NDArray[np.bool_]:
    return np.asarray((interval[1] <= truth) & (truth <= interval[2]))


def covers(estimate: Estimate, truth: float) -> bool:
    """Whether an interval holds a true log ratio."""
    return estimate.low <= math.exp(truth) <= estimate.high


def _sandwich_coverage(model: NoiseModel, rng: np.random.Generator, samples: int, count: int) -> float:
    machine = Machine(model, rng, (samples,))
    sequences = [
        [Process(machine).run_block(40).mean(axis=-1) * scale for scale in (1.0, math.exp(TRUE_LOG_RATIO), 1.0)]
        for _ in range(count)
    ]
    runs = np.asarray(sequences)  # [count, 3, samples]
    held = []
    for rows in np.moveaxis(runs, -1, 0):
        sandwiches = [Sandwich(before_s=b, candidate_s=c, after_s=a) for b, c, a in rows]
        held.append(covers(estimate_sandwiches(sandwiches), TRUE_LOG_RATIO))
    return float(np.mean(held))
