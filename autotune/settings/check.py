"""Judges settings for the installed build, and suggests replacements, from `autotune.settings.known` alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from autotune.machine.environment import caller_environment
from autotune.model.errors import SettingError, close_matches
from autotune.model.files import plain_text
from autotune.model.flags import FlagSet, FlagToken, combine, is_variable, parse_tokens
from autotune.model.spec import StudySpec
from autotune.settings.catalog import NEVER_SEARCHED, Catalog, Tier, find_recipe, load_recipes
from autotune.settings.known import KnownSetting, KnownSettings, Pair, renamed_value


class SettingVerdict(StrEnum):
    """Verdict on a setting for one build."""

    EFFECTIVE = "effective"
    ALREADY_DEFAULT = "already default"
    NO_EFFECT = "no effect"
    RENAMED = "renamed"
    REMOVED = "removed"
    BAD_VALUE = "wrong type or value"
    UNKNOWN = "not an XLA flag"
    DANGEROUS = "dangerous"


Judgement = tuple[SettingVerdict, str, str]
"""Verdict, reason, advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCheck:
    """The verdict on one setting."""

    name: str
    """As written, without dashes."""
    value: str | None
    """As written; None for a bare name."""
    verdict: SettingVerdict
    starts: bool
    """Whether a process with the setting would start."""
    reason: str
    advice: str = ""
    replacement: tuple[str, str] | None = None
    """Name and value to write instead; None if there is none, or the setting can go."""


def check_settings(settings: Mapping[str, str], known: KnownSettings) -> tuple[SettingCheck, ...]:
    """Checks every setting of a set, in its order."""
    return tuple(check_setting(name, value, known) for name, value in settings.items())


def check_setting(name: str, value: str, known: KnownSettings) -> SettingCheck:
    """Checks one setting with its value."""
    setting = known[name]
    if setting.exists:
        return _check_existing(setting, value, known)
    if name.startswith(("xla_", "jax_")) or (setting.entry is not None and setting.entry.tier is Tier.REMOVED):
        return _check_missing(setting, value, known)
    judged = _judge_variable(setting, value, known)
    replacement = known.replacement(setting, value) if judged[0] is SettingVerdict.RENAMED else None
    return _said(setting.name, value, judged, replacement=replacement)


def would_start(checks: Iterable[SettingCheck]) -> bool:
    """Whether a process with all these settings would start."""
    return all(c.starts for c in checks)


