"""The commands about settings: flags, recipes, symptoms, space, doctor. Mounted by `autotune.cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options
from autotune.cli.printing import plain, print_exact, print_json, print_table

if TYPE_CHECKING:
    from autotune.settings import Migration, ProbeReport, SettingCheck

flags_app = typer.Typer(help="Every published setting: what the installed build says.", no_args_is_help=True)
recipes_app = typer.Typer(help="Published flag sets: what the installed build has.", no_args_is_help=True)

_TAKES_FLAGS = {"ignore_unknown_options": True}  # an argument such as --xla_gpu_autotune_level=3 is no option of ours


@flags_app.command("list")
def list_flags(
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    scope: Annotated[str | None, typer.Option(help="Only this scope, such as multi_device.")] = None,
    grep: Annotated[str | None, typer.Option(help="Only settings whose name or summary holds this word.")] = None,
    as_json: options.Json = False,
) -> None:
    """Lists the settings of the catalogue; `autotune flags show NAME` tells all of one."""
    from autotune.settings import load_catalog, select_settings

    catalog = load_catalog()
    found = select_settings(catalog, group=group, scope=scope, word=grep or "")
    if as_json:
        print_json([plain(s, kind=s.kind) for s in found])
        return
    rows = [(s.name, s.group, s.tier, s.summary) for s in found]
    print_table(("setting", "group", "tier", "what it does"), rows)
    print(f"{len(found)} of {len(catalog)} settings")


@flags_app.command("show", context_settings=_TAKES_FLAGS)
def show_flag(
    name: Annotated[str, typer.Argument(help="A setting, with or without dashes.")],
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Tells all that is known of one setting, and what the installed build says of it."""
    from autotune.results import alive_lines
    from autotune.settings import KnownSettings, describe_setting, help_of_build, load_atlas, load_catalog, load_recipes

    catalog = load_catalog()
    setting = catalog.find(name)
    report = _report(plugin, python)
    info, option = report.flags.get(setting.name), report.jax_options.get(setting.name)
    recipes = [r.name for r in load_recipes().values() if setting.name in r.settings]
    there = info is not None or option is not None
    own_words = help_of_build(setting.name, python) if there else ""
    alive = alive_lines(load_atlas(), setting.name)
    if as_json:
        more = {
            "build": report.build,
            "in_build": info or option,
            "recipes": recipes,
            "help_of_build": own_words,
            "atlas": alive,
        }
        print_json(plain(setting, kind=setting.kind, **more))
        return
    print(f"{setting.name}: {setting.summary}")
    atlas = [("atlas" if not i else "", line) for i, line in enumerate(alive)]
    last = (("recipes", ", ".join(recipes)), *atlas, ("the build says", own_words))
    for label, text in (*describe_setting(setting, KnownSettings(report)), *last):
        if text:
            print(f"  {label:16} {text}")


@flags_app.command("check", context_settings=_TAKES_FLAGS)
def check_flags(
    text: options.Flags = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe of `autotune recipes list`.")] = None,
    file: options.Script = None,
    env: Annotated[bool, typer.Option("--env", help="Check the environment of this call.")] = False,
    where: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="PLACE|STUDY.toml",
            help="Kind of model and GPUs, such as dense-fsdp@8xh100-sxm; or a study, for the build that it runs on.",
        ),
    ] = None,
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Says of each setting what it really is for the installed build; fails if any would stop a process."""
    from autotune.cli.atlas import cells_words
    from autotune.results import told_parts
    from autotune.settings import KnownSettings, check_given, load_atlas, parse_places, would_start

    table = load_atlas()
    is_study = where is not None and where.endswith(".toml")
    places = parse_places(where, table) if where and not is_study else None
    report = _report_for(Path(where), plugin, python) if where and is_study else _report(plugin, python)
    checks = check_given(KnownSettings(report), flags=text or (), recipe=recipe, file=file, from_environment=env)
    told = told_parts(table, [(c.name, c.value) for c in checks], report.jaxlib, places) if places else []
    if as_json:
        print_json({"build": report.build, "starts": would_start(checks), "settings": checks, "atlas": told})
    else:
        _print_checks(checks, report, as_json=False)
    if told and not as_json:
        rows = [(t.name, t.value, t.verdict or "not known", cells_words(t), t.words) for t in told]
        print(f"the atlas, by jaxlib {told[0].jaxlib}:")
        print_table(("setting", "value", "verdict", "in", "what"), rows)
    if not would_start(checks):
        raise typer.Exit(1)


@flags_app.command("migrate", context_settings=_TAKES_FLAGS)
def migrate_flags(
    text: options.Flags = None,
    file: options.Script = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file; a copy stays beside it.")] = False,
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Rewrites a block of settings for the installed build, with a reason for each change."""
    from autotune.model import SettingError
    from autotune.settings import KnownSettings, migrate_text, read_script, replace_script

    if (file is None) == (not text) or (write and file is None):
        raise SettingError("give either flags or --file, and --write only with --file")
    before = read_script(file) if file is not None else " ".join(text or ())
    migration = migrate_text(before, KnownSettings(_report(plugin, python)))
    if as_json:
        print_json(migration)
    else:
        _print_migration(migration)
    if write and file is not None and migration.changes:
        backup = replace_script(file, before, migration.text)
        print(f"written: {file}; the old text is in {backup}", file=sys.stderr)


