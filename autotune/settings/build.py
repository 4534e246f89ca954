"""What one installed build says about its settings, as `autotune.settings.probe` finds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

SCHEMA_VERSION = 2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxOption:
    """One option of ``jax.config``; set by the environment variable of the same name in upper case."""

    type: str
    values: tuple[str, ...] = ()
    default: str | None = None


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
