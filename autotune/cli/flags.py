"""Commands on settings: `flags`, `recipes`, `symptoms`, `space`, `doctor`."""

from __future__ import annotations

import math
import shlex
from typing import Annotated

import typer
from typer import Argument, Option

from autotune.cli import options
from autotune.cli.options import MaybeText
from autotune.cli.printing import note, plain, print_exact, print_json, print_lines, print_table
from autotune.model.errors import LaunchError, SettingError

flags_app = typer.Typer(
    help="Every published setting: what the installed build says.", no_args_is_help=True
)
recipes_app = typer.Typer(
    help="Published flag sets: what the installed build has.", no_args_is_help=True
)

# An argument such as --xla_gpu_autotune_level=3 is no option of ours.
_TAKES_FLAGS = {"ignore_unknown_options": True}


@flags_app.command("list")
def list_flags(as_json: options.Json = False) -> None:
    """Lists the settings of the catalogue, one a line; `autotune flags show NAME` shows one."""
    from autotune.settings.catalog import load_catalog

    settings = list(load_catalog().values())
    if as_json:
        print_json([plain(s, kind=s.kind) for s in settings])
        return
    rows = [(s.name, ", ".join((s.group, *s.also_in)), s.tier, s.summary) for s in settings]
    print_table(("setting", "groups", "tier", "what it does"), rows)
    print(f"{len(settings)} settings")


