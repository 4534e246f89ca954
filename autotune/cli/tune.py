"""Command `tune`, which writes a study file for a program and runs it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from autotune.cli import options
from autotune.cli.printing import print_lines
from autotune.cli.run import larger_budget, run_and_print

if TYPE_CHECKING:
    from autotune.model.spec import StudySpec
    from autotune.programs.draft import Plan
    from autotune.programs.look import ProbeResult
    from autotune.programs.probe import ProbeRequest
    from autotune.rundir.store import Store

SEVERAL = 1.5
"""Steps per line from which the plan says that not every step has a line."""

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND...", help="Program and arguments, after --."),
]
Platform = Annotated[
    Literal["cpu", "cuda"] | None,
    typer.Option(help="Where it runs; default: cuda if a GPU is visible."),
]
Name = Annotated[
    str | None,
    typer.Option(help="Name of the study, its file and its run; default: after the program."),
]
Preset = Annotated[
    str | None, typer.Option("--step-preset", help="Step lines of a known trainer or logger.")
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--step-pattern",
        help="Expression for a step's line; groups step, step_s, step_ms, steps_per_s.",
    ),
]
JsonKey = Annotated[
    str | None,
    typer.Option("--step-json", help="Key of the duration in JSON lines, such as perf.step."),
]
StepUnit = Annotated[
    str | None,
    typer.Option("--step-unit", help="What that key holds: step_s (default), step_ms ..."),
]
StepFile = Annotated[
    str | None, typer.Option("--step-file", help="File with the steps, beside the study.")
]
Loss = Annotated[
    str | None, typer.Option(help="Expression with a group loss; with --step-json its key.")
]
LookLimit = Annotated[str, typer.Option(help="Longest time for the first look at the program.")]
DEFAULT_TRIALS = 30
NO_PROJECTS = ("src", "scripts", "bin", "examples")
"""Folders after which no study is named."""


def tune(
    command: Command = None,
    time_budget: options.TimeBudget = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Most trials in all; default 30.")
    ] = None,
    platform: Platform = None,
    name: Name = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the run.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look, and write the study file.")
    ] = False,
    preset: Preset = None,
    pattern: Pattern = None,
    json_key: JsonKey = None,
    unit: StepUnit = None,
    step_file: StepFile = None,
    loss: Loss = None,
    look_limit: LookLimit = "10m",
    tracker: options.Tracker = None,
) -> None:
    """Tunes a program as it is: no study file, no change to it.

    Runs it once to see how it prints its steps and how long they take, says what it is going to do,
    writes the study file and runs that. The same command again goes on.
    """
    from autotune.model.errors import AutotuneError
    from autotune.programs.look import refuse_without_xla
    from autotune.results.trackers import refuse_trackers

    refuse_trackers(tracker or ())
    rules = rules_of(
        preset=preset, pattern=pattern, json_key=json_key, unit=unit, file=step_file, loss=loss
    )
    request = ask_for(command, platform, rules, look_limit)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise AutotuneError(
            "a study must be agreed to but there is no terminal to ask on: add --yes to start "
            "it, or --dry-run to look "
            "and write the study file only. Nothing was started"
        )
    budget_s = None if time_budget is None else options.seconds_of(time_budget, "--time-budget")
    file, study = file_of(request, name)
    if study is None:
        plan, result = planned(
            request, file.stem, trials=trials or DEFAULT_TRIALS, budget_s=budget_s
        )
        refuse_without_xla(result)
        show_plan(result, plan, file)
        if not dry_run and not yes and not typer.confirm("Start the study?", default=True):
            print_lines(["nothing was started or written; --dry-run writes the study file only"])
            raise typer.Exit(1)
        write_study(file, plan.text, request.command)
    else:
        refuse_other_rules(request, file, platform, study)
        print_lines([f"going on with the study {file}, as it stands there"])
    if dry_run:
        print_lines([f"nothing was started; run it: autotune run {shlex.quote(str(file))}"])
        return
    _run(file, trials=trials, time_budget=time_budget, trackers=tracker or ())


# ---------------------------------------------------------------------- options


def ask_for(
    command: Sequence[str] | None, platform: str | None, rules: Mapping[str, Any], limit: str
) -> ProbeRequest:
    """Makes the request to probe a program from options."""
    from autotune.model.errors import StudyFileError
    from autotune.programs.look import default_platform
    from autotune.programs.probe import ProbeRequest

    if not command:
        raise StudyFileError(
            "a command must follow, after --, but there is none: autotune tune -- python train.py"
        )
    return ProbeRequest(
        command=tuple(command),
        cwd=Path.cwd(),
        platform=platform or default_platform(),
        rules=rules,
        limit_s=options.seconds_of(limit, "--look-limit"),
    )


def rules_of(**keys: str | None) -> dict[str, Any]:
    """Returns the keys of `[workload.read]` that options give; of a file alone the lines are
    recognised.
    """
    from autotune.model.sections import ReadSpec

    rules = {name: value for name, value in keys.items() if value is not None}
    if rules.keys() - {"file"}:
        ReadSpec.refuse_bad(rules)
    return rules


def name_of(command: Sequence[str]) -> str:
    """Derives a name from the script or module of a command."""
    words = [Path(word).name for word in command]
    scripts = [word for word in words if re.fullmatch(r"[\w.-]+\.(py|sh)", word)]
    modules = [after for before, after in itertools.pairwise(words) if before == "-m"]
    names = [*modules, *scripts, words[0]]
    return _legal(re.sub(r"\.(py|sh)$", "", names[0])) or "program"


def study_name_of(command: Sequence[str], folder: Path) -> str:
    """Derives the name of a study from its program, run in `folder`, and the folder in which that
    is: ``gpt-train``.
    """
    program = name_of(command)
    script = next((word for word in command if Path(word).stem == program), program)
    places = (place.name for place in (folder / script).resolve().parents)
    return _legal(f"{next((place for place in places if place not in NO_PROJECTS), '')}-{program}")


def _legal(name: str) -> str:
    """Returns a name without what the name of a study may not have."""
    return re.sub(r"[^A-Za-z0-9._-]+|\.{2,}", "-", name).strip("-._")[:48]


def file_of(request: ProbeRequest, name: str | None) -> tuple[Path, StudySpec | None]:
    """Returns the study file for a command, and its study if it exists."""
    from autotune.model.errors import StudyFileError
    from autotune.model.sections import STUDY_NAME
    from autotune.model.spec import load_study

    if name is not None and (not re.fullmatch(STUDY_NAME, name) or ".." in name):
        raise StudyFileError(
            f"--name must be letters, digits, dots and dashes, such as my-model, but got {name!r}"
        )
    base = name or study_name_of(request.command, request.cwd)
    file = Path(f"{base}.toml")
    number = 1
    while file.exists():
        with contextlib.suppress(StudyFileError):
            study = load_study(file)
            if study.workload.command == request.command:
                return file, study
        if name is not None:
            raise StudyFileError(
                f"{file} must be a study of this very command but is of something else; give "
                "another --name, or run "
                f"that: autotune run {file}"
            )
        number += 1
        file = Path(f"{base}-{number}.toml")
    return file, None


def refuse_other_rules(
    request: ProbeRequest, file: Path, platform: str | None, study: StudySpec
) -> None:
    """Refuses to continue a study whose rules or platform differ from this call's."""
    from autotune.model.errors import StudyFileError

    read = study.workload.read.rules() if study.workload.read is not None else {}
    other = platform is not None and platform != study.device.platform
    if other or any(read.get(key) != value for key, value in request.rules.items()):
        raise StudyFileError(
            f"a study continues as its file says but {file} says something else of "
            f"{'the platform' if other else 'how steps are read'}; edit it, or give another --name"
        )


