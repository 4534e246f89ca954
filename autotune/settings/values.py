"""What the values of settings mean: legal, sensible, equal to the default."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune.model import close_matches
from autotune.settings.build import FlagInfo, canonical_value
from autotune.settings.catalog import UNSET, Setting

_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")  # the parser reads floats as C does
_INTEGER_BITS = {"int32": 31, "int64": 63}


def value_problem(value: str, info: FlagInfo) -> str:
    """Why the XLA_FLAGS parser would refuse a value, as a clause; empty if it takes it."""
    if info.type == "bool":
        legal = value.lower() in ("true", "false", "1", "0")
        return "" if legal else "must be true or false"
    if info.type in _INTEGER_BITS:
        bits = _INTEGER_BITS[info.type]
        legal = bool(re.fullmatch(r"[+-]?\d+", value)) and -(1 << bits) <= int(value) < 1 << bits
        return "" if legal else f"must be a {bits + 1}-bit integer"
    if info.type == "float":
        return "" if is_number(value) or _HEXADECIMAL.fullmatch(value) else "must be a number"
    if info.type == "enum" and info.spellings:
        return _enum_problem(value, info)
    return ""


def range_problem(value: str, setting: Setting) -> str:
    """Why a value that the parser takes makes no sense, as a clause; empty if it does."""
    if not is_number(value):
        return ""
    if setting.minimum is not None and float(value) < setting.minimum:
        return f"must be at least {setting.minimum:g}"
    if setting.maximum is not None and float(value) > setting.maximum:
        return f"must be at most {setting.maximum:g}"
    return ""


def is_default(value: str, default: str | None, *, type: str, spellings: Mapping[str, str] | None = None) -> bool:
    """Whether a value is the one in force anyway."""
    if default is None or default == UNSET:
        return False
    value, default = (canonical_value(v, type, spellings or {}) for v in (value, default))
    if is_number(value) and is_number(default):
        return float(value) == float(default)
    if type == "enum":
        return sorted(value.split(",")) == sorted(default.split(","))
    return value == default


def build_default(info: FlagInfo, setting: Setting | None) -> str | None:
    """Default of a flag; what an unset one amounts to, unless being unset is a state of its own."""
    if info.default is not None or (setting is not None and setting.tri_state):
        return info.default
    if info.type == "enum":
        return info.values[0] if info.values else None
    return {"bool": "false", "int32": "0", "int64": "0", "float": "0", "string": ""}.get(info.type)


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text == text.strip()


def _enum_problem(value: str, info: FlagInfo) -> str:
    if not value:
        return "" if info.allows_empty else "must not be empty"
    items = value.split(",") if info.repeated else [value]
    edits = [i[:1] in ("+", "-") for i in items]
    if any(edits):
        if not info.edits:
            return "must not start with + or -"
        if not all(edits):
            return "must have + or - before every item or before none"
        items = [i[1:] for i in items]
    for item in items:
        if item and (item.lower() if info.any_case else item) not in info.spellings:
            shown = close_matches(item, info.spellings) or f"; legal: {', '.join(info.values)}"
            return f"has no value {item!r}{shown}"
    return ""
