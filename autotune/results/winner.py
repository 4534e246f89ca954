"""A proven winner as one record, read from its run: figures and verdicts must follow from the raw pairs.

`disagreements` recomputes them with the study's own code; machine, versions and dates are taken as recorded, and
forging raw pairs and records together is not detected. Every exported file holds the winner in one comment line, so
that `verify` and `exec` can compare it with this machine and with the records of its run.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from autotune.model.errors import AutotuneError, RunDirectoryError, SettingError
from autotune.model.flags import FlagSet, refuse_reaching_out
from autotune.model.measurement import LOSS_NOT_CHECKED, LossBasis, LossCheck, Settings, WorkPerStep, is_divided_as_told
from autotune.model.numbers import AtLeastOne, Elapsed, Record
from autotune.model.options import options_in
from autotune.model.proofs import figures_of, is_alone_due, judge_soak, report_of, standing
from autotune.model.records import (
    BUILDS,
    CONFIRM,
    ISOLATED,
    AaRecord,
    AblationResult,
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
from autotune.model.sections import STUDY_NAME
from autotune.model.spec import StudySpec
from autotune.results.conditions import Conditions, Difference, conditions_of, versions_of
from autotune.results.format import format_estimate, format_soak
from autotune.rundir.store import STUDY, Store
from autotune.stats.estimates import Estimate, Verdict, judge
from autotune.stats.proof import ERROR, ISOLATED_ERROR, ISOLATED_PAIRS, LEAST_PAIRS

WINNER_VERSION = 2

RUNS = "runs"

PROOFS = (CONFIRM, BUILDS, "recheck")
"""Stages of a `FinalistResult` that prove a winner."""

ROUNDING = 1e-6
"""Relative difference between versions of NumPy and SciPy on the same samples."""


# ---------------------------------------------------------------------- the winner


def refuse_to_hand_on(settings: FlagSet) -> FlagSet:
    """Raises SettingError if settings reach files or code, or are dangerous by the catalogue."""
    from autotune.settings.catalog import load_catalog

    refuse_reaching_out(settings)
    catalog = load_catalog()
    for name, value in settings.items():
        entry = catalog.get(name)
        if entry is not None and entry.danger and value not in entry.defaults.values():
            raise SettingError(
                f"a winner must be safe in training but {name}={value} is dangerous ({entry.danger}); "
                "take it out of the study and prove the rest again"
            )
    return settings


HandedOn = Annotated[Settings, AfterValidator(refuse_to_hand_on)]


class Winner(Record):
    """A proven flag set with its evidence and conditions.

    Attributes:
        settings: The whole measured set, baseline and options included.
        workload_options: Options of the reference; those in `settings` override them.
        further: Its ratio in rechecks with other studies, by their names.
        step_s: Median step of the winner in its proof, seconds.
        soaked_s: Seconds of the soak; None if there was none.
        work: Work of a step where it differs from the default's: then `estimate` is of time per token.
        unsettled: Settings of which no ablation showed that the set needs them.
        run: Name of the run directory whose records prove it, without the folder that it lies in.
    """

    winner_version: Annotated[int, Field(ge=WINNER_VERSION, le=WINNER_VERSION)] = WINNER_VERSION
    study: Annotated[str, Field(pattern=STUDY_NAME)]
    ended: str
    settings: HandedOn
    baseline: HandedOn
    estimate: Estimate | None = None
    further: dict[str, Estimate] | None = None
    step_s: Elapsed | None = None
    sentence: str
    workload_entry: str
    workload_options: dict[str, Any]
    process_count: AtLeastOne = 1
    node_count: AtLeastOne = 1
    soaked_s: Elapsed | None = None
    soak: str | None = None
    work: WorkPerStep | None = None
    unsettled: tuple[str, ...] | None = None
    loss: LossCheck | None = None
    conditions: Conditions
    versions: dict[str, str] = Field(default_factory=dict)
    machine: str = ""
    run: str

    @property
    def options(self) -> dict[str, Any]:
        """Options of the workload that are part of this winner, which no variable holds."""
        return options_in(self.settings)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of this winner, without options of the program."""
        return self.settings.to_environment()


