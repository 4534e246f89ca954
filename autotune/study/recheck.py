"""Checks whether a winner still holds: measures it again (`recheck`), or compares its proof with
this machine.
"""

from __future__ import annotations

import contextlib
import itertools
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
from autotune.rundir.store import Store
from autotune.stats.estimates import Verdict
from autotune.study.driver import Driver, begin
from autotune.study.plan import most_pairs
from autotune.study.preflight import refuse_missing_secrets
from autotune.study.run import StudyRun

STAGE = "recheck"


def recheck_winner(run: StudyRun, winner: Winner) -> ConclusionRecord:
    """Measures a winner against the default in fresh pairs of processes, or goes on with that.

    Args:
        run: Its setup searches nothing; its study says what is measured, and how.

    Raises:
        LaunchError: If the default itself cannot run.
    """
    with contextlib.closing(run):
        begin(run)
        run.begin_stage(
            STAGE,
            f"{winner.settings} in up to {most_pairs(run.spec, STAGE)} fresh pairs of processes",
        )
        driver = Driver(run)
        result = driver.prove(winner.settings, trial=0, stage=STAGE)
        report = (
            driver.report(result)
            if result.is_passed
            else Report(result.estimate, objection=result.objection)
        )
        holds = result.is_passed and report.objection is None
        run.conclude(
            outcome=Outcome.WINNER if holds else Outcome.NOTHING_BEATS_THE_DEFAULT,
            sentence=_sentence(winner, result, report, min_effect=run.spec.measure.min_effect),
            settings=winner.settings if holds else None,
            estimate=report.estimate if holds else None,
            trial_count=0,
        )
    return run.conclusion


def _sentence(winner: Winner, result: FinalistResult, report: Report, *, min_effect: float) -> str:
    before, now = (
        "not measured" if e is None else format_estimate(e)
        for e in (winner.estimate, report.estimate)
    )
    if result.failure is not None:
        return (
            f"{winner.settings} does not run any more: {format_finalist(result)}; it was {before}"
        )
    figures = (
        f"{time_of(result.work)} ratio {now} over {result.process_count} fresh pairs of "
        f"processes, it was {before}"
    )
    if report.objection is not None:
        return f"{winner.settings} does not hold any more: {figures}; {report.objection.reason}"
    verdict = "is not proven any more: the difference is not resolved"
    if result.is_passed:
        verdict = "still holds"
    elif result.verdict is Verdict.SLOWER:
        verdict = "does not hold any more: it is slower than the reference"
    elif result.corrected is not None and result.corrected.low > 1.0 - min_effect:
        verdict = "does not hold any more: it is no faster than the reference"
    return f"{winner.settings} {verdict}: {figures}"


def recheck_directory(runs: Path, name: str) -> Path:
    """Returns the run directory of today's recheck of a study: the first one without a finished
    run.
    """
    first = runs / f"{name}-recheck-{datetime.now(UTC).strftime('%Y%m%d')}"
    path = first
    for number in itertools.count(2):
        if not (path / "study.json").exists() or Store.open(path).last(ConclusionRecord) is None:
            break
        path = first.with_name(f"{first.name}+{number}")
    return path


def recheck_study(file: Path, study: Path | None) -> tuple[StudySpec, Path]:
    """Returns study and folder to recheck a winner in `file` with; AutotuneError if none is
    named.
    """
    if study is not None:
        return load_study(study), study.resolve().parent
    if file.is_dir():
        old = Store.open(file)
        refuse_missing_secrets(old.spec, source=str(file))
        return old.spec, Path(old.study_dir)
    raise AutotuneError(
        f"a study must say how to measure but {file} is only an export; name one with --study"
    )


# ---------------------------------------------------------------------- verify


def verify_winner(
    winner: Winner, file: Path, records: Verification, *, study: Path | None = None
) -> Verification:
    """Adds to what `check_records` says of a file: this machine, compared with the one of the proof
    without measuring.

    Args:
        study: Study file of the workload that is meant to run; None does not check the workload.

    Raises:
        StudyFileError: If the study file is not legal.
    """
    workload = load_study(study).workload_hash if study else None
    here = this_machine(winner.conditions, workload=workload)
    found, notes = differences(winner.conditions, here), list(records.notes)
    if winner.loss is not None and winner.loss.is_silent:
        notes.append(winner.loss.words)
    elif winner.loss is not None and not winner.loss.is_ok:
        found.append(Difference(field="loss", proven="nothing", here=winner.loss.words))
    if file.is_file() and not is_unchanged(plain_text(file), winner):
        found.append(
            Difference(field="file", proven="its text as exported", here="changed or moved since")
        )
    found += records.differences
    if workload is None:
        notes.append(
            f"the workload is not checked (proven: {winner.workload_entry}); name it with --study"
        )
    if winner.soaked_s is None:
        notes.append("it was never soaked: watch the first long run for hangs")
    return Verification(differences=tuple(found), unchecked=records.unchecked, notes=tuple(notes))
