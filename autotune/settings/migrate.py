"""Finds the settings in the text of a script, and rewrites them for the installed build."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.settings.catalog import Catalog
from autotune.settings.check import SettingCheck, SettingVerdict, check_setting
from autotune.settings.known import KnownSettings, is_default

_FLAG = re.compile(
    r"(?P<dash>--|[‐‑‒–—―−]{1,2})(?P<name>xla_[a-z0-9_]+)"  # noqa: RUF001
    r"(?P<rest>=(?P<value>\\\"[^\"]*\\\"|\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'\\;)`]*))?"
)
_VARIABLE = re.compile(
    r"^[ \t]*(?:export[ \t]+|ENV[ \t]+)?"
    r"(?P<name>[A-Z][A-Z0-9_]+)=(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s#]*)",
    re.MULTILINE,
)
_COMPUTED = re.compile(r"[$`{]")
_CHANGED = (SettingVerdict.RENAMED, SettingVerdict.REMOVED, SettingVerdict.NO_EFFECT, SettingVerdict.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One setting in a script: an XLA flag anywhere, or a variable assigned at the start of a line.

    Attributes:
        name: Name of the setting.
        value: Its value without quotes; None for a bare flag.
        start: Where it begins in the text.
        end: Where it ends.
        is_flag: Whether it is an XLA flag.
        is_computed: Whether the value holds a variable of the shell, so that only the name can be judged.
    """

    name: str
    value: str | None
    start: int
    end: int
    is_flag: bool
    is_computed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a text: its line, what stood there, what stands there now (empty: removed), and why."""

    line: int
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A text for the installed build.

    Attributes:
        text: The text with all changes.
        changes: What was changed, in order.
        remarks: What a person must decide: values out of range, dangerous settings.
    """

    text: str
    changes: tuple[Change, ...]
    remarks: tuple[str, ...]


def find_settings(text: str, catalog: Catalog) -> Iterator[Found]:
    """The settings in a script of any language, in order; variables only if the catalogue has them."""
    found = [_found(m, m["name"], start=m.start(), is_flag=True) for m in _FLAG.finditer(text)]
    for m in _VARIABLE.finditer(text):
        name = m["name"].lower() if m["name"].startswith("JAX_") else m["name"]
        if name in catalog and name != "XLA_FLAGS":
            found.append(_found(m, name, start=m.start("name"), is_flag=False))
    yield from sorted(found, key=lambda f: f.start)


def _found(m: re.Match[str], name: str, *, start: int, is_flag: bool) -> Found:
    value = m["value"]
    return Found(
        name=name,
        value=None if value is None else _unquoted(value),
        start=start,
        end=m.end(),
        is_flag=is_flag,
        is_computed=bool(_COMPUTED.search(value or "")),
    )


def check_found(found: Found, known: KnownSettings) -> SettingCheck:
    """The verdict on one setting of a script; a computed value counts as one that is taken."""
    value = "true" if found.value is None else found.value
    if found.is_computed and known[found.name].is_flag:
        return SettingCheck(
            name=found.name,
            value=found.value,
            verdict=SettingVerdict.EFFECTIVE,
            starts=True,
            reason="the value is computed by the script, only the name was checked",
        )
    return check_setting(found.name, value, known)


def migrate_text(text: str, known: KnownSettings) -> Migration:
    """Rewrites a script for the installed build; what needs no change stays exactly as it is."""
    pieces: list[str] = []
    changes: list[Change] = []
    remarks: list[str] = []
    written: dict[str, str] = {}
    position = 0
    for found in find_settings(text, known.catalog):
        check = check_found(found, known)
        line = text.count("\n", 0, found.start) + 1
        if check.verdict not in _CHANGED or (not found.is_flag and check.replacement is None):
            if check.verdict in (SettingVerdict.BAD_VALUE, SettingVerdict.DANGEROUS, *_CHANGED):
                remarks.append(f"line {line}: {found.name}={found.value}: {check.reason}; {check.advice}")
            continue
        after = _replacement(found, check, written, known.catalog)
        start, end = (found.start, found.end) if after else _with_space(text, found.start, found.end)
        changes.append(Change(line=line, before=text[found.start : found.end], after=after, reason=check.reason))
        pieces += [text[position:start], after]
        position = end
    pieces.append(text[position:])
    return Migration(text="".join(pieces), changes=tuple(changes), remarks=tuple(remarks))


def _replacement(found: Found, check: SettingCheck, written: dict[str, str], catalog: Catalog) -> str:
    """What to write in place of a setting; empty to remove it, as when an equal one was written before."""
    if check.replacement is None:
        return ""
    name, value = check.replacement
    if name in written and is_default(value, written[name], catalog[name].type, {}):
        return ""
    written[name] = value
    return f"--{name}={value}" if found.is_flag else f"{name}={value}"


def _with_space(text: str, start: int, end: int) -> tuple[int, int]:
    """Widens a span so that removing it leaves no gap: the line if nothing else is on it, else one blank."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end + 1
    if not text[line_start:start].strip() and text[end:line_end].strip() in ("", "\\"):
        return line_start, line_end
    if text[end : end + 1] == " ":
        return start, end + 1
    return (start - 1, end) if text[start - 1 : start] == " " else (start, end)


def _unquoted(value: str) -> str:
    for quote in ('\\"', '"', "'"):
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote):
            return value[len(quote) : -len(quote)]
    return value
