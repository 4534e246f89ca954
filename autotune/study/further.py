"""Tries finalists and proves a winner on further workloads: slower on none, and faster by the geometric mean of all.

Each has a run directory of its own within that of the study, as a study without a search would: its own reference, A/A
run, trials, loss check, pairs of processes, isolated runs and soak, all recomputable from its raw pairs. The rule is
`autotune.model.proofs.is_faster_together`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from autotune.machine.host import describe_machine, utc_now
from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.proofs import Report, next_bound
from autotune.model.records import (
    ALSO,
    ISOLATED,
    AaRecord,
    AnyRecord,
    ConclusionRecord,
    FinalistResult,
    Outcome,
    ProofRecord,
    SoakRecord,
    TrialConfig,
    TrialResult,
)
from autotune.model.sections import AlsoSpec
from autotune.results.format import format_finalist, format_soak, format_trial
from autotune.results.winner import loss_of
from autotune.rundir.store import FURTHER, Store
from autotune.stats.estimates import REFERENCE, Estimate, Verdict, judge
from autotune.stats.proof import ERROR, LEAST_PAIRS, ProofPlan, allot, alone_plan
from autotune.study.budget import TRIED
from autotune.study.conclude import record_conclusion
from autotune.study.confirm import most_pairs, name_next, name_winner, prove, soak
from autotune.study.prefilter import Known, measure_reference
from autotune.study.run import Candidate, SetState, StudyRun


def measure_further_references(run: StudyRun) -> None:
    """Measures further workloads' references, and reserves time for what follows; LaunchError if one does not run."""
    run.try_finalists = functools.partial(_try_finalists, run)
    for also in run.spec.also:
        with _session(run, also) as session:
            run.time.further_aa_s += session.store.of(AaRecord)[0].at_s
            run.time.further_s += session.time.kept_after("search")
            run.time.further_trial_s += _trial_s(session)
    if run.spec.also:
        run.open_lanes()
        run.lanes.first_aa_run()


def _trial_s(session: StudyRun) -> float:
    """Returns the least seconds of a trial with the start of its reference; 0 where they are not known."""
    takes = session.time.takes
    return takes.start_s + takes.trial_s if takes is not None else 0.0


def _try_finalists(run: StudyRun, finalists: list[Candidate]) -> None:
    """Runs one trial of each finalist on each further workload; refutes those that fail or are surely slower there.

    Sorts the others by the geometric mean of ratios. A finalist for whose trial there is no time is left to its proof.
    """
    kept_s, is_away = run.time.kept_after(TRIED), False
    for also in run.spec.also:
        store = Store.open(run.store.path / FURTHER / also.name)
        waiting = [c for c in finalists if c.state is SetState.MINIMAL]
        if new := [c for c in waiting if c.settings not in {t.settings for t in store.of(TrialResult)}]:
            is_away = True
            with _session(run, also, kept_s=kept_s) as session:
                for at, candidate in enumerate(new):
                    if not session.time.is_used_up(_trial_s(session)):
                        _try(session, candidate, share=1.0 / (len(new) - at))
        trials = {t.settings: t for t in store.of(TrialResult)}
        for candidate in waiting:
            if (trial := trials.get(candidate.settings)) is not None:
                _take(run, candidate, trial, also.name)
    if is_away:
        run.open_lanes()
        run.lanes.first_aa_run()
    if run.spec.also:
        ratios = {r.number: r.comparison.estimate.ratio for r in run.store.of(TrialResult) if r.comparison is not None}
        finalists.sort(key=lambda c: c.elsewhere * ratios[c.trial])


def _try(session: StudyRun, candidate: Candidate, *, share: float) -> None:
    """Runs and records one trial of a finalist, in a share of the time left."""
    known = Known(session.store)
    number = len(known.refresh()) + 1
    config = TrialConfig(number=number, settings=candidate.settings, origin=f"finalist of trial {candidate.trial}")
    task = TrialTask(config=config, most=session.time.pairs_for(0.0, starts=2, share=share))

    def record(result: TrialResult) -> None:
        session.store.append(known.complete(result))

    session.lanes.do(PendingTask(task, ("trials", f"{number:04d}"), f"trial-{number}", record))


def _take(run: StudyRun, candidate: Candidate, trial: TrialResult, name: str) -> None:
    estimate = trial.comparison.estimate if trial.comparison is not None else REFERENCE
    verdict = judge(estimate, min_effect=run.spec.measure.min_effect)
    said = f"in a trial on the further workload {name}: {format_trial(trial, verdict)}"
    run.view.note(f"{candidate.settings} {said}")
    candidate.elsewhere *= estimate.ratio
    if trial.failure is not None or verdict is Verdict.SLOWER:
        candidate.state, candidate.report = SetState.REFUTED, Report(objection=said)


def prove_further(run: StudyRun) -> None:
    """Proves the winner on all further workloads; if it does not hold, the next one."""
    while run.spec.also and (winner := run.winner) is not None and winner.proof is not None:
        objection, outcome = prove_on_all(run, winner, winner.proof)
        if outcome is Outcome.WINNER:
            return
        winner.report = winner.report._replace(objection=objection)
        run.view.note(f"{winner.settings} is no winner: {objection}")
        run.open_lanes()
        name_next(run, winner, SetState.OPEN if outcome is Outcome.INCONCLUSIVE else SetState.REFUTED)