def for_build(
    settings: FlagSet,
    known: KnownSettings,
    *,
    over: FlagSet | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> FlagSet:
    """Translates a set to the installed build: new names, without no-ops, wrong and dangerous values.

    Args:
        over: Settings already in force: a default value stays if it undoes one of these.
        note: Called for each setting that is renamed or left out, except for default values.
    """
    kept: dict[str, str] = {}
    for found in check_settings(settings, known):
        check, name, value = found, found.name, found.value or ""
        if check.verdict is SettingVerdict.RENAMED and check.replacement is not None:
            name, value = check.replacement
            check = check_setting(name, value, known)
        is_kept = check.verdict is SettingVerdict.EFFECTIVE
        if check.verdict is SettingVerdict.ALREADY_DEFAULT:
            is_kept = over is not None and name in over
        elif not is_kept:
            note(f"{found.name} is left out: {check.reason}")
        if not is_kept:
            continue
        if name != found.name:
            note(f"{found.name} is taken as {name}={value}")
        flag = known.build.flags.get(name)
        # Several old switches may have become items of one list.
        merged = name in kept and flag is not None and flag.repeated
        kept[name] = f"{kept[name]},{value}" if merged else value
    return FlagSet(kept)


def _check_existing(setting: KnownSetting, value: str, known: KnownSettings) -> SettingCheck:
    """Checks a flag of the parser or an option of jax, where a refused value ends the process."""
    replacement, refused = None, setting.refused(value)
    if refused:
        named = setting.legal_values and "legal" not in refused
        advice = f"legal: {', '.join(setting.legal_values)}" if named else "mend the value"
        judged = SettingVerdict.BAD_VALUE, refused, advice
    elif setting.is_flag and known.is_older_name(setting):
        replacement = known.replacement(setting, value)
        judged = _judge_older_name(setting, value, replacement)
    else:
        judged = _judge(setting, value, known)
    return _said(setting.name, value, judged, starts=not refused, replacement=replacement)


def _judge(setting: KnownSetting, value: str, known: KnownSettings) -> Judgement:
    """Judges a value that the process takes."""
    is_default = setting.is_default(value)
    if setting.danger and not is_default:
        return SettingVerdict.DANGEROUS, setting.danger, "take it out of training runs"
    if problem := setting.out_of_range(value):
        passes = "; the parser lets it pass" if setting.is_flag else ""
        return SettingVerdict.BAD_VALUE, f"{problem}{passes}", "use a value in range"
    if reason := _never_acts(setting, known.build.build):
        return SettingVerdict.NO_EFFECT, reason, "remove it"
    default = "it is unset by default" if setting.default is None else f"the default is {setting.default!r}"
    if is_default:
        return SettingVerdict.ALREADY_DEFAULT, default, "remove it"
    if not setting.exists:
        return SettingVerdict.EFFECTIVE, "read from the environment", ""
    acts = "changes the resolved options" if setting.is_flag else f"jax {known.build.jax} reads it"
    return SettingVerdict.EFFECTIVE, f"{acts}; {default}", ""


def _never_acts(setting: KnownSetting, build: str) -> str:
    """Why a setting does nothing in any program; empty if it may act."""
    entry, flag = setting.entry, setting.flag
    if entry is not None and entry.tier is Tier.NOOP:
        return entry.summary.rstrip(".")
    if entry is not None and entry.platform in NEVER_SEARCHED:
        return NEVER_SEARCHED[entry.platform]
    return f"{build} takes it and stores it nowhere" if flag is not None and not flag.sets else ""


def _judge_older_name(setting: KnownSetting, value: str, replacement: Pair | None) -> Judgement:
    """Judges an old name that the parser still accepts."""
    entry = setting.entry
    assert entry is not None
    reason = f"an older name that now sets {entry.renamed_to}={renamed_value(entry, value)}"
    if replacement is None:
        return SettingVerdict.RENAMED, f"{reason}, which is the default", "remove it"
    return SettingVerdict.RENAMED, reason, "write the new name"


def _check_missing(setting: KnownSetting, value: str, known: KnownSettings, *, as_flag: bool = False) -> SettingCheck:
    """Checks a name that the build lacks, which the parser refuses but an unread variable does not."""
    is_variable = setting.name.startswith("jax_") or (setting.entry is not None and setting.entry.kind == "env")
    replacement = known.replacement(setting, value)
    if replacement is not None:
        target = "=".join(replacement)
        reason = f"{known.build.build} does not have it; {target} takes its place"
        judged = SettingVerdict.RENAMED, reason, f"write {target}"
    else:
        judged = _judge_missing(setting, known, as_flag=as_flag)
    return _said(setting.name, value, judged, starts=is_variable, replacement=replacement)


def _judge_missing(setting: KnownSetting, known: KnownSettings, *, as_flag: bool) -> Judgement:
    """Judges a missing name without a replacement."""
    build, name, entry = known.build, setting.name, setting.entry
    bare, dash, rest = name.partition("-")
    if dash and bare in build.flags:  # seen in a published script: --xla_gpu_enable_triton_gemm-false
        return SettingVerdict.UNKNOWN, f"{build.build} does not know it", f"write --{bare}={rest}"
    if setting.flag is not None:
        reason = "only a compiler option of one compilation, not an XLA flag"
        return SettingVerdict.UNKNOWN, reason, "remove it from XLA_FLAGS"
    if entry is not None and setting.is_too_new:
        reason = f"{build.build} does not have it yet; it came with {entry.since}"
        return SettingVerdict.UNKNOWN, reason, "remove it, or upgrade jax"
    if entry is not None or name in build.removed:
        what = entry.summary.rstrip(".") if entry is not None else "an XLA flag of other releases"
        return SettingVerdict.REMOVED, f"{build.build} does not have it: {what}", "remove it"
    reason = f"{build.build} does not know it{known.hint(setting, as_flag=as_flag)}"
    return SettingVerdict.UNKNOWN, reason, "correct the name or remove it"


def _judge_variable(setting: KnownSetting, value: str, known: KnownSettings) -> Judgement:
    """Judges an environment variable by the catalogue; nothing refuses it at start."""
    entry = setting.entry
    if entry is None:
        advice = "check the spelling; nobody complains about a variable that nobody reads"
        return SettingVerdict.UNKNOWN, f"not in the catalogue{known.hint(setting)}", advice
    if problem := setting.refused(value):
        return SettingVerdict.BAD_VALUE, problem, "mend the value"
    if setting.is_too_new:
        return SettingVerdict.NO_EFFECT, f"came with {entry.since}, installed is {known.build.nccl}", "upgrade NCCL"
    if entry.platform == "cuda" and known.build.platform == "cpu" and not entry.danger:
        return SettingVerdict.NO_EFFECT, "acts on GPUs, the check is for the CPU", "--plugin cuda"
    if entry.renamed_to and not entry.danger:
        advice = "write the new name; setting both is an error"
        return SettingVerdict.RENAMED, f"an older spelling of {entry.renamed_to}", advice
    return _judge(setting, value, known)


def check_xla_flags(text: str, known: KnownSettings) -> tuple[SettingCheck, ...]:
    """Checks an XLA_FLAGS text token by token, as XLA reads it, with repetitions and stray words."""
    checks: list[SettingCheck] = []
    ignored_from = ""
    merged: dict[str, str] = {}
    for token in parse_tokens(text):
        if ignored_from:
            reason = f"XLA stops reading at {ignored_from!r}, so this is never seen"
            advice = f"mend or remove {ignored_from!r}"
            checks.append(_said(token.name, token.value, (SettingVerdict.NO_EFFECT, reason, advice)))
            continue
        if not token.is_flag:
            checks.append(_check_stray(token, first=not checks, known=known))
            if not token.text.startswith("-"):
                ignored_from = token.text
            continue
        flag = known.build.flags.get(token.name)
        if token.value is None and flag is not None and flag.type != "bool":
            reason = f"needs a value ({flag.type}); only booleans may stand alone"
            advice = f"write --{token.name}=VALUE; the default is {flag.default or ''!r}"
            checks.append(_said(token.name, token.value, (SettingVerdict.BAD_VALUE, reason, advice), starts=False))
            continue
        value = "true" if token.value is None else token.value
        if token.name in merged:
            checks = [_overridden(c, token.name, value) for c in checks]
            value = combine(token.name, merged[token.name], value)
        merged[token.name] = value
        setting = known[token.name]
        if setting.is_flag:
            check = _check_existing(setting, value, known)
        else:
            check = _check_missing(setting, value, known, as_flag=True)
        checks.append(replace(check, value=token.value))
    return tuple(checks)


def _check_stray(token: FlagToken, *, first: bool, known: KnownSettings) -> SettingCheck:
    """Checks a token that does not begin with two dashes."""
    names = list(known.build.flags)
    meant = f"--{token.name}" + ("" if token.value is None else f"={token.value}")
    advice = f"write {meant}" if token.name in names else f"remove it{close_matches(token.name, names)}"
    if token.text.startswith("-"):
        reason, starts = "one dash is not enough: the parser refuses it", False
    elif first:
        reason, starts = "the text must begin with --, or XLA takes all of it for the name of a file", False
    else:
        reason, starts = "no dashes: XLA stops reading here and drops the rest without a word", True
    if not token.text.isascii():
        reason = f"starts with {token.text[0]!r} instead of --; {reason}"
    return _said(token.name, token.value, (SettingVerdict.UNKNOWN, reason, advice), starts=starts)


def _overridden(check: SettingCheck, name: str, value: str) -> SettingCheck:
    """Marks an earlier token of the same name if the later one replaces its whole value."""
    if check.name != name or not check.starts or combine(name, check.value or "", value) != value:
        return check
    judged = SettingVerdict.NO_EFFECT, f"a later --{name}={value} overrides it", "remove it"
    return _said(name, check.value, judged)


def _said(
    name: str, value: str | None, judged: Judgement, *, starts: bool = True, replacement: tuple[str, str] | None = None
) -> SettingCheck:
    verdict, reason, advice = judged
    return SettingCheck(
        name=name, value=value, verdict=verdict, starts=starts, reason=reason, advice=advice, replacement=replacement
    )


_FLAG = re.compile(
    r"(?P<dash>--|[‐‑‒–—―−]{1,2})(?P<name>xla_[a-z0-9_]+)"  # noqa: RUF001
    r"(?P<rest>=(?P<value>\\\"[^\"]*\\\"|\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'\\;)`]*))?"
)
_VARIABLE = re.compile(
    r"^[ \t]*(?:export[ \t]+|ENV[ \t]+)?(?P<name>[A-Z][A-Z0-9_]+)=(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s#]*)",
    re.MULTILINE,
)
_COMPUTED = re.compile(r"[$`{]")
_STEERS = re.compile(r"(NCCL|NVTE|XLA_PYTHON_CLIENT|XLA_CLIENT)_")


class Found(NamedTuple):
    """One setting in a script: an XLA flag anywhere, or a variable assigned at the start of a line."""

    name: str
    value: str | None
    """Without quotes; None for a bare flag."""
    is_computed: bool
    """Whether the value holds a shell variable, so that only the name can be judged."""


class Migration(NamedTuple):
    """Settings for the installed build, with notes on those renamed or left out."""

    settings: FlagSet
    notes: tuple[str, ...]


def migrate_text(text: str, known: KnownSettings) -> Migration:
    """Finds the settings in the text of a script and translates them to the installed build."""
    asked: dict[str, str] = {}
    notes: list[str] = []
    for found in find_settings(text, known.catalog):
        value = "true" if found.value is None else found.value
        if found.is_computed:
            notes.append(f"{found.name} is left out: the script computes its value, {value}")
        elif found.name.isupper() and not is_variable(found.name):
            notes.append(f"{found.name} is left out: it names a library, a file or an address, which no set may hold")
        else:
            asked[found.name] = combine(found.name, asked[found.name], value) if found.name in asked else value
    settings = for_build(FlagSet(asked), known, note=notes.append)
    return Migration(settings=settings, notes=tuple(notes))


def find_settings(text: str, catalog: Catalog) -> list[Found]:
    """Finds the settings in a script of any language, in order; of other variables those named as if they steered."""
    matches = [(m.start(), m["name"], m["value"]) for m in _FLAG.finditer(text)]
    for m in _VARIABLE.finditer(text):
        name = m["name"].lower() if m["name"].startswith("JAX_") else m["name"]
        if (name in catalog or _STEERS.match(name)) and name != "XLA_FLAGS":
            matches.append((m.start("name"), name, m["value"]))
    return [
        Found(name, None if value is None else _unquoted(value), _COMPUTED.search(value or "") is not None)
        for _, name, value in sorted(matches, key=lambda match: match[0])
    ]


def check_found(found: Found, known: KnownSettings) -> SettingCheck:
    """Checks one setting of a script, except for a computed value."""
    value = "true" if found.value is None else found.value
    if found.is_computed and known[found.name].is_flag:
        reason = "the value is computed by the script, only the name was checked"
        return _said(found.name, found.value, (SettingVerdict.EFFECTIVE, reason, ""))
    return check_setting(found.name, value, known)


def _unquoted(value: str) -> str:
    for quote in ('\\"', '"', "'"):
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote):
            return value[len(quote) : -len(quote)]
    return value