def winner_of(store: Store, *, even_unjudged: bool = False) -> Winner:
    """Returns the winner of a run directory; `even_unjudged` accepts one whose loss could not be judged.

    Raises:
        AutotuneError: If the run is not finished or has no winner, if the conclusion does not follow from its records,
            or if the winner holds refused settings.
    """
    recorded = store.last(ConclusionRecord)
    if recorded is None:
        raise AutotuneError(
            f"a run must have ended to be exported but {store.path} has not; "
            "run the same `autotune run` command again to finish it"
        )
    if recorded.outcome is not Outcome.WINNER or not recorded.settings:
        until = "until a study settles that, " if recorded.outcome is Outcome.INCONCLUSIVE else ""
        raise AutotuneError(
            f"only a proven winner is exported, and {store.path} has none: {recorded.sentence}; {until}"
            "the default settings are what to use here"
        )
    stages = {r.stage for r in store.of(FinalistResult)}
    if BUILDS in stages:
        raise AutotuneError(
            f"only settings are exported but {store.path} compares two builds; tune under the one that you keep: "
            "autotune tune -- COMMAND"
        )
    if wrong := disagreements(store, recorded):
        raise AutotuneError(
            f"a proof must follow from the records of its run but in {store.path}\n"
            + "\n".join(f"  - {line}" for line in wrong)
            + "\n  restore the run from a copy, or prove its set again: autotune recheck FILE --study STUDY.toml"
        )
    winner = _winner_at(store, recorded)
    if winner.loss is not None and not (winner.loss.is_ok or winner.loss.is_silent or even_unjudged):
        raise AutotuneError(
            f"a winner must be seen to train as the default does but of {winner.settings}: {winner.loss.words}; "
            "have it soaked (confirm.soak, run the same command again) with a program that reports its loss, or "
            "write it all the same with --force"
        )
    return winner


def with_rechecks(winner: Winner, runs: Sequence[Store]) -> Winner:
    """Adds the ratios of rechecks with other studies; AutotuneError if one is of another set or proved no gain."""
    further = {}
    for run in runs:
        proven = winner_of(run)
        if proven.settings != winner.settings:
            raise AutotuneError(
                f"a recheck must be of the set that is exported but {run.path} proves {proven.settings}; "
                f"run autotune recheck with the winner {winner.settings}"
            )
        if proven.estimate is not None:
            further[proven.study] = proven.estimate
    return winner.model_copy(update={"further": further or None})


def _winner_at(store: Store, conclusion: ConclusionRecord) -> Winner:
    """Builds the winner of one recorded conclusion."""
    evidence, settings = evidence_of(store, conclusion), conclusion.settings or FlagSet()
    aa_run = next((r for r in reversed(evidence) if isinstance(r, AaRecord)), None)
    facts, spec = conclusion.provenance, store.spec
    report = aa_run.reference if aa_run is not None else None
    kinds = ConfirmRun | FinalistResult | SoakRecord
    mine = [r for r in evidence if isinstance(r, kinds) and r.settings == settings]
    proofs = [r for r in mine if isinstance(r, ConfirmRun) and r.stage in PROOFS]
    work = next((r.work for r in proofs if r.work is not None), None)
    soaks = [r for r in mine if isinstance(r, SoakRecord)]
    steps = [r.candidate_step_s for r in proofs if r.candidate_step_s is not None]
    return Winner(
        study=spec.name,
        ended=conclusion.ended,
        settings=refuse_to_hand_on(spec.baseline.merge(settings)),
        baseline=spec.baseline,
        estimate=conclusion.estimate,
        step_s=statistics.median(steps) if steps else None,
        sentence=conclusion.sentence,
        workload_entry=workload_name(spec),
        workload_options=spec.under(FlagSet()).workload.shown.options,
        process_count=report.process_count if report else spec.device.process_count,
        node_count=spec.device.node_count,
        soaked_s=conclusion.soaked_s,
        soak=format_soak(soaks[-1]) if soaks and conclusion.soaked_s is not None else None,
        work=work,
        unsettled=_unsettled(evidence, proofs, spec.measure.min_effect) or None,
        loss=loss_of(mine),
        conditions=conditions_of(spec, aa_run, facts),
        versions=versions_of(report, facts),
        machine=f"{facts.get('cpu')}, {facts.get('cpus_usable')} CPUs, {facts.get('system')}",
        run=store.path.resolve().name,
    )


