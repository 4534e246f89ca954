"""Coverage of every interval the tuner reports, on simulated machines."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.measure.compare import sequential
from autotune.model.block_sizes import BLOCK_STEPS
from autotune.model.spec import StudySpec, parse_study
from autotune.stats.estimates import (
    Estimate,
    Floats,
    SequentialPlan,
    estimate_aba,
    estimate_processes,
    hodges_lehmann,
    student_quantile,
)
from benchmarks.machines import Case
from harness.noise import Machine, NoiseModel, Process, log_ratios, run_pairs

DEFAULTS: StudySpec = parse_study({"name": "defaults", "workload": {"entry": "llama"}})
FINALISTS, PROCESSES, CONFIRM_PAIRS = 3, 5, 20
"""Of the fixed proof: so many finalists, each in so many pairs of processes of so many pairs of
blocks.
"""
PLAN = SequentialPlan(cap=DEFAULTS.measure.pairs_cap)
TRUE_LOG_RATIO = math.log(0.98)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of intervals that hold the true ratio, per machine.

    `one_process_*` and the sequential ones are about the ratio of two given processes (no process
    effect), `confirmed*` about the settings themselves, over fresh processes.
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


def coverage(name: str, case: Case, samples: int, rng: np.random.Generator) -> Coverage:
    """Coverage of every interval the tuner reports, on one machine."""
    n, truth = samples, TRUE_LOG_RATIO
    equal = dataclasses.replace(case, model=without_process_effects(case.model))
    pairs = pair_data(equal.model, rng, np.full(n, truth - equal.shift), pairs=PLAN.cap)
    look_holds = [
        _holds(hodges_lehmann(pairs[:, :k], level=PLAN.nominal_level), truth) for k in PLAN.looks
    ]
    stopped = [_at_stop(row.tolist()) for row in pairs]
    typical = np.full(n, truth - case.shift)
    centres = process_centres(case.model, rng, typical, processes=PROCESSES, pairs=CONFIRM_PAIRS)
    # For a family, every one of its corrected intervals must hold at once.
    corrected = np.asarray([_holds_for_family(row, truth) for row in centres])
    families = corrected[: n - n % FINALISTS].reshape(-1, FINALISTS).all(axis=1)
    few = n // 2
    return Coverage(
        machine=name,
        pair_sd=float(np.median(np.abs(pairs - np.median(pairs)))) * 1.4826,
        one_process_12=float(_holds(hodges_lehmann(pairs[:, :12], level=0.95), truth).mean()),
        one_process_40=float(_holds(hodges_lehmann(pairs, level=0.95), truth).mean()),
        every_look=float(np.all(look_holds, axis=0).mean()),
        at_stop=float(np.mean([covers(e, truth) for e in stopped])),
        confirmed=float(np.mean([covers(estimate_processes(row), truth) for row in centres])),
        confirmed_family=float(families.mean()),
        sandwiches_1=_sandwich_coverage(case, rng, few, 1),
        sandwiches_5=_sandwich_coverage(case, rng, few, 5),
    )


def without_process_effects(model: NoiseModel) -> NoiseModel:
    """A machine on which processes of one set are equal."""
    return dataclasses.replace(model, process_sd=0.0, tail_share=0.0, fault_share=0.0)


def pair_data(
    model: NoiseModel, rng: np.random.Generator, effects: Floats, *, pairs: int
) -> Floats:
    """Log ratios of fresh process pairs, each on its own machine, `[*effects.shape, pairs]`.

    Args:
        model: The machine.
        rng: Where its noise is drawn from.
        effects: True log ratios of typical steps.
        pairs: Pairs of blocks in each process pair.
    """
    machine = Machine(model, rng, effects.shape)
    reference, candidate = Process(machine), Process(machine, is_candidate=True)
    reference_s, candidate_s, _ = run_pairs(
        reference, candidate, pairs=pairs, block_steps=BLOCK_STEPS
    )
    return log_ratios(reference_s, candidate_s) + effects[..., None]


def process_centres(
    model: NoiseModel, rng: np.random.Generator, effects: Floats, *, processes: int, pairs: int
) -> Floats:
    """Estimates of fresh process pairs, `[*effects.shape, processes]`."""
    each = np.repeat(effects[..., None], processes, axis=-1)
    centres: Floats = hodges_lehmann(pair_data(model, rng, each, pairs=pairs), level=0.95)[0]
    return centres


def _holds_for_family(centres: Floats, truth: float) -> bool:
    """Whether the interval of one of several finalists, corrected for them, holds the truth."""
    error = float(np.std(centres, ddof=1)) / math.sqrt(len(centres))
    half = student_quantile(0.05 / FINALISTS, len(centres) - 1) * error
    return abs(float(np.mean(centres)) - truth) <= half


def _at_stop(ratios: list[float]) -> Estimate:
    """What a trial with these log ratios reports when its rule stops it."""
    rule = sequential(PLAN, min_effect=DEFAULTS.measure.min_effect, incumbent=None)
    for count in range(1, len(ratios) + 1):
        if rule.stop(ratios[:count]) is not None:
            return rule.estimate(ratios[:count])
    raise AssertionError("the last look always stops")


def _holds(interval: Floats, truth: float) -> npt.NDArray[np.bool_]:
    return np.asarray((interval[1] <= truth) & (truth <= interval[2]))


def covers(estimate: Estimate, truth: float) -> bool:
    """Whether an interval holds a true log ratio."""
    return estimate.low <= math.exp(truth) <= estimate.high


def _sandwich_coverage(case: Case, rng: np.random.Generator, samples: int, count: int) -> float:
    machine = Machine(case.model, rng, (samples,))
    scale = math.exp(TRUE_LOG_RATIO - case.shift)
    sequences = [
        [_run(machine), _run(machine, is_candidate=True) * scale, _run(machine)]
        for _ in range(count)
    ]
    runs = np.asarray(sequences)  # [count, 3, samples]
    held = []
    for before, candidate, after in np.log(np.moveaxis(runs, -1, 0)).transpose(0, 2, 1):
        log_ratios = np.column_stack([candidate - before, candidate - after]).ravel()
        held.append(covers(estimate_aba(log_ratios), TRUE_LOG_RATIO))
    return float(np.mean(held))


def _run(machine: Machine, *, is_candidate: bool = False) -> Floats:
    """Mean step time of a fresh process that is alone, on each of many machines."""
    process = Process(machine, is_candidate=is_candidate)
    process.close()  # it runs once, so that nothing is beside the next
    return np.asarray(process.run_block(40).mean(axis=-1))
