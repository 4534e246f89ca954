"""Command `ab`."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from autotune.cli import options, tune
from autotune.cli.options import MaybeCount, MaybePath, MaybeText, MaybeTexts
from autotune.cli.printing import note, print_lines, print_rows
from autotune.cli.run import print_conclusion, run_to_conclusion
from autotune.model.errors import StudyFileError

if TYPE_CHECKING:
    from autotune.model.spec import StudySpec
    from autotune.programs.draft import Plan
    from autotune.programs.look import ProbeResult
    from autotune.programs.probe import ProbeRequest
    from autotune.programs.variants import Variant

EDITED = "must be as it was measured but was edited since: give a new --name"
Variables = Annotated[
    MaybeTexts, Option(metavar="NAME=VALUE", help="A variable of it; may be repeated.")
]
VariablesFile = Annotated[
    MaybePath, Option(metavar="FILE", help="A file with settings, as `export` writes.")
]
Arguments = Annotated[
    MaybeText, Option(help="Words after the command line, quoted as for a shell.")
]
Revision = Annotated[
    MaybeText, Option(metavar="REVISION", help="Git revision, in a worktree of its own.")
]
Interpreter = Annotated[
    MaybeText,
    Option(metavar="PYTHON", help="Interpreter before the command line; of both or neither."),
]
Tokens = Annotated[int, Option(min=1, help="Tokens of a step, where those of A and B differ.")]


def ab(
    words: Annotated[
        list[str], Argument(metavar="-- COMMAND... [-- COMMAND OF B...]", help="After --.")
    ],
    a_env: Variables = None,
    b_env: Variables = None,
    a_env_file: VariablesFile = None,
    b_env_file: VariablesFile = None,
    a_args: Arguments = None,
    b_args: Arguments = None,
    a_rev: Revision = None,
    b_rev: Revision = None,
    a_python: Interpreter = None,
    b_python: Interpreter = None,
    a_tokens: Tokens = 1,
    b_tokens: Tokens = 1,
    max_slowdown: Annotated[
        str, Option(help="How much slower B may be, such as 1%, for status 0.")
    ] = "1%",
    platform: tune.Platform = None,
    pairs: Annotated[
        MaybeCount, Option(min=4, help="Most fresh pairs of processes; default 20.")
    ] = None,
    time_budget: options.TimeBudget = None,
    profile: options.Profile = False,
    drop_each: Annotated[
        bool,
        Option("--drop-each", help="Say which settings of A are needed: each is left out in turn."),
    ] = False,
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
    """Says whether a change to a program is real.

    Is B slower or faster than A, and does it train the same? Both run in turns until the difference
    is proven or ruled out; the same command again goes on. Exits with 0 if B is no slower than
    --max-slowdown allows, 1 if it is slower, 2 if they could not be compared, 3 if it is not
    settled.
    """
    from autotune.model.flags import FlagSet
    from autotune.model.options import shell_words
    from autotune.programs.look import program_python
    from autotune.programs.variants import at_revision, changed_files, variant_of, with_interpreter
    from autotune.results.tables import profile_table
    from autotune.study.ab import (
        LEAST_EFFECT,
        exit_status,
        leave_out_each,
        measure_variants,
        prepare_variants,
    )
    from autotune.study.preflight import Setup, known_settings

    limit = _share_of(max_slowdown)
    if time_budget:
        options.seconds_of(time_budget, "--time-budget")
    tune.refuse_bad_name(name)
    command, command_of_b = _split(words)
    a_words = [*command, *shell_words(a_args, "--a-args")]
    b_words = [*command_of_b, *shell_words(b_args, "--b-args")]
    a = variant_of(a_words, a_env or (), a_env_file)
    b = variant_of(b_words, b_env or (), b_env_file)
    rules = tune.rules_of(preset, pattern, json_key, unit, step_file, loss)
    request = tune.request_of(b.command, platform, rules, look_limit)
    if a_python and b_python:
        a = with_interpreter(a, a_python, request.platform, note=note)
        b = with_interpreter(b, b_python, request.platform, note=note)
    elif a_python or b_python:
        raise StudyFileError("give both --a-python and --b-python, or neither")
    changed = changed_files() if a_rev or b_rev else []
    if changed:
        note(f"changed files are in no revision, such as {changed[0]}")
    path = run_directory(command, name)
    is_of_two = b_rev or b_python or a_tokens != b_tokens or b != variant_of(command, (), None)
    if drop_each and (profile or is_of_two):
        raise StudyFileError(
            "--drop-each must be about one program but got more: give it no --b-..., B or --profile"
        )
    with (
        at_revision(a, a_rev, path.with_name(f"{path.name}-a")) as a,
        at_revision(b, b_rev, path.with_name(f"{path.name}-b")) as b,
    ):
        min_effect = LEAST_EFFECT
        if drop_each:
            min_effect = max(limit, LEAST_EFFECT)
            b = replace(a, name="all settings")
            a = replace(a, name="none", settings=FlagSet())
        if (a.body, a.settings) == (b.body, b.settings):
            raise StudyFileError(
                "A and B must differ but are equal; name a change: --b-env, --b-args, --b-rev, or "
                "-- A -- B; --drop-each needs settings, such as those of --a-env-file"
            )
        spec, variants = prepare_variants(
            _look(request, a, b, path),
            a,
            b,
            path,
            tokens=(a_tokens, b_tokens),
            pairs=pairs,
            time_budget=time_budget,
            min_effect=min_effect,
        )
        measure = functools.partial(measure_variants, variants=variants, profiled=profile)
        setup = Setup()
        if drop_each:
            measure = functools.partial(leave_out_each, max_slowdown=limit)
            python = program_python(spec, Path.cwd(), note=note)
            setup = Setup(installed=known_settings(spec, python))
        session = run_to_conclusion(
            spec, path, study_dir=Path.cwd(), as_json=as_json, setup=setup, do=measure
        )
    status = exit_status(session.conclusion, max_slowdown=limit)
    if as_json:
        print_conclusion(session, path, status=status)
    else:
        print_rows(profile_table(session.store))
        print_lines(["", session.conclusion.sentence, f"everything lies in {path}"])
    raise typer.Exit(status)


def run_directory(command: Sequence[str], name: MaybeText) -> Path:
    """Returns where the comparison of a program lies; `name` is that of the call."""
    return options.RUNS / (name or f"{tune.name_of(command)}-ab")


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the command lines of A and B: both are one where no second ``--`` divides them."""
    if "--" not in words:
        return words, words
    end = words.index("--")
    return words[:end], words[end + 1 :]


