"""Knowledge of a setting: the catalogue's entry joined with the installed build's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autotune.model.errors import close_matches
from autotune.settings.catalog import Catalog, Setting, Stage, load_catalog, older
from autotune.settings.probe import FlagInfo, ProbeReport, Spellings

Pair = tuple[str, str]

_JAX_BOOLEANS = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), "true"),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), "false"),
}
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "1"), "true"),
    **dict.fromkeys(("false", "False", "0"), "false"),
}
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")  # the parser reads floats as C does
_INTEGER_BITS = {"int32": 31, "int64": 63}

_SHOWN_APART = {
    "name",
    "summary",
    "form",
    "type",
    "tier",
    "stage",
    "spellings",
    "sources",
    "source_line",
}
"""Fields that `flags show` formats in another way."""

NCCL_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
"""Functions for each of which NCCL_ALGO and NCCL_PROTO may have a list of their own."""

UNSET = "(unset)"
"""Default in the catalogue of a setting that is unset by default."""


class KnownSetting(NamedTuple):
    """A setting joined from catalogue, build and jax, each of which may lack it."""

    name: str
    entry: Setting
    """An empty one for a setting that the catalogue lacks."""
    flag: FlagInfo | None
    """An XLA flag or compiler option of the build."""
    option: FlagInfo | None
    default: str | None
    """None if unset is a state of its own, or unknown."""
    among: KnownSettings
    """All settings of the same build."""

    @property
    def is_flag(self) -> bool:
        """Whether the build's XLA_FLAGS parser accepts it."""
        return self.flag is not None and self.flag.in_xla_flags

    @property
    def exists(self) -> bool:
        """Whether it is a flag of the build or an option of jax."""
        return self.is_flag or self.option is not None

    @property
    def is_catalogued(self) -> bool:
        """Whether the catalogue has an entry."""
        return bool(self.entry.summary)

    @property
    def is_stored_nowhere(self) -> bool:
        """Whether the build takes it without any effect."""
        return self.flag is not None and not self.flag.sets

    @property
    def type(self) -> str:
        """Type of its values, preferably from the build."""
        return (self.info or self.entry).type

    @property
    def info(self) -> FlagInfo | None:
        """What the build or jax says of it."""
        return self.flag or self.option

    @property
    def spellings(self) -> Spellings:
        """Further spellings of values to the value."""
        if self.type == "bool":
            return _BOOLEANS if self.option is None else _JAX_BOOLEANS
        return self.flag.spellings if self.flag is not None else {}

    @property
    def legal_values(self) -> tuple[str, ...]:
        """Values listed by the build or jax."""
        return self.info.values if self.info is not None else ()

    def is_default(self, value: str) -> bool:
        """Returns whether a value is the default."""
        return is_default(value, self.default, self.spellings)

    def refused(self, value: str) -> str:
        """Why a process refuses a value (or a variable's value is malformed), as a clause; empty if
        it is legal.
        """
        if self.flag is not None:
            return _flag_problem(value, self.flag) or self._misformed(value)
        if self.entry.form:
            return self._misformed(value)
        if self.entry.words and self.name.startswith("NCCL_"):
            return _words_problem(value, self.entry.words)
        if self.entry.words and value.lower() not in self.entry.words:
            return f"must be one of {', '.join(self.entry.words)}, not {value!r}"
        if self.legal_values and value not in self.legal_values:
            return f"has no value {value!r}{close_matches(value, self.legal_values)}"
        if self.option is not None and self.type == "bool":
            return "" if value.lower() in self.spellings else "must be true or false"
        if self.entry.kind == "env" and self.type == "bool" and value not in _BOOLEANS:
            return f"must be true or false; what is neither, such as {value!r}, counts as true"
        return "must be a number" if self.type in ("int", "float") and not is_number(value) else ""

    def _misformed(self, value: str) -> str:
        """Which item of a value the build refuses by the catalogue, where it does not list its
        words; empty if none.
        """
        if self.spellings or not self.entry.form:
            return ""
        wrong = [
            item
            for item in value.split(",")
            if not re.fullmatch(self.entry.form, item, re.IGNORECASE)
        ]
        return f"must be made of {', '.join(self.entry.words)}, not {wrong[0]!r}" if wrong else ""

    def out_of_range(self, value: str) -> str:
        """Returns how a value is outside of the catalogue's range, as a clause; empty if it is
        not.
        """
        entry = self.entry
        if not is_number(value):
            return ""
        if entry.minimum is not None and float(value) < entry.minimum:
            return f"must be at least {entry.minimum:g}"
        if entry.maximum is not None and float(value) > entry.maximum:
            return f"must be at most {entry.maximum:g}"
        return ""

    @property
    def is_too_new(self) -> bool:
        """Whether a later jaxlib, or a later NCCL than the package that is installed, introduced
        it.
        """
        library, _, release = self.entry.since.rpartition(" ")
        here = {"": self.among.build.jaxlib, "NCCL": self.among.build.nccl}.get(library)
        return here is not None and older(here, release)

    def avoided(self, value: str) -> str:
        """Why it should not have a value on the target, as a clause; empty if it may."""
        target = self.among.target
        return f"on {target} leave it unset" if target in self.entry.not_on.get(value, ()) else ""

    @property
    def is_older_name(self) -> bool:
        """Whether it is a flag that sets what has a newer name in the build."""
        is_alias = (
            self.flag is not None and self.flag.in_xla_flags and self.flag.sets != (self.name,)
        )
        return is_alias and self.entry.renamed_to in self.among.build.flags

    def renamed_value(self, value: str) -> str | None:
        """The value of the newer name; None if the value needs no replacement."""
        return self.entry.renamed_values.get(canonical_value(value, self.spellings))

    def replacement(self, value: str) -> Pair | None:
        """Name and value to write instead: the newer name, or on an old build the older one."""
        newer = self.entry.renamed_to
        if newer and self.entry.kind == "env":
            return newer, value
        if newer in self.among.build.flags:
            new = self.renamed_value(value)
            if new is None or (self.is_flag and self.among[newer].is_default(new)):
                return None
            return newer, new
        return None if self.is_flag else self._older_pair(value)

    def _older_pair(self, value: str) -> Pair | None:
        """The older name and value of a setting that the build does not have yet."""
        for old in self.among.catalog.values():
            if old.renamed_to != self.name or not self.among[old.name].is_flag:
                continue
            for old_value, new_value in old.renamed_values.items():
                if new_value.lower() == value.lower() or (
                    new_value == "default" and value.lower() == "off"
                ):
                    return old.name, old_value
        return None

    def hint(self, *, as_flag: bool = False) -> str:
        """Close matches of an unknown name, as a clause; only of the build for a name in
        XLA_FLAGS.
        """
        if self.exists or self.is_catalogued:
            return ""
        build = self.among.build
        is_of_build = as_flag or self.name.startswith(("xla_", "jax_"))
        return close_matches(
            self.name, [*build.flags, *build.jax_options] if is_of_build else self.among.catalog
        )


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """All settings of the catalogue and one build, for a GPU of `autotune targets list` or any."""

    build: ProbeReport
    target: str | None = None
    catalog: Catalog = field(default_factory=load_catalog)

    def on_gpus(self) -> KnownSettings:
        """The same build, asked for GPUs even if it has no plugin for them."""
        return replace(self, build=replace(self.build, platform="cuda"))

    def __getitem__(self, name: str) -> KnownSetting:
        # What the catalogue lacks must be measured.
        entry = self.catalog.get(name) or Setting(name=name, stage=Stage.RUNTIME)
        flag = self.build.flags.get(name)
        option = self.build.jax_options.get(name)
        if flag is not None:
            default = flag.default if entry.tri_state else flag.effective_default
        elif option is not None:
            default = (
                option.default if name != "jax_platforms" else None
            )  # that of the process that was asked
        else:
            default = entry.default_in(self.build.jaxlib)
        return KnownSetting(
            name=name, entry=entry, flag=flag, option=option, default=default, among=self
        )