@recipes_app.command("list")
def list_recipes(as_json: options.Json = False) -> None:
    """Lists the published sets."""
    from autotune.settings import load_recipes

    recipes = list(load_recipes().values())
    if as_json:
        print_json(recipes)
        return
    rows = [(r.name, r.date, r.for_hardware, str(len(r.settings)), r.source) for r in recipes]
    print_table(("recipe", "date", "for", "settings", "source"), rows)


@recipes_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="A recipe.")],
    existing: Annotated[bool, typer.Option("--existing", help="Only what the installed build acts on.")] = False,
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Prints one set as it was published, or what is left of it for the installed build."""
    from autotune.results import recipe_lines
    from autotune.settings import KnownSettings, find_recipe, for_build, load_atlas

    recipe = find_recipe(name)
    settings = recipe.settings
    if existing:
        settings = for_build(settings, KnownSettings(_report(plugin, python)))
    programs = recipe_lines(load_atlas(), recipe.name)
    if as_json:
        print_json(plain(recipe, settings=settings, atlas=programs))
        return
    for line in (recipe.source, recipe.date, recipe.for_hardware, recipe.note, *programs):
        if line:
            print(f"# {line}")
    for name_, value in settings.items():
        print(f"{name_}={value}")


@recipes_app.command("check")
def check_recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe; default: all, one line each.")] = None,
    plugin: options.Plugin = "auto",
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Says what of a published set the installed build takes; fails if any of it would stop a process."""
    from autotune.settings import KnownSettings, check_settings, find_recipe, load_recipes, would_start

    report = _report(plugin, python)
    known = KnownSettings(report)
    chosen = [find_recipe(name)] if name else list(load_recipes().values())
    checks = {r.name: check_settings(r.settings, known) for r in chosen}
    if name:
        _print_checks(checks[name], report, as_json=as_json)
    elif as_json:
        print_json(checks)
    else:
        rows = [
            (n, "yes" if would_start(found) else "no", ", ".join(c.name for c in found if not c.starts))
            for n, found in checks.items()
        ]
        print_table(("recipe", f"starts on {report.build}", "refused"), rows)
    if not all(would_start(found) for found in checks.values()):
        raise typer.Exit(1)


def symptoms(
    text: Annotated[str | None, typer.Argument(help="What you see, in your words.")] = None,
    as_json: options.Json = False,
) -> None:
    """Gives the groups of settings that are worth a search for what one sees."""
    from autotune.model import SettingError
    from autotune.settings import load_symptoms, search_symptoms

    found = search_symptoms(text) if text else tuple(load_symptoms().values())
    if not found:
        known = ", ".join(load_symptoms())
        raise SettingError(f"a symptom must hold a known word but got {text!r}; the symptoms are: {known}")
    if as_json:
        print_json(found)
        return
    for symptom in found:
        print(f"{symptom.name}: {symptom.title}")
        print(f"  {symptom.advice}")
        print(f"  groups: {', '.join(symptom.groups)}    (in a study: search.groups)")


