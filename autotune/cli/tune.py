"""The commands that need no study file: `tune` and `init`. They look at a program once and write the file."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from autotune.cli import options
from autotune.cli.first_look import (
    ask_for,
    file_of,
    name_of,
    name_of_entry,
    place_of,
    planned,
    refuse_other_rules,
    refuse_unbuilt,
    rules_of,
    said,
    seconds_of,
    show_plan,
    write_study,
)  # fmt: skip
from autotune.cli.printing import print_lines
from autotune.cli.run import run_and_print

if TYPE_CHECKING:
    from autotune.rundir import Store
    from autotune.study import Asked

Command = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Program and arguments, after --.")]
Platform = Annotated[
    Literal["cpu", "cuda"] | None, typer.Option(help="Where it runs; default: cuda where a GPU is to be seen.")
]
Name = Annotated[str | None, typer.Option(help="Name of the study, its file and its run; default: after the program.")]
Preset = Annotated[str | None, typer.Option("--step-preset", help="Its lines are those of a known trainer or logger.")]
Pattern = Annotated[
    str | None,
    typer.Option("--step-pattern", help="Expression for a step's line; groups step, step_s, step_ms, steps_per_s."),
]
JsonKey = Annotated[
    str | None, typer.Option("--step-json", help="Key of the duration in JSON lines, such as perf.step.")
]
StepUnit = Annotated[str | None, typer.Option("--step-unit", help="What that key holds: step_s (default), step_ms ...")]
StepFile = Annotated[str | None, typer.Option("--step-file", help="File, beside the study, that steps are written to.")]
Loss = Annotated[str | None, typer.Option(help="Expression with a group loss; with --step-json its key.")]
LookLimit = Annotated[str, typer.Option(help="Longest time for the first look at the program.")]
DEFAULT_TRIALS = 30
Trials = Annotated[int, typer.Option(min=1, help="Most trials.")]


def tune(
    command: Command = None,
    time_budget: options.TimeBudget = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Most trials in all; default 30.")] = None,
    platform: Platform = None,
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look and write the study file, start nothing.")] = False,
    preset: Preset = None,
    pattern: Pattern = None,
    json_key: JsonKey = None,
    unit: StepUnit = None,
    step_file: StepFile = None,
    loss: Loss = None,
    look_limit: LookLimit = "10m",
) -> None:
    """Tunes a program as it is: no study file, no change to it.

    Runs it once to see how it prints its steps and how long they take, says what it is going to do, writes the study
    file and runs that. The same command again goes on.
    """
    from autotune.model import AutotuneError

    asked = ask_for(
        command, platform, rules_of(preset, pattern, json_key, unit, step_file, loss), look_limit, verb="tune"
    )
    if not (yes or dry_run or sys.stdin.isatty()):
        raise AutotuneError(
            "a study must be agreed to but there is no terminal to ask on: add --yes to start it, or --dry-run to look "
            "and write the study file only. Nothing was started"
        )
    seconds_of(time_budget, "--time-budget")  # a mistyped one must not wait for the look
    file, known = file_of(asked, name)
    if known is None:
        plan, understood = planned(asked, file.stem, trials=trials or DEFAULT_TRIALS, budget=time_budget)
        show_plan(understood, plan, file)
        if not dry_run and not yes and not typer.confirm("Start the study?", default=True):
            print_lines(["nothing was started or written; --dry-run writes the study file only"])
            raise typer.Exit(1)
        write_study(file, plan.text, asked)
    else:
        refuse_other_rules(asked, file, platform, known)
        print_lines([f"going on with the study {file}, as it stands there"])
    if dry_run:
        print_lines([f"nothing was started; run it: autotune run {shlex.quote(str(file))}"])
        return
    _run(file, trials=trials, time_budget=time_budget, asked=asked)


def init(
    command: Command = None,
    entry: Annotated[str | None, typer.Option(help="Instead: a preset such as llama, or package.module:fn.")] = None,
    example: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead: a copy of an example study; an unknown one lists all.")
    ] = None,
    hook: Annotated[bool, typer.Option("--hook", help="The program has autotune.hook.steps in its loop.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", dir_okay=False, help="File to write; default: NAME.toml here.")
    ] = None,
    time_budget: options.TimeBudget = None,
    trials: Trials = DEFAULT_TRIALS,
    platform: Platform = None,
    name: Name = None,
    preset: Preset = None,
    pattern: Pattern = None,
    json_key: JsonKey = None,
    unit: StepUnit = None,
    step_file: StepFile = None,
    loss: Loss = None,
    look_limit: LookLimit = "10m",
) -> None:
    """Writes a commented study file for a program, a preset or a function of yours; never over another file.

    A program without the hook is run once, to see how its steps are printed.
    """
    from autotune.model import StudyFileError
    from autotune.study import example_text, plan_entry, plan_hook

    if (entry is not None) + (example is not None) + bool(command) != 1:
        raise StudyFileError(
            "exactly one of --entry ENTRY, --example NAME and -- COMMAND must be given: autotune init --entry llama"
        )
    if example is not None and (time_budget, trials, platform) != (None, DEFAULT_TRIALS, None):
        raise StudyFileError("with --example only --name and --output may be given: edit the file that is written")
    own = name_of_entry(entry) if entry else example or name_of(command or [])
    file = output or Path(f"{name or own}.toml")
    if file.exists():
        raise StudyFileError(f"a new study file must not lie on another but {file} is there: give --output or --name")
    study, budget_s = name or file.stem, seconds_of(time_budget, "--time-budget")
    if example is not None:
        write_study(file, example_text(example, study), None)
    elif entry is None and not hook:
        rules = rules_of(preset, pattern, json_key, unit, step_file, loss)
        asked = ask_for(command, platform, rules, look_limit, verb="init", cwd=file.resolve().parent)
        plan, understood = planned(asked, study, trials=trials, budget=time_budget)
        show_plan(understood, plan, file)
        write_study(file, plan.text, asked)
    else:
        more: dict[str, Any] = {
            **place_of(platform),
            "name": study,
            "trials": trials,
            "budget_s": budget_s,
            "said": said(),
        }
        text = plan_entry(entry, **more) if entry else plan_hook(command or [], **more)
        if entry:
            refuse_unbuilt(text, file)
        write_study(file, text, None)
    print_lines([f"look at it, then: autotune run {shlex.quote(str(file))}"])


def _run(file: Path, *, trials: int | None, time_budget: str | None, asked: Asked) -> None:
    from autotune.model import Outcome
    from autotune.study import choose_engine, study_with

    given: dict[str, dict[str, Any]] = {"search": {"trials": trials, "time_budget": time_budget}}
    spec = study_with(file, given, effort="standard", seed=None)
    path = options.RUNS / spec.name
    conclusion, store = run_and_print(
        spec, file, path, storage=None, as_json=False, devices=(), make_engine=choose_engine(spec, ())
    )
    if conclusion.outcome is Outcome.WINNER:
        _write_winner(store, path, asked)
    else:
        more = f"--time-budget {_duration(2 * (spec.search.time_budget or store.watch.total_s))}"
        again = shlex.join(["autotune", "tune", *more.split(), "--name", spec.name, "--", *_shown(store, asked)])
        print_lines(
            [
                "",
                "no winner was proven, so no env file is written. More time goes on with the same study:",
                f"  {again}",
            ]
        )


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds / 60)}m"


def _shown(store: Store, asked: Asked) -> tuple[str, ...]:
    """The command without its secrets."""
    return store.spec.workload.shown.command or asked.command


def _write_winner(store: Store, path: Path, asked: Asked) -> None:
    from autotune.results import ExportFormat, render_export
    from autotune.rundir import write_atomically

    file = path / "winner.env"
    write_atomically(file, render_export(store, ExportFormat.ENV, folder=path))
    command = shlex.join(_shown(store, asked))
    print_lines(
        [
            "",
            f"the winner is in {file}; use it:",
            f"  (. ./{file} && {command})",
            f"  autotune exec {path} -- {command}   # after checking that this machine is still the same",
        ]
    )
