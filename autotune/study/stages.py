"""The stages of a study, in order. Each is a function of the one context, and goes on where an earlier session stopped.

A stage that has nothing to do (nothing promising to confirm, one setting to minimise) does nothing.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from autotune.model import (
    PROFILE,
    AblationResult,
    BlameRecord,
    ConclusionRecord,
    ConfirmRun,
    EffectsRecord,
    FinalistResult,
    FlagSet,
    FloorResult,
    LedgerRecord,
    LossBasis,
    ProfileRecord,
    ProofRecord,
    ScreenRecord,
    SessionRecord,
    SoakRecord,
    Stamped,
    TrialResult,
    format_seconds,
)
from autotune.results import format_soak
from autotune.rundir import JOURNAL
from autotune.stats import Verdict, candidate_weights
from autotune.study.atlas_priors import by_atlas
from autotune.study.conclude import record_conclusion
from autotune.study.finalists import choose_finalists
from autotune.study.gain import measure_once_more
from autotune.study.library_priors import by_library
from autotune.study.measured import measure_reference, narrow_space
from autotune.study.minimise import minimise_set
from autotune.study.pgle import profile_guide
from autotune.study.priors import priors_of, screened_by
from autotune.study.proof import most_processes, pairs_run, plan_proofs, prove
from autotune.study.proposer import Proposer, open_study
from autotune.study.run import StudyRun
from autotune.study.search import Search
from autotune.study.units import Job, SoakUnit


class Stage(NamedTuple):
    """One stage: its name, as docs/study.md has it, what it does, and which records it leaves."""

    name: str
    do: Callable[[StudyRun], None]
    records: tuple[type[Stamped], ...]


def run_study(run: StudyRun) -> ConclusionRecord:
    """Takes a study from where it is to its conclusion.

    Raises:
        AutotuneError: If the study cannot start or go on; what was recorded stays.
    """
    with contextlib.closing(run):
        for stage in STAGES:
            stage.do(run)
    return run.conclusion


def probe(run: StudyRun) -> None:
    """Asks the installed build, checks the study against it, then takes the devices and the run directory."""
    run.setup = run.prepare(run.view.note)
    run.first = tuple(run.setup.first)
    run.open()


def noise_floor(run: StudyRun) -> None:
    """Measures the reference against itself and learns what the workload is."""
    run.facts = measure_reference(run)


def screen(run: StudyRun) -> None:
    """Needs the workload's facts; takes out of the space what needs no trial, by compiling."""
    space = run.setup.space(run.facts)
    for name, remark in space.notes.items():
        run.view.note(f"{name}: {remark}")
    kind = run.reference.device_kind if run.reference is not None else None
    lessons = run.setup.lessons(kind, run.facts.device_count, run.view.note)
    run.first += lessons.first
    space = narrow_space(run, space)
    report = screened_by(run.store)
    priors = by_atlas(priors_of(space, report), run.spec, run.facts.device_count, run.setup.jaxlib, report)
    priors = by_library(priors, lessons.winners)
    stored = open_study(run.spec, run.storage or run.store.path / JOURNAL)
    run.proposer = Proposer(
        run.spec, space, first=run.first, stored=stored, doubt=run.doubt,
        rule_defaults=run.setup.rule_defaults, looks_ahead=run.screener is not None and run.screener.looks_ahead,
        priors=priors,
    )  # fmt: skip


def search(run: StudyRun) -> None:
    """Needs the space; tries sets until the asked number, the budget or the space is used up."""
    run.search = Search(run)
    run.search.work()


def confirm(run: StudyRun) -> None:
    """Needs trials; measures the promising ones in fresh processes.

    Where none of them holds, and a budget has time left, the search goes on with that.
    """
    refuted: set[FlagSet] = set()
    while chosen := _to_prove(run, refuted):
        _prove_finalists(run, chosen)
        if run.time.takes is None or any(f.is_passed for f in run.finalists):
            return
        refuted |= {f.settings for f in chosen}
        if not run.search.go_on() and not any(pairs_run(run, "confirm", s) for s in _promising(run, refuted)):
            return  # no time for more, and no earlier session has proven more


def _promising(run: StudyRun, refuted: set[FlagSet]) -> list[FlagSet]:
    return [f.settings for f in choose_finalists(run, refuted)]


def _to_prove(run: StudyRun, refuted: set[FlagSet]) -> list[TrialResult]:
    """The finalists for whose proofs there is time."""
    chosen = choose_finalists(run, refuted)
    begun = [(f.settings, pairs_run(run, "confirm", f.settings)) for f in chosen]
    allowed = run.time.allows_proofs("confirm", begun)
    if len(allowed) < len(chosen):
        run.view.note(f"of {len(chosen)} sets that may gain there is time for the proofs of {len(allowed)}")
    return [f for f in chosen if f.settings in allowed]


