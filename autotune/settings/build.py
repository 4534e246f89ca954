"""What one installed build says about its settings, as `autotune.settings.probe` finds it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from autotune.model import close_matches

SCHEMA_VERSION = 2
JAX_BOOLEANS = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), "true"),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), "false"),
}
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")  # the parser reads floats as C does
_INTEGER_BITS = {"int32": 31, "int64": 63}
_UNSET_MEANS = {"bool": "false", "int32": "0", "int64": "0", "float": "0", "string": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagInfo:
    """What the installed build says about one XLA flag.

    Attributes:
        name: Name without dashes.
        type: One of bool, int32, int64, float, string, enum, message.
        repeated: Whether it holds a list (comma separated in XLA_FLAGS) or a map (``key=value,...``).
        values: Legal values of an enum, as XLA_FLAGS takes them; empty where not known or not an enum.
        spellings: Every spelling that the parser takes to the value it means; lower case if any case will do.
        default: Value in force when nothing is set, as JAX will use it and XLA_FLAGS spells it; None if
            unset.
        deprecated: Whether the build marks it so.
        in_xla_flags: Whether the XLA_FLAGS parser takes the name.
        in_compiler_options: Whether ``compiler_options`` of a compilation takes the name.
        any_case: Whether the values of an enum may be written in any case.
        edits: Whether a list takes ``+X`` and ``-X`` to change the default list.
        allows_empty: Whether an empty value is taken.
        sets: Options that another value of the flag changes; empty if it is stored nowhere.
    """

    name: str
    type: str
    repeated: bool = False
    values: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    deprecated: bool = False
    in_xla_flags: bool = True
    in_compiler_options: bool = True
    any_case: bool = False
    edits: bool = False
    allows_empty: bool = True
    sets: tuple[str, ...] = ()

    @property
    def effective_default(self) -> str | None:
        """What is in force when nothing is set: of an unset flag, what being unset amounts to; None if unknown."""
        if self.default is not None:
            return self.default
        if self.type == "enum":
            return self.values[0] if self.values else None
        return _UNSET_MEANS.get(self.type)

    def value_problem(self, value: str) -> str:
        """Why the XLA_FLAGS parser would refuse a value, as a clause; empty if it takes it."""
        if self.type == "bool":
            return "" if value.lower() in ("true", "false", "1", "0") else "must be true or false"
        if self.type in _INTEGER_BITS:
            bits = _INTEGER_BITS[self.type]
            legal = bool(re.fullmatch(r"[+-]?\d+", value)) and -(1 << bits) <= int(value) < 1 << bits
            return "" if legal else f"must be a {bits + 1}-bit integer"
        if self.type == "float":
            return "" if is_number(value) or _HEXADECIMAL.fullmatch(value) else "must be a number"
        if self.type == "enum" and self.spellings:
            return self._enum_problem(value)
        return ""

    def _enum_problem(self, value: str) -> str:
        if not value:
            return "" if self.allows_empty else "must not be empty"
        items = value.split(",") if self.repeated else [value]
        edits = [i[:1] in ("+", "-") for i in items]
        if any(edits):
            if not self.edits:
                return "must not start with + or -"
            if not all(edits):
                return "must have + or - before every item or before none"
            items = [i[1:] for i in items]
        for item in items:
            if item and (item.lower() if self.any_case else item) not in self.spellings:
                shown = close_matches(item, self.spellings) or f"; legal: {', '.join(self.values)}"
                return f"has no value {item!r}{shown}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxOption:
    """One option of ``jax.config``; set by the environment variable of the same name in upper case."""

    type: str
    values: tuple[str, ...] = ()
    default: str | None = None

    def value_problem(self, value: str) -> str:
        """Why jax would refuse a value when it is imported, as a clause; empty if it takes it."""
        if self.values and value not in self.values:
            return f"has no value {value!r}{close_matches(value, self.values)}"
        if self.type == "bool" and value.lower() not in JAX_BOOLEANS:
            return "must be true or false"
        return "must be a number" if self.type in ("int", "float") and not is_number(value) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Everything one installed build says about its settings.

    Attributes:
        platform: ``"cpu"`` or ``"cuda"``.
        python: Version of the interpreter that was asked.
        jax: Version of jax, None if it is not installed.
        jaxlib: Version of jaxlib.
        plugin: Name and version of the CUDA plugin; None on the CPU, or if it is not installed. The flag list
            of the CPU library is then the answer: both libraries of a release register the same flags.
        flags: XLA flags and compiler options by name.
        removed: Names the build reserves because they were removed.
        jax_options: Options of ``jax.config`` by name.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    platform: str
    python: str
    jax: str | None
    jaxlib: str
    plugin: str | None
    flags: Mapping[str, FlagInfo] = field(repr=False)
    removed: frozenset[str] = field(repr=False)
    jax_options: Mapping[str, JaxOption] = field(repr=False)

    @property
    def build(self) -> str:
        """The build in a few words, for messages: ``jaxlib 0.10.2``."""
        return f"jaxlib {self.jaxlib}" + (f" with {self.plugin}" if self.plugin else "")

    @property
    def names(self) -> list[str]:
        """Names of all flags and jax options."""
        return [*self.flags, *self.jax_options]

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives an equal report back."""
        return {**dataclasses.asdict(self), "removed": sorted(self.removed), "schema": SCHEMA_VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProbeReport:
        """The report that `to_json` wrote.

        Raises:
            ValueError: If the data has another schema or lacks a field.
        """
        schema = data.get("schema")
        if schema != SCHEMA_VERSION:
            raise ValueError(f"schema must be {SCHEMA_VERSION} but got {schema!r}")
        try:
            return TypeAdapter(cls).validate_python({k: v for k, v in data.items() if k != "schema"})
        except ValidationError as error:
            raise ValueError(f"not a probe report: {error}") from error


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text == text.strip()
