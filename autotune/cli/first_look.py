"""What `tune` and `init` ask, see and show before there is a study: a program, its first run, the plan."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import options
from autotune.cli.printing import make_console, print_lines

if TYPE_CHECKING:
    from autotune.model import StudySpec
    from autotune.study import Asked, Plan, Understood

MOST_NAMES = 6
"""Settings that are named before the rest is counted."""

SEVERAL = 1.5
"""Steps for a line from which on a person is told that not each step has one."""


def ask_for(
    command: list[str] | None, platform: str | None, rules: dict[str, Any] | None, limit: str, *, verb: str,
    cwd: Path | None = None,
) -> Asked:  # fmt: skip
    """What is asked of a program by the options of a call.

    Args:
        command: The program and its arguments, if any were given.
        platform: ``cpu`` or ``cuda``; None for what this machine has.
        rules: How its steps are read; None to find out.
        limit: Longest time for the look, such as ``10m``.
        verb: The command that asks, for messages.
        cwd: Folder to run in; default: this one.

    Raises:
        AutotuneError: If there is no command, it is one text in quotes, or the limit is no duration.
    """
    from autotune.model import StudyFileError
    from autotune.study import Asked, default_platform, refuse_one_word

    if not command:
        raise StudyFileError(f"a command must follow, after --, but there is none: autotune {verb} -- python train.py")
    refuse_one_word(command)
    limit_s = seconds_of(limit, "--look-limit")
    assert limit_s is not None
    return Asked(
        command=tuple(command), cwd=cwd or Path.cwd(), platform=platform or default_platform(), rules=rules,
        limit_s=limit_s,
    )  # fmt: skip


def seconds_of(text: str | None, option: str) -> float | None:
    """Seconds of a duration that an option was given; None for none.

    Raises:
        StudyFileError: If it is none.
    """
    from autotune.model import StudyFileError, parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise StudyFileError(f"{option} must look like 30m or 8h but got {text!r}; say its unit") from error


def rules_of(
    preset: str | None, pattern: str | None, key: str | None, unit: str | None, file: str | None, loss: str | None
) -> dict[str, Any] | None:
    """What `[workload.read]` is given by hand; None for nothing.

    Raises:
        StudyFileError: If it does not say how a step is read, or says it twice.
    """
    from autotune.model import StudyFileError

    given = {"preset": preset, "pattern": pattern, "json_key": key, "unit": unit, "file": file, "loss": loss}
    rules = {name: value for name, value in given.items() if value is not None}
    if rules and sum(value is not None for value in (preset, pattern, key)) != 1:
        raise StudyFileError(
            "how steps are read must be said by exactly one of --step-preset, --step-pattern and --step-json; "
            "--step-unit, --step-file and --loss go with one of them"
        )
    return rules or None


def name_of(command: list[str]) -> str:
    """The name of a study of a command: that of its script, or of its module."""
    words = [Path(word).name for word in command]
    chosen = words[0]
    if re.fullmatch(r"python[\d.]*|bash|sh|uv|torchrun|srun|env", chosen):
        scripts = [word for word in words[1:] if re.fullmatch(r"[\w.-]+\.(py|sh)", word)]
        modules = [command[i + 1] for i, word in enumerate(command[:-1]) if word == "-m"]
        chosen = next(iter([*modules[:1], *scripts]), chosen)
    chosen = re.sub(r"\.(py|sh)$", "", chosen)
    return re.sub(r"[^A-Za-z0-9._-]+|\.{2,}", "-", chosen).strip("-._")[:48] or "program"


def name_of_entry(entry: str) -> str:
    """The name of a study of an entry."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", entry).strip("-")[:48] or "study"


