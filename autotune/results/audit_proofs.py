"""Do verdicts follow from the pairs of processes that they name, looked at as they were planned?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple

from autotune.model import (
    AblationResult,
    ConfirmRun,
    FinalistResult,
    FloorResult,
    ProfileRecord,
    ProofRecord,
    SoakRecord,
    StudySpec,
    plain_estimate,
    runs_of,
    standing,
    veto_of,
)
from autotune.results.words import format_estimate
from autotune.stats import CLAIM, HURDLE, Estimate, TotalTime, Verdict, confirm, judge

LAST_PROOFS = ("final", "full", "recheck")
"""Stages of a `FinalistResult` that prove a winner."""

ROUNDING = 1e-6
"""Relative difference that another version of NumPy or SciPy may make of the same samples."""

Evidence = FloorResult | ConfirmRun | ProofRecord | FinalistResult | AblationResult | ProfileRecord | SoakRecord
"""Records on which a proof rests."""


def told_of_plans(records: Sequence[Evidence]) -> Iterator[str]:
    """What in the plans of the proofs would let them err more than a study may."""
    plans = [r for r in records if isinstance(r, ProofRecord)]
    for family in ({"final", "full"}, *({p.stage} for p in plans if p.stage not in ("final", "full"))):
        mine = [p for p in plans if p.stage in family]
        claim, hurdle = sum(p.claim for p in mine), sum(p.hurdle for p in mine)
        most = HURDLE if family == {"confirm"} else CLAIM
        if claim > CLAIM * (1 + ROUNDING) or hurdle > most * (1 + ROUNDING):
            names = " and ".join(sorted(family))
            yield f"the proofs of {names} may err in {claim:.3g} of cases, {CLAIM:.3g} are allowed"
    for plan in plans:
        before = records[: records.index(plan)]
        if any(isinstance(r, ConfirmRun) and _is_of(plan, r) and r.repeat >= plan.first for r in before):
            yield f"the proof of {plan.settings} ({plan.stage}) was planned after its pairs of processes had been seen"


def _is_of(plan: ProofRecord, run: ConfirmRun) -> bool:
    return (run.stage, run.settings) == (plan.stage, plan.settings)


def told_of_planned(
    spec: StudySpec, proof: FinalistResult, plan: ProofRecord, runs: Sequence[ConfirmRun]
) -> Iterator[str]:
    """What in a verdict does not follow from its pairs of processes, looked at as they were planned."""
    name = f"the proof of {proof.settings} ({proof.stage})"
    here = standing(
        plan, runs, trial=proof.trial, most=proof.most or 0,
        sesoi=spec.measure.smallest_effect,
    ).result  # fmt: skip
    if proof.process_count != here.process_count:
        recorded = len(runs_of(plan, runs))
        yield (
            f"{name} counts {proof.process_count} pairs of processes, it ended after {here.process_count} of the "
            f"{recorded} that are recorded"
        )
        return
    if proof.verdict is not here.verdict or proof.is_passed > here.is_passed:
        yield f"{name}: its figures are {here.verdict}, the record says {proof.verdict}"
    said, made = ({"ratio": r.estimate, "interval": r.corrected} for r in (proof, here))
    for what in said:
        one, other = said[what], made[what]
        if (one is None) != (other is None) or (one is not None and other is not None and not are_close(one, other)):
            figures = [format_estimate(e) if e is not None else "nothing" for e in (other, one)]
            yield f"{name}: its processes give the {what} {figures[0]}, the record says {figures[1]}"


def told_of_measuring(found: FinalistResult, runs: Sequence[ConfirmRun]) -> Iterator[str]:
    """What in the figures of the pairs that came after a proof does not follow from them."""
    name = f"the {found.stage} of {found.settings}"
    mine = [r for r in runs if (r.stage, r.settings) == (found.stage, found.settings)]
    able = sorted((r for r in mine if r.failure is None), key=lambda r: r.repeat)
    here = plain_estimate(able[: found.process_count])
    if found.failure is None and any(r.failure is not None for r in mine):
        yield f"{name} has figures though one of its processes failed"
    if (here is None) != (found.estimate is None):
        yield f"{name} has {'no ' if here is not None else ''}figures, its processes differ"
    elif here is not None and found.estimate is not None and not are_close(found.estimate, here):
        yield f"{name}: its processes give {format_estimate(here)}, the record says {format_estimate(found.estimate)}"


def families_of(proof: FinalistResult, runs: Sequence[ConfirmRun]) -> list[int]:
    """For how many intervals a proof's may have been widened: sets that were proven together."""
    if proof.stage in LAST_PROOFS:
        return [1]
    return list(range(1, max(1, len({r.settings for r in runs if r.stage == proof.stage})) + 1))


def told_of_proof(
    spec: StudySpec, proof: FinalistResult, runs: Sequence[ConfirmRun], families: Sequence[int]
) -> Iterator[str]:
    """What in a verdict does not follow from its pairs of processes."""
    name = f"the proof of {proof.settings} ({proof.stage})"
    mine = [r for r in runs if r.stage == proof.stage and r.settings == proof.settings]
    ratios = [r.log_ratio for r in mine if r.log_ratio is not None]
    failed = any(r.failure is not None for r in mine)
    if proof.process_count != len(ratios):
        yield f"{name} counts {proof.process_count} pairs of processes, {len(ratios)} are recorded"
        return
    if failed or len(ratios) < 2:
        if proof.corrected is not None or proof.estimate is not None or proof.verdict is not Verdict.UNRESOLVED:
            yield f"{name} has figures though {'one of its processes failed' if failed else 'too few were run'}"
        return
    if proof.estimate is None or proof.corrected is None:
        yield f"{name} has no figures though its processes have"
        return
    made = [confirm(ratios, family=family) for family in families]
    if not are_close(proof.estimate, here := made[0].ordinary):
        yield f"{name}: its processes give {format_estimate(here)}, the record says {format_estimate(proof.estimate)}"
    if not (fitting := [m.corrected for m in made if are_close(proof.corrected, m.corrected)]):
        shown, said = format_estimate(made[0].corrected), format_estimate(proof.corrected)
        yield f"{name}: its processes give {shown} when widened for all sets, the record says {said}"
        return
    verdict = judge(fitting[0], sesoi=spec.measure.smallest_effect)
    veto = veto_of(mine, fitting[0]) if verdict is Verdict.FASTER else None
    verdict = verdict if veto is None else Verdict.UNRESOLVED
    if proof.verdict is not verdict or (proof.veto is None) is not (veto is None):
        yield f"{name}: its figures are {veto or verdict}, the record says {proof.veto or proof.verdict}"


def is_same_total(said: TotalTime, here: TotalTime) -> bool:
    """Whether total times and stalls are equal, but for rounding."""
    one, other = ((t.log_ratio, *astuple(t.reference), *astuple(t.candidate)) for t in (said, here))
    return all(map(is_close, one, other))


def is_close(said: float, here: float) -> bool:
    """Whether two figures are equal, but for rounding."""
    return math.isclose(said, here, rel_tol=ROUNDING, abs_tol=ROUNDING * ROUNDING)


def are_close(said: Estimate, here: Estimate) -> bool:
    """Whether two estimates are equal, but for rounding."""
    same = said.pair_count == here.pair_count and said.level == here.level
    return same and all(map(is_close, (said.ratio, said.low, said.high), (here.ratio, here.low, here.high)))
