"""What a person asks of the catalogue and the installed build: some settings, one build, verdicts on what is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.machine import caller_environment, driver_python
from autotune.model import FlagSet, SettingError, StudySpec, close_matches
from autotune.settings.build import ProbeReport
from autotune.settings.catalog import Catalog, Scope, Setting
from autotune.settings.check import SettingCheck, check_settings, check_xla_flags, for_build
from autotune.settings.doctor import find_steering
from autotune.settings.known import KnownSettings
from autotune.settings.migrate import check_found, find_settings
from autotune.settings.parser import ParserProcess
from autotune.settings.probe import probe_build
from autotune.settings.recipes import find_recipe, load_recipes


def select_settings(catalog: Catalog, *, group: str | None, scope: str | None, word: str = "") -> list[Setting]:
    """The settings of a group, a scope, and with a word in name or summary; None and an empty word ask for all.

    Raises:
        SettingError: If there is no such group or scope.
    """
    every_group = sorted({s.group for s in catalog.values()})
    for given, legal, what in ((group, every_group, "group"), (scope, list(Scope), "scope")):
        if given is not None and given not in legal:
            hint = close_matches(given, legal)
            raise SettingError(f"--{what} must be one of {', '.join(legal)} but got {given!r}{hint}")
    return [
        s
        for s in catalog.values()
        if (group is None or group in (s.group, *s.also_in))
        and (scope is None or scope in s.scopes)
        and (word.lower() in s.name.lower() or word.lower() in s.summary.lower())
    ]


def probe_named(plugin: str, python: str | None, *, note: Callable[[str], None]) -> ProbeReport:
    """What the chosen build says.

    Args:
        plugin: ``cpu``, ``cuda``, or ``auto`` for the CUDA plugin if it is installed.
        python: Interpreter whose packages are meant; None for that of the driver.
        note: Told if another library has to answer.

    Raises:
        LaunchError: If the interpreter cannot be asked.
    """
    interpreter = python or driver_python()
    if plugin == "cpu":
        return probe_build(interpreter, platform="cpu")
    report = probe_build(interpreter, platform="cuda")
    if report.plugin is None:
        if plugin == "auto":
            return replace(report, platform="cpu")  # without a plugin both ask the same library
        note(
            "the CUDA plugin is not installed; the CPU library of the same release answers, which holds the same flags"
        )
    return report


def help_of_build(name: str, python: str | None) -> str:
    """What the installed library itself says of a setting, asked anew each time; empty if it says nothing.

    Of XLA flags it prints the first quarter only; see `ParserProcess.help_texts`.

    Args:
        name: An XLA flag or a JAX option; of a variable no library speaks.
        python: Interpreter whose packages are meant; None for that of the driver.

    Raises:
        LaunchError: If the interpreter cannot be asked.
    """
    with ParserProcess(python or driver_python()) as parser:
        if name.startswith("xla_"):
            return parser.help_texts().get(name, "")
        if name.startswith("jax_"):
            return " ".join(str(parser.jax_options().get(name, {}).get("help", "")).split())
    return ""


def named_sets(spec: StudySpec, known: KnownSettings, *, every: bool) -> dict[str, FlagSet]:
    """The study's own sets and recipes, or with `every` all published recipes, as far as the build has them."""
    names = list(load_recipes()) if every else list(spec.search.recipes)
    found = {f"set {s.name}": s.settings for s in spec.search.first}
    found |= {f"recipe {n}": for_build(find_recipe(n).settings, known) for n in names}
    return {name: settings for name, settings in found.items() if settings}


def check_given(
    known: KnownSettings,
    *,
    flags: Sequence[str],
    recipe: str | None,
    file: Path | None,
    from_environment: bool,
) -> tuple[SettingCheck, ...]:
    """Verdicts on flags as in XLA_FLAGS, a recipe, a script, or the caller's environment: on one of them.

    Raises:
        SettingError: If none or several are given, or what is given cannot be read.
    """
    if sum((bool(flags), recipe is not None, file is not None, from_environment)) != 1:
        raise SettingError("give one of: flags, --recipe NAME, --file SCRIPT, --env")
    if recipe is not None:
        return check_settings(find_recipe(recipe).settings, known)
    if file is not None:
        return tuple(check_found(f, known) for f in find_settings(read_script(file), known.catalog))
    if from_environment:
        return find_steering(caller_environment(), known)
    return check_xla_flags(" ".join(flags), known)


def read_script(file: Path) -> str:
    """The text of a script.

    Raises:
        SettingError: If it is no readable text.
    """
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--file must be readable UTF-8 text but {file}: {error}") from error


def replace_script(file: Path, before: str, after: str) -> Path:
    """Writes a script's new text; the old one lies in the file that is given, under a name that was free.

    Raises:
        SettingError: If there are too many copies already.
    """
    for number in range(1000):
        backup = file.with_name(file.name + (".orig" if not number else f".orig.{number}"))
        if not backup.exists():
            backup.write_text(before, "utf-8")
            file.write_text(after, "utf-8")
            return backup
    raise SettingError(f"a copy of {file} must have a free name but all up to {backup.name} are taken; remove some")
