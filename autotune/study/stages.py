"""The stages of a study, in order; each is a function of the session, and resumes where an earlier session stopped.

A stage without work (no candidate to confirm, one setting to minimise) does nothing.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

from autotune.model.clock import Stopwatch
from autotune.model.records import AaRecord, Callbacks, ConclusionRecord
from autotune.model.spec import StudySpec
from autotune.rundir.optuna_study import JOURNAL
from autotune.rundir.store import Store
from autotune.settings.space import format_cannot_act
from autotune.study.conclude import record_conclusion
from autotune.study.confirm import confirm, minimise, soak
from autotune.study.prefilter import measure_reference, narrow_space
from autotune.study.preflight import keeping_rules, prepare
from autotune.study.proposer import Proposer, known_memory, open_study
from autotune.study.run import Setup, StudyRun
from autotune.study.screen import priors_of, screened_by
from autotune.study.search import Search


def run_study(run: StudyRun) -> ConclusionRecord:
    """Runs a study to its conclusion, or goes on with it; AutotuneError if it cannot start or go on; records stay."""
    with contextlib.closing(run):
        for stage in STAGES.values():
            stage(run)
    return run.conclusion


def probe(run: StudyRun) -> None:
    """Probes the installed build, checks the study against it, then takes the devices and the run directory."""
    run.setup = run.prepare(run.view.note)
    run.first = tuple(run.setup.first)
    run.open()


def aa_run(run: StudyRun) -> None:
    """Measures the reference against itself; its report has the workload's facts."""
    run.facts = measure_reference(run)


def screen(run: StudyRun) -> None:
    """Builds the space from the workload's facts, and removes by compiling what needs no trial."""
    space = run.setup.space(run.facts)
    for name, remark in space.notes.items():
        run.view.note(f"{name}: {remark}")
    if cannot_act := format_cannot_act(space):
        run.view.note(f"left out: {cannot_act}")
    space = narrow_space(run, space)
    together = [("settings that need each other", settings) for settings in space.first]
    first = (*run.first, *keeping_rules(run.spec, together, run.setup.rule_defaults, run.view.note))
    screened = screened_by(run.store)
    stored = open_study(run.spec, run.storage or run.store.path / JOURNAL)
    run.proposer = Proposer(
        run.spec, space, first=first, stored=stored, recheck=run.recheck,
        rule_defaults=run.setup.rule_defaults, priors=priors_of(space, screened),
        memory=known_memory(run.spec, space, next(iter(run.store.of(AaRecord)), None), screened),
    )  # fmt: skip


def search(run: StudyRun) -> None:
    """Tries sets of the space until the requested trials, the budget or the space is used up."""
    found = Search(run)
    run.search_more = found.go_on
    found.work()


def conclude(run: StudyRun) -> None:
    """Records the study's conclusion."""
    run.conclusion = record_conclusion(run)


STAGES = {
    "probe": probe,
    "A/A run": aa_run,
    "screen": screen,
    "search": search,
    "minimise": minimise,
    "confirm": confirm,
    "soak": soak,
    "conclude": conclude,
}
"""In order, by their names in docs/study.md."""


def new_run(
    spec: StudySpec,
    path: Path,
    *,
    study_dir: Path,
    view: Callbacks,
    watch: Stopwatch,
    storage: str | None = None,
    setup: Setup | None = None,
    **session: Any,
) -> StudyRun:
    """Creates the session of a study, for `run_study`, without starting or writing anything; see `StudyRun`.

    Args:
        path: The run directory, created or resumed.
        watch: Counts the study's time; the view may show it.
        setup: Default: of the build that a probe finds.
    """
    create = functools.partial(Store.create_or_resume, path.resolve(), spec, study_dir=study_dir)
    return StudyRun(
        spec=spec,
        view=view,
        open_store=lambda: create(watch=watch),
        prepare=lambda note: setup or prepare(spec, study_dir=study_dir, storage=storage, note=note),
        storage=storage,
        **session,
    )