def _unsettled(evidence: Sequence[AnyRecord], proofs: Sequence[ConfirmRun], min_effect: float) -> tuple[str, ...]:
    """Returns the settings of a finalist of several whose use no ablation showed; none for a set proven otherwise."""
    settings = next((p.settings for p in proofs if p.stage == CONFIRM), FlagSet())
    needed = {
        a.left_out
        for a in evidence
        if isinstance(a, AblationResult) and settings.items() <= a.settings.items()
        if a.failure or (a.comparison and judge(a.comparison.estimate, min_effect=min_effect) is Verdict.SLOWER)
    }
    return tuple(n for n in settings if n not in needed) if len(settings) > 1 else ()


def workload_name(spec: StudySpec) -> str:
    """Returns the entry of the workload, or the user's command without its secrets."""
    return spec.workload.entry or shlex.join(spec.workload.shown.command or ())


# ---------------------------------------------------------------------- its records against the raw pairs


class Recomputed(NamedTuple):
    """Fields of a record as other records, or raw pairs, give them; `source` begins the sentence on a difference."""

    source: str
    record: object
    fields: Mapping[str, Any]


def evidence_of(store: Store, conclusion: ConclusionRecord) -> list[AnyRecord]:
    """Returns the records before a conclusion, or all if it is not recorded yet."""
    records = store.records()
    return records[: records.index(conclusion)] if conclusion in records else records


def disagreements(store: Store, conclusion: ConclusionRecord) -> list[str]:
    """Lists what in a conclusion does not follow from records and raw pairs (RunDirectoryError if damaged)."""
    records = evidence_of(store, conclusion)
    found = [*_of_session(store, records), *_of_plans(records), *_of_proofs(store.spec, records, conclusion)]
    found += [*_of_soak(conclusion, records), *_of_runs(store, records), *_of_work(store.spec, records)]
    return [line for item in found for line in ([item] if isinstance(item, str) else _differing(item))]


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


def _of_proofs(
    spec: StudySpec, records: Sequence[AnyRecord], conclusion: ConclusionRecord
) -> Iterator[str | Recomputed]:
    """Checks that verdicts follow from their pairs of processes, and the winner from its proof."""
    runs = [r for r in records if isinstance(r, ConfirmRun)]
    proofs = {(r.stage, r.settings): r for r in records if isinstance(r, FinalistResult)}  # the newest of each counts
    plans = {(r.stage, r.settings): r for r in reversed(records) if isinstance(r, ProofRecord)}  # the first counts
    for key, proof in proofs.items():
        yield from _of_proof(spec, proof, plans.get(key), runs)
    aa_run = next((r for r in reversed(records) if isinstance(r, AaRecord)), None)
    yield from _of_winner(conclusion, proofs, runs, aa_run, asked=spec.confirm.isolated)


def _of_proof(
    spec: StudySpec, proof: FinalistResult, plan: ProofRecord | None, runs: Sequence[ConfirmRun]
) -> Iterator[str | Recomputed]:
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
    yield Recomputed(f"{name}: its pairs of processes give", proof, {f: getattr(here, f) for f in fields})