# ---------------------------------------------------------------------- probe, show, write


def planned(
    request: ProbeRequest, name: str, *, trials: int, budget_s: float | None
) -> tuple[Plan, ProbeResult]:
    """Probes a program once, with progress on the console, and plans its study."""
    from autotune.model.redaction import redact_command
    from autotune.programs.draft import plan_of
    from autotune.programs.look import probe_program

    command = shlex.join(redact_command(request.command))
    print_lines([f"running it once, to see how it prints its steps: {command}"], stderr=True)
    try:
        result = probe_program(request, note=lambda text: print_lines([f"  {text}"], stderr=True))
    except KeyboardInterrupt:
        print("\nautotune: stopped; the program was ended, and nothing is written", file=sys.stderr)
        raise typer.Exit(130) from None
    command_line = shlex.join(["autotune", *redact_command(sys.argv[1:])])
    return plan_of(
        result, name=name, trials=trials, budget_s=budget_s, command_line=command_line
    ), result


def show_plan(result: ProbeResult, plan: Plan, file: Path) -> None:
    """Prints the findings of the probe, the search space with its reason, and the time."""
    from autotune.model.spec import FEWEST_TRIALS
    from autotune.model.texts import text_lines
    from autotune.settings.space import format_names
    from autotune.study.preflight import preview_space

    run_dir = options.RUNS / plan.spec.name
    space, build = preview_space(plan.spec, study_dir=file.resolve().parent)
    names = [parameter.name.removeprefix("xla_") for parameter in space.parameters]
    lines = text_lines(
        "tune.txt.j2",
        result=result,
        plan=plan,
        command=shlex.join(plan.spec.workload.shown.command or ()),
        count=len(names),
        names=format_names(names, 6),
        build=build,
        several=SEVERAL,
        fewest_trials=FEWEST_TRIALS,
        file=file,
        run_dir=run_dir,
    )
    print_lines(lines)


