"""What is known of a setting and of a value for it: the catalogue's entry joined with what the installed build says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.settings.build import JAX_BOOLEANS, FlagInfo, JaxOption, ProbeReport, is_number
from autotune.settings.catalog import Catalog, Setting, Stage, load_catalog, older

Pair = tuple[str, str]

UNSET = "(unset)"
"""Default, in the catalogue, of a setting that has no value until one is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSetting:
    """One name; anything may be a name, and all three sources may be silent.

    Attributes:
        name: As in a `FlagSet`.
        entry: What the catalogue says.
        flag: What the build says, if it is an XLA flag or a compiler option.
        option: What jax says, if it is an option of ``jax.config``.
        default: What is in force when it is not set; None if that is a state of its own, or not known.
        jaxlib: Version of the build.
    """

    name: str
    entry: Setting | None
    flag: FlagInfo | None
    option: JaxOption | None
    default: str | None
    jaxlib: str

    @property
    def is_flag(self) -> bool:
        """Whether the build's XLA_FLAGS parser takes it."""
        return self.flag is not None and self.flag.in_xla_flags

    @property
    def exists(self) -> bool:
        """Whether the build has it, as a flag or as an option of jax."""
        return self.is_flag or self.option is not None

    @property
    def type(self) -> str:
        """Type of its values; that of the build, if it says so."""
        said = self.flag or self.option or self.entry
        return said.type if said is not None else "string"

    @property
    def spellings(self) -> Mapping[str, str]:
        """Further spellings of its values to the value they mean."""
        return self.flag.spellings if self.flag is not None else {}

    @property
    def legal_values(self) -> tuple[str, ...]:
        """Values that the build or jax names; empty if it names none."""
        said = self.flag or self.option
        return said.values if said is not None else ()

    def is_default(self, value: str) -> bool:
        """Whether a value is the one in force anyway."""
        return is_default(value, self.default, self.type, self.spellings)

    @property
    def stage(self) -> Stage:
        """Where it acts; what the catalogue does not know must be measured."""
        return self.entry.stage if self.entry is not None else Stage.RUNTIME

    @property
    def danger(self) -> str:
        """Why it must not be used in training; empty if it may."""
        return self.entry.danger if self.entry is not None else ""

    @property
    def is_too_new(self) -> bool:
        """Whether it came with a later build."""
        since = self.entry.since if self.entry is not None else ""
        return bool(since) and older(self.jaxlib, since)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFacts:
    """What is known of one value of a setting.

    Attributes:
        setting: The setting.
        value: As written.
        refused: Why a process with it would not start (or an environment variable makes no sense), as a clause.
        out_of_range: Why it makes no sense although it is taken, as a clause.
        is_default: Whether it is in force anyway.
        is_older_name: Whether what the build calls by another name is meant.
        replacement: Name and value to write instead; None if nothing need be written, or nothing replaces it.
    """

    setting: KnownSetting
    value: str
    refused: str
    out_of_range: str
    is_default: bool
    is_older_name: bool
    replacement: Pair | None


class KnownSettings:
    """Everything that can be said of settings on one build.

    Args:
        build: What the installed build says.
        catalog: What settings mean; the one that comes with this package if None.
    """

    def __init__(self, build: ProbeReport, catalog: Catalog | None = None) -> None:
        self.build = build
        self.catalog = load_catalog() if catalog is None else catalog

    def __getitem__(self, name: str) -> KnownSetting:
        entry, flag = self.catalog.get(name), self.build.flags.get(name)
        option = self.build.jax_options.get(name)
        if flag is not None:
            default = flag.default if entry is not None and entry.tri_state else flag.effective_default
        elif option is not None:
            default = option.default
        else:
            default = entry.default_in(self.build.jaxlib) if entry is not None else None
        return KnownSetting(name=name, entry=entry, flag=flag, option=option, default=default, jaxlib=self.build.jaxlib)

    def look(self, name: str, value: str) -> ValueFacts:
        """What is known of a setting with its value, wherever it goes."""
        setting = self[name]
        plain, refused = value, ""
        if setting.flag is not None:
            refused = setting.flag.value_problem(value)
        elif setting.option is not None:
            refused = setting.option.value_problem(value)
            plain = JAX_BOOLEANS.get(value.lower(), value) if setting.type == "bool" else value
        elif setting.type in ("int", "float") and not is_number(value):
            refused = "must be a number"
        return ValueFacts(
            setting=setting,
            value=value,
            refused=refused,
            out_of_range=setting.entry.range_problem(value) if setting.entry is not None else "",
            is_default=setting.is_default(plain),
            is_older_name=self._is_older_name(setting),
            replacement=self._replacement(setting, value),
        )

    def _is_older_name(self, setting: KnownSetting) -> bool:
        entry, flag = setting.entry, setting.flag
        if entry is None or entry.renamed_to not in self.build.flags:
            return False
        return flag is None or flag.sets != (setting.name,)

    def _replacement(self, setting: KnownSetting, value: str) -> Pair | None:
        """What to write instead: the newer name, or on an old build the older one."""
        entry = setting.entry
        if entry is not None and entry.kind == "env":
            return (entry.renamed_to, value) if entry.renamed_to else None
        if entry is not None and entry.renamed_to in self.build.flags:
            new = renamed_value(entry, value)
            if new is None or (setting.is_flag and self[entry.renamed_to].is_default(new)):
                return None
            return entry.renamed_to, new
        return None if setting.is_flag else self._older_pair(setting.name, value)

    def _older_pair(self, name: str, value: str) -> Pair | None:
        """The older name and value that mean this one, on a build that does not have the newer yet."""
        for old in self.catalog.values():
            if old.renamed_to != name or not self[old.name].is_flag:
                continue
            for old_value, new_value in old.renamed_values.items():
                if new_value.lower() == value.lower() or (new_value == "default" and value.lower() == "off"):
                    return old.name, old_value
        return None


def renamed_value(entry: Setting, value: str) -> str | None:
    """What a value of a setting is in what took its place; None if it needs no replacement."""
    return entry.renamed_values.get(canonical_value(value, entry.type, {}))


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


def is_default(value: str, default: str | None, type: str, spellings: Mapping[str, str]) -> bool:
    """Whether a value is the one in force anyway."""
    if default is None or default == UNSET:
        return False
    value, default = (canonical_value(v, type, spellings) for v in (value, default))
    if is_number(value) and is_number(default):
        return float(value) == float(default)
    if type == "enum":
        return sorted(value.split(",")) == sorted(default.split(","))
    return value == default