def space(
    study: options.Study,
    run_dir: options.RunDir = None,
    python: options.Python = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also how likely each setting is thought to act, and why.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Prints what a run of a study searches, its size, and the reason for every setting left out."""
    from autotune.model import load_study
    from autotune.settings import describe_condition, describe_domain
    from autotune.study import foretell_space

    spec = load_study(study)
    path, folder = run_dir or options.RUNS / spec.name, study.resolve().parent
    told = foretell_space(spec, study_dir=folder, run_dir=path, is_asked=run_dir is not None, python=python, note=_note)
    found = told.space
    if as_json:
        facts = {"told_by": told.told_by, "device_count": told.device_count, "layer_bytes": told.layer_bytes}
        print_json(
            {
                **plain(found),
                "size": found.size(),
                "build": told.build,
                "facts": facts,
                "priors": {n: plain(p) for n, p in told.priors.items()},
                "first": {name: dict(settings) for name, settings in told.first},
            }
        )
        return
    rows = [(p.name, describe_domain(p), p.default_choice or "''", describe_condition(p)) for p in found.parameters]
    print_table(("parameter", "values", "default", "acts"), rows)
    if why:
        likely = sorted(told.priors.items(), key=lambda item: -item[1].act)
        thought = [(n, f"{100 * p.act:.0f} %", "; ".join(p.why) or "nothing is known of it") for n, p in likely]
        print_table(("parameter", "thought to act", "for"), thought)
    for name, settings in told.first:
        print(f"tried first, {name}: {settings}")
    print(f"{found.size():.6g} points on {told.build}; told by {told.told_by}")
    for title, reasons in (("to know:", found.notes), ("left out:", found.left_out)):
        if reasons:
            print(title)
        for name, reason in reasons.items():
            print(f"  {name}: {reason}")


def doctor(plugin: options.Plugin = "auto", python: options.Python = None, as_json: options.Json = False) -> None:
    """Shows what this machine offers, what steers it already, and what is missing for which feature."""
    from autotune.machine import caller_environment, driver_python
    from autotune.model import LaunchError
    from autotune.settings import KnownSettings, describe_diagnosis, diagnose

    try:
        known: KnownSettings | None = KnownSettings(_report(plugin, python))
    except LaunchError as error:
        print(f"autotune: {error}", file=sys.stderr)
        known = None
    found = diagnose(python or driver_python(), caller_environment(), known=known)
    if as_json:
        print_json(found)
        return
    for line in describe_diagnosis(found):
        print(line)


# ---------------------------------------------------------------------- helpers


def _report(plugin: options.PluginChoice, python: str | None) -> ProbeReport:
    from autotune.settings import probe_named

    return probe_named(plugin, python, note=_note)


def _report_for(study: Path, plugin: options.PluginChoice, python: str | None) -> ProbeReport:
    """What the build says on which the program of a study runs."""
    from autotune.model import SettingError, load_study
    from autotune.study import program_python

    if python is not None or plugin != "auto":
        raise SettingError("--for takes interpreter and platform from the study: leave out --python and --plugin")
    spec = load_study(study)
    found = program_python(spec, study.resolve().parent, note=_note)
    return _report("cpu" if spec.device.platform == "cpu" else "cuda", found)


def _note(text: str) -> None:
    print(f"autotune: {text}", file=sys.stderr)


def _print_checks(checks: Sequence[SettingCheck], report: ProbeReport, *, as_json: bool) -> None:
    from autotune.settings import describe_check, would_start

    if as_json:
        print_json({"build": report.build, "starts": would_start(checks), "settings": checks})
        return
    print_table(("setting", "verdict", "starts", "why, and what to do"), map(describe_check, checks))
    refused = sum(not c.starts for c in checks)
    outcome = f"{refused} would stop a process" if refused else "all would start"
    print(f"{report.build}: {len(checks)} settings, {outcome}")


def _print_migration(migration: Migration) -> None:
    """The new text on standard output, the reasons on standard error."""
    print_exact(migration.text if migration.text.endswith("\n") else migration.text + "\n")
    for change in migration.changes:
        after = change.after or "(removed)"
        print(f"line {change.line}: {change.before} -> {after}: {change.reason}", file=sys.stderr)
    for remark in migration.remarks:
        print(f"left as it is, {remark}", file=sys.stderr)
    if not migration.changes:
        print("nothing to change", file=sys.stderr)
