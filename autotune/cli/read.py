"""Command `read`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from autotune.cli import options, tune
from autotune.cli.options import MaybeCount
from autotune.cli.printing import note, print_json, print_lines
from autotune.model.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.child.recognise import Recognised
    from autotune.child.steps import Rules
    from autotune.programs.probe import Probe

SHOWN_LINES = 40  # the rest is counted
LIMIT = "60s"


def read(
    what: Annotated[
        list[str], Argument(metavar="FILE | COMMAND ...", help="A saved log, or a command.")
    ],
    preset: tune.Preset = None,
    pattern: tune.Pattern = None,
    json_key: tune.JsonKey = None,
    unit: tune.StepUnit = None,
    loss: tune.Loss = None,
    tokens_per_step: Annotated[MaybeCount, Option(min=1, help="To read rates of tokens.")] = None,
    as_json: options.Json = False,
) -> None:
    """Shows line by line which steps would be read. Runs a command now, or reads a saved log.

    Exits with 1 if no steps are read. Example: autotune read -- python train.py
    """
    from autotune.child.recognise import best_fit
    from autotune.programs.look import read_log, reading_of

    rules = tune.rules_of(preset, pattern, json_key, unit, None, loss)
    if rules and tokens_per_step is not None:
        rules = {**rules, "tokens_per_step": tokens_per_step}
    path = Path(what[0])
    is_program = path.is_file() and os.access(path, os.X_OK)
    if len(what) > 1 and path.is_file() and not is_program:
        raise AutotuneError(
            f"options must come before the file but {what[1]} comes after {what[0]}, which "
            f"cannot be started; type: autotune read {' '.join([*what[1:], what[0]])}"
        )
    is_log = len(what) == 1 and path.exists() and not is_program
    probe = read_log(path) if is_log else _run(what, rules)
    best = None if rules else best_fit(probe.lines, probe.at_s or None)
    reading = reading_of(probe, best.rules if best else rules)
    if as_json:
        print_json(reading)
    else:
        print_lines(_lines_of(reading, best))
    sys.stdout.flush()
    for text in probe.notes:
        note(text)
    if not reading["steps"]:
        raise typer.Exit(1)


def _run(command: Sequence[str], rules: Rules) -> Probe:
    from autotune.machine.child_process import format_end
    from autotune.programs.look import run_request

    probe, _ = run_request(tune.request_of(command, None, rules, LIMIT), note=lambda text: None)
    if not probe.lines:
        probe.notes.append(
            "it printed nothing into a pipe; let it print each step, as docs/tune.md says"
        )
    if probe.status:
        probe.notes.append(f"it {format_end(probe.status)}")
    return probe


def _lines_of(reading: Mapping[str, Any], fit: Recognised | None) -> list[str]:
    """Formats the first and last lines, the figures, and the table for a study file."""
    from autotune.model.texts import text_lines
    from autotune.programs.draft import to_toml
    from autotune.programs.look import doubt_of

    rules = dict(reading["rules"])
    return text_lines(
        "read.txt.j2",
        toml=to_toml,
        reading=reading,
        half=SHOWN_LINES // 2,
        is_timed=fit is None or not fit.by_clock or fit.step_s is not None,
        doubt=doubt_of(fit),
        tokens=rules.pop("tokens_per_step", None),
        rules=rules,
    )
