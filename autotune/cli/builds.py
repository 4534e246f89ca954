"""Command `compare-builds`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options, tune
from autotune.cli.printing import note, plain, print_json, print_lines, print_table
from autotune.cli.run import run_to_conclusion

if TYPE_CHECKING:
    from autotune.model.spec import StudySpec
    from autotune.programs.look import ProbeRequest
    from autotune.study.builds import Builds


def compare_builds(
    old: Annotated[str, typer.Argument(metavar="OLD_PYTHON", help="Interpreter with the old jax and jaxlib.")],
    new: Annotated[str, typer.Argument(metavar="NEW_PYTHON", help="Interpreter with the new ones.")],
    words: Annotated[list[str], typer.Argument(metavar="-- ARGUMENTS...", help="Of the interpreter, after --.")],
    platform: tune.Platform = None,
    pairs: Annotated[int | None, typer.Option(min=4, help="Most fresh pairs of processes; default 20.")] = None,
    name: tune.Name = None,
    preset: tune.Preset = None,
    pattern: tune.Pattern = None,
    json_key: tune.JsonKey = None,
    unit: tune.StepUnit = None,
    step_file: tune.StepFile = None,
    loss: tune.Loss = None,
    look_limit: tune.LookLimit = "10m",
    as_json: options.Json = False,
) -> None:
    """Says whether a program is slower under a new jaxlib. Exits with 1 if it is, with 2 if it could not be compared.

    Both interpreters run it in fresh processes, one after the other, until the difference is proven or ruled out. The
    XLA flags and variables of this call are given to each in the names that it knows. The same command again goes on.
    """
    from autotune.model.records import Outcome
    from autotune.programs.look import default_platform
    from autotune.rundir.store import STUDY, Store
    from autotune.study.ab import measure_variants
    from autotune.study.builds import Builds, find_build, study_of_builds
    from autotune.study.recheck import NothingToSearch

    rules = tune.rules_of(preset, pattern, json_key, unit, step_file, loss)
    asked = tune.ask_for([new, *words], platform or default_platform(), rules, look_limit)
    builds = Builds(*(find_build(python, asked.platform, note=note) for python in (old, new)))
    if not as_json:
        facts = [(b.python, b.report.python, b.report.jax or "", b.report.build, str(b.settings)) for b in builds]
        print_table(("interpreter", "python", "jax", "build", "your settings"), facts)
    path = options.RUNS / (name or f"{tune.name_of(['python', *words])}-builds")
    base = Store.open(path).spec if (path / STUDY).exists() else _look(asked, words, builds)
    conclusion = run_to_conclusion(
        study_of_builds(builds, words, base, name=path.name, pairs=pairs), path, study_dir=Path.cwd(), as_json=as_json,
        setup=NothingToSearch(), do=lambda run: measure_variants(run, builds.variants),
    ).conclusion  # fmt: skip
    if as_json:
        print_json(plain(conclusion, python=builds.new.python, run=str(path)))
    else:
        print_lines(["", conclusion.sentence, f"everything lies in {path}"])
    if status := {Outcome.WINNER: 1, Outcome.NOTHING_RAN: 2}.get(conclusion.outcome, 0):
        raise typer.Exit(status)


def _look(asked: ProbeRequest, words: list[str], builds: Builds) -> StudySpec:
    """Runs the program once under each build, before anything is measured; returns a study of it under the new one."""
    plan, found = tune.planned(replace(asked, command=(builds.new.python, *words)), "builds", trials=1, budget_s=None)
    builds.new.refuse_other(found.probe.jaxlib)
    before = replace(asked, command=(builds.old.python, *words), rules=found.rules)
    builds.old.refuse_other(tune.planned(before, "builds", trials=1, budget_s=None)[1].probe.jaxlib)
    return plan.spec