def file_of(asked: Asked, name: str | None) -> tuple[Path, StudySpec | None]:
    """The file of a study of this command, and the study if it is there already.

    Raises:
        StudyFileError: If a name was given whose file is of something else.
    """
    from autotune.model import STUDY_NAME, StudyFileError, load_study

    if name is not None and (not re.fullmatch(STUDY_NAME, name) or ".." in name):
        raise StudyFileError(f"--name must be letters, digits, dots and dashes, such as my-model, but got {name!r}")
    base = name or name_of(list(asked.command))
    for number in range(1, 1000):
        stem = base if number == 1 else f"{base}-{number}"
        file = Path(f"{stem}.toml")
        if not file.exists():
            return file, None
        try:
            known = load_study(file)
        except StudyFileError:
            known = None
        if known is not None and known.workload.command == asked.command:
            return file, known
        if name is not None:
            raise StudyFileError(
                f"{file} must be a study of this very command but is of something else; give another --name, or run "
                f"that: autotune run {file}"
            )
    raise StudyFileError(f"a name must be free but {base}.toml and a thousand more are taken; give --name")


def refuse_other_rules(asked: Asked, file: Path, platform: str | None, known: StudySpec) -> None:
    """Refuses to go on with a study that says something else than this call."""
    from autotune.model import StudyFileError

    read = known.workload.read.rules() if known.workload.read is not None else {}
    other = platform is not None and platform != known.device.platform
    if other or (asked.rules is not None and any(read.get(k) != v for k, v in asked.rules.items())):
        raise StudyFileError(
            f"a study goes on as its file says but {file} says something else of "
            f"{'the platform' if other else 'how steps are read'}; edit it, or give another --name"
        )


def place_of(platform: str | None) -> dict[str, Any]:
    """Platform, number and kind of the devices here."""
    from autotune.study import default_platform, device_count, device_words

    where = platform or default_platform()
    return {"platform": where, "count": device_count(where), "device": device_words(where)}


def refuse_unbuilt(text: str, file: Path) -> None:
    """Builds an entry in a child process: one that is not there must not wait for a run.

    Raises:
        StudyFileError: If it cannot be built.
    """
    from autotune.model import StudyFileError
    from autotune.study import checked
    from autotune.workers import WorkerFailed, describe_workload

    spec = checked(text)
    try:
        describe_workload(spec, study_dir=file.resolve().parent, device_count=spec.device.count or 1)
    except WorkerFailed as error:
        raise StudyFileError(
            f"--entry must be a preset or package.module:function that can be built but {spec.workload.entry}: {error}"
        ) from error


# ---------------------------------------------------------------------- look, show, write, run


def said() -> str:
    """This call, as it was typed, with secrets redacted."""
    from autotune.model import redact_command

    return shlex.join(["autotune", *redact_command(sys.argv[1:])])


def planned(asked: Asked, name: str, *, trials: int, budget: str | None) -> tuple[Plan, Understood]:
    """Looks at a program once, telling how far that is, and draws up its study.

    Raises:
        AutotuneError: If it cannot be tuned as it is; see `autotune.study.understand`.
    """
    from autotune.model import redact_command
    from autotune.study import plan_of, understand

    console = make_console(stderr=True)
    what = f"running it once, to see how it prints its steps: {shlex.join(redact_command(asked.command))}"
    budget_s = seconds_of(budget, "--time-budget")
    try:
        if console.is_terminal:
            with console.status(what) as status:
                understood = understand(asked, tell=lambda text: status.update(f"{what} ({text})"))
        else:
            print_lines([what], stderr=True)
            understood = understand(asked, tell=lambda text: print_lines([f"  {text}"], stderr=True))
    except KeyboardInterrupt:
        print("\nautotune: stopped; the program was ended, and nothing is written", file=sys.stderr)
        raise typer.Exit(130) from None
    return plan_of(understood, name=name, trials=trials, budget_s=budget_s, said=said()), understood


