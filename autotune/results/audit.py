"""Checks a winner against its run: figures and verdicts must follow from the raw pairs, by the study's own code.

Machine, versions and dates are taken as recorded. Raw pairs and records that are forged together are not detected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, is_dataclass
from typing import Any, TypeVar

from autotune.model.errors import RunDirectoryError, SettingError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Stamped, is_divided_as_told
from autotune.model.proofs import SoakVerdict, figures_of, is_alone_due, judge_soak, report_of, standing
from autotune.model.records import (
    AB,
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
    SoakArms,
    SoakRecord,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.results.format import format_estimate
from autotune.rundir.store import STUDY, Store
from autotune.stats.estimates import Estimate, Verdict
from autotune.stats.proof import ERROR, ISOLATED_ERROR, ISOLATED_PAIRS, LEAST_PAIRS

R = TypeVar("R", bound=Stamped)

PROOFS = (CONFIRM, AB, "recheck")
"""Stages of a `FinalistResult` that prove a winner."""

ROUNDING = 1e-6
"""Relative difference between versions of NumPy and SciPy on the same samples."""


def evidence_of(store: Store, conclusion: ConclusionRecord) -> list[AnyRecord]:
    """Returns the records before a conclusion, or all if it is not recorded yet."""
    records = store.records()
    return records[: records.index(conclusion)] if conclusion in records else records


def newest(records: Sequence[AnyRecord], kind: type[R]) -> R | None:
    """Returns the newest of some records that is of a kind."""
    return next((r for r in reversed(records) if isinstance(r, kind)), None)


def disagreements(store: Store, conclusion: ConclusionRecord) -> list[str]:
    """Lists what in a conclusion does not follow from records and raw pairs (RunDirectoryError if damaged)."""
    records = evidence_of(store, conclusion)
    lines = [*_of_session(store, records), *_of_losses(records, conclusion), *_of_plans(records)]
    lines += [*_of_proofs(store.spec, records, conclusion), *_of_soak(conclusion, records)]
    return [*lines, *_of_runs(store, records), *_of_work(store.spec, records)]


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


def _of_session(store: Store, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks that the study is the one that was run."""
    if {r.identity for r in records if isinstance(r, SessionRecord)} - {store.spec.identity}:
        yield f"{STUDY} holds another study than the one that was run"


def _of_losses(records: Sequence[AnyRecord], conclusion: ConclusionRecord) -> Iterator[str]:
    """Checks that the records from which a conclusion was drawn are all there, machine and session included."""
    if conclusion.record_count != len(records):
        drawn = "an unknown number of" if conclusion.record_count is None else conclusion.record_count
        yield f"the conclusion was drawn from {drawn} records, but {len(records)} stand before it"
    measured = next((i for i, r in enumerate(records) if isinstance(r, ConfirmRun | TrialResult)), len(records))
    for kind, name in ((SessionRecord, "session"), (AaRecord, "A/A run")):
        if not any(isinstance(r, kind) for r in records[:measured]):
            yield f"no {name} is recorded before the first measurement, so its machine is not known"


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
        before = [r for r in records[: records.index(plan)] if isinstance(r, ConfirmRun)]
        if any((r.stage, r.settings) == (plan.stage, plan.settings) for r in before):
            yield f"the proof of {plan.settings} ({plan.stage}) was planned after its pairs of processes had been seen"


def _of_proofs(spec: StudySpec, records: Sequence[AnyRecord], conclusion: ConclusionRecord) -> Iterator[str]:
    """Checks that verdicts follow from their pairs of processes, and the winner from its proof."""
    runs = [r for r in records if isinstance(r, ConfirmRun)]
    proofs = {(r.stage, r.settings): r for r in records if isinstance(r, FinalistResult)}  # the newest of each counts
    plans = {(r.stage, r.settings): r for r in reversed(records) if isinstance(r, ProofRecord)}  # the first counts
    for key, proof in proofs.items():
        yield from _of_proof(spec, proof, plans.get(key), runs)
    aa_run = newest(records, AaRecord)
    soak = _soak_of(conclusion, records)
    arms = soak.arms if soak is not None and conclusion.soaked_s is not None else None
    yield from _of_winner(conclusion, proofs, runs, aa_run, asked=spec.confirm.isolated, soak=arms)


def _of_proof(
    spec: StudySpec, proof: FinalistResult, plan: ProofRecord | None, runs: Sequence[ConfirmRun]
) -> Iterator[str]:
    """Checks that a verdict follows from its pairs of processes."""
    name = f"{proof.settings} ({proof.stage})"
    min_effect = spec.measure.min_effect
    most = proof.most or 0
    try:
        if plan is None:
            yield f"the proof of {name} has no plan"
            return
        here = standing(plan, runs, most=most, min_effect=min_effect).result
    except ValueError:
        yield f"{name}: its pairs of processes give no figures"
        return
    names = ("process_count", "estimate", "corrected", "verdict", "is_vetoed", "is_passed")
    fields = {field: getattr(here, field) for field in names}
    yield from _differing(proof, fields, source=f"{name}: its pairs of processes give")


