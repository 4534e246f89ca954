"""Command `tune`, which writes a study file for a program and runs it."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from autotune.cli import options
from autotune.cli.options import MaybeCount, MaybeText, MaybeTexts
from autotune.cli.printing import note, print_lines
from autotune.cli.run import larger_budget, run
from autotune.model.errors import AutotuneError, StudyFileError

if TYPE_CHECKING:
    from autotune.child.steps import Rules
    from autotune.model.spec import StudySpec
    from autotune.programs.draft import Plan
    from autotune.programs.look import ProbeResult
    from autotune.programs.probe import ProbeRequest

SEVERAL = 1.5  # steps per line, from which not every step has a line
Platform = Annotated[
    Literal["cpu", "cuda"] | None, Option(help="Where it runs; default: cuda if a GPU is visible.")
]
Name = Annotated[
    MaybeText, Option(help="Name of the study, its file and its run; default: after the program.")
]
Preset = Annotated[
    MaybeText, Option("--step-preset", help="Step lines of a known trainer or logger.")
]
Pattern = Annotated[
    MaybeText,
    Option(
        "--step-pattern",
        help="Expression for a step's line; groups step, step_s, step_ms, steps_per_s.",
    ),
]
JsonKey = Annotated[
    MaybeText, Option("--step-json", help="Key of the duration in JSON lines, such as perf.step.")
]
StepUnit = Annotated[
    MaybeText, Option("--step-unit", help="What that key holds: step_s (default), step_ms ...")
]
StepFile = Annotated[
    MaybeText, Option("--step-file", help="File with the steps, beside the study.")
]
Loss = Annotated[MaybeText, Option(help="Expression with a group loss; with --step-json its key.")]
LookLimit = Annotated[str, Option(help="Longest time for the first look at the program.")]
DEFAULT_TRIALS = 30
NO_PROJECTS = ("src", "scripts", "bin", "examples")  # folders that name no study


def tune(
    command: Annotated[
        MaybeTexts, Argument(metavar="-- COMMAND...", help="Program and arguments, after --.")
    ] = None,
    time_budget: options.TimeBudget = None,
    trials: Annotated[MaybeCount, Option(min=1, help="Most trials in all; default 30.")] = None,
    platform: Platform = None,
    name: Name = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before the run.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only look, and write the study file.")
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
    from autotune.programs.look import refuse_without_xla
    from autotune.results.trackers import refuse_trackers

    refuse_trackers(tracker or ())
    rules = rules_of(preset, pattern, json_key, unit, step_file, loss)
    request = request_of(command, platform, rules, look_limit)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise AutotuneError(
            "a study must be agreed to but there is no terminal to ask on: add --yes to start "
            "it, or --dry-run to look and write the study file only. Nothing was started"
        )
    budget_s = None
    if time_budget is not None:
        budget_s = options.seconds_of(time_budget, "--time-budget")
    file, study = file_of(request, name)
    if not study:
        limit = trials or DEFAULT_TRIALS
        plan, result = planned(request, file.stem, trials=limit, budget_s=budget_s)
        refuse_without_xla(result)
        show_plan(result, plan, file)
        if not (dry_run or yes or typer.confirm("Start the study?", default=True)):
            print("nothing was started or written; --dry-run writes the study file only")
            raise typer.Exit(1)
        write_study(file, plan.text, request.command)
    else:
        refuse_other_rules(request, file, platform, study)
        print_lines([f"going on with the study {file}, as it stands there"])
    if dry_run:
        command_line = f"autotune run {shlex.quote(str(file))}"
        print_lines([f"nothing was started; run it: {command_line}"])
        return
    _run(file, trials, time_budget, tracker)


def request_of(
    command: Sequence[str] | None, platform: MaybeText, rules: Rules, limit: str
) -> ProbeRequest:
    """Makes the request to probe a program from options."""
    from autotune.programs.look import default_platform
    from autotune.programs.probe import ProbeRequest

    if not command:
        raise StudyFileError("a command must follow, after --, but there is none")
    return ProbeRequest(
        command=tuple(command),
        cwd=Path.cwd(),
        platform=platform or default_platform(),
        rules=rules,
        limit_s=options.seconds_of(limit, "--look-limit"),
    )


def rules_of(*values: MaybeText) -> Rules:
    """Returns the keys of `[workload.read]` by options: Preset to StepFile, as above, and Loss."""
    from autotune.model.sections import ReadSpec

    keys = ("preset", "pattern", "json_key", "unit", "file", "loss")
    rules = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
    if rules.keys() - {"file"}:  # of a file alone the lines are recognised
        ReadSpec.refuse_bad(rules)
    return rules


def name_of(command: Sequence[str]) -> str:
    """Derives a name from the script or module of a command."""
    names = [Path(word).name for word in command]
    scripts = [name for name in names if re.fullmatch(r"[\w.-]+\.(py|sh)", name)]
    modules = [name for option, name in itertools.pairwise(names) if option == "-m"]
    program = [*modules, *scripts, *names][0]
    return _legal(re.sub(r"\.(py|sh)$", "", program)) or "program"


def study_name_of(command: Sequence[str], folder: Path) -> str:
    """Derives a study's name from its program and the project's folder: ``gpt-train``."""
    program = name_of(command)
    script = next((word for word in command if Path(word).stem == program), program)
    folders = [parent.name for parent in (folder / script).resolve().parents]
    project = next((name for name in folders if name not in NO_PROJECTS), "")
    return _legal(f"{project}-{program}")


def _legal(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+|\.{2,}", "-", name).strip("-._")[:48]


def refuse_bad_name(name: MaybeText) -> None:
    """Refuses what cannot name a study, its file and its run, by a StudyFileError."""
    from autotune.model.sections import STUDY_NAME

    if name is not None and (not re.fullmatch(STUDY_NAME, name) or ".." in name):
        raise StudyFileError(
            f"--name must be letters, digits, dots and dashes, such as my-model, but got {name!r}"
        )


def file_of(request: ProbeRequest, name: MaybeText) -> tuple[Path, StudySpec | None]:
    """Returns the study file for a command, and its study if it exists."""
    from autotune.model.spec import load_study

    refuse_bad_name(name)
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
                f"another --name, or run that: autotune run {file}"
            )
        number += 1
        file = Path(f"{base}-{number}.toml")
    return file, None


def refuse_other_rules(
    request: ProbeRequest, file: Path, platform: MaybeText, study: StudySpec
) -> None:
    """Refuses to continue a study whose rules or platform differ from this call's."""
    rules = study.workload.read.rules() if study.workload.read else {}
    subject = ""
    if any(rules.get(key) != value for key, value in request.rules.items()):
        subject = "how steps are read"
    if platform not in (None, study.device.platform):
        subject = "the platform"
    if subject:
        raise StudyFileError(f"{subject} must be as in {file} but is not: give another --name")


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
        print(file=sys.stderr)
        note("stopped; the program was ended, and nothing is written")
        raise typer.Exit(130) from None
    command_line = shlex.join(["autotune", *redact_command(sys.argv[1:])])
    plan = plan_of(result, name=name, trials=trials, budget_s=budget_s, command_line=command_line)
    return plan, result


