"""Whole studies on simulated machines: search, confirmation and final, as the tuner runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.stats.estimates import DEFAULT_SESOI, REFERENCE, Estimate, SequentialPlan, Verdict, confirm, decide, judge
from autotune.stats.intervals import Floats, hodges_lehmann
from autotune.stats.simulate import Machine, NoiseModel, Process, log_ratios, run_pairs

BLOCK_STEPS = 3
CANDIDATES = 12
FINALISTS = 3
PROCESSES = 5
CONFIRM_PAIRS = 20
PLAN = SequentialPlan(cap=40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Repetitions per machine: samples for coverage, studies without and with a true winner."""

    samples: int
    null_studies: int
    power_studies: int


def pair_data(model: NoiseModel, rng: np.random.Generator, effects: Floats, *, pairs: int) -> Floats:
    """Log ratios of fresh process pairs, each on its own machine, `[*effects.shape, pairs]`."""
    machine = Machine(model, rng, effects.shape)
    reference_s, candidate_s, _ = run_pairs(Process(machine), Process(machine), pairs=pairs, block_steps=BLOCK_STEPS)
    return log_ratios(reference_s, candidate_s) + effects[..., None]


def search_data(model: NoiseModel, rng: np.random.Generator, effects: Floats) -> Floats:
    """Log ratios of whole searches: candidates one after the other against one reference process.

    Args:
        model: The machine.
        rng: Source of randomness.
        effects: True log ratio of each candidate of each study, `[studies, candidates]`.

    Returns:
        `[studies, candidates, PLAN.cap]`; a sequential stop uses the first of them.
    """
    machine = Machine(model, rng, effects.shape[:1])
    reference = Process(machine)
    trials = []
    for effect in effects.T:
        steps = run_pairs(reference, Process(machine), pairs=PLAN.cap, block_steps=BLOCK_STEPS)
        trials.append(log_ratios(steps[0], steps[1]) + effect[:, None])
    return np.stack(trials, axis=1)


def process_centres(
    model: NoiseModel, rng: np.random.Generator, effects: Floats, *, processes: int, pairs: int
) -> Floats:
    """Estimates of fresh process pairs, `[*effects.shape, processes]`."""
    each = np.repeat(effects[..., None], processes, axis=-1)
    centres: Floats = hodges_lehmann(pair_data(model, rng, each, pairs=pairs), level=0.95)[0]
    return centres


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutcome:
    """What one simulated study came to.

    Attributes:
        winner: Index of the candidate named, or None.
        search_ratio: The search's own estimate of the best finalist.
        truth: True log ratio of the candidate that reached the final.
        final: The final's interval, from data that chose nothing.
        search_pairs: Pairs the search used.
        proof_pairs: Pairs that confirmation and final used.
    """

    winner: int | None
    search_ratio: float | None = None
    truth: float | None = None
    final: Estimate | None = None
    search_pairs: int
    proof_pairs: int = 0


def search_one(pairs: Floats, incumbent: Estimate | None) -> tuple[Estimate, int]:
    """One trial with its sequential stop: what it reports, and how many pairs it used."""
    for look in PLAN.looks:
        decision = decide(pairs[:look], PLAN, incumbent=incumbent)
        if decision.stop:
            return decision.estimate, look
    raise AssertionError("the last look always stops")


def run_studies(model: NoiseModel, effects: Floats, rng: np.random.Generator) -> list[StudyOutcome]:
    """Runs one study per row of `effects` (true log ratios): search, confirm finalists, prove the winner."""
    data = search_data(model, rng, effects)
    searched = [_search(study) for study in data]
    chosen = np.zeros((len(effects), FINALISTS), dtype=np.intp)
    for row, (estimates, _) in zip(chosen, searched, strict=True):
        best = _finalists(estimates)
        row[: len(best)] = best
    fresh = np.take_along_axis(effects, chosen, axis=1)
    confirm_centres = process_centres(model, rng, fresh, processes=PROCESSES, pairs=CONFIRM_PAIRS)
    final_centres = process_centres(model, rng, fresh, processes=PROCESSES, pairs=CONFIRM_PAIRS)
    return [
        _conclude(estimates, used, effects[i], confirm_centres[i], final_centres[i])
        for i, (estimates, used) in enumerate(searched)
    ]


def _search(study: Floats) -> tuple[list[Estimate], int]:
    estimates: list[Estimate] = []
    used = 0
    incumbent = REFERENCE
    for trial in study:
        estimate, count = search_one(trial, incumbent)
        estimates.append(estimate)
        used += count
        if estimate.ratio < incumbent.ratio:
            incumbent = estimate
    return estimates, used


def _finalists(estimates: Sequence[Estimate]) -> list[int]:
    hopeful = [i for i, e in enumerate(estimates) if e.ratio < 1.0 and e.low < 1.0 - DEFAULT_SESOI]
    return sorted(hopeful, key=lambda i: estimates[i].ratio)[:FINALISTS]


def _conclude(
    estimates: Sequence[Estimate], used: int, effects: Floats, confirm_centres: Floats, final_centres: Floats
) -> StudyOutcome:
    finalists = _finalists(estimates)
    confirmed = [confirm(confirm_centres[k], family=len(finalists)).corrected for k in range(len(finalists))]
    faster = [k for k, e in enumerate(confirmed) if judge(e) is Verdict.FASTER]
    proof = len(finalists) * PROCESSES * CONFIRM_PAIRS
    if not faster:
        return StudyOutcome(winner=None, search_pairs=used, proof_pairs=proof)
    best = min(faster, key=lambda k: confirmed[k].ratio)
    final = confirm(final_centres[best]).ordinary
    return StudyOutcome(
        winner=finalists[best] if judge(final) is Verdict.FASTER else None,
        search_ratio=estimates[finalists[best]].ratio,
        truth=float(effects[finalists[best]]),
        final=final,
        search_pairs=used,
        proof_pairs=proof + PROCESSES * CONFIRM_PAIRS,
    )