def _of_winner(
    conclusion: ConclusionRecord,
    proofs: Mapping[tuple[str, FlagSet], FinalistResult],
    runs: Sequence[ConfirmRun],
    aa_run: AaRecord | None,
    *,
    asked: int,
) -> Iterator[str | Recomputed]:
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
    yield Recomputed(f"{settings}: its proof gives", conclusion, {"estimate": found.estimate})
    if found.estimate is not None and format_estimate(found.estimate) not in conclusion.sentence:
        yield f"{settings}: its proof gives {format_estimate(found.estimate)}, the sentence of the conclusion does not"


def _of_soak(conclusion: ConclusionRecord, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks that the soak of a winner passed."""
    soaks = (r for r in reversed(records) if isinstance(r, SoakRecord))
    mine = next((s for s in soaks if s.settings == conclusion.settings), None)
    against = mine and (mine.failure or (mine.arms and judge_soak(mine.arms)))
    if against:
        yield f"the soak of {conclusion.settings} says {against.message}, the conclusion has it as the winner"
    if conclusion.soaked_s is not None and not (mine and _alike(mine.steps_s, conclusion.soaked_s)):
        yield f"the conclusion says that it was soaked for {conclusion.soaked_s:.6g} s, the records do not"


def _of_runs(store: Store, records: Sequence[AnyRecord]) -> Iterator[str | Recomputed]:
    """Checks that the figures of pairs of processes follow from their raw pairs, and that none is counted twice."""
    runs = [r for r in records if isinstance(r, ConfirmRun) and r.log_ratio is not None]
    for directory, count in Counter(r.directory for r in runs).items():
        if count > 1:
            yield f"{count} pairs of processes name the same raw pairs ({directory})"
    for run in runs:
        name = run.directory or run.stage
        if not (pairs := list(store.pairs(run.directory or "none"))):
            yield f"{name}: it has no raw pairs"
            continue
        yield Recomputed(f"{name}: its raw pairs give", run, figures_of(pairs, run.work))
        if any(not is_divided_as_told(p, store.spec.block_sizes, is_isolated=run.is_isolated) for p in pairs):
            yield f"{name}: it leaves out other steps of its blocks than the study's platform and mode ask for"


def _of_work(spec: StudySpec, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Checks the recorded work of a step, which scales the ratio, against options and the workers' reports."""
    aa_run = next((r for r in reversed(records) if isinstance(r, AaRecord)), None)
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


def _differing(claim: Recomputed) -> Iterator[str]:
    """Lists the fields of a record that differ from the recomputed ones by more than rounding."""
    for field, made in claim.fields.items():
        if not _alike(said := getattr(claim.record, field), made):
            shown = [format_estimate(v) if isinstance(v, Estimate) else str(v) for v in (made, said)]
            what = field.removeprefix("is_").replace("_", " ")
            yield f"{claim.source} {what} {shown[0]}, the record says {shown[1]}"


def _alike(said: Any, here: Any) -> bool:
    if is_dataclass(said) and type(said) is type(here):
        return _alike(astuple(said), astuple(here))  # type: ignore[arg-type]
    if isinstance(said, tuple) and isinstance(here, tuple):
        return len(said) == len(here) and all(map(_alike, said, here))
    if isinstance(said, float) and isinstance(here, float):
        return math.isclose(said, here, rel_tol=ROUNDING, abs_tol=ROUNDING * ROUNDING)
    return bool(said == here)


# ---------------------------------------------------------------------- its loss


def loss_of(evidence: Sequence[AnyRecord]) -> LossCheck | None:
    """Returns the final loss check of a proven set; first steps with another batch alone decide nothing."""
    soaked = [r.loss for r in evidence if isinstance(r, SoakRecord) and r.loss is not None]
    proofs = [r.loss for r in evidence if isinstance(r, ConfirmRun) and r.loss is not None]
    if soaked or not proofs:
        return soaked[-1] if soaked else None
    found = next((check for check in proofs if not check.is_ok), proofs[-1])
    if found.is_final or not found.is_ok:
        return found
    return found.model_copy(update={"is_ok": None, "words": f"inconclusive: it was never soaked; {found.words}"})


def loss_addition(evidence: Sequence[AnyRecord]) -> str:
    """Formats an addition to the conclusion: that the loss was not checked, or the result of the soak's check."""
    found = loss_of(evidence)
    if found is None or found.basis in (LossBasis.STEPS, LossBasis.ROUNDING):
        return f"; {LOSS_NOT_CHECKED}" if found is not None and found.is_ok is None else ""
    is_soaked = any(isinstance(r, SoakRecord) and r.loss is not None for r in evidence)
    return f"; {found.words}" if is_soaked else ""


def require_loss(winner: Winner) -> None:
    """Raises AutotuneError if the loss of a winner was not compared with the default's."""
    if winner.loss is None or not winner.loss.is_ok:
        said = winner.loss.words if winner.loss is not None else f"{LOSS_NOT_CHECKED}: its records do not say how"
        raise AutotuneError(
            f"--require-loss wants a winner whose loss was compared with the default's but of {winner.settings}: "
            f"{said}; have the program report its loss and use a new run directory, or leave --require-loss out"
        )


# ---------------------------------------------------------------------- a file and its run


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Comparison of a proof with the records of its run, or with this machine."""

    differences: tuple[Difference, ...] = ()
    """In the records, the machine, the workload or the file itself."""
    unchecked: str | None = None
    """Reason in one sentence if the run of an exported file was not looked at."""
    notes: tuple[str, ...] = ()
    """Checks that were not made, and actions to repeat."""

    @property
    def status(self) -> Literal["holds", "unchecked", "differs"]:
        """Whether nothing differs."""
        return "differs" if self.differences else "holds" if self.unchecked is None else "unchecked"


def check_records(winner: Winner, file: Path, *, run: Path | None = None) -> Verification:
    """Compares an exported winner with the records of its run, if found; that of a run directory was made from them.

    Args:
        file: Its run is searched beside it, in `runs/` beside it, and in `runs/` here.
        run: The run directory, instead of a search.

    Raises:
        RunDirectoryError: If `run` is not a run directory.
    """
    if file.is_dir():
        return Verification()
    if (path := run or _find_run(winner.run, file)) is None:
        return _unchecked(f"its run {winner.run!r} is not here; name it with --run RUN")
    try:
        store = Store.open(path)
        conclusion = next((c for c in store.of(ConclusionRecord) if c.ended == winner.ended), None)
        if conclusion is None:
            return _unchecked(f"{path} is of another proof; name its own with --run RUN")
        wrong = disagreements(store, conclusion)
    except RunDirectoryError as error:
        if run is not None:
            raise
        conclusion, wrong = None, [str(error)]
    if conclusion is None or wrong:
        found = [Difference(field="records", proven="what was recorded", here=line) for line in wrong]
        return Verification(differences=tuple(found))
    ours, theirs = (dict(w) for w in (_winner_at(store, conclusion), winner))
    return Verification(
        differences=tuple(
            Difference(field=name, proven=f"{ours[name]} in its records", here=f"{theirs[name]} in the file")
            for name in ours
            if name != "run" and ours[name] != theirs[name]
        )
    )


def _unchecked(why: str) -> Verification:
    return Verification(unchecked=f"unchecked, so nothing here shows that it was proven: {why}")


def _find_run(name: str, file: Path) -> Path | None:
    """Finds the run directory of that name nearest to an exported file."""
    if Path(name).name != name:  # it could lead anywhere
        return None
    beside = file.resolve().parent
    found = [beside if beside.name == name else beside / name, beside / RUNS / name, Path(RUNS) / name]
    return next((path for path in found if (path / "study.json").is_file()), None)