def show_plan(result: ProbeResult, plan: Plan, file: Path) -> None:
    """Prints the findings of the probe, the search space with its reason, and the time."""
    from autotune.model.spec import FEWEST_TRIALS
    from autotune.model.texts import text_lines
    from autotune.settings.space import format_names
    from autotune.study.preflight import preview_space

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
        run_dir=options.RUNS / plan.spec.name,
    )
    print_lines(lines)


def write_study(file: Path, text: str, command: Sequence[str]) -> None:
    """Writes a new study file, readable only by the user if it holds a secret."""
    from autotune.model.redaction import redact_command
    from autotune.rundir.files import writing

    mode = 0o666
    remark = ""
    if redact_command(command) != tuple(command):
        mode = 0o600
        remark = " (it holds a secret: only you can read it)"
    with writing(file):
        file.touch(mode, exist_ok=False)
        file.write_text(text, encoding="utf-8")
    print_lines([f"written to {file}{remark}"])


def _run(file: Path, trials: MaybeCount, time_budget: MaybeText, tracker: MaybeTexts) -> None:
    """Runs a study; writes its winner as an env file, or says how to go on without one."""
    from autotune.model.records import ConclusionRecord, Outcome
    from autotune.model.spec import load_study
    from autotune.results.export import render_winner
    from autotune.results.winner import winner_of
    from autotune.rundir.files import write_atomically
    from autotune.rundir.store import Store

    run(file, trials=trials, time_budget=time_budget, tracker=tracker)
    path = options.RUNS / load_study(file).name
    store = Store.open(path)
    program = store.spec.workload.command_line()
    conclusion = store.of(ConclusionRecord)[-1]
    if conclusion.outcome is Outcome.WINNER:
        env_file = path / "winner.env"
        write_atomically(env_file, render_winner(winner_of(store), "env"))
        lines = [
            f"the winner is in {env_file}; use it:",
            f"  (. ./{env_file} && {program})",
            f"  autotune exec {path} -- {program}   # after checking that nothing changed here",
        ]
    else:
        budget = larger_budget(store.spec, conclusion, store.recorded_s)
        lines = [
            "no winner was proven, so no env file is written. Continue the same study with more "
            "time:",
            f"  autotune tune --time-budget {budget} --name {store.spec.name} -- {program}",
        ]
    print_lines(["", *lines])
