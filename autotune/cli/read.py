"""The command that shows what would be read of a program, without a study: `read`. Mounted by `autotune.cli`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli import options
from autotune.cli.printing import print_json, print_lines

SHOWN_LINES = 40
"""Lines that are shown; the rest is counted."""


def read(
    what: Annotated[list[str], typer.Argument(metavar="FILE | COMMAND ...", help="A saved log, or a command.")],
    preset: Annotated[str | None, typer.Option(help="Lines of a known trainer.")] = None,
    pattern: Annotated[str | None, typer.Option(help="An expression, as in [workload.read].")] = None,
    json_key: Annotated[str | None, typer.Option(help="Key of the duration in JSON lines.")] = None,
    unit: Annotated[str | None, typer.Option(help="What that key holds, such as step_ms.")] = None,
    loss: Annotated[str | None, typer.Option(help="How the loss is read.")] = None,
    tokens_per_step: Annotated[int | None, typer.Option(min=1, help="To read rates of tokens.")] = None,
    file: Annotated[Path | None, typer.Option(help="Of a command: the file that it writes its metrics to.")] = None,
    study: Annotated[Path | None, typer.Option(help="Take how steps are read from this study file.")] = None,
    limit: Annotated[str, typer.Option(help="Longest time for a command, such as 30s or 2m.")] = "60s",
    terminal: Annotated[
        bool | None,
        typer.Option("--terminal/--pipe", help="Where output goes; default: a pipe, unless it stays silent."),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every line.")] = False,
    as_json: options.Json = False,
) -> None:
    """Shows line by line which steps would be read, of a command that is run now or of a saved log.

    Exits with 1 if no steps are read. Example: autotune read -- python train.py
    """
    from autotune.child import recognise
    from autotune.model import AutotuneError, FlagSet, ReadSpec, close_matches, load_study, parse_duration
    from autotune.study import read_command, read_log, show_reading

    given = {"preset": preset, "pattern": pattern, "json_key": json_key, "unit": unit, "loss": loss}
    rules: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if study is not None:
        spec = load_study(study)
        if spec.workload.read is None:
            raise AutotuneError(f"the study must say how steps are read but {study} has no [workload.read]")
        rules = {**spec.workload.read.rules(), **rules}
        tokens_per_step = tokens_per_step or spec.work_under(FlagSet())
    if rules:
        ReadSpec.refuse_bad(rules)
    if rules and tokens_per_step is not None:
        rules["tokens_per_step"] = tokens_per_step
    path = Path(what[0])
    if len(what) > 1 and path.is_file() and not os.access(path, os.X_OK):
        raise AutotuneError(
            f"options must come before the file but {what[1]} comes after {what[0]}, which cannot be started; "
            f"type: autotune read {' '.join([*what[1:], what[0]])}"
        )
    if len(what) == 1 and not path.exists() and shutil.which(what[0]) is None:
        near = path.parent if path.parent.is_dir() else Path()
        meant = close_matches(path.name, [p.name for p in near.iterdir()]) or "."
        raise AutotuneError(
            f"a log or a command must be given but there is no file {what[0]}, and no command of that name"
            f"{meant} A command and its arguments come after --: autotune read -- python train.py"
        )
    if len(what) == 1 and path.exists() and not (path.is_file() and os.access(path, os.X_OK)):
        seen = read_log(path)
    else:
        seen = read_command(what, limit_s=parse_duration(limit), terminal=terminal, rules=rules)
        seen = seen if file is None else read_log(file)
    fits = [] if rules else recognise(seen.lines, at=seen.at, tokens_per_step=tokens_per_step)
    shown = show_reading(seen, fits, rules or (fits[0].rules if fits else {}), most=None if show_all else SHOWN_LINES)
    if as_json:
        print_json(shown.data)
    else:
        print_lines(shown.lines)
    sys.stdout.flush()
    print_lines((f"autotune: {note}" for note in seen.notes), stderr=True)
    if not shown.steps:
        raise typer.Exit(1)