def canonical_value(value: str, spellings: Spellings) -> str:
    """Normalizes a value for comparison: ``1`` to ``true``, enum items to the spelling of
    `FlagInfo.values`.
    """
    items = []
    for item in value.split(","):
        bare = item.lstrip("+-")
        sign = item.removesuffix(bare)
        items.append(sign + spellings.get(bare, spellings.get(bare.lower(), bare)))
    return ",".join(items)


def is_default(value: str, default: str | None, spellings: Spellings) -> bool:
    """Returns whether a value is the default, whose items may have another order where they have
    `spellings`.
    """
    if default is None or default == UNSET:
        return False
    if spellings:
        items, default_items = (
            sorted(canonical_value(text, spellings).split(",")) for text in (value, default)
        )
        return items == default_items
    if is_number(value) and is_number(default):
        return float(value) == float(default)
    return value == default


def is_number(text: str) -> bool:
    """Returns whether a text is a number without spaces and underscores."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text == text.strip()


def _words_problem(value: str, words: Sequence[str]) -> str:
    """Why NCCL refuses a list of words (`parseList` of its src/graph/tuning.cc), as a clause; empty
    if it takes it.
    """
    for number, part in enumerate(value.split(";")):
        function, colon, listed = part.rpartition(":")
        if number and not colon:
            return (
                "must begin with a function, such as allreduce:, in each part behind the "
                f"first, not {part!r}"
            )
        if colon and function.lower() not in NCCL_FUNCTIONS:
            return f"must name {', '.join(NCCL_FUNCTIONS)} before a colon, not {function!r}"
        for word in listed.removeprefix("^").split(","):
            if word.lower() not in map(str.lower, words):
                return f"must list {', '.join(words)}, not {word!r}"
    return ""


def _flag_problem(value: str, flag: FlagInfo) -> str:
    """Why the XLA_FLAGS parser refuses a value, as a clause; empty if it accepts it."""
    if flag.type == "bool":
        word = canonical_value(value, _BOOLEANS)
        if word not in ("true", "false"):
            return "must be true or false"
        if flag.values and word not in flag.values:
            return f"must be {flag.values[0]}, for this build refuses {word}"
        return ""
    if flag.type in _INTEGER_BITS:
        bits = _INTEGER_BITS[flag.type]
        legal = bool(re.fullmatch(r"[+-]?\d+", value)) and -(1 << bits) <= int(value) < 1 << bits
        return "" if legal else f"must be a {bits + 1}-bit integer"
    if flag.type == "float":
        return "" if is_number(value) or _HEXADECIMAL.fullmatch(value) else "must be a number"
    return _enum_problem(value, flag) if flag.type == "enum" and flag.spellings else ""


def _enum_problem(value: str, flag: FlagInfo) -> str:
    if not value:
        return "" if flag.allows_empty else "must not be empty"
    items = value.split(",") if flag.repeated else [value]
    edits = [i[:1] in ("+", "-") for i in items]
    if any(edits):
        if not flag.edits:
            return "must not start with + or -"
        if not all(edits):
            return "must have + or - before every item or before none"
        items = [i[1:] for i in items]
    for item in items:
        if item and (item.lower() if flag.any_case else item) not in flag.spellings:
            shown = close_matches(item, flag.spellings) or f"; legal: {', '.join(flag.values)}"
            return f"has no value {item!r}{shown}"
    return ""


def format_setting(entry: Setting, known: KnownSettings) -> list[Pair]:
    """Formats what the build and the catalogue say, under their own names, as (label, text); texts
    may be empty.
    """
    setting = known[entry.name]
    place = (
        "an environment variable"
        if entry.kind == "env"
        else f"{known.build.build} does not have it"
    )
    if setting.info is not None:
        place = known.build.build
    sources = [known.catalog.sources[s] for s in entry.sources]
    return [
        ("in this build", place),
        ("type", setting.type),
        *(_fields(setting.info) if setting.info is not None else ()),
        ("in the catalogue", f"{entry.tier}, acts in stage {entry.stage}"),
        *_fields(entry),
        ("sources", "; ".join(f"{s.title} <{s.url}>" for s in sources)),
        (
            "source line",
            next(
                (s.link(entry.source_line) for s in sources if s.commit and entry.source_line), ""
            ),
        ),
    ]


def _fields(said: Setting | FlagInfo) -> list[Pair]:
    """Formats the fields that differ from their defaults, under their own names."""
    values = said.model_dump(exclude_defaults=True, exclude=_SHOWN_APART)
    return [(name.replace("_", " "), _in_words(value)) for name, value in values.items()]


def _in_words(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(
            f"{key}: {_in_words(of_key)}" if key else _in_words(of_key)
            for key, of_key in value.items()
        )
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return (
        ", ".join(repr(str(item)) for item in value)
        if isinstance(value, tuple)
        else str(value) or "''"
    )
