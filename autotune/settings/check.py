"""Judges settings for the installed build, by `autotune.settings.known` alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
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
    after_changes,
    is_misspelt,
    is_setting,
    read_assignments,
)
from autotune.settings.catalog import (
    NEVER_SEARCHED,
    OF_CACHES,
    Pair,
    TextMap,
    Texts,
    Tier,
    Values,
    find_recipe,
    setting_of,
)
from autotune.settings.known import KnownSetting, KnownSettings


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


Judgement = tuple[SettingVerdict, str, str]  # verdict, reason, advice


@dataclass(frozen=True)
class SettingCheck:
    """The verdict on one setting."""

    name: str  # as written, without dashes
    value: str | None  # as written; None for a bare name
    verdict: SettingVerdict
    reason: str
    advice: str = ""
    starts: bool = True  # whether a process with the setting would start
    replacement: Pair | None = None  # what to write instead, if anything


Checks = list[SettingCheck]  # verdicts in the order in which the settings stand


def check_settings(settings: TextMap, known: KnownSettings) -> Checks:
    """Checks every setting of a set, in its order."""
    return [check_setting(name, value, known) for name, value in settings.items()]


def check_setting(
    name: str, value: str, known: KnownSettings, *, as_flag: bool = False
) -> SettingCheck:
    """Checks one setting; `as_flag` in XLA_FLAGS, whose parser refuses unknown names."""
    setting = known[name]
    exists = setting.info.in_xla_flags if as_flag else setting.exists
    is_variable = not as_flag and not name.startswith("xla_")
    is_gone = name.startswith("jax_") or setting.entry.tier is Tier.REMOVED
    if COMPUTED in value and (exists or (setting.is_catalogued and not as_flag)):
        reason = "the value is computed by the script, only the name was checked"
        return SettingCheck(name, value, SettingVerdict.EFFECTIVE, reason)
    refused = setting.refused(value)
    replacement = setting.replacement(value)
    # What reads a variable by a form passes over other words; what reads a list of words ends.
    is_list = setting.entry.words and not setting.entry.form
    is_fatal = exists or is_list or setting.info.type == "float"
    starts = not (refused and is_fatal)
    if not exists and (is_gone or not is_variable):
        judgement = _judge_missing(setting, replacement, as_flag=as_flag)
        starts = is_variable
    elif refused:
        legal = ", ".join(setting.info.values)
        advice = f"legal: {legal}" if legal else "mend the value"
        judgement = SettingVerdict.BAD_VALUE, refused, advice
    elif setting.is_older_name:
        newer = f"{setting.entry.renamed_to}={setting.renamed_value(value)}"
        advice = "write the new name" if replacement else "remove it: it is the default"
        judgement = SettingVerdict.RENAMED, f"an older name that sets {newer}", advice
    elif exists:
        judgement = _judge(setting, value)
    else:
        judgement = _judge_variable(setting, value)
    if judgement[0] is not SettingVerdict.RENAMED:
        replacement = None
    return SettingCheck(name, value, *judgement, starts=starts, replacement=replacement)


def for_build(
    settings: FlagSet,
    known: KnownSettings,
    *,
    over: Collection[str] = (),
    note: Note = lambda text: None,
) -> FlagSet:
    """Translates a set to the installed build, without no-ops, wrong and dangerous values.

    A default value stays if it undoes one of the settings `over`, which are already in force.
    """
    translated: Values = {}
    for old_name, old_value in settings.items():
        check = check_setting(old_name, old_value, known)
        name, value = check.replacement or (old_name, old_value)
        if name != old_name:
            check = check_setting(name, value, known)
        is_default = check.verdict is SettingVerdict.ALREADY_DEFAULT
        if is_default and name not in over:
            continue
        if not is_default and check.verdict is not SettingVerdict.EFFECTIVE:
            note(f"{old_name} is left out: {check.reason}")
            continue
        if name != old_name:
            note(f"{old_name} is taken as {name}={value}")
        if name in translated and known[name].info.repeated:
            value = f"{translated[name]},{value}"  # old switches that became items of one list
        translated[name] = value
    return FlagSet(translated)


def _judge(setting: KnownSetting, value: str) -> Judgement:
    entry = setting.entry
    is_default = setting.is_default(value)
    if entry.danger and not is_default and not entry.danger.startswith(OF_CACHES):
        return SettingVerdict.DANGEROUS, entry.danger, "take it out of training runs"
    if problem := setting.out_of_range(value) or setting.unknown_pass(value):
        passes = "; the parser lets it pass" if setting.info.in_xla_flags else ""
        name = f"write {entry.renamed_to} with" if entry.renamed_to else "use"
        return SettingVerdict.BAD_VALUE, f"{problem}{passes}", f"{name} a legal value"
    if reason := _never_acts(setting) or entry.against.get(value.upper(), ""):
        return SettingVerdict.NO_EFFECT, reason, "remove it"
    default = f"the default is {setting.default!r}"
    if is_default:
        return SettingVerdict.ALREADY_DEFAULT, default, "remove it"
    warnings = [setting.avoided(value)]
    warnings += [why for form, why in entry.beware.items() if re.fullmatch(form, value, re.I)]
    if entry.needs:
        warnings.append(f"it needs {'; '.join(entry.needs)}")
    if entry.danger:
        warnings.append("leave it out of studies: results of another run would decide")
    advice = next(filter(None, warnings), "")
    if not setting.exists:
        return SettingVerdict.EFFECTIVE, "read from the environment", advice
    reader = f"jax {setting.among.build.jax} reads it"
    if setting.info.in_xla_flags:
        reader = "changes the resolved options"
    if setting.default is None:
        default = "it is unset by default"
    return SettingVerdict.EFFECTIVE, f"{reader}; {default}", advice


def _never_acts(setting: KnownSetting) -> str:
    """Why a setting does nothing in any program; empty if it may act."""
    entry = setting.entry
    if entry.tier is Tier.NOOP:
        return entry.summary.rstrip(".")
    if setting.is_stored_nowhere and entry.platform not in NEVER_SEARCHED:
        return f"{setting.among.build.build} takes it and stores it nowhere"
    return NEVER_SEARCHED.get(entry.platform, "")


def _judge_missing(setting: KnownSetting, replacement: Pair | None, *, as_flag: bool) -> Judgement:
    """Judges a name that the build lacks: the parser refuses it, nobody reads a variable."""
    build = setting.among.build
    entry = setting.entry
    lacks = f"{build.build} does not have it"
    if replacement:
        target = "=".join(replacement)
        return SettingVerdict.RENAMED, f"{lacks}; {target} takes its place", f"write {target}"
    is_other_kind = as_flag and setting.is_catalogued and entry.kind != "xla"
    if setting.flag or is_other_kind:
        kind = "a variable" if is_other_kind else "only a compiler option of one compilation"
        return SettingVerdict.UNKNOWN, f"{kind}, not an XLA flag", "remove it from XLA_FLAGS"
    if setting.is_too_new:
        reason = f"{lacks} yet; it came with {entry.since}"
        return SettingVerdict.UNKNOWN, reason, "remove it, or upgrade jax"
    if setting.is_catalogued or setting.name in build.removed:
        summary = entry.summary.rstrip(".") or "an XLA flag of other releases"
        return SettingVerdict.REMOVED, f"{lacks}: {summary}", "remove it"
    reason = f"{build.build} does not know it{setting.hint(as_flag=as_flag)}"
    return SettingVerdict.UNKNOWN, reason, "correct the name or remove it"


def _judge_variable(setting: KnownSetting, value: str) -> Judgement:
    entry = setting.entry
    build = setting.among.build
    if not setting.is_catalogued:
        advice = "check the spelling; nobody complains about a variable that nobody reads"
        return SettingVerdict.UNKNOWN, f"not in the catalogue{setting.hint()}", advice
    if setting.is_too_new:
        reason = f"came with {entry.since}, installed is {build.nccl}"
        return SettingVerdict.NO_EFFECT, reason, "upgrade NCCL"
    if entry.platform == "cuda" and build.platform == "cpu" and not entry.danger:
        return SettingVerdict.NO_EFFECT, "acts on GPUs, the check is for the CPU", "--plugin cuda"
    if entry.renamed_to and not entry.danger and not setting.out_of_range(value):
        advice = "write the new name; setting both is an error"
        return SettingVerdict.RENAMED, f"an old spelling of {entry.renamed_to}", advice
    return _judge(setting, value)


def check_xla_flags(text: str, known: KnownSettings) -> Checks:
    """Checks an XLA_FLAGS text token by token, as XLA reads it."""
    checks: Checks = []
    ignored_from = ""
    merged: Values = {}
    for token in parse_tokens(re.sub(rf"(?<!\S)(?:--{COMPUTED}\S*|{COMPUTED}+)", "", text)):
        name = token.name
        value = "true" if token.value is None else token.value
        flag = known.build.flags.get(name)
        verdict = SettingVerdict.NO_EFFECT
        if ignored_from:
            reason = f"XLA stops reading at {ignored_from!r}, so this is never seen"
            advice = f"mend or remove {ignored_from!r}"
            check = SettingCheck(name, token.value, verdict, reason, advice)
        elif not token.is_flag:
            check = _check_stray(token, is_first=not checks, known=known)
            if not token.text.startswith("-"):
                ignored_from = token.text
        elif token.value is None and flag and flag.type != "bool":
            reason = f"needs a value ({flag.type}); only booleans may stand alone"
            advice = f"write --{name}=VALUE; the default is {flag.default or ''!r}"
            verdict = SettingVerdict.BAD_VALUE
            check = SettingCheck(name, None, verdict, reason, advice, starts=False)
        else:
            acting = combine(name, merged.get(name), value)
            merged[name] = acting
            reason = f"a later --{name}={value} overrides it"
            for at, earlier in enumerate(checks):
                if acting == value and earlier.name == name and earlier.starts:
                    checks[at] = SettingCheck(name, earlier.value, verdict, reason, "remove it")
            check = replace(check_setting(name, acting, known, as_flag=True), value=token.value)
        checks.append(check)
    return checks


def _check_stray(token: FlagToken, *, is_first: bool, known: KnownSettings) -> SettingCheck:
    flags = known.build.flags
    advice = f"remove it{close_matches(token.name, flags)}"
    if token.name in flags:
        advice = f"write --{token.text[token.text.index(token.name) :]}"
    starts = False
    if token.text.startswith("-"):
        reason = "one dash is not enough: the parser refuses it"
    elif is_first:
        reason = "the text must begin with --, or XLA takes all of it for the name of a file"
    else:
        reason = "no dashes: XLA stops reading here and drops the rest without a word"
        starts = True
    if not token.text.isascii():
        reason = f"starts with {token.text[0]!r} instead of --; {reason}"
    return SettingCheck(token.name, token.value, SettingVerdict.UNKNOWN, reason, advice, starts)


def migrate_text(text: str, known: KnownSettings, *, note: Note = lambda text: None) -> FlagSet:
    """Translates a script's settings to the build; `note` gets what is renamed or left out."""
    _refuse_alternatives(text)
    settings: Values = {}
    for check in check_text(text, known):
        name = check.name
        value = "true" if check.value is None else check.value
        is_setting_of_a_study = name.startswith(("xla_", "jax_")) or is_variable(name)
        is_unread = check.verdict is SettingVerdict.NOT_JUDGED or check.reason in UNREAD.values()
        if is_unread or COMPUTED in value or not is_setting_of_a_study:
            note(f"{name} stays where it is: {check.reason}")
        else:
            settings[name] = combine(name, settings.get(name), value)
    return for_build(FlagSet(settings), known.on_gpus(), note=note)


