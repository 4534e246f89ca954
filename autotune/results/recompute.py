"""Recomputes a run's figures from its raw pairs with the study's own code, and compares them with its records.

Machine, versions and dates are taken as recorded; forging raw pairs and records together is not detected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, is_dataclass
from pathlib import PurePosixPath
from typing import Any

from autotune.model.errors import RunDirectoryError, SettingError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Pair, is_divided_as_told
from autotune.model.proofs import figures_of, is_alone_due, judge_soak, report_of, standing
from autotune.model.records import (
    BUILDS,
    CONFIRM,
    ISOLATED,
    AaRecord,
    AnyRecord,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    ProofRecord,
    SessionRecord,
    SoakRecord,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.results.format import format_estimate
from autotune.rundir.store import STUDY, Store
from autotune.stats.estimates import Estimate, Verdict
from autotune.stats.proof import ERROR, ISOLATED_ERROR, ISOLATED_PAIRS, LEAST_PAIRS

PROOFS = (CONFIRM, BUILDS, "recheck")
"""Stages of a `FinalistResult` that prove a winner."""

ROUNDING = 1e-6
"""Relative difference between versions of NumPy and SciPy on the same samples."""


def evidence_of(store: Store, conclusion: ConclusionRecord) -> list[AnyRecord]:
    """Returns the records before a conclusion, or all if it is not recorded yet."""
    records = store.records()
    return records[: records.index(conclusion)] if conclusion in records else records


def disagreements(store: Store, conclusion: ConclusionRecord) -> list[str]:
    """Lists the parts of a conclusion that do not follow from the records and raw pairs of its run.

    Raises:
        RunDirectoryError: If a file of raw pairs is damaged.
    """
    records = evidence_of(store, conclusion)
    runs = [r for r in records if isinstance(r, ConfirmRun)]
    proofs = {(r.stage, r.settings): r for r in records if isinstance(r, FinalistResult)}  # the newest of each counts
    plans = {(r.stage, r.settings): r for r in reversed(records) if isinstance(r, ProofRecord)}  # the first counts
    found = [*_of_runs(store, runs), *_of_work(store, runs), *_of_plans(records)]
    if {r.identity for r in store.of(SessionRecord)} - {store.spec.identity}:
        found.append(f"{STUDY} holds another study than the one that was run")
    try:  # its options end in a command, so they must be the study's
        store.spec.under(conclusion.settings or FlagSet())
    except SettingError as error:
        found.append(str(error))
    for key, proof in proofs.items():
        found += _of_proof(store.spec, proof, plans.get(key), runs)
    aa_run = next((r for r in reversed(records) if isinstance(r, AaRecord)), None)
    found += _of_winner(conclusion, proofs, runs, aa_run, asked=store.spec.confirm.isolated)
    found += _of_soak(conclusion, [r for r in records if isinstance(r, SoakRecord)])
    return found


def doubts(store: Store) -> list[str]:
    """Formats the disagreements of a run's winner with its records; empty without a winner."""
    conclusion = store.last(ConclusionRecord)
    if conclusion is None or conclusion.outcome is not Outcome.WINNER:
        return []
    try:
        wrong = disagreements(store, conclusion)
    except RunDirectoryError as error:
        wrong = [str(error)]
    return [f"DO NOT BELIEVE the conclusion: {line}" for line in wrong]


def _of_runs(store: Store, runs: Sequence[ConfirmRun]) -> Iterator[str]:
    """Checks that the figures of pairs of processes follow from their raw pairs, and that none is counted twice."""
    for directory, count in Counter(r.directory for r in runs if r.log_ratio is not None).items():
        if count > 1:
            yield f"{count} pairs of processes name the same raw pairs ({directory})"
    for run in (r for r in runs if r.log_ratio is not None):
        name = run.directory or run.stage
        if not (pairs := _pairs(store, run.directory)):
            yield f"{name}: it has no raw pairs"
            continue
        if any(not is_divided_as_told(p, store.spec.block_sizes, is_isolated=run.is_isolated) for p in pairs):
            yield f"{name}: it leaves out other steps of its blocks than measure.settle_s and measure.steady_s say"
        yield from _differing(f"{name}: its raw pairs give", run, figures_of(pairs, run.work))


def _pairs(store: Store, directory: str | None) -> list[Pair]:
    """Reads the raw pairs of one measurement, never from outside the run directory."""
    path = PurePosixPath(directory or "/")
    return [] if path.is_absolute() or ".." in path.parts else list(store.pairs(str(path)))


def _of_work(store: Store, runs: Sequence[ConfirmRun]) -> Iterator[str]:
    """Checks the recorded work of a step, which scales the ratio, against the workers' reports."""
    aa_run = store.last(AaRecord)
    base = aa_run.reference.tokens_per_step if aa_run is not None else None
    told: dict[FlagSet, set[int | None]] = {FlagSet(): {base}}
    for trial in store.of(TrialResult):
        if trial.worker is not None:
            told.setdefault(trial.settings.of_kind("option"), set()).add(trial.worker.tokens_per_step)
    for run in (r for r in runs if r.log_ratio is not None):
        said = (run.work.reference, run.work.candidate) if run.work is not None else (base, base)
        known = told.setdefault(run.settings.of_kind("option"), {said[1]})  # of options that no trial had runs agree
        declared = _declared(store.spec, run.settings)
        if said[0] != base or known != {said[1]} or declared not in (None, said[1]):
            reports = declared or " or ".join(str(n) for n in sorted(known, key=str))
            yield (
                f"{run.directory or run.stage}: it takes the work of a step as {said[1]} over {said[0]}, its reports "
                f"and options say {reports} over {base}"
            )