@flags_app.command("show", context_settings=_TAKES_FLAGS)
def show_flag(
    name: Annotated[str, Argument(help="A setting, with or without dashes.")],
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Shows all that is known of one setting, and what the installed build says of it."""
    from autotune.settings.catalog import load_catalog, load_recipes
    from autotune.settings.known import KnownSettings, format_setting
    from autotune.settings.probe import probe_named
    from autotune.settings.published import format_effects, load_effects

    setting = load_catalog().find(name)
    report = probe_named(plugin, python)
    name = setting.name
    recipes = [r.name for r in load_recipes().values() if name in r.settings]
    if as_json:
        in_build = report.flags.get(name) or report.jax_options.get(name)
        published = [effect for effect in load_effects() if name in effect.settings]
        facts = {"kind": setting.kind, "build": report.build, "in_build": in_build}
        print_json(plain(setting, **facts, recipes=recipes, published=published))
        return
    print(f"{name}: {setting.summary}")
    rows = [*format_setting(setting, KnownSettings(report)), ("recipes", ", ".join(recipes))]
    rows += [("published", line) for line in format_effects(name)]
    print_lines(f"  {label:16} {text}" for label, text in rows if text)


@flags_app.command("check", context_settings=_TAKES_FLAGS)
def check_flags(
    text: options.Flags = None,
    recipe: Annotated[MaybeText, Option(help="A recipe of `autotune recipes list`.")] = None,
    file: options.Script = None,
    env: Annotated[bool, Option("--env", help="Check the environment of this call.")] = False,
    target: options.Target = None,
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Checks settings against the installed build; exits with 1 if one would stop a process."""
    from autotune.compiler.targets import load_target
    from autotune.settings.check import check_given, format_check
    from autotune.settings.known import KnownSettings
    from autotune.settings.probe import probe_named

    build = probe_named(plugin, python)
    settings = KnownSettings(build)
    if target is not None:
        settings = KnownSettings(build, load_target(target).name).on_gpus()
    checks = check_given(settings, flags=text or (), recipe=recipe, file=file, from_environment=env)
    refused = sum(not c.starts for c in checks)
    if as_json:
        print_json({"build": build.build, "starts": not refused, "settings": checks})
    else:
        columns = ("setting", "verdict", "starts", "why, and what to do")
        print_table(columns, map(format_check, checks))
        outcome = f"{len(checks) - refused} of {len(checks)} would start"
        if not checks:
            outcome = "no setting was found"
        print(f"{build.build}: {outcome}")
    if refused:
        raise typer.Exit(1)


@flags_app.command("migrate", context_settings=_TAKES_FLAGS)
def migrate_flags(
    text: options.Flags = None,
    file: options.Script = None,
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Prints a block of settings as the installed build takes it.

    What was renamed or left out, and why, goes to stderr.
    """
    from autotune.settings.check import migrate_text, read_script
    from autotune.settings.known import KnownSettings
    from autotune.settings.probe import probe_named

    if (file is None) == (not text):
        raise SettingError("give either flags or --file")
    block = read_script(file) if file is not None else " ".join(text or ())
    notes = list[str]()
    settings = migrate_text(block, KnownSettings(probe_named(plugin, python)), note=notes.append)
    if as_json:
        print_json({"settings": settings, "notes": notes})
        return
    for name, value in settings.to_environment().items():
        print_exact(f"{name}={shlex.quote(value)}\n")
    print_lines(notes, stderr=True)


@recipes_app.command("list")
def list_recipes(as_json: options.Json = False) -> None:
    """Lists the published sets."""
    from autotune.settings.catalog import load_recipes

    recipes = list(load_recipes().values())
    if as_json:
        print_json(recipes)
        return
    rows = [(r.name, r.date, r.for_hardware, str(len(r.settings)), r.source) for r in recipes]
    print_table(("recipe", "date", "for", "settings", "source"), rows)


@recipes_app.command("show")
def show_recipe(
    name: Annotated[str, Argument(help="A recipe.")], as_json: options.Json = False
) -> None:
    """Prints a recipe as it was published; `autotune flags check --recipe` checks it."""
    from autotune.settings.catalog import find_recipe

    recipe = find_recipe(name)
    if as_json:
        print_json(recipe)
        return
    facts = (recipe.source, recipe.date, recipe.for_hardware, recipe.note)
    print_lines(f"# {fact}" for fact in facts if fact)
    print_lines(f"{setting}={value}" for setting, value in recipe.settings.items())


def symptoms(as_json: options.Json = False) -> None:
    """Lists symptoms, and which settings to search for each."""
    from autotune.settings.catalog import Symptom, read_entries

    entries = list(read_entries("symptoms.toml", Symptom).values())
    if as_json:
        print_json(entries)
        return
    for symptom in entries:
        print(f"{symptom.name}: {symptom.title}")
        print(f"  {symptom.advice}")
        print(f"  groups: {', '.join(symptom.groups)}    (in a study: search.groups)")


def space(
    study: options.Study, python: options.Python = None, as_json: options.Json = False
) -> None:
    """Prints what a study searches. Tells the size, and the reason for every setting left out."""
    from autotune.model.spec import load_study
    from autotune.model.texts import text_lines
    from autotune.settings.space import format_condition, format_domain
    from autotune.study.preflight import preview_space

    searched, build = preview_space(
        load_study(study), study_dir=study.resolve().parent, python=python, note=note
    )
    if as_json:
        print_json(plain(searched, size=searched.size(), build=build))
        return
    rows = [
        (p.name, format_domain(p), p.default_choice or "''", format_condition(p))
        for p in searched.parameters
    ]
    print_table(("parameter", "values", "default", "active if"), rows)
    print_lines(text_lines("space.txt.j2", exp=math.exp, space=searched, build=build))


def doctor(
    plugin: options.Plugin = "auto", python: options.Python = None, as_json: options.Json = False
) -> None:
    """Shows what this machine has and what is missing.

    Tells which settings are in force, and what a feature lacks.
    """
    from autotune.machine.environment import caller_environment, driver_python
    from autotune.settings.doctor import diagnose, format_diagnosis
    from autotune.settings.known import KnownSettings
    from autotune.settings.probe import probe_named

    settings = None
    try:
        settings = KnownSettings(probe_named(plugin, python))
    except LaunchError as error:
        note(str(error))
    diagnosis = diagnose(python or driver_python(), caller_environment(), known=settings)
    if as_json:
        print_json(diagnosis)
        return
    print(format_diagnosis(diagnosis), end="")