def _refuse_alternatives(text: str) -> None:
    """Raises SettingError with lines where only a run would tell which value counts."""
    values: dict[str, str | None] = {}
    for variable, value in read_assignments(text):
        settings = {}
        if variable == "XLA_FLAGS":
            settings = {token.name: token.value for token in parse_tokens(value)}
        elif variable not in UNREAD:
            settings = {variable: value}
        for name, setting in settings.items():
            if values.setdefault(name, setting) != setting:
                raise SettingError(
                    f"{name} must have one value but gets {values[name]!r} and {setting!r} "
                    f"({_lines_with(name, text)}); "
                    "take out what does not count, then migrate the rest"
                )


def _lines_with(word: str, text: str) -> str:
    return "lines " + ", ".join(
        str(at) for at, line in enumerate(text.splitlines(), 1) if word in line
    )


def check_text(text: str, known: KnownSettings) -> Checks:
    """Checks what a script of any language sets, and names settings that no assignment holds."""
    assigned = read_assignments(text)
    names_gpus = re.search(r"xla_gpu_|\b(?:NCCL|CUDA)_|XLA_(?:PYTHON_)?CLIENT_", text)
    if names_gpus and ("JAX_PLATFORMS", "cpu") not in assigned:
        known = known.on_gpus()
    checks = check_variables(assigned, known)
    read = {"XLA_FLAGS", "xla_flags", *re.findall(r"\w+", " ".join(map(" ".join, assigned)))}
    bare = re.sub(r"(?m)(?:^|[ \t])(?:#|//).*", "", after_changes(text))
    pattern = r"(?:--|\b)xla_\w+|(?<![\w$])(?<!\$\{)[A-Z]+_[A-Z0-9_]+\b"
    for word in dict.fromkeys(re.findall(pattern, bare)):
        bare_word = word.removeprefix("--")
        name = setting_of(bare_word)
        if bare_word not in read and (word != bare_word or name in known.catalog):
            reason = "it stands in the text, but in no assignment that could be read"
            advice = f"{_lines_with(word, text)}; give it to `autotune flags check '{word}=VALUE'`"
            checks.append(SettingCheck(name, None, SettingVerdict.NOT_JUDGED, reason, advice))
    return checks