def _prove_finalists(run: StudyRun, chosen: list[TrialResult]) -> None:
    run.begin_stage("confirm", f"{len(chosen)} finalists, each in up to {most_processes(run)} fresh pairs of processes")
    run.finalists = prove(run, [(f.number, f.settings) for f in chosen], stage="confirm")


def minimise(run: StudyRun) -> None:
    """Needs finalists; leaves out what does not pay of the best one."""
    best = min(
        (f for f in run.finalists if f.is_passed), key=lambda f: f.corrected.ratio if f.corrected else 1.0, default=None
    )
    if best is None:
        return
    run.candidates = [("final", best.trial, best.settings)]
    if run.spec.confirm.minimise and len(best.settings) > 1:
        run.begin_stage("minimise", f"{len(best.settings)} settings, each left out in turn: does it pay for itself?")
        minimal = minimise_set(run, best.settings)
        if minimal != best.settings:
            run.candidates = [("final", best.trial, minimal), ("full", best.trial, best.settings)]


def final_proof(run: StudyRun) -> None:
    """Needs candidates; the first that holds in processes of its own is proven: by figures that selected nothing."""
    if not run.candidates or not run.time.allows_proofs("final", _begun(run)):
        return
    plan_proofs(run, [(stage, s) for stage, _, s in run.candidates], candidate_weights(len(run.candidates)))
    while run.candidates and run.proven is None and run.time.allows_proofs("final", _begun(run)):
        stage, trial, settings = run.candidates.pop(0)
        what = "the minimal set" if stage == "final" else "the whole set, for the minimal one did not hold"
        what += " with its profile" if PROFILE in settings else ""
        most = most_processes(run)
        run.begin_stage("final proof", f"{what}, proven once more in up to {most} fresh pairs of processes")
        result = prove(run, [(trial, settings)], stage=stage)[0]
        if result.verdict is not Verdict.FASTER:
            continue
        run.once_more = measure_once_more(run, result)
        run.proven = result if run.once_more.objection is None else None
        if run.once_more.objection is not None:
            run.objections[settings] = run.once_more.objection


def _begun(run: StudyRun) -> list[tuple[FlagSet, int]]:
    """The first candidate, with the pairs of processes that its final proof has run."""
    return [(settings, pairs_run(run, stage, settings)) for stage, _, settings in run.candidates[:1]]


def soak(run: StudyRun) -> None:
    """Needs a proven set; one that does not run for long is none, and the next candidate gets its chance."""
    while run.proven is not None and (least_s := run.spec.confirm.soak):
        run.begin_stage(
            "soak",
            f"the winner alone for {format_seconds(least_s)} of steps, then the default: does it hang, diverge, stall "
            "or leak later?",
        )
        record = _soaked(run, run.proven, least_s)
        run.view.note(format_soak(record))
        if record.failure is None:
            return
        run.proven = None
        final_proof(run)


def _soaked(run: StudyRun, proven: FinalistResult, least_s: float) -> SoakRecord:
    """The soak of a set: what an earlier session soaked at least as long is not repeated."""
    settings, of_proof = proven.settings, (proven.stage, proven.settings)
    ratios = [r.log_ratio for r in run.store.of(ConfirmRun) if (r.stage, r.settings) == of_proof and r.log_ratio]
    least_steps = run.spec.confirm.soak_steps
    for record in run.store.of(SoakRecord):
        enough = record.steps_s >= least_s and record.step_count >= least_steps
        if record.settings == settings and (enough or record.failure is not None):
            return record
    name = f"soak-{settings.digest}-{least_s:.0f}-{least_steps}"
    judged = [r.loss.basis for r in run.store.of(ConfirmRun) if r.settings == settings and r.loss is not None]
    basis = judged[-1] if judged else LossBasis.STEPS
    unit = SoakUnit(
        settings=settings, least_s=least_s, least_steps=least_steps, basis=basis,
        typical=math.log(proven.estimate.ratio) if proven.estimate is not None else None,
        process_sd=statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
    )  # fmt: skip
    run.lanes.do(Job(unit, ("soak", name), name, run.store.append))
    return run.store.of(SoakRecord)[-1]


def conclude(run: StudyRun) -> None:
    """Needs what is proven, if anything is; says in one sentence what the study found."""
    run.conclusion = record_conclusion(run)


STAGES = (
    Stage("probe", probe, (SessionRecord, LedgerRecord)),
    Stage("noise floor", noise_floor, (FloorResult,)),
    Stage("screen", screen, (ScreenRecord,)),
    Stage("search", search, (TrialResult, BlameRecord, EffectsRecord)),
    Stage("confirm", confirm, (ProofRecord, ConfirmRun, FinalistResult)),
    Stage("minimise", minimise, (AblationResult,)),
    Stage("pgle", profile_guide, (ProfileRecord, AblationResult, ProofRecord, ConfirmRun, FinalistResult)),
    Stage("final proof", final_proof, (ProofRecord, ConfirmRun, FinalistResult)),
    Stage("soak", soak, (SoakRecord,)),
    Stage("conclude", conclude, (ConclusionRecord,)),
)