def write_study(file: Path, text: str, command: Sequence[str]) -> None:
    """Writes a new study file, readable only by the user if it holds a secret."""
    from autotune.model.errors import StudyFileError
    from autotune.model.redaction import redact_command

    has_secret = redact_command(command) != tuple(command)
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if has_secret else 0o666)
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise StudyFileError(
            f"the study file must be writable but {file}: {error.strerror}; call this elsewhere"
        ) from error
    print_lines(
        [
            f"written to {file}"
            + (" (it holds a secret: only you can read it)" if has_secret else "")
        ]
    )


# ---------------------------------------------------------------------- run


def _run(
    file: Path, *, trials: int | None, time_budget: str | None, trackers: Sequence[str]
) -> None:
    from autotune.model.records import Outcome
    from autotune.model.spec import load_study
    from autotune.study.engines import choose_engine
    from autotune.study.start import study_with

    spec = study_with(load_study(file), trials=trials, time_budget=time_budget)
    path = options.RUNS / spec.name
    finished = run_and_print(
        spec, file, path, as_json=False, make_engine=choose_engine(spec, ()), trackers=trackers
    )
    conclusion = finished.conclusion
    store = finished.store
    command = spec.workload.shown.command or ()
    if conclusion.outcome is Outcome.WINNER:
        write_winner(store, path, shlex.join(command))
    else:
        given_more = [
            "--time-budget",
            larger_budget(spec, conclusion, store.watch.total_s),
            "--name",
            spec.name,
        ]
        again = shlex.join(["autotune", "tune", *given_more, "--", *command])
        print(
            "\nno winner was proven, so no env file is written. Continue the same study with "
            "more time:"
        )
        print_lines([f"  {again}"])


def write_winner(store: Store, path: Path, command: str) -> None:
    """Writes the winner as an env file into its run directory, and prints how to use it; `command`
    is the program.
    """
    from autotune.results.export import render_winner
    from autotune.results.winner import winner_of
    from autotune.rundir.files import write_atomically

    file = path / "winner.env"
    write_atomically(file, render_winner(winner_of(store), "env"))
    use = [
        f"(. ./{file} && {command})",
        f"autotune exec {path} -- {command}   # after checking that nothing changed here",
    ]
    print_lines(["", f"the winner is in {file}; use it:", *(f"  {line}" for line in use)])
