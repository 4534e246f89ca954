"""Says of each setting what it really is for the installed build, and what to write instead.

The probe answers what exists and what would start; the catalogue adds what it means. Nothing is started here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.model import FlagSet, FlagToken, close_matches, combine, parse_tokens
from autotune.settings.build import FlagInfo, JaxOption, ProbeReport, canonical_value
from autotune.settings.catalog import Catalog, Setting, Tier, older
from autotune.settings.values import build_default, is_default, is_number, range_problem, value_problem

_JAX_BOOLEANS = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), "true"),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), "false"),
}


class SettingVerdict(StrEnum):
    """What one setting is, for one build."""

    EFFECTIVE = "effective"
    ALREADY_DEFAULT = "already default"
    NO_EFFECT = "no effect"
    RENAMED = "renamed"
    REMOVED = "removed"
    BAD_VALUE = "wrong type or value"
    UNKNOWN = "not an XLA flag"
    DANGEROUS = "dangerous"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCheck:
    """The verdict on one setting.

    Attributes:
        name: As written, without dashes.
        value: As written; None for a bare name.
        verdict: What it is.
        starts: Whether a process with it would start.
        reason: Why, in words.
        advice: What to do; empty if nothing.
        replacement: Name and value to write instead; None if there is none, or nothing need be written.
    """

    name: str
    value: str | None
    verdict: SettingVerdict
    starts: bool
    reason: str
    advice: str = ""
    replacement: tuple[str, str] | None = None


def check_settings(settings: FlagSet, report: ProbeReport, catalog: Catalog) -> tuple[SettingCheck, ...]:
    """Checks every setting of a set, in its order.

    Args:
        settings: XLA flags, JAX options and environment variables.
        report: What the installed build has.
        catalog: What the settings mean.
    """
    return tuple(check_setting(name, value, report, catalog) for name, value in settings.items())


def check_xla_flags(text: str, report: ProbeReport, catalog: Catalog) -> tuple[SettingCheck, ...]:
    """Checks an XLA_FLAGS text token by token, as XLA reads it: order, repetitions, stray words count."""
    checks: list[SettingCheck] = []
    ignored_from = ""
    merged: dict[str, str] = {}
    for token in parse_tokens(text):
        if ignored_from:
            reason = f"XLA stops reading at {ignored_from!r}, so this is never seen"
            checks.append(
                SettingCheck(
                    name=token.name,
                    value=token.value,
                    verdict=SettingVerdict.NO_EFFECT,
                    starts=True,
                    reason=reason,
                    advice=f"mend or remove {ignored_from!r}",
                )
            )
            continue
        if not token.is_flag:
            checks.append(_check_stray(token, first=not checks, report=report))
            if not token.text.startswith("-"):
                ignored_from = token.text
            continue
        if token.value is None and not _may_be_bare(token.name, report):
            checks.append(_check_bare(token, report))
            continue
        value = "true" if token.value is None else token.value
        if token.name in merged:
            checks = [_overridden(c, token.name, value) for c in checks]
            value = combine(token.name, merged[token.name], value)
        merged[token.name] = value
        known = token.name in report.flags and report.flags[token.name].in_xla_flags
        judge = _check_flag if known else _check_missing
        checks.append(replace(judge(token.name, value, report, catalog), value=token.value))
    return tuple(checks)


def check_setting(name: str, value: str, report: ProbeReport, catalog: Catalog) -> SettingCheck:
    """One setting with its value, wherever it goes."""
    setting = catalog.get(name)
    if name in report.flags and report.flags[name].in_xla_flags:
        return _check_flag(name, value, report, catalog)
    if name in report.jax_options:
        return _check_jax(name, value, report.jax_options[name], report, setting)
    if name.startswith(("xla_", "jax_")) or (setting is not None and setting.tier is Tier.REMOVED):
        return _check_missing(name, value, report, catalog)
    return _check_variable(name, value, report, catalog)


def _check_flag(name: str, value: str, report: ProbeReport, catalog: Catalog) -> SettingCheck:
    """A flag that the parser knows."""
    info, setting = report.flags[name], catalog.get(name)
    starts, replacement = True, None
    if problem := value_problem(value, info):
        starts, verdict, reason = False, SettingVerdict.BAD_VALUE, problem
        advice = f"legal: {', '.join(info.values)}" if info.values and "legal" not in problem else "mend the value"
    elif setting is not None and setting.renamed_to in report.flags and info.sets != (name,):
        verdict, reason, advice, replacement = _judge_alias(value, setting, report)
    else:
        verdict, reason, advice = _judge_flag(value, info, setting, report)
    return SettingCheck(
        name=name,
        value=value,
        verdict=verdict,
        starts=starts,
        reason=reason,
        advice=advice,
        replacement=replacement,
    )


def _judge_flag(
    value: str, info: FlagInfo, setting: Setting | None, report: ProbeReport
) -> tuple[SettingVerdict, str, str]:
    """Verdict, reason and advice on a value that the parser takes."""
    default = build_default(info, setting)
    is_same = is_default(value, default, type=info.type, spellings=info.spellings)
    if setting is not None and setting.danger and not is_same:
        return SettingVerdict.DANGEROUS, setting.danger, "take it out of training runs"
    if setting is not None and (problem := range_problem(value, setting)):
        return SettingVerdict.BAD_VALUE, f"{problem}; the parser lets it pass", "use a value in range"
    if setting is not None and setting.tier is Tier.NOOP:
        return SettingVerdict.NO_EFFECT, setting.summary.rstrip("."), "remove it"
    if not info.sets:
        return SettingVerdict.NO_EFFECT, f"{report.build} takes it and stores it nowhere", "remove it"
    if is_same:
        return SettingVerdict.ALREADY_DEFAULT, f"{default!r} is the default of {report.build}", "remove it"
    shown = "it is unset by default" if default is None else f"the default is {default!r}"
    return SettingVerdict.EFFECTIVE, f"changes the resolved options; {shown}", ""


def _judge_alias(
    value: str, setting: Setting, report: ProbeReport
) -> tuple[SettingVerdict, str, str, tuple[str, str] | None]:
    """Verdict, reason, advice and replacement of an old name that the parser still takes."""
    new = setting.renamed_values.get(canonical_value(value, setting.type, {}))
    target = report.flags[setting.renamed_to]
    default = build_default(target, None)
    reason = f"an older name that now sets {setting.renamed_to}={new}"
    if new is None or is_default(new, default, type=target.type, spellings=target.spellings):
        return SettingVerdict.RENAMED, f"{reason}, which is the default", "remove it", None
    return SettingVerdict.RENAMED, reason, "write the new name", (setting.renamed_to, new)


def _check_missing(name: str, value: str, report: ProbeReport, catalog: Catalog) -> SettingCheck:
    """A name that the build lacks: nobody complains about a variable that nobody reads, the parser does."""
    setting = catalog.get(name)
    is_variable = name.startswith("jax_") or (setting is not None and setting.kind == "env")
    replacement = replacement_of(name, value, report, catalog)
    if replacement is not None:
        target = "=".join(replacement)
        verdict = SettingVerdict.RENAMED
        reason, advice = f"{report.build} does not have it; {target} takes its place", f"write {target}"
    else:
        verdict, reason, advice = _judge_missing(name, setting, report)
    return SettingCheck(
        name=name,
        value=value,
        verdict=verdict,
        starts=is_variable,
        reason=reason,
        advice=advice,
        replacement=replacement,
    )


def _judge_missing(name: str, setting: Setting | None, report: ProbeReport) -> tuple[SettingVerdict, str, str]:
    """Verdict, reason and advice on a name that nothing replaces."""
    bare, dash, rest = name.partition("-")
    if dash and bare in report.flags:  # seen in a published script: --xla_gpu_enable_triton_gemm-false
        return SettingVerdict.UNKNOWN, f"{report.build} does not know it", f"write --{bare}={rest}"
    if name in report.flags:
        reason = "only a compiler option of one compilation, not an XLA flag"
        return SettingVerdict.UNKNOWN, reason, "remove it from XLA_FLAGS"
    if setting is not None and setting.since and older(report.jaxlib, setting.since):
        reason = f"{report.build} does not have it yet; it came with {setting.since}"
        return SettingVerdict.UNKNOWN, reason, "remove it, or upgrade jax"
    if setting is not None or name in report.removed:
        what = setting.summary.rstrip(".") if setting is not None else "an XLA flag of other releases"
        return SettingVerdict.REMOVED, f"{report.build} does not have it: {what}", "remove it"
    hint = close_matches(name, [*report.flags, *report.jax_options])
    return SettingVerdict.UNKNOWN, f"{report.build} does not know it{hint}", "correct the name or remove it"


def replacement_of(name: str, value: str, report: ProbeReport, catalog: Catalog) -> tuple[str, str] | None:
    """What to write for a setting that the build lacks: the newer name, or on an old build the older one."""
    setting = catalog.get(name)
    if setting is not None and setting.renamed_to in report.flags:
        new = setting.renamed_values.get(canonical_value(value, setting.type, {}))
        return None if new is None else (setting.renamed_to, new)
    for old in catalog.values():
        if old.renamed_to == name and old.name in report.flags and report.flags[old.name].in_xla_flags:
            for old_value, new_value in old.renamed_values.items():
                if new_value.lower() == value.lower() or (new_value == "default" and value.lower() == "off"):
                    return old.name, old_value
    return None


def _check_jax(name: str, value: str, option: JaxOption, report: ProbeReport, setting: Setting | None) -> SettingCheck:
    """An option of jax.config, set by its variable: a value that JAX refuses ends the import of jax."""
    starts, advice = True, ""
    plain = _JAX_BOOLEANS.get(value.lower(), value) if option.type == "bool" else value
    if problem := _jax_problem(value, option):
        starts, verdict, reason = False, SettingVerdict.BAD_VALUE, problem
        advice = f"legal: {', '.join(option.values)}" if option.values else "mend the value"
    elif is_default(plain, option.default, type=option.type):
        verdict, reason, advice = (
            SettingVerdict.ALREADY_DEFAULT,
            f"{option.default!r} is the default",
            "remove it",
        )
    elif setting is not None and setting.danger:
        verdict, reason, advice = SettingVerdict.DANGEROUS, setting.danger, "take it out of training runs"
    elif setting is not None and (problem := range_problem(value, setting)):
        verdict, reason, advice = SettingVerdict.BAD_VALUE, problem, "use a value in range"
    else:
        verdict, reason = (
            SettingVerdict.EFFECTIVE,
            f"jax {report.jax} reads it; the default is {option.default!r}",
        )
    return SettingCheck(name=name, value=value, verdict=verdict, starts=starts, reason=reason, advice=advice)


def _jax_problem(value: str, option: JaxOption) -> str:
    if option.values and value not in option.values:
        return f"has no value {value!r}{close_matches(value, option.values)}"
    if option.type == "bool" and value.lower() not in _JAX_BOOLEANS:
        return "must be true or false"
    return "must be a number" if option.type in ("int", "float") and not is_number(value) else ""


def _check_variable(name: str, value: str, report: ProbeReport, catalog: Catalog) -> SettingCheck:
    """An environment variable: nothing refuses it at start, so the catalogue alone speaks."""
    setting = catalog.get(name)
    verdict, reason, advice = SettingVerdict.EFFECTIVE, "read from the environment", ""
    replacement = None
    if setting is None:
        verdict, reason = SettingVerdict.UNKNOWN, f"not in the catalogue{close_matches(name, catalog)}"
        advice = "check the spelling; nobody complains about a variable that nobody reads"
    elif setting.tier is Tier.NOOP:
        verdict, reason, advice = SettingVerdict.NO_EFFECT, setting.summary.rstrip("."), "remove it"
    elif problem := _variable_problem(value, setting):
        verdict, reason, advice = SettingVerdict.BAD_VALUE, problem, "mend the value"
    elif setting.danger:
        verdict, reason, advice = SettingVerdict.DANGEROUS, setting.danger, "take it out of training runs"
    elif setting.platform == "cuda" and report.platform == "cpu":
        verdict, reason, advice = (
            SettingVerdict.NO_EFFECT,
            "acts on GPUs, the check is for the CPU",
            "--plugin cuda",
        )
    elif setting.renamed_to:
        verdict, reason = SettingVerdict.RENAMED, f"an older spelling of {setting.renamed_to}"
        advice, replacement = "write the new name; setting both is an error", (setting.renamed_to, value)
    elif is_default(value, setting.default_in(report.jaxlib), type=setting.type):
        verdict, reason, advice = SettingVerdict.ALREADY_DEFAULT, f"{value!r} is the default", "remove it"
    return SettingCheck(
        name=name,
        value=value,
        verdict=verdict,
        starts=True,
        reason=reason,
        advice=advice,
        replacement=replacement,
    )


def _variable_problem(value: str, setting: Setting) -> str:
    if setting.type in ("int", "float") and not is_number(value):
        return "must be a number"
    return range_problem(value, setting)


def _check_stray(token: FlagToken, *, first: bool, report: ProbeReport) -> SettingCheck:
    """A token that does not begin with two dashes."""
    names = list(report.flags)
    meant = f"--{token.name}" + ("" if token.value is None else f"={token.value}")
    advice = f"write {meant}" if token.name in report.flags else f"remove it{close_matches(token.name, names)}"
    if token.text.startswith("-"):
        reason, starts = "one dash is not enough: the parser refuses it", False
    elif first:
        reason, starts = "the text must begin with --, or XLA takes all of it for the name of a file", False
    else:
        reason, starts = "no dashes: XLA stops reading here and drops the rest without a word", True
    if not token.text.isascii():
        reason = f"starts with {token.text[0]!r} instead of --; {reason}"
    return SettingCheck(
        name=token.name,
        value=token.value,
        verdict=SettingVerdict.UNKNOWN,
        starts=starts,
        reason=reason,
        advice=advice,
    )


def _may_be_bare(name: str, report: ProbeReport) -> bool:
    return name not in report.flags or report.flags[name].type == "bool"


def _check_bare(token: FlagToken, report: ProbeReport) -> SettingCheck:
    info = report.flags[token.name]
    default = "" if info.default is None else info.default
    return SettingCheck(
        name=token.name,
        value=None,
        verdict=SettingVerdict.BAD_VALUE,
        starts=False,
        reason=f"needs a value ({info.type}); only booleans may stand alone",
        advice=f"write --{token.name}=VALUE; the default is {default!r}",
    )


def _overridden(check: SettingCheck, name: str, value: str) -> SettingCheck:
    if check.name != name or not check.starts or combine(name, check.value or "", value) != value:
        return check
    return SettingCheck(
        name=name,
        value=check.value,
        verdict=SettingVerdict.NO_EFFECT,
        starts=True,
        reason=f"a later --{name}={value} overrides it",
        advice="remove it",
    )


def would_start(checks: Iterable[SettingCheck]) -> bool:
    """Whether a process with all these settings would start."""
    return all(c.starts for c in checks)
