"""Command `ab`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options, tune
from autotune.cli.printing import plain, print_json, print_lines
from autotune.cli.run import run_to_conclusion

if TYPE_CHECKING:
    from autotune.study.ab import Variant

Variables = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of it; may be repeated.")]
VariablesFile = Annotated[Path | None, typer.Option(metavar="FILE", help="A file with settings, as `export` writes.")]
Arguments = Annotated[str | None, typer.Option(help="Words after the command line, quoted as for a shell.")]


def ab(
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND... [-- COMMAND OF B...]", help="After --.")],
    a_env: Variables = None,
    b_env: Variables = None,
    a_env_file: VariablesFile = None,
    b_env_file: VariablesFile = None,
    a_args: Arguments = None,
    b_args: Arguments = None,
    max_slowdown: Annotated[str, typer.Option(help="How much slower B may be, such as 1%, for status 0.")] = "1%",
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
    """Says whether a change to a program is real. Is B slower or faster than A, and does it train the same?

    Both run in turns until the difference is proven or ruled out; the same command again goes on. Exits with 0 if B is
    no slower than --max-slowdown allows, 1 if it is slower, 2 if they could not be compared, 3 if it is not settled.
    """
    from autotune.programs.look import default_platform
    from autotune.rundir.store import STUDY, Store
    from autotune.study.ab import exit_status, measure_variants, prepare_variants
    from autotune.study.recheck import NothingToSearch

    most = _share_of(max_slowdown)
    command, other = _split(words)
    a = _variant([*command, *shlex.split(a_args or "")], a_env or (), a_env_file)
    b = _variant([*other, *shlex.split(b_args or "")], b_env or (), b_env_file)
    rules = tune.rules_of(preset, pattern, json_key, unit, step_file, loss)
    asked = tune.ask_for(list(b.command), platform or default_platform(), rules, look_limit)
    path = options.RUNS / (name or f"{tune.name_of(command)}-ab")
    if (path / STUDY).exists():
        base = Store.open(path).spec
    else:
        plan, found = tune.planned(asked, "ab", trials=1, budget_s=None)
        tune.planned(replace(asked, command=a.command, rules=found.rules), "ab", trials=1, budget_s=None)
        base = plan.spec
    spec, variants = prepare_variants(base, a, b, path, pairs=pairs)
    conclusion = run_to_conclusion(
        spec, path, study_dir=Path.cwd(), as_json=as_json, setup=NothingToSearch(),
        do=lambda run: measure_variants(run, variants),
    ).conclusion  # fmt: skip
    status = exit_status(conclusion, max_slowdown=most)
    if as_json:
        print_json(plain(conclusion, status=status, run=str(path)))
    else:
        print_lines(["", conclusion.sentence, f"everything lies in {path}"])
    raise typer.Exit(status)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the command lines of A and B: both are one where no second ``--`` divides them."""
    if "--" not in words:
        return words, words
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _share_of(text: str) -> float:
    from autotune.model.errors import StudyFileError

    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise StudyFileError(f"--max-slowdown must be a share such as 1% or 0.01 but is {text!r}")
    return share


def _variant(command: Sequence[str], given: Sequence[str], file: Path | None) -> Variant:
    """Returns a variant in the caller's environment; StudyFileError if a variable is not ``NAME=VALUE``."""
    from autotune.machine.environment import STEERING, caller_environment, steering_settings
    from autotune.model.errors import StudyFileError
    from autotune.model.flags import FlagSet, is_variable, reaches_out
    from autotune.programs.arrival import DEVICE_COUNT
    from autotune.settings.assignments import read_assignments
    from autotune.study.ab import Variant

    try:
        variables = dict(read_assignments(file.read_text(encoding="utf-8"))) if file is not None else {}
    except (OSError, ValueError) as error:
        raise StudyFileError(f"{file} must be a text file that sets variables but cannot be read: {error}") from error
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise StudyFileError(f"a variable must be NAME=VALUE but is {text!r}")
        variables[name] = value
    steering = [name for name in variables if STEERING.fullmatch(name) and is_variable(name)]
    own = steering_settings(caller_environment())
    own = own.without(DEVICE_COUNT, *filter(reaches_out, own))
    settings = own.merge(FlagSet.from_environment(variables, steering))
    others = {name: value for name, value in variables.items() if name not in steering}
    return Variant(command=tuple(command), settings=settings, variables=others)