def _of_winner(
    conclusion: ConclusionRecord,
    proofs: Mapping[tuple[str, FlagSet], FinalistResult],
    runs: Sequence[ConfirmRun],
    aa_run: AaRecord | None,
    *,
    asked: int,
    soak: SoakArms | None,
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
    found = report_of(mine[-1], alone, runs, soak)
    if found.objection is not None:
        yield f"{settings}: {found.objection}; the conclusion has it as the winner"
    yield from _differing(conclusion, {"estimate": found.estimate}, source=f"{settings}: its proof gives")
    if found.estimate is not None and format_estimate(found.estimate) not in conclusion.sentence:
        yield f"{settings}: its proof gives {format_estimate(found.estimate)}, the sentence of the conclusion does not"


def _soak_of(conclusion: ConclusionRecord, records: Sequence[AnyRecord]) -> SoakRecord | None:
    """Returns the newest soak of a winner."""
    soaks = (r for r in reversed(records) if isinstance(r, SoakRecord))
    return next((s for s in soaks if s.settings == conclusion.settings), None)


def _of_soak(conclusion: ConclusionRecord, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks that the soak of a winner passed."""
    mine = _soak_of(conclusion, records)
    if mine is not None:
        verdict = judge_soak(mine.arms) if mine.arms is not None else SoakVerdict()
        failure = mine.failure or verdict.failure
        against = failure.message if failure is not None else mine.unsettled or verdict.unsettled
        if against is not None:
            yield f"the soak of {conclusion.settings} says {against}, the conclusion has it as the winner"
    if conclusion.soaked_s is not None and not (mine and _alike(mine.steps_s, conclusion.soaked_s)):
        yield f"the conclusion says that it was soaked for {conclusion.soaked_s:.6g} s, the records do not"


def _of_runs(store: Store, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks that the figures of pairs of processes follow from their raw pairs, and that none is counted twice."""
    runs = [r for r in records if isinstance(r, ConfirmRun) and r.log_ratio is not None]
    aa_run = newest(records, AaRecord)
    sizes = store.spec.block_sizes.learned(aa_run.noise if aa_run is not None else None)
    for directory, count in Counter(r.directory for r in runs).items():
        if count > 1:
            yield f"{count} pairs of processes name the same raw pairs ({directory})"
    for run in runs:
        name = run.directory or run.stage
        if not (pairs := list(store.pairs(run.directory or "none"))):
            yield f"{name}: it has no raw pairs"
            continue
        yield from _differing(run, figures_of(pairs, run.work), source=f"{name}: its raw pairs give")
        if any(not is_divided_as_told(p, sizes, is_isolated=run.is_isolated) for p in pairs):
            yield f"{name}: it leaves out other steps of its blocks than the study's platform and mode ask for"


def _of_work(spec: StudySpec, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks the recorded work of a step, which scales the ratio, against options and the workers' reports."""
    aa_run = newest(records, AaRecord)
    base = aa_run.reference.tokens_per_step if aa_run is not None else None
    told: dict[FlagSet, set[int | None]] = {FlagSet(): {base}}
    for trial in records:
        if isinstance(trial, TrialResult) and trial.worker is not None:
            told.setdefault(trial.settings.of_kind("option"), set()).add(trial.worker.tokens_per_step)
    for run in (r for r in records if isinstance(r, ConfirmRun) and r.log_ratio is not None):
        said = (run.work.reference, run.work.candidate) if run.work is not None else (base, base)
        known = told.setdefault(run.settings.of_kind("option"), {said[1]})  # of options that no trial had runs agree
        try:
            declared = spec.work_under(run.settings)
        except SettingError as error:  # its options end in a command, so they must be the study's
            yield str(error)
            continue
        except ValueError:
            declared = 0
        if said[0] != base or known != {said[1]} or declared not in (None, said[1]):
            reports = declared or " or ".join(str(n) for n in sorted(known, key=str))
            yield (
                f"{run.directory or run.stage}: it takes the work of a step as {said[1]} over {said[0]}, its reports "
                f"and options say {reports} over {base}"
            )


def _differing(record: AnyRecord, fields: Mapping[str, Any], *, source: str) -> Iterator[str]:
    """Lists the fields of a record that differ from the recomputed ones by more than rounding."""
    for field, recomputed in fields.items():
        recorded = getattr(record, field)
        if not _alike(recorded, recomputed):
            name = field.removeprefix("is_").replace("_", " ")
            yield f"{source} {name} {_shown(recomputed)}, the record says {_shown(recorded)}"


def _shown(value: object) -> str:
    return format_estimate(value) if isinstance(value, Estimate) else str(value)


def _alike(said: Any, here: Any) -> bool:
    if is_dataclass(said) and type(said) is type(here):
        return _alike(astuple(said), astuple(here))  # type: ignore[arg-type]
    if isinstance(said, tuple) and isinstance(here, tuple):
        return len(said) == len(here) and all(map(_alike, said, here))
    if isinstance(said, float) and isinstance(here, float):
        return math.isclose(said, here, rel_tol=ROUNDING, abs_tol=ROUNDING * ROUNDING)
    return bool(said == here)
