"""Judges settings for the installed build, and suggests replacements, from
`autotune.settings.known` alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from autotune.machine.environment import caller_environment
from autotune.model.errors import SettingError, close_matches
from autotune.model.files import plain_text
from autotune.model.flags import FlagSet, FlagToken, combine, is_variable, parse_tokens
from autotune.model.texts import Note
from autotune.settings.assignments import (
    COMPUTED,
    UNREAD,
    is_misspelt,
    is_setting,
    read_assignments,
)
from autotune.settings.catalog import NEVER_SEARCHED, OF_CACHES, Tier, find_recipe
from autotune.settings.known import KnownSetting, KnownSettings, Pair


class SettingVerdict(StrEnum):
    """Verdict on a setting for one build."""

    EFFECTIVE = "effective"
    ALREADY_DEFAULT = "already default"
    NO_EFFECT = "no effect"
    RENAMED = "renamed"
    REMOVED = "removed"
    BAD_VALUE = "wrong type or value"
    UNKNOWN = "unknown"
    DANGEROUS = "dangerous"
    NOT_JUDGED = "not judged"


Judgement = tuple[SettingVerdict, str, str]
"""Verdict, reason, advice."""

_IN_TRAINING = "take it out of training runs"
_OF_LIBTPU = "its flags are those of libtpu, which no build here holds"
_NOT_ASSIGNED = "it stands in the text, but in no assignment that could be read"
_NAME_ONLY = (
    SettingVerdict.EFFECTIVE,
    "the value is computed by the script, only the name was checked",
    "",
)


@dataclass(frozen=True, slots=True)
class SettingCheck:
    """The verdict on one setting."""

    name: str
    """As written, without dashes."""
    value: str | None
    """As written; None for a bare name."""
    verdict: SettingVerdict
    reason: str
    advice: str = ""
    starts: bool = True
    """Whether a process with the setting would start."""
    replacement: tuple[str, str] | None = None
    """Name and value to write instead; None if there is none, or the setting can go."""


Checks = list[SettingCheck]
"""Verdicts in the order in which the settings stand."""


def check_settings(settings: Mapping[str, str], known: KnownSettings) -> Checks:
    """Checks every setting of a set, in its order."""
    return [check_setting(name, value, known) for name, value in settings.items()]


def check_setting(
    name: str, value: str, known: KnownSettings, *, as_flag: bool = False
) -> SettingCheck:
    """Checks one setting with its value; `as_flag` in XLA_FLAGS, whose parser refuses what is no
    flag.
    """
    setting = known[name]
    exists = setting.is_flag if as_flag else setting.exists
    is_variable = not as_flag and not name.startswith("xla_")
    is_missing = not exists and (
        name[:4] == "jax_" or not is_variable or setting.entry.tier is Tier.REMOVED
    )
    if COMPUTED in value and (exists or (setting.is_catalogued and not as_flag)):
        return SettingCheck(name, value, *_NAME_ONLY)
    refused = setting.refused(value)
    replacement = setting.replacement(value)
    if is_missing:
        judged = _judge_missing(setting, replacement, as_flag=as_flag)
    elif refused:
        named = setting.legal_values and "legal" not in refused
        advice = f"legal: {', '.join(setting.legal_values)}" if named else "mend the value"
        judged = SettingVerdict.BAD_VALUE, refused, advice
    elif setting.is_older_name:
        advice = (
            "write the new name" if replacement is not None else "remove it: that is the default"
        )
        new = f"{setting.entry.renamed_to}={setting.renamed_value(value)}"
        judged = SettingVerdict.RENAMED, f"an older name that now sets {new}", advice
    else:
        judged = (None if exists else _judge_variable(setting, value)) or _judge(setting, value)
    # What reads a variable by a form passes over other words; what reads a list of words ends.
    is_fatal = exists or (bool(setting.entry.words) and not setting.entry.form)
    starts = is_variable if is_missing else not (refused and is_fatal)
    instead = replacement if judged[0] is SettingVerdict.RENAMED else None
    return SettingCheck(name, value, *judged, starts=starts, replacement=instead)


def for_build(
    settings: FlagSet,
    known: KnownSettings,
    *,
    over: FlagSet | None = None,
    note: Note = lambda text: None,
) -> FlagSet:
    """Translates a set to the installed build: new names, without no-ops, wrong and dangerous
    values.

    Args:
        over: Settings already in force: a default value stays if it undoes one of these.
        note: Called for each setting that is renamed or left out, except for default values.
    """
    kept: dict[str, str] = {}
    for old_name, old_value in _spelled_out(settings, known, note).items():
        check = check_setting(old_name, old_value, known)
        name, value = check.replacement or (old_name, old_value)
        if name != old_name:
            check = check_setting(name, value, known)
        if check.verdict is SettingVerdict.ALREADY_DEFAULT and name not in (over or ()):
            continue
        if check.verdict not in (SettingVerdict.ALREADY_DEFAULT, SettingVerdict.EFFECTIVE):
            note(f"{old_name} is left out: {check.reason}")
            continue
        if name != old_name:
            note(f"{old_name} is taken as {name}={value}")
        flag = known.build.flags.get(name)
        # Several old switches may have become items of one list.
        merged = name in kept and flag is not None and flag.repeated
        kept[name] = f"{kept[name]},{value}" if merged else value
    return FlagSet(kept)


def _spelled_out(settings: FlagSet, known: KnownSettings, note: Note) -> FlagSet:
    """Writes for each switch that the build lacks the flags of now for which it stood."""
    for name, value in settings.items():
        stood_for = known[name].entry.stood_for
        if stood_for and not known[name].exists and value.lower() in ("true", "1"):
            flags = {flag: "true" for flag in stood_for if flag in known.build.flags}
            settings = settings.without(name).merge(flags)
            note(f"{name} is taken as {FlagSet(flags)}")
    return settings


def _judge(setting: KnownSetting, value: str) -> Judgement:
    """Judges a value that the process takes."""
    entry = setting.entry
    is_default = setting.is_default(value)
    is_cache = entry.danger.startswith(OF_CACHES)
    if entry.danger and not is_default and not is_cache:
        return SettingVerdict.DANGEROUS, entry.danger, _IN_TRAINING
    if problem := setting.out_of_range(value):
        passes = "; the parser lets it pass" if setting.is_flag else ""
        name = f"write {entry.renamed_to} with" if entry.renamed_to else "use"
        return SettingVerdict.BAD_VALUE, f"{problem}{passes}", f"{name} a value in range"
    if reason := _never_acts(setting) or entry.against.get(value.upper(), ""):
        return SettingVerdict.NO_EFFECT, reason, "remove it"
    default = (
        "it is unset by default"
        if setting.default is None
        else f"the default is {setting.default!r}"
    )
    if is_default:
        return SettingVerdict.ALREADY_DEFAULT, default, "remove it"
    for_studies = "leave it out of studies: results of another run would decide" if is_cache else ""
    beware = next(
        (why for words, why in entry.beware.items() if re.fullmatch(words, value, re.I)), ""
    )
    needs = f"it needs {'; '.join(entry.needs)}" if entry.needs else ""
    avoided = setting.avoided(value) or beware or needs or for_studies
    if not setting.exists:
        return SettingVerdict.EFFECTIVE, "read from the environment", avoided
    acts = (
        "changes the resolved options"
        if setting.is_flag
        else f"jax {setting.among.build.jax} reads it"
    )
    return SettingVerdict.EFFECTIVE, f"{acts}; {default}", avoided


def _never_acts(setting: KnownSetting) -> str:
    """Why a setting does nothing in any program; empty if it may act."""
    entry = setting.entry
    if entry.tier is Tier.NOOP:
        return entry.summary.rstrip(".")
    if entry.platform in NEVER_SEARCHED:
        return NEVER_SEARCHED[entry.platform]
    return (
        f"{setting.among.build.build} takes it and stores it nowhere"
        if setting.is_stored_nowhere
        else ""
    )


def _judge_missing(setting: KnownSetting, replacement: Pair | None, *, as_flag: bool) -> Judgement:
    """Judges a name that the build lacks, which the parser refuses but an unread variable does
    not.
    """
    build = setting.among.build
    entry = setting.entry
    if replacement is not None:
        target = "=".join(replacement)
        return (
            SettingVerdict.RENAMED,
            f"{build.build} does not have it; {target} takes its place",
            f"write {target}",
        )
    is_other_kind = as_flag and setting.is_catalogued and entry.kind != "xla"
    if setting.flag is not None or is_other_kind:
        kind = "a variable" if is_other_kind else "only a compiler option of one compilation"
        return SettingVerdict.UNKNOWN, f"{kind}, not an XLA flag", "remove it from XLA_FLAGS"
    if setting.is_too_new:
        reason = f"{build.build} does not have it yet; it came with {entry.since}"
        return SettingVerdict.UNKNOWN, reason, "remove it, or upgrade jax"
    if setting.is_catalogued or setting.name in build.removed:
        what = entry.summary.rstrip(".") or "an XLA flag of other releases"
        return SettingVerdict.REMOVED, f"{build.build} does not have it: {what}", "remove it"
    reason = f"{build.build} does not know it{setting.hint(as_flag=as_flag)}"
    return SettingVerdict.UNKNOWN, reason, "correct the name or remove it"


def _judge_variable(setting: KnownSetting, value: str) -> Judgement | None:
    """Judges the name of an environment variable by the catalogue; None if its value decides."""
    entry = setting.entry
    build = setting.among.build
    if not setting.is_catalogued:
        advice = "check the spelling; nobody complains about a variable that nobody reads"
        return SettingVerdict.UNKNOWN, f"not in the catalogue{setting.hint()}", advice
    if setting.is_too_new:
        return (
            SettingVerdict.NO_EFFECT,
            f"came with {entry.since}, installed is {build.nccl}",
            "upgrade NCCL",
        )
    if entry.platform == "cuda" and build.platform == "cpu" and not entry.danger:
        return SettingVerdict.NO_EFFECT, "acts on GPUs, the check is for the CPU", "--plugin cuda"
    if entry.renamed_to and not entry.danger and not setting.out_of_range(value):
        advice = "write the new name; setting both is an error"
        return SettingVerdict.RENAMED, f"an older spelling of {entry.renamed_to}", advice
    return None


def check_xla_flags(text: str, known: KnownSettings) -> Checks:
    """Checks an XLA_FLAGS text token by token, as XLA reads it, with repetitions and stray
    words.
    """
    checks = []
    ignored_from = ""
    merged: dict[str, str] = {}
    for token in parse_tokens(re.sub(rf"(?<!\S)(?:--{COMPUTED}\S*|{COMPUTED}+)", "", text)):
        if ignored_from:
            reason = f"XLA stops reading at {ignored_from!r}, so this is never seen"
            advice = f"mend or remove {ignored_from!r}"
            checks.append(
                SettingCheck(token.name, token.value, SettingVerdict.NO_EFFECT, reason, advice)
            )
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
            checks.append(
                SettingCheck(
                    token.name, None, SettingVerdict.BAD_VALUE, reason, advice, starts=False
                )
            )
            continue
        value = "true" if token.value is None else token.value
        whole = combine(token.name, merged.get(token.name), value)
        if whole == value:  # which replaces the earlier ones
            reason = f"a later --{token.name}={value} overrides it"
            for at, check in enumerate(checks):
                if check.name == token.name and check.starts:
                    checks[at] = SettingCheck(
                        check.name, check.value, SettingVerdict.NO_EFFECT, reason, "remove it"
                    )
        merged[token.name] = whole
        checks.append(
            replace(check_setting(token.name, whole, known, as_flag=True), value=token.value)
        )
    return checks


def _check_stray(token: FlagToken, *, first: bool, known: KnownSettings) -> SettingCheck:
    """Checks a token that does not begin with two dashes."""
    flags = known.build.flags
    meant = f"--{token.name}" + ("" if token.value is None else f"={token.value}")
    advice = (
        f"write {meant}" if token.name in flags else f"remove it{close_matches(token.name, flags)}"
    )
    starts = False
    if token.text.startswith("-"):
        reason = "one dash is not enough: the parser refuses it"
    elif first:
        reason = "the text must begin with --, or XLA takes all of it for the name of a file"
    else:
        reason = "no dashes: XLA stops reading here and drops the rest without a word"
        starts = True
    if not token.text.isascii():
        reason = f"starts with {token.text[0]!r} instead of --; {reason}"
    return SettingCheck(token.name, token.value, SettingVerdict.UNKNOWN, reason, advice, starts)


def migrate_text(text: str, known: KnownSettings, *, note: Note = lambda text: None) -> FlagSet:
    """Translates the settings of a script to the installed build; `note` tells what is renamed,
    left out or unknown.
    """
    _refuse_alternatives(text)
    asked: dict[str, str] = {}
    for check in check_text(text, known):
        name, value = check.name, "true" if check.value is None else check.value
        may_be_set = name.startswith(("xla_", "jax_")) or is_variable(name)
        is_left = check.verdict is SettingVerdict.NOT_JUDGED or check.reason in UNREAD.values()
        if is_left or COMPUTED in value or not may_be_set:
            note(f"{name} stays where it is: {check.reason}")
        else:
            asked[name] = combine(name, asked.get(name), value)
    return for_build(FlagSet(asked), known, note=note)


def _refuse_alternatives(text: str) -> None:
    """Refuses a text of which only a run would tell which value of a setting counts, by a
    SettingError with lines.
    """
    values: dict[str, str | None] = {}
    for variable, value in read_assignments(text):
        tokens = (
            {t.name: t.value for t in parse_tokens(value)}
            if variable == "XLA_FLAGS"
            else {variable: value}
        )
        for name, given in tokens.items() if variable not in UNREAD else ():
            if values.setdefault(name, given) != given:
                raise SettingError(
                    f"{name} must have one value but gets {values[name]!r} and {given!r} "
                    f"({_lines_with(name, text)}); "
                    "take out what does not count, then migrate the rest"
                )


def _lines_with(word: str, text: str) -> str:
    """Formats the numbers of the lines of a text that hold a word."""
    return "lines " + ", ".join(
        str(at) for at, line in enumerate(text.splitlines(), 1) if word in line
    )


def check_text(text: str, known: KnownSettings) -> Checks:
    """Checks what a script of any language sets, and names the settings in it that no assignment
    holds.
    """
    found = read_assignments(text)
    if (
        re.search(r"xla_gpu_|\bNCCL_|\bCUDA_|XLA_PYTHON_CLIENT_", text)
        and ("JAX_PLATFORMS", "cpu") not in found
    ):
        known = known.on_gpus()
    checks = check_variables(found, known)
    read = set(re.findall(r"\w+", " ".join(f"{name} {value}" for name, value in found)))
    bare = re.sub(r"(?m)(?:^|[ \t])(?:#|//).*", "", text)
    for match in dict.fromkeys(
        re.findall(r"(?:--|\b)xla_\w+|(?<![\w$])(?<!\$\{)[A-Z]+_[A-Z0-9_]+\b", bare)
    ):
        name = match.removeprefix("--")
        if (
            name not in read
            and name.upper() != "XLA_FLAGS"
            and (match[:2] == "--" or _name_of(name) in known.catalog)
        ):
            advice = (
                f"{_lines_with(match, text)}; give it to `autotune flags check '{match}=VALUE'`"
            )
            checks.append(
                SettingCheck(_name_of(name), None, SettingVerdict.NOT_JUDGED, _NOT_ASSIGNED, advice)
            )
    return checks


def check_variables(assigned: Iterable[tuple[str, str]], known: KnownSettings) -> Checks:
    """Checks the variables that the catalogue, the build or a typo's neighbours know, and each flag
    of XLA_FLAGS.
    """
    checks: Checks = []
    for variable, value in assigned:
        name = _name_of(variable)
        if variable == "XLA_FLAGS":
            checks += check_xla_flags(value, known)
        elif variable in UNREAD:
            for name, given in re.findall(r"-*([A-Za-z]\w*)=?(\S*)", value):
                checks.append(SettingCheck(name, given, SettingVerdict.NO_EFFECT, UNREAD[variable]))
        elif is_misspelt(variable):
            checks.append(
                SettingCheck(variable, value, SettingVerdict.NO_EFFECT, UNREAD["misspelt"])
            )
        elif variable == "LIBTPU_INIT_ARGS":
            checks.append(SettingCheck(name, value, SettingVerdict.NOT_JUDGED, _OF_LIBTPU))
        elif is_setting(variable) and (
            known[name].exists or name[:4] != "jax_" or known[name].hint()
        ):
            checks.append(check_setting(name, value, known))
    return list(dict.fromkeys(checks))


def _name_of(variable: str) -> str:
    return variable.lower() if variable.startswith("JAX_") else variable


def check_given(
    known: KnownSettings,
    *,
    flags: Sequence[str],
    recipe: str | None,
    file: Path | None,
    from_environment: bool,
) -> Checks:
    """Checks either flags, a recipe, a script, or the caller's environment; SettingError unless one
    is given.
    """
    if sum((bool(flags), recipe is not None, file is not None, from_environment)) != 1:
        raise SettingError("give one of: flags, --recipe NAME, --file SCRIPT, --env")
    if recipe is not None:
        return check_settings(find_recipe(recipe).settings, known)
    if file is not None:
        return check_text(read_script(file), known)
    if from_environment:
        return check_variables(caller_environment().items(), known)
    is_script = re.match(r"\s*(export\s+)?[A-Za-z_]\w*=", flags[0]) is not None
    return (
        check_text(shlex.join(flags), known)
        if is_script
        else check_xla_flags(" ".join(flags), known)
    )


def read_script(file: Path) -> str:
    """Reads a script; SettingError if it is no readable text."""
    try:
        return plain_text(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"--file must be readable UTF-8 text but {file}: {why}") from error


def format_check(check: SettingCheck) -> tuple[str, str, str, str]:
    """Formats setting, verdict, whether it starts, and reason with advice."""
    verdict = str(check.verdict)
    if check.replacement is not None:
        verdict = f"renamed -> {check.replacement[0]}"
    value = "" if check.value is None else f"={check.value}"
    reason = "; ".join(filter(None, (check.reason, check.advice)))
    return f"{check.name}{value}", verdict, "yes" if check.starts else "NO", reason
