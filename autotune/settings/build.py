"""What one installed build says about its settings: the records that `autotune.settings.probe` fills."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 2


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

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives an equal report back."""
        return {**dataclasses.asdict(self), "removed": sorted(self.removed), "schema": SCHEMA_VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProbeReport:
        """The report that `to_json` wrote.

        Raises:
            ValueError: If the data has another schema or lacks a field.
        """
        try:
            if data["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema must be {SCHEMA_VERSION} but got {data['schema']!r}")
            rest = {k: v for k, v in data.items() if k != "schema"}
            rest["flags"] = {n: FlagInfo(**_tuples(d)) for n, d in rest["flags"].items()}
            rest["jax_options"] = {n: JaxOption(**_tuples(d)) for n, d in rest["jax_options"].items()}
            rest["removed"] = frozenset(rest["removed"])
            return cls(**rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a probe report: {error}") from error


def canonical_value(value: str, type: str, spellings: Mapping[str, str]) -> str:
    """A value as used for comparing: ``1`` as ``true``, enum items as `FlagInfo.values` spells them."""
    if type == "bool":
        return {"1": "true", "0": "false"}.get(value, value.lower())
    if not spellings:
        return value
    items = []
    for item in value.split(","):
        sign = item[:1] if item[:1] in ("+", "-") else ""
        bare = item.removeprefix(sign)
        items.append(sign + spellings.get(bare, spellings.get(bare.lower(), bare)))
    return ",".join(items)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
