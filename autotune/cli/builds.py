"""Command `compare-builds`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import options, tune
from autotune.cli.printing import note, plain, print_json, print_lines, print_table
from autotune.cli.run import run_to_conclusion

if TYPE_CHECKING:
    from autotune.model.spec import StudySpec
    from autotune.programs.look import ProbeRequest
    from autotune.study.builds import Builds
    from autotune.study.run import StudyRun


def compare_builds(
    old: Annotated[str, typer.Argument(metavar="OLD_PYTHON", help="Interpreter with the old jax and jaxlib.")],
    new: Annotated[str, typer.Argument(metavar="NEW_PYTHON", help="Interpreter with the new ones.")],
    words: Annotated[list[str], typer.Argument(metavar="-- ARGUMENTS...", help="Of the interpreter, after --.")],
    platform: tune.Platform = None,
    between: Annotated[
        list[str] | None, typer.Option(metavar="PYTHON", help="One between them, oldest first; may be repeated.")
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=4, help="Most fresh pairs of processes; default 20.")] = None,
    name: tune.Name = None,
    preset: tune.Preset = None,
    pattern: tune.Pattern = None,
    json_key: tune.JsonKey = None,
    unit: tune.StepUnit = None,
    step_file: tune.StepFile = None,
    loss: tune.Loss = None,
    look_limit: tune.LookLimit = "10m",
    restore: Annotated[
        bool, typer.Option("--restore", help="If it is slower, measure which flags of the new one win that back.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Says whether a program is slower under a new jaxlib; exits with 1 if it is, with 2 if it could not be compared.

    Both interpreters run it in fresh processes, one after the other, until the difference is proven or ruled out. The
    XLA flags and variables of this call are given to each in the names that it knows. The same command again goes on.
    With --between, bisection finds the build since which it is slower; with --restore, a study finds flags of the new
    build whose old defaults win the time back.
    """
    from autotune.model.records import Outcome
    from autotune.programs.look import default_platform
    from autotune.rundir.store import STUDY, Store
    from autotune.study.builds import Builds, find_build, first_slower, measure_builds, study_of
    from autotune.study.recheck import NothingToSearch

    rules = tune.rules_of(preset, pattern, json_key, unit, step_file, loss)
    asked = tune.ask_for([new, *words], platform or default_platform(), rules, look_limit)
    found = [find_build(python, asked.platform, note=note) for python in (old, *(between or ()), new)]
    name, newest = name or f"{tune.name_of(['python', *words])}-builds", len(found) - 1
    runs: dict[int, StudyRun] = {}
    told: dict[int, dict[str, Any]] = {}

    def compare(number: int) -> Outcome:
        builds = Builds(found[0], found[number])
        path = options.RUNS / (name if number == newest else f"{name}-{number}")
        base = Store.open(path).spec if (path / STUDY).exists() else _look(asked, words, builds)
        runs[number] = run_to_conclusion(
            study_of(builds, words, base, name=path.name, pairs=pairs), path, study_dir=Path.cwd(), as_json=as_json,
            setup=NothingToSearch(), do=lambda run: measure_builds(run, builds),
        )  # fmt: skip
        told[number] = plain(runs[number].conclusion, python=found[number].python, run=str(path))
        if not as_json:
            print_lines(["", runs[number].conclusion.sentence, f"everything lies in {path}"])
        return runs[number].conclusion.outcome

    if not as_json:
        facts = [(b.python, b.report.python, b.report.jax or "", b.report.build, str(b.settings)) for b in found]
        print_table(("interpreter", "python", "jax", "build", "your settings"), facts)
    outcome, more = compare(newest), dict[str, Any]()
    if outcome is Outcome.WINNER and between:
        last, first = first_slower(len(found), compare)
        since = f"slower since {found[first].python}, not yet with {found[last].python}"
        more["since"] = since if first - last == 1 else f"{since}; what is between them is not settled"
        print_lines([more["since"]], stderr=as_json)
        more["between"] = [told[n] for n in sorted(told) if n != newest]
    if outcome is Outcome.WINNER and restore:
        more["restored"] = _restore(runs[newest], Builds(found[0], found[newest]), as_json=as_json)
    if as_json:
        print_json({**told[newest], **more})
    if status := {Outcome.WINNER: 1, Outcome.NOTHING_RAN: 2}.get(outcome, 0):
        raise typer.Exit(status)


def _look(asked: ProbeRequest, words: list[str], builds: Builds) -> StudySpec:
    """Runs the program once under each build, before anything is measured; returns a study of it under the new one."""
    plan, found = tune.planned(replace(asked, command=(builds.new.python, *words)), "builds", trials=1, budget_s=None)
    builds.new.refuse_other(found.probe.jaxlib)
    before = replace(asked, command=(builds.old.python, *words), rules=found.rules)
    builds.old.refuse_other(tune.planned(before, "builds", trials=1, budget_s=None)[1].probe.jaxlib)
    return plan.spec


def _restore(run: StudyRun, builds: Builds, *, as_json: bool) -> dict[str, Any] | None:
    """Measures what wins the time back, and writes it to a file; returns the conclusion, None without such flags."""
    from autotune.model.records import Outcome
    from autotune.study.builds import format_restored, restoring

    if (setup := restoring(run, builds)) is None:
        print_lines(["no flag that can act here has another default in the old build"], stderr=as_json)
        return None
    path = options.RUNS / setup.spec.name
    done = run_to_conclusion(setup.spec, path, study_dir=Path.cwd(), as_json=as_json, setup=setup)
    sentence = format_restored(done, run.conclusion.estimate, builds.names[0])
    if not as_json:
        print_lines(["", sentence, f"everything lies in {path}"])
        if done.conclusion.outcome is Outcome.WINNER:
            tune.write_winner(done.store, path, shlex.join(done.spec.workload.shown.command or ()))
    return plain(done.conclusion, run=str(path), sentence=sentence)
