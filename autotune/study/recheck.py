"""Checks whether a winner still holds, by measuring it again or by comparing this machine."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autotune.model.errors import AutotuneError
from autotune.model.files import plain_text
from autotune.model.proofs import Report
from autotune.model.records import ConclusionRecord, FinalistResult, Outcome
from autotune.model.spec import StudySpec, load_study
from autotune.results.conditions import Difference, differences, this_machine
from autotune.results.export import is_unchanged
from autotune.results.format import format_estimate, format_finalist, time_of
from autotune.results.verify import Verification
from autotune.results.winner import Winner
from autotune.rundir.store import STUDY, Store
from autotune.stats.estimates import Estimate, Verdict
from autotune.study.driver import begin, prove, report_on
from autotune.study.plan import most_pairs
from autotune.study.preflight import refuse_missing_secrets
from autotune.study.run import StudyRun

STAGE = "recheck"


def recheck_winner(run: StudyRun, winner: Winner) -> ConclusionRecord:
    """Measures a winner against the default in fresh pairs of processes, or goes on with that."""
    with contextlib.closing(run):
        begin(run)
        count = most_pairs(run.spec, STAGE)
        run.begin_stage(STAGE, f"{winner.settings} in up to {count} fresh pairs of processes")
        result = prove(run, winner.settings, stage=STAGE)
        report = Report(result.estimate, objection=result.objection)
        if result.is_passed:
            report = report_on(run, result)
        sentence = _sentence(winner, result, report, run.spec.measure.min_effect)
        if result.is_passed and report.objection is None:
            run.conclude(
                outcome=Outcome.WINNER,
                sentence=sentence,
                settings=winner.settings,
                estimate=report.estimate,
            )
        else:
            run.conclude(outcome=Outcome.NOTHING_BEATS_THE_DEFAULT, sentence=sentence)
    return run.conclusion


def _sentence(winner: Winner, result: FinalistResult, report: Report, min_effect: float) -> str:
    before = f"it was {_figure(winner.estimate)}"
    if result.failure:
        return f"{winner.settings} does not run any more: {format_finalist(result)}; {before}"
    figures = (
        f"{time_of(result.work)} ratio {_figure(report.estimate)} over {result.process_count} "
        f"fresh pairs of processes, {before}"
    )
    if report.objection:
        return f"{winner.settings} does not hold any more: {figures}; {report.objection.reason}"
    verdict = "is not proven any more: the difference is not resolved"
    if result.is_passed:
        verdict = "still holds"
    elif result.verdict is Verdict.SLOWER:
        verdict = "does not hold any more: it is slower than the reference"
    elif result.corrected and result.corrected.low > 1.0 - min_effect:
        verdict = "does not hold any more: it is no faster than the reference"
    return f"{winner.settings} {verdict}: {figures}"


def _figure(estimate: Estimate | None) -> str:
    return format_estimate(estimate) if estimate else "not measured"


def recheck_directory(runs: Path, name: str) -> Path:
    """Returns the run directory of today's recheck of a study: the first that is not finished."""
    today = runs / f"{name}-recheck-{datetime.now(UTC):%Y%m%d}"
    path = today
    number = 1
    while (path / STUDY).exists() and Store.open(path).last(ConclusionRecord):
        number += 1
        path = today.with_name(f"{today.name}+{number}")
    return path


def recheck_study(file: Path, study: Path | None) -> tuple[StudySpec, Path]:
    """Returns study and folder to recheck a winner with; AutotuneError if none is named."""
    if study is not None:
        return load_study(study), study.resolve().parent
    if file.is_dir():
        store = Store.open(file)
        refuse_missing_secrets(store.spec, source=str(file))
        return store.spec, Path(store.study_dir)
    raise AutotuneError(
        f"a study must say how to measure but {file} is only an export; name one with --study"
    )


def verify_winner(
    winner: Winner, file: Path, records: Verification, *, study: Path | None = None
) -> Verification:
    """Adds this machine, and a study's workload, compared with the proof, to what a file says."""
    workload = load_study(study).workload_hash if study else None
    differing = differences(winner.conditions, this_machine(winner.conditions, workload=workload))
    notes = list(records.notes)
    loss = winner.loss
    if loss and loss.is_silent:
        notes.append(loss.words)
    elif loss and not loss.is_ok:
        differing.append(Difference(field="loss", proven="nothing", here=loss.words))
    if file.is_file() and not is_unchanged(plain_text(file), winner):
        differing.append(
            Difference(field="file", proven="its text as exported", here="changed or moved since")
        )
    differing += records.differences
    if workload is None:
        notes.append(
            f"the workload is not checked (proven: {winner.workload_entry}); name it with --study"
        )
    if winner.soaked_s is None:
        notes.append("it was never soaked: watch the first long run for hangs")
    return replace(records, differences=tuple(differing), notes=tuple(notes))
