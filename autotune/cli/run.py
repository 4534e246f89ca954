"""Command `run`."""

from __future__ import annotations

import functools
import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from autotune.cli import options
from autotune.cli.options import MaybeText
from autotune.cli.printing import make_console, note, plain, print_json, print_lines, print_study
from autotune.model.errors import STOPPED

if TYPE_CHECKING:
    from autotune.model.records import ConclusionRecord
    from autotune.model.spec import StudySpec
    from autotune.study.run import StudyRun


def run(
    study: options.Study,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    devices: options.Devices = None,
    scheduler: Annotated[
        MaybeText,
        Option(
            metavar="ADDRESS|FILE|MODULE:CLASS",
            help="Lanes are a Dask cluster's workers: tcp://HOST:8786, or the .json file of "
            "`dask scheduler`; or those of an engine of your own.",
        ),
    ] = None,
    run_dir: options.RunDir = None,
    storage: options.Storage = None,
    tracker: options.Tracker = None,
    profile: options.Profile = False,
    as_json: options.Json = False,
) -> None:
    """Runs a study, or continues it where it was stopped."""
    from autotune.model.spec import load_study
    from autotune.model.texts import text_lines
    from autotune.study.driver import run_study
    from autotune.study.engines import choose_engine, parse_groups
    from autotune.study.start import study_with

    spec = study_with(load_study(study), trials=trials, time_budget=time_budget)
    path = run_dir or options.RUNS / spec.name
    groups = parse_groups(devices)
    study_run = run_to_conclusion(
        spec,
        path,
        study_dir=study.resolve().parent,
        storage=storage,
        as_json=as_json,
        devices=groups,
        make_engine=choose_engine(spec, groups, scheduler=scheduler),
        trackers=tracker or (),
        do=functools.partial(run_study, profiled=profile),
    )
    if as_json:
        print_conclusion(study_run, path)
        return
    print()
    print_study(study_run.store)
    search = study_run.spec.search
    conclusion = study_run.conclusion
    size = f"--trials {2 * max(1, conclusion.trial_count)}"
    if search.time_budget is not None and conclusion.trial_count < search.trials:
        size = f"--time-budget {larger_budget(study_run.spec, conclusion)}"
    lines = text_lines(
        "next_steps.txt.j2",
        # Where no environment is activated the command has its path.
        me="autotune" if shutil.which("autotune") else sys.argv[0],
        conclusion=conclusion,
        took_s=study_run.store.watch.total_s,
        run=path,
        study=study,
        more=size,
        program=study_run.spec.workload.command_line(search.options),
    )
    print_lines(lines)


def run_to_conclusion(spec: StudySpec, path: Path, *, as_json: bool, **session: Any) -> StudyRun:
    """Runs a session (see `run_shown`), or says how to resume; JSON moves progress to stderr."""
    from autotune.model.stop import Stopped
    from autotune.study.start import run_shown

    try:
        return run_shown(spec, path, make_console(stderr=as_json), command=sys.argv, **session)
    except KeyboardInterrupt as error:
        print(file=sys.stderr)
        note(f"stopped; everything so far is in {path}; run the same command again to go on")
        raise typer.Exit(STOPPED if isinstance(error, Stopped) else 130) from None


def print_conclusion(study_run: StudyRun, path: Path, **more: object) -> None:
    """Prints the conclusion of a run as JSON, with its newest traces if there are any."""
    from autotune.model.records import ProfileRecord

    fields = plain(study_run.conclusion, **more, run=str(path))
    profile = study_run.store.last(ProfileRecord)
    if profile:
        fields["profile"] = profile
    print_json(fields)


def larger_budget(spec: StudySpec, conclusion: ConclusionRecord, used_s: float = 0.0) -> str:
    """Returns a time budget with which a study without a winner goes on, such as ``60m``."""
    budget_s = max(conclusion.needed_s or 0.0, 2 * (spec.search.time_budget or used_s))
    return f"{math.ceil(budget_s / 60)}m"
