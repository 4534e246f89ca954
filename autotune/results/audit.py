"""Checks that a winner follows from its raw pairs; those forged with the records are not seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from autotune.model.errors import RunDirectoryError, SettingError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Stamped, is_divided_as_told
from autotune.model.proofs import (
    SoakVerdict,
    figures_of,
    is_interleaved,
    judge_soak,
    report_of,
    standing,
)
from autotune.model.records import (
    AB,
    CONFIRM,
    ISOLATED,
    AaRecord,
    ConclusionRecord,
    ConfirmRun,
    Outcome,
    ProofRecord,
    SessionRecord,
    SoakRecord,
    TrialResult,
)
from autotune.results.format import finalists, format_estimate
from autotune.rundir.store import STUDY, Store
from autotune.stats.estimates import Estimate, Verdict
from autotune.stats.proof import ERROR, ISOLATED_ERROR, ISOLATED_PAIRS, LEAST_PAIRS

Lines = Iterator[str]

PROOFS = (CONFIRM, AB, "recheck")  # stages that prove a winner
ROUNDING = 1e-6  # relative, between versions of NumPy and SciPy on the same samples


def disagreements(store: Store, conclusion: ConclusionRecord) -> list[str]:
    """Lists what in a conclusion does not follow from records and raw pairs; raises as `Store`."""
    evidence = store.before(conclusion)
    lines = list(_of_losses(evidence, conclusion))
    aa_run = evidence.last(AaRecord)
    if not aa_run:
        return lines
    soak = None
    for record in evidence.of(SoakRecord):
        if record.settings == conclusion.settings:
            soak = record
    runs = [r for r in evidence.of(ConfirmRun) if r.log_ratio is not None]
    return [
        *lines,
        *_of_plans(evidence),
        *_of_proofs(evidence),
        *_of_winner(evidence, conclusion, soak),
        *_of_soak(conclusion, soak),
        *_of_runs(evidence, runs, aa_run),
        *_of_work(evidence, runs, aa_run),
    ]


def doubts(store: Store) -> list[str]:
    """Formats the disagreements of a run's winner with its records; empty without a winner."""
    conclusion = store.last(ConclusionRecord)
    if not conclusion or conclusion.outcome is not Outcome.WINNER:
        return []
    try:
        lines = disagreements(store, conclusion)
    except RunDirectoryError as error:
        lines = [str(error)]
    return [f"DO NOT BELIEVE the conclusion: {line}" for line in lines]


def _of_losses(evidence: Store, conclusion: ConclusionRecord) -> Lines:
    """Checks that all is there from which a conclusion was drawn, machine and session included."""
    if any(r.identity != evidence.spec.identity for r in evidence.of(SessionRecord)):
        yield f"{STUDY} holds another study than the one that was run"
    records = evidence.records()
    count = conclusion.record_count
    if count != len(records):
        yield f"the conclusion was drawn from {count} records, but {len(records)} stand before it"
    measured = (r for r in records if isinstance(r, ConfirmRun | TrialResult))
    unmeasured = evidence.before(next(measured, conclusion))
    for kind, name in ((SessionRecord, "session"), (AaRecord, "A/A run")):
        if not unmeasured.of(kind):
            yield f"no {name} is recorded before the first measurement, so its machine is not known"


def _of_plans(evidence: Store) -> Lines:
    """Checks that the plans of the proofs keep within the allowed error rates."""
    plans = evidence.of(ProofRecord)
    for stage in {p.stage for p in plans} - {ISOLATED}:
        spent = sum(p.error for p in plans if p.stage == stage)
        if spent > ERROR * (1 + ROUNDING):
            yield f"the proofs of {stage} may err in {spent:.3g} of cases, {ERROR:.3g} are allowed"
    for plan in plans:
        name = f"the proof of {plan.settings} ({plan.stage})"
        is_lax = plan.least < LEAST_PAIRS
        if plan.stage == ISOLATED:
            is_too_risky = plan.error > ISOLATED_ERROR * (1 + ROUNDING)
            is_lax = is_too_risky or plan.least < ISOLATED_PAIRS
        if is_lax:
            yield f"{name} was planned with too few pairs or too large an error"
        earlier = evidence.before(plan).of(ConfirmRun)
        if any((r.stage, r.settings) == (plan.stage, plan.settings) for r in earlier):
            yield f"{name} was planned after its pairs of processes had been seen"


def _of_proofs(evidence: Store) -> Lines:
    """Checks that verdicts follow from their pairs of processes, by the plans recorded first."""
    plans = {(p.stage, p.settings): p for p in reversed(evidence.of(ProofRecord))}
    names = ["process_count", "estimate", "corrected"]
    names += ["verdict", "is_vetoed", "is_passed"]
    runs = evidence.of(ConfirmRun)
    min_effect = evidence.spec.measure.min_effect
    for proof in finalists(evidence):
        name = f"{proof.settings} ({proof.stage})"
        plan = plans.get((proof.stage, proof.settings))
        if not plan:
            yield f"the proof of {name} has no plan"
            continue
        try:
            state = standing(plan, runs, most=proof.most or 0, min_effect=min_effect)
        except ValueError:
            yield f"{name}: its pairs of processes give no figures"
            continue
        recomputed = {field: getattr(state.result, field) for field in names}
        yield from _differing(proof, recomputed, f"{name}: its pairs of processes give")