def _declared(spec: StudySpec, settings: FlagSet) -> int | None:
    """Returns the work of a step by the study file; 0 if its expression fails."""
    try:
        return spec.work_under(settings)
    except ValueError:
        return 0


def _of_plans(records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks that the plans of the proofs keep within the allowed error rates."""
    plans = [r for r in records if isinstance(r, ProofRecord)]
    for stage in {p.stage for p in plans} - {ISOLATED}:
        spent = sum(p.error for p in plans if p.stage == stage)
        if spent > ERROR * (1 + ROUNDING):
            yield f"the proofs of {stage} may err in {spent:.3g} of cases, {ERROR:.3g} are allowed"
    for plan in plans:
        least = ISOLATED_PAIRS if plan.stage == ISOLATED else LEAST_PAIRS
        if plan.least < least or (plan.stage == ISOLATED and plan.error > ISOLATED_ERROR * (1 + ROUNDING)):
            yield f"the proof of {plan.settings} ({plan.stage}) was planned with too few pairs or too large an error"
        before = [r for r in records[: records.index(plan)] if isinstance(r, ConfirmRun) and r.repeat >= plan.first]
        if any((r.stage, r.settings) == (plan.stage, plan.settings) for r in before):
            yield f"the proof of {plan.settings} ({plan.stage}) was planned after its pairs of processes had been seen"


def _of_proof(
    spec: StudySpec, proof: FinalistResult, plan: ProofRecord | None, runs: Sequence[ConfirmRun]
) -> Iterator[str]:
    """Checks that a verdict follows from its pairs of processes."""
    name, min_effect, most = f"{proof.settings} ({proof.stage})", spec.measure.min_effect, proof.most or 0
    try:
        if plan is None:
            yield f"the proof of {name} has no plan"
            return
        here = standing(plan, runs, trial=proof.trial, most=most, min_effect=min_effect).result
    except ValueError:
        yield f"{name}: its pairs of processes give no figures"
        return
    fields = ("process_count", "estimate", "corrected", "verdict", "is_vetoed", "is_passed")
    yield from _differing(f"{name}: its pairs of processes give", proof, {f: getattr(here, f) for f in fields})


def _of_winner(
    conclusion: ConclusionRecord,
    proofs: Mapping[tuple[str, FlagSet], FinalistResult],
    runs: Sequence[ConfirmRun],
    aa_run: AaRecord | None,
    *,
    asked: int,
) -> Iterator[str]:
    """Checks that a winner follows from its last proof and the later measurements."""
    settings = conclusion.settings or FlagSet()
    mine = [p for (stage, s), p in proofs.items() if stage in PROOFS and s == settings]
    if not mine:
        yield f"no proof of {settings} is recorded"
        return
    if mine[-1].verdict is not Verdict.FASTER:
        yield f"the proof of {settings} says {mine[-1].verdict}, the conclusion that it wins"
    alone = proofs.get((ISOLATED, settings))
    if alone is None and is_alone_due(mine[-1], aa_run, runs, asked=asked):
        yield f"the isolated runs of {settings}, that the study asks for, are not recorded"
    found = report_of(mine[-1], alone, runs)
    if found.objection is not None:
        yield f"{settings}: {found.objection}; the conclusion has it as the winner"
    yield from _differing(f"{settings}: its proof gives", conclusion, {"estimate": found.estimate})
    if found.estimate is not None and format_estimate(found.estimate) not in conclusion.sentence:
        yield f"{settings}: its proof gives {format_estimate(found.estimate)}, the sentence of the conclusion does not"


def _of_soak(conclusion: ConclusionRecord, soaks: Sequence[SoakRecord]) -> Iterator[str]:
    """Checks that the soak of a winner passed."""
    mine = next((s for s in reversed(soaks) if s.settings == conclusion.settings), None)
    against = mine and (mine.failure or (mine.arms and judge_soak(mine.arms)))
    if against:
        yield f"the soak of {conclusion.settings} says {against.message}, the conclusion has it as the winner"
    if conclusion.soaked_s is not None and not (mine and _alike(mine.steps_s, conclusion.soaked_s)):
        yield f"the conclusion says that it was soaked for {conclusion.soaked_s:.6g} s, the records do not"


def _differing(source: str, record: object, here: Mapping[str, Any]) -> Iterator[str]:
    """Lists the fields of a record that differ from the recomputed ones by more than rounding."""
    for field, made in here.items():
        if not _alike(said := getattr(record, field), made):
            shown = [format_estimate(v) if isinstance(v, Estimate) else str(v) for v in (made, said)]
            yield f"{source} {field.removeprefix('is_').replace('_', ' ')} {shown[0]}, the record says {shown[1]}"


def _alike(said: Any, here: Any) -> bool:
    if is_dataclass(said) and type(said) is type(here):
        return _alike(astuple(said), astuple(here))  # type: ignore[arg-type]
    if isinstance(said, tuple) and isinstance(here, tuple):
        return len(said) == len(here) and all(map(_alike, said, here))
    if isinstance(said, float) and isinstance(here, float):
        return math.isclose(said, here, rel_tol=ROUNDING, abs_tol=ROUNDING * ROUNDING)
    return bool(said == here)
