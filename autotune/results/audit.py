"""Whether a proof follows from its records: figures are made once more from raw pairs, and a digest is compared.

A digest is no signature: it shows that something was edited or is of another run. Who forges pairs, records and digest
together is not found out.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from autotune.model import (
    ONCE_MORE,
    AblationResult,
    AnyRecord,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    FlagSet,
    FloorResult,
    Measured,
    Outcome,
    Pair,
    ProfileRecord,
    ProofRecord,
    RunDirectoryError,
    SoakRecord,
    StudySpec,
    TrialResult,
    artefacts_of,
    is_divided_as_told,
    judge_soak,
    log_ratio,
    reported_gain,
    total_of,
    veto_of,
)
from autotune.results.audit_proofs import (
    LAST_PROOFS,
    Evidence,
    are_close,
    families_of,
    is_close,
    is_same_total,
    told_of_measuring,
    told_of_planned,
    told_of_plans,
    told_of_proof,
)
from autotune.results.canonical import canonical
from autotune.results.words import format_estimate
from autotune.rundir import Store
from autotune.stats import Estimate, Verdict, estimate_pairs


def proof_digest(store: Store, conclusion: ConclusionRecord) -> str:
    """SHA-256 over all that a conclusion rests on, in hexadecimal digits.

    That is: the study's identity, what the conclusion itself says, every record of noise floor, proof, minimising and
    soak before it, and the raw pairs that those name.

    Args:
        store: The run.
        conclusion: Recorded or not.
    """
    digest = hashlib.sha256(f"{store.spec.identity}\n".encode())
    for record in (
        *evidence_of(store, conclusion),
        conclusion.model_copy(update={"at_s": 0.0, "by": None, "digest": None}),
    ):
        digest.update(f"{canonical(record)}\n".encode())
        if isinstance(record, FloorResult | ConfirmRun | AblationResult) and record.directory is not None:
            for pair in _pairs(store, record.directory):
                digest.update(f"{pair.model_dump_json(exclude_none=True)}\n".encode())
    return digest.hexdigest()


def disagreements(store: Store, conclusion: ConclusionRecord) -> list[str]:
    """In what a winner does not follow from the records and raw pairs of its run, one sentence each.

    Of runs that are older than digests only the figures are made again.

    Raises:
        RunDirectoryError: If a file of raw pairs holds something else.
    """
    records = evidence_of(store, conclusion)
    runs = [r for r in records if isinstance(r, ConfirmRun)]
    found = [*_of_runs(store, runs), *_of_work(store, runs)]
    proofs = {(r.stage, r.settings): r for r in records if isinstance(r, FinalistResult)}  # the newest of each counts
    plans = {(r.stage, r.settings): r for r in reversed(records) if isinstance(r, ProofRecord)}  # the first counts
    found += told_of_plans(records)
    for key, proof in proofs.items():
        if proof.stage in ONCE_MORE:
            found += told_of_measuring(proof, runs)
        elif (plan := plans.get(key)) is not None:
            found += told_of_planned(store.spec, proof, plan, runs)
        else:  # of a version that proved by a number of pairs settled before
            found += told_of_proof(store.spec, proof, runs, families_of(proof, runs))
    found += _of_winner(conclusion, list(proofs.values()), runs)
    found += _of_soak(conclusion, [r for r in records if isinstance(r, SoakRecord)])
    found += _of_profile(conclusion, [r for r in records if isinstance(r, ProfileRecord)])
    if conclusion.digest is not None and conclusion.digest != (here := proof_digest(store, conclusion)):
        found.append(f"the records have the digest {here[:12]}, the conclusion was drawn from {conclusion.digest[:12]}")
    return found


def doubts(store: Store) -> list[str]:
    """Why nobody should believe what a run concludes, one sentence each; none of a run without a winner."""
    conclusion = store.last(ConclusionRecord)
    if conclusion is None or conclusion.outcome is not Outcome.WINNER:
        return []
    try:
        wrong = disagreements(store, conclusion)
    except RunDirectoryError as error:
        wrong = [str(error)]
    return [f"DO NOT BELIEVE the conclusion: {line}" for line in wrong]


def evidence_of(store: Store, conclusion: ConclusionRecord) -> list[Evidence]:
    """The records on which a conclusion rests: those before it, or all if it is not recorded yet."""
    records: list[AnyRecord] = store.records()
    if conclusion in records:
        records = records[: records.index(conclusion)]
    return [r for r in records if isinstance(r, Evidence)]


def _pairs(store: Store, directory: str) -> list[Pair]:
    """Raw pairs of one measurement of this run; none of any other place."""
    path = PurePosixPath(directory)
    return [] if path.is_absolute() or ".." in path.parts else list(store.pairs(directory))


# ---------------------------------------------------------------------- each figure once more


def _of_runs(store: Store, runs: Sequence[ConfirmRun]) -> Iterator[str]:
    """Pairs of processes whose figures do not follow from their raw pairs, or that count twice."""
    for directory, count in Counter(r.directory for r in runs if r.log_ratio is not None).items():
        if count > 1:
            yield f"{count} pairs of processes name the same raw pairs ({directory})"
    for run in (r for r in runs if r.log_ratio is not None):
        name = run.directory or f"{run.stage} {run.repeat}"
        pairs = _pairs(store, run.directory) if run.directory else []
        if not pairs or len(pairs) != run.pair_count:
            yield f"{name}: it has {len(pairs)} raw pairs, the record says {run.pair_count}"
            continue
        if any(not is_divided_as_told(p, store.spec.turns, is_alone=run.is_alone) for p in pairs):
            yield f"{name}: it leaves out other steps of its blocks than measure.settle_s and measure.steady_s say"
        made = (
            ("log ratio", run.log_ratio, math.log(estimate_pairs([log_ratio(p, run.work) for p in pairs]).ratio)),
            ("reference's step", run.reference_step_s, statistics.median(t for p in pairs for t in p.reference_s)),
            ("candidate's step", run.candidate_step_s, statistics.median(t for p in pairs for t in p.candidate_s)),
        )
        for what, said, here in made:
            if said is not None and not is_close(said, here):
                yield f"{name}: its raw pairs give the {what} {here:.6g}, the record says {said:.6g}"
        if run.total is not None and not is_same_total(run.total, total := total_of(pairs, run.work)):
            yield f"{name}: its raw pairs give total times and stalls {total}, the record says {run.total}"


def _of_work(store: Store, runs: Sequence[ConfirmRun]) -> Iterator[str]:
    """Claims about what a step does that no report bears out: whoever may choose them chooses the ratio."""
    floor = store.last(FloorResult)
    base = floor.reference.tokens_per_step if floor is not None else None
    told: dict[FlagSet, set[int | None]] = {FlagSet(): {base}}
    trials = [r for r in store.of(TrialResult) if r.worker is not None]
    for trial in trials:
        assert trial.worker is not None
        told.setdefault(trial.settings.of_kind("option"), set()).add(trial.worker.tokens_per_step)
    claims = [(f"trial {t.number}", t.settings, t.comparison.work) for t in trials if isinstance(t.outcome, Measured)
              and t.comparison is not None]  # fmt: skip
    claims += [(r.directory or f"{r.stage} {r.repeat}", r.settings, r.work) for r in runs if r.log_ratio is not None]
    for _, settings, work in claims:  # a minimal set may have options that no trial had: then its runs must agree
        if work is not None:
            told.setdefault(settings.of_kind("option"), {work.candidate})
    for name, settings, work in claims:
        said = (work.reference, work.candidate) if work is not None else (base, base)
        known = told.get(settings.of_kind("option"), {base})
        declared = _declared(store.spec, settings)
        if said[0] != base or said[1] not in known or len(known) > 1 or declared not in (None, said[1]):
            reports = " or ".join(str(n) for n in sorted(known, key=str))
            yield (
                f"{name}: it takes the work of a step as {said[1]} over {said[0]}, its reports and options say "
                f"{declared or reports} over {base}"
            )


def _declared(spec: StudySpec, settings: FlagSet) -> int | None:
    """What the study file says of a step; 0, which no step does, where that comes to nothing."""
    try:
        return spec.work_under(settings)
    except ValueError:
        return 0


def _of_winner(
    conclusion: ConclusionRecord, proofs: Sequence[FinalistResult], runs: Sequence[ConfirmRun]
) -> Iterator[str]:
    """What in a winner does not follow from its last proof."""
    mine = [p for p in proofs if p.stage in LAST_PROOFS and p.settings == conclusion.settings]
    if not mine:
        yield f"no proof of {conclusion.settings} is recorded"
        return
    proof = mine[-1]
    if proof.verdict is not Verdict.FASTER:
        yield f"the proof of {conclusion.settings} says {proof.verdict}, the conclusion that it wins"
    after = {p.stage: p for p in proofs if p.stage in ONCE_MORE and p.settings == conclusion.settings}
    for found in after.values():
        if found.is_vetoed:
            yield f"the {found.stage} of {conclusion.settings} speaks against it, the conclusion has it as the winner"
    if proof.veto is not None:
        yield f"the proof of {conclusion.settings} has a veto, the conclusion has it as the winner"
    gain, alone = after.get("gain"), after.get("alone")
    if proof.goes_on is not None and proof.verdict is Verdict.FASTER and gain is None:
        yield f"the gain of {conclusion.settings} was never measured in pairs that decide nothing"
    told = [r for r in runs if r.settings == conclusion.settings and r.against is None]
    if gain is not None and (against := veto_of(told, gain.estimate)) is not None:
        yield f"{conclusion.settings} is {against}, the conclusion has it as the winner"
    yield from _of_figures(conclusion, reported_gain(gain, alone, told) if gain is not None else proof.estimate)


def _of_figures(conclusion: ConclusionRecord, proven: Estimate | None) -> Iterator[str]:
    """Whether the figures of a conclusion, and those in its sentence, are the proven ones."""
    said = conclusion.estimate
    if said is None or proven is None:
        yield "the conclusion or its proof has no figures"
    elif not are_close(said, proven):
        yield f"the proof gives {format_estimate(proven)}, the conclusion says {format_estimate(said)}"
    elif format_estimate(said) not in conclusion.sentence:
        yield f"the proof gives {format_estimate(said)}, the sentence of the conclusion does not"


def _of_soak(conclusion: ConclusionRecord, soaks: Sequence[SoakRecord]) -> Iterator[str]:
    """What the long run of a winner says against it."""
    mine = [s for s in soaks if s.settings == conclusion.settings]
    if mine and mine[-1].failure is not None:
        yield f"the soak of {conclusion.settings} failed, the conclusion has it as the winner"
    elif mine and mine[-1].arms is not None and (against := judge_soak(mine[-1].arms)) is not None:
        yield f"the soak of {conclusion.settings} says {against.message}, the conclusion has it as the winner"
    if conclusion.soaked_s is not None and not (mine and is_close(mine[-1].steps_s, conclusion.soaked_s)):
        yield f"the conclusion says that it was soaked for {conclusion.soaked_s:.6g} s, the records do not"


def _of_profile(conclusion: ConclusionRecord, profiles: Sequence[ProfileRecord]) -> Iterator[str]:
    """Whether the profile of a winner was taken in its run, of the winner without it."""
    taken = {(p.profile.setting, p.profile.digest, p.settings) for p in profiles if p.profile is not None}
    for name, digest in artefacts_of(conclusion.settings or {}).items():
        if (name, digest, (conclusion.settings or FlagSet()).without(name)) not in taken:
            yield f"{conclusion.settings} has a profile ({digest[:12]}) that no record of this run holds"