def show_plan(found: Understood, plan: Plan, file: Path) -> None:
    """What was understood, what is searched and why, what can be proven in which time."""
    from autotune.model import format_seconds, format_share
    from autotune.study import SPREADS, WHY, preview_space

    preview = preview_space(plan.spec, study_dir=file.resolve().parent, run_dir=options.RUNS / plan.spec.name)
    names = [p.name.removeprefix("xla_") for p in preview.space.parameters]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    gains = [
        f"{format_share(gain[0])} if equal runs differ by {format_share(spread)} ({_about(gain[1])} of proofs)"
        for spread, gain in zip(SPREADS, plan.gains, strict=True)
        if gain is not None
    ]
    jaxlib = f", jaxlib {found.jaxlib}" if found.jaxlib else ""
    steps = f"{found.steps} lines of steps seen{', then it ended by itself' if found.ended else ''}"
    if found.line_s > SEVERAL * found.step_s:
        steps = f"a line comes every {format_seconds(found.line_s)}; {steps}"
    _print_rows([
        ("command", shlex.join(plan.spec.workload.shown.command or ())),
        ("interpreter", f"{found.python}{jaxlib}" if found.python else "none loaded jaxlib; autotune's own is asked"),
        ("device", f"{found.device_count} x {found.device} ({found.asked.platform})"),
        ("steps", found.how),
        ("", f"such as: {found.example.strip()[:100]}"),
        *([("careful", found.doubt)] if found.doubt else []),
        *([("careful", busy)] if (busy := _busy()) else []),
        ("times", f"ready after {format_seconds(found.start_s)}, a step takes {format_seconds(found.step_s)}; {steps}"),
        ("search", f"{len(names)} settings of {preview.build}: {', '.join(names[:MOST_NAMES])}{more}"),
        ("because", WHY[plan.kind]),
        ("time", f"{_about(plan.budget_s)} in all; a run takes {format_seconds(plan.run_s)}, a trial "
                 f"{_about(plan.trial_s)}: reference, candidate, reference, three times"),
        *([("careful", _too_short(plan))] if plan.budget_s < plan.needed_s else []),
        *((("can prove" if i == 0 else ""), f"gains from {gain}") for i, gain in enumerate(gains)),
        *([("", "the noise floor, measured first, tells which of these it is")] if gains else []),
        ("file", f"{file}, run directory {options.RUNS / plan.spec.name}"),
    ])  # fmt: skip


def _too_short(plan: Plan) -> str:
    """What a person is told whose time budget holds less than a study."""
    from autotune.study import WORTH_TRIALS

    return (
        f"the noise floor and {WORTH_TRIALS} trials with their proofs take about {_about(plan.needed_s)} here: in "
        "less, what looks promising may stay unproven. The same command with a larger --time-budget goes on"
    )


def _busy() -> str:
    """What else runs here, where that is much; empty where it is little. The program itself is one of them."""
    load, count = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= 0.5 * count + 1:
        return ""
    return f"the machine is busy ({load:.1f} running processes on {count} CPUs): only large gains can be proven so"


def _about(seconds: float) -> str:
    """A time as well as it is known: whole minutes from one on."""
    from autotune.model import format_seconds

    return format_seconds(seconds if seconds < 60 else 60 * round(seconds / 60)).removesuffix(" 0 s")


def _print_rows(rows: list[tuple[str, str]]) -> None:
    """Names and what they are: folded beside their names on a terminal, a line each elsewhere."""
    from rich.table import Table
    from rich.text import Text

    from autotune.model import visible_line

    console = make_console()
    if not console.is_terminal:
        print_lines([f"{name:<12} {text}".rstrip() for name, text in rows])
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, Text(visible_line(text)))
    console.print(table)


def write_study(file: Path, text: str, asked: Asked | None) -> None:
    """Writes a study file that is not there yet; one with a secret in it is for nobody else to read.

    Raises:
        StudyFileError: If it cannot be written.
    """
    from autotune.model import StudyFileError, redact_command

    has_secret = asked is not None and redact_command(asked.command) != asked.command
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if has_secret else 0o666)
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise StudyFileError(
            f"the study file must be writable but {file}: {error.strerror}; call this elsewhere"
        ) from error
    print_lines([f"written to {file}" + (" (it holds a secret: only you can read it)" if has_secret else "")])