def _share_of(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        must = "must be a share such as 1% or 0.01"
        raise StudyFileError(f"--max-slowdown {must} but is {text!r}")
    return share


def _look(request: ProbeRequest, a: Variant, b: Variant, path: Path) -> StudySpec:
    """Returns the study of B: of the run directory, else after each command has run once."""
    from autotune.rundir.store import PAIRS, Store

    measured = path / "aa_run" / PAIRS
    if measured.exists():
        arguments = {word for side in (a, b) if not side.entering for word in side.command}
        for file in filter(os.path.isfile, arguments):
            if os.path.getmtime(file) > os.path.getmtime(measured):  # noqa: PTH204
                raise StudyFileError(f"{file} {EDITED}")
        spec = Store.open(path).spec
        tune.refuse_other_rules(request, path, request.platform, spec)
        return spec
    plan, result = _look_at(b, request)
    if a.first_command != b.first_command:
        _look_at(a, request._replace(rules=result.rules))
    return plan.spec


def _look_at(variant: Variant, request: ProbeRequest) -> tuple[Plan, ProbeResult]:
    request = request._replace(command=variant.first_command)
    plan, result = tune.planned(request, "ab", trials=1, budget_s=None)
    variant.refuse_other(result.probe.jaxlib)
    return plan, result