def find_steering(environment: Mapping[str, str], known: KnownSettings) -> tuple[SettingCheck, ...]:
    """Checks all variables that the catalogue or the build knows, and each flag of XLA_FLAGS."""
    checks = list(check_xla_flags(environment.get("XLA_FLAGS", ""), known))
    for variable, value in sorted(environment.items()):
        name = variable.lower() if variable.startswith("JAX_") else variable
        is_known = (name in known.catalog and name.isupper()) or name in known.build.jax_options
        if variable != "XLA_FLAGS" and (is_known or _STEERS.match(variable)):
            checks.append(check_setting(name, value, known))
    return tuple(checks)


def named_sets(spec: StudySpec, known: KnownSettings, *, every: bool) -> dict[str, FlagSet]:
    """The study's own sets and recipes (with `every` all recipes), translated to the build."""
    names = list(load_recipes()) if every else list(spec.search.recipes)
    found = {f"set {s.name}": s.settings for s in spec.search.first}
    found |= {f"recipe {n}": for_build(find_recipe(n).settings, known) for n in names}
    return {name: settings for name, settings in found.items() if settings}


def check_given(
    known: KnownSettings, *, flags: Sequence[str], recipe: str | None, file: Path | None, from_environment: bool
) -> tuple[SettingCheck, ...]:
    """Checks either flags, a recipe, a script, or the caller's environment.

    Raises:
        SettingError: If none or several are given, or the given one cannot be read.
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
    """Reads a script.

    Raises:
        SettingError: If it is no readable text.
    """
    try:
        return plain_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--file must be readable UTF-8 text but {file}: {error}") from error


def format_check(check: SettingCheck) -> tuple[str, str, str, str]:
    """Formats setting, verdict, whether it starts, and reason with advice."""
    verdict = str(check.verdict)
    if check.verdict is SettingVerdict.RENAMED and check.replacement is not None:
        verdict = f"renamed -> {check.replacement[0]}"
    value = "" if check.value is None else f"={check.value}"
    reason = "; ".join(filter(None, (check.reason, check.advice)))
    return f"{check.name}{value}", verdict, "yes" if check.starts else "NO", reason