def prove_on_all(run: StudyRun, winner: Candidate, first: FinalistResult) -> tuple[str, Outcome]:
    """Proves a set on one workload after the other, and returns the first objection with its outcome, if any."""
    proven, further = [first.corrected or REFERENCE], dict[str, Estimate]()
    count, min_effect = len(run.spec.also), run.spec.measure.min_effect
    for also in run.spec.also:
        bound = next_bound(proven, count=1 + count, min_effect=min_effect)
        with _session(run, also) as session:
            found = _prove_on(session, winner.settings, bound, share=1.0 / count)
            objection, outcome = _conclude(session, found, also.name)
        if outcome is not Outcome.WINNER or found.proof is None or found.proof.corrected is None:
            return objection, outcome
        proven.append(found.proof.corrected)
        further[also.name] = found.report.estimate or found.proof.corrected
    winner.further = further
    return "", Outcome.WINNER


@contextlib.contextmanager
def _session(run: StudyRun, also: AlsoSpec, *, kept_s: float = 0.0) -> Iterator[StudyRun]:
    """Opens a session on a further workload, with its reference measured, in the place of the study's lanes.

    This workload and those after it share the time left beside `kept_s`.
    """
    run.lanes.close()
    run.begin_stage("further workloads", also.name)
    session = run.beside(run.spec.on(also), run.store.path / FURTHER / also.name)
    with contextlib.closing(session):
        session.setup = run.setup
        session.open()
        used_s = session.lanes.ledger.device_s
        if run.time.budget_s is not None:
            left_s = max(0.0, run.time.budget_s - kept_s - run.store.watch.total_s)
            sharing = len(run.spec.also) - run.spec.also.index(also)
            session.time.budget_s = session.store.watch.total_s + left_s / sharing
        try:
            measure_reference(session)
        except LaunchError as error:
            raise type(error)(f"on the further workload {also.name}: {error}") from error
        yield session
    run.lanes.ledger.add(session.lanes.ledger.device_s - used_s)


def _prove_on(session: StudyRun, settings: FlagSet, bound: float, *, share: float) -> Candidate:
    """Proves one set in the session of a further workload: pairs of processes, isolated runs, soak."""
    _plan(session, settings, bound, share)
    session.begin_stage("confirm", f"ratio below {bound:.3f}, in up to {most_pairs(session, ALSO)} fresh pairs")
    proof = prove(session, [(0, settings)], stage=ALSO)[0]
    candidate = Candidate(0, settings, SetState.CONFIRMED if proof.is_passed else SetState.REFUTED, proof)
    session.candidates = [candidate]
    name_winner(session)
    soak(session)
    return candidate


def _plan(session: StudyRun, settings: FlagSet, bound: float, share: float) -> None:
    """Records the plans of both proofs of a set, unless an earlier session did; all workloads share one error."""
    plans = [p for p in session.store.of(ProofRecord) if p.stage == ALSO]
    if any(p.settings == settings for p in plans):
        return
    error = share * allot(ERROR, sum(p.error for p in plans), 1)
    pairs = ProofPlan(base=most_pairs(session, ALSO), error=error, least=LEAST_PAIRS)
    alone, least = alone_plan(most_pairs(session, ISOLATED)), 1.0 + session.spec.measure.min_effect
    for stage, plan, below in ((ISOLATED, alone, least), (ALSO, pairs, bound)):
        session.store.append(ProofRecord(stage=stage, settings=settings, bound=below, **asdict(plan)))


def _conclude(session: StudyRun, candidate: Candidate, name: str) -> tuple[str, Outcome]:
    """Records what a session found of a set, and returns what speaks against it, if anything does, and the outcome."""
    mine = [r for r in session.store.records() if getattr(r, "settings", None) == candidate.settings]
    if (why := _why(candidate, mine)) is None and session.winner is not None:
        return "", record_conclusion(session).outcome
    newest = {f.stage: f for f in mine if isinstance(f, FinalistResult)}.values()
    is_open = session.winner is not None or any(f.verdict is Verdict.UNRESOLVED and not f.is_vetoed for f in newest)
    objection = f"on the further workload {name}: {why}"
    outcome = Outcome.INCONCLUSIVE if is_open else Outcome.NOTHING_BEATS_THE_DEFAULT
    data = {"outcome": outcome, "trial_count": 0, "ended": utc_now(), "provenance": describe_machine()}
    data |= {"sentence": f"{candidate.settings} {'is not proven' if is_open else 'does not hold'} {objection}"}
    session.store.append_news(ConclusionRecord.model_validate(data))
    return objection, outcome


def _why(candidate: Candidate, evidence: Sequence[AnyRecord]) -> str | None:
    """Formats what speaks against a set: its proof, isolated runs, its soak, or a loss that nobody could judge."""
    proof, loss = candidate.proof, loss_of(evidence)
    if proof is None or candidate.report.objection is not None:
        return candidate.report.objection
    if not proof.is_passed:
        is_open = proof.verdict is Verdict.UNRESOLVED and not proof.is_vetoed
        return format_finalist(proof) + ("; a larger `confirm.processes` or budget continues it" if is_open else "")
    if failed := [r for r in evidence if isinstance(r, SoakRecord) and r.failure is not None]:
        return format_soak(failed[-1])
    return loss.words if loss is not None and not (loss.is_ok or loss.is_silent) else None