def _of_winner(evidence: Store, conclusion: ConclusionRecord, soak: SoakRecord | None) -> Lines:
    """Checks that a winner follows from its last proof and the later measurements."""
    settings = conclusion.settings or FlagSet()
    proofs = {p.stage: p for p in finalists(evidence) if p.settings == settings}
    decisive = [proofs[stage] for stage in proofs if stage in PROOFS]
    if not decisive:
        yield f"no proof of {settings} is recorded"
        return
    proven = decisive[-1]
    if proven.verdict is not Verdict.FASTER:
        yield f"the proof of {settings} says {proven.verdict}, the conclusion that it wins"
    isolated = proofs.get(ISOLATED)
    runs = evidence.of(ConfirmRun)
    aa_run = evidence.last(AaRecord)
    is_asked_for = evidence.spec.confirm.isolated > 0 and is_interleaved(proven, aa_run, runs)
    if is_asked_for and not isolated:
        yield f"the isolated runs of {settings}, that the study asks for, are not recorded"
    arms = soak.arms if soak and conclusion.soaked_s is not None else None
    report = report_of(proven, isolated, runs, arms)
    if report.objection:
        yield f"{settings}: {report.objection.reason}; the conclusion has it as the winner"
    source = f"{settings}: its proof gives"
    yield from _differing(conclusion, {"estimate": report.estimate}, source)
    if report.estimate:
        figures = format_estimate(report.estimate)
        if figures not in conclusion.sentence:
            yield f"{source} {figures}, the sentence of the conclusion does not"


def _of_soak(conclusion: ConclusionRecord, soak: SoakRecord | None) -> Lines:
    """Checks that the soak of a winner passed."""
    if soak:
        verdict = judge_soak(soak.arms) if soak.arms else SoakVerdict()
        failure = soak.failure or verdict.failure
        against = failure.message if failure else soak.unsettled or verdict.unsettled
        if against is not None:
            subject = f"the soak of {conclusion.settings}"
            yield f"{subject} says {against}, the conclusion has it as the winner"
    soaked_s = conclusion.soaked_s
    if soaked_s is not None and not (soak and _alike(soak.steps_s, soaked_s)):
        yield f"the conclusion says that it was soaked for {soaked_s:.6g} s, the records do not"


def _of_runs(evidence: Store, runs: Sequence[ConfirmRun], aa_run: AaRecord) -> Lines:
    """Checks that pairs of processes follow from their raw pairs, and that none counts twice."""
    sizes = evidence.spec.block_sizes.learned(aa_run.noise)
    for directory, count in Counter(r.directory for r in runs).items():
        if count > 1:
            yield f"{count} pairs of processes name the same raw pairs ({directory})"
    for run in runs:
        name = run.directory or run.stage
        pairs = list(evidence.pairs(run.directory))
        if not pairs:
            yield f"{name}: it has no raw pairs"
            continue
        figures = figures_of(pairs, run.work)
        yield from _differing(run, figures, f"{name}: its raw pairs give")
        is_isolated = run.is_isolated
        if not all(is_divided_as_told(p, sizes, is_isolated=is_isolated) for p in pairs):
            reason = "other steps of its blocks than the study's platform and mode ask for"
            yield f"{name}: it leaves out {reason}"


def _of_work(evidence: Store, runs: Sequence[ConfirmRun], aa_run: AaRecord) -> Lines:
    """Checks the work of a step, which scales the ratio, against options and workers' reports."""
    base = aa_run.reference.tokens_per_step
    reported: dict[FlagSet, set[int | None]] = {FlagSet(): {base}}
    for trial in evidence.of(TrialResult):
        if trial.worker:
            counts = reported.setdefault(trial.settings.of_kind("option"), set())
            counts.add(trial.worker.tokens_per_step)
    for run in runs:
        reference = candidate = base
        if run.work:
            reference = run.work.reference
            candidate = run.work.candidate
        # Runs of options that no trial had must agree.
        counts = reported.setdefault(run.settings.of_kind("option"), {candidate})
        try:
            declared = evidence.spec.work_under(run.settings)
        except SettingError as error:  # options in a command must be the study's
            yield str(error)
            continue
        except ValueError:
            declared = 0
        if reference != base or counts != {candidate} or declared not in (None, candidate):
            reports = declared or " or ".join(sorted(map(str, counts)))
            yield (
                f"{run.directory or run.stage}: it takes the work of a step as {candidate} over "
                f"{reference}, its reports and options say {reports} over {base}"
            )


def _differing(record: Stamped, fields: Mapping[str, Any], source: str) -> Lines:
    """Lists the fields of a record that differ from the recomputed ones by more than rounding."""
    for field, recomputed in fields.items():
        recorded = getattr(record, field)
        if not _alike(recorded, recomputed):
            name = field.removeprefix("is_").replace("_", " ")
            yield f"{source} {name} {_shown(recomputed)}, the record says {_shown(recorded)}"


def _shown(value: object) -> str:
    return format_estimate(value) if isinstance(value, Estimate) else str(value)


def _alike(recorded: Any, recomputed: Any) -> bool:
    if is_dataclass(recorded) and type(recorded) is type(recomputed):
        names = [field.name for field in fields(recorded)]
        return all(_alike(getattr(recorded, n), getattr(recomputed, n)) for n in names)
    if isinstance(recorded, float) and isinstance(recomputed, float):
        return math.isclose(recorded, recomputed, rel_tol=ROUNDING, abs_tol=ROUNDING**2)
    return bool(recorded == recomputed)