def check_variables(assigned: Iterable[Pair], known: KnownSettings) -> Checks:
    """Checks each flag of XLA_FLAGS, and variables that catalogue or build know, or nearly."""
    checks = []
    for variable, value in assigned:
        name = setting_of(variable)
        is_known = known[name].exists or not name.startswith("jax_") or known[name].hint()
        if variable == "XLA_FLAGS":
            checks += check_xla_flags(value, known)
        elif variable in UNREAD:
            checks += [
                SettingCheck(flag, unread, SettingVerdict.NO_EFFECT, UNREAD[variable])
                for flag, unread in re.findall(r"-*([A-Za-z]\w*)=?(\S*)", value)
            ]
        elif is_misspelt(variable):
            checks.append(SettingCheck(name, value, SettingVerdict.NO_EFFECT, UNREAD["misspelt"]))
        elif variable == "LIBTPU_INIT_ARGS":
            reason = "its flags are those of libtpu, which no build here holds"
            checks.append(SettingCheck(name, value, SettingVerdict.NOT_JUDGED, reason))
        elif is_setting(variable) and is_known:
            checks.append(check_setting(name, value, known))
    return list(dict.fromkeys(checks))


def check_given(
    known: KnownSettings,
    *,
    flags: Sequence[str],
    recipe: str | None,
    file: Path | None,
    from_environment: bool,
) -> Checks:
    """Checks flags, a recipe, a script or the environment; SettingError unless one is given."""
    if sum(map(bool, (flags, recipe, file, from_environment))) != 1:
        raise SettingError("give one of: flags, --recipe NAME, --file SCRIPT, --env")
    if recipe:
        return check_settings(find_recipe(recipe).settings, known.on_gpus())
    if file:
        return check_text(read_script(file), known)
    if from_environment:
        return check_variables(caller_environment().items(), known)
    if re.match(r"\s*(export\s+)?[A-Za-z_]\w*=", flags[0]):
        return check_text(shlex.join(flags), known)
    return check_xla_flags(" ".join(flags), known)


def read_script(file: Path) -> str:
    """Reads a script; SettingError if it is no readable text."""
    try:
        return plain_text(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"--file must be readable UTF-8 text but {file}: {why}") from error


def format_check(check: SettingCheck) -> Texts:
    """Formats setting, verdict, whether it starts, and reason with advice."""
    setting = check.name if check.value is None else f"{check.name}={check.value}"
    verdict = f"renamed -> {check.replacement[0]}" if check.replacement else str(check.verdict)
    starts = "yes" if check.starts else "NO"
    return setting, verdict, starts, "; ".join(filter(None, (check.reason, check.advice)))
