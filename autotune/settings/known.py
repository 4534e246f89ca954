"""Knowledge of a setting: the catalogue's entry joined with the installed build's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pydantic import BaseModel

from autotune.model.errors import close_matches
from autotune.settings.catalog import (
    Catalog,
    Pair,
    Setting,
    Stage,
    TextMap,
    Texts,
    load_catalog,
    older,
)
from autotune.settings.probe import FlagInfo, ProbeReport

_JAX_BOOLEANS = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), "true"),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), "false"),
}
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "1"), "true"),
    **dict.fromkeys(("false", "False", "0"), "false"),
}
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")  # floats as in C
_INTEGER = re.compile(r"[+-]?\d+")
_INTEGER_BITS = {"int32": 31, "int64": 63}

# Fields that `flags show` does not show, or otherwise.
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

# Functions that may have their own list in NCCL_ALGO and NCCL_PROTO.
NCCL_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
UNSET = "(unset)"  # the catalogue's default of a setting that is unset by default


class KnownSetting(NamedTuple):
    """A setting joined from catalogue, build and jax, each of which may lack it."""

    name: str
    entry: Setting  # an empty one for a setting that the catalogue lacks
    flag: FlagInfo | None  # an XLA flag or compiler option of the build
    option: FlagInfo | None
    info: FlagInfo  # either of them, else the catalogue's type
    default: str | None  # None if unset is a state of its own, or unknown
    among: KnownSettings

    @property
    def exists(self) -> bool:
        """Whether it is a flag of the build or an option of jax."""
        return self.info.in_xla_flags or self.option is not None

    @property
    def is_catalogued(self) -> bool:
        """Whether the catalogue has an entry."""
        return bool(self.entry.summary)

    @property
    def is_stored_nowhere(self) -> bool:
        """Whether the build takes it without any effect."""
        return self.flag is not None and not self.flag.sets

    @property
    def spellings(self) -> TextMap:
        """Further spellings of values to the value."""
        if self.info.type != "bool":
            return self.info.spellings
        return _JAX_BOOLEANS if self.option else _BOOLEANS

    def is_default(self, value: str) -> bool:
        """Returns whether a value is the default."""
        return is_default(value, self.default, self.spellings)

    def refused(self, value: str) -> str:
        """Why a process refuses a value, or a variable's is malformed, as a clause; else empty."""
        words = self.entry.words
        legal = self.info.values
        if value.upper() in self.entry.against:  # it changes nothing, or does harm
            return ""
        if self.info.type == "bool":
            return self._switch_problem(value)
        if self.flag:
            return _flag_problem(value, self.flag) or self._misformed(value)
        if self.entry.form:
            return self._misformed(value)
        if words and self.name.startswith("NCCL_"):
            return _words_problem(value, words)
        if words and value.lower() not in words:
            return f"must be one of {', '.join(words)}, not {value!r}"
        for item in value.split(","):
            if legal and item not in legal:
                return f"has no value {item!r}{close_matches(item, legal)}"
        if self.info.type in ("int", "float") and not is_number(value):
            return "must be a number"
        return ""

    def _switch_problem(self, value: str) -> str:
        word = canonical_value(value, self.spellings)
        legal = self.info.values or ("true", "false")
        if self.entry.kind == "env" and value not in _BOOLEANS:
            return f"must be true or false; what is neither, such as {value!r}, counts as true"
        if word not in ("true", "false"):
            return "must be true or false"
        return "" if word in legal else f"must be {legal[0]}, for this build refuses {word}"

    def _misformed(self, value: str) -> str:
        """Which item has not the catalogue's `form`, where the build lists no words; else empty."""
        if self.entry.form and not self.spellings:
            for item in value.split(","):
                if not re.fullmatch(self.entry.form, item, re.IGNORECASE):
                    return f"must be made of {', '.join(self.entry.words)}, not {item!r}"
        return ""

    def out_of_range(self, value: str) -> str:
        """How a value is outside of the catalogue's range, as a clause; empty if it is not."""
        if not is_number(value):
            return ""
        if float(value) < self.entry.minimum:
            return f"must be at least {self.entry.minimum:g}"
        if float(value) > self.entry.maximum:
            return f"must be at most {self.entry.maximum:g}"
        return ""

    def unknown_pass(self, value: str) -> str:
        """Which compiler pass the build's libraries do not name, as a clause; empty if none."""
        build = self.among.build
        if self.name == "xla_disable_hlo_passes":
            for name in re.findall(r"(?:^|[,/])(?![^,]*/)([^,/:=@]+)", value):
                # Some names begin with a text of the library and end with a type.
                if build.lacks(name) and build.lacks(name[: name.rfind("-") + 1] or name):
                    return f"{build.build} names no pass {name!r}"
        return ""

    @property
    def is_too_new(self) -> bool:
        """Whether a later jaxlib, or a later NCCL than the installed package, introduced it."""
        library, _, release = self.entry.since.rpartition(" ")
        build = self.among.build
        installed = {"": build.jaxlib, "NCCL": build.nccl}.get(library)
        return installed is not None and older(installed, release)

    def avoided(self, value: str) -> str:
        """Why it should not have a value on the target, as a clause; empty if it may."""
        target = self.among.target
        return f"on {target} leave it unset" if target in self.entry.not_on.get(value, ()) else ""

    @property
    def is_older_name(self) -> bool:
        """Whether it is a flag that sets what has a newer name in the build."""
        is_newer_there = self.entry.renamed_to in self.among.build.flags
        return is_newer_there and self.info.in_xla_flags and self.info.sets != (self.name,)

    def renamed_value(self, value: str) -> str | None:
        """The value of the newer name; None if the value needs no replacement."""
        return self.entry.renamed_values.get(canonical_value(value, self.spellings))

    def replacement(self, value: str) -> Pair | None:
        """Name and value to write instead: the newer name, or on an old build the older one."""
        newer = self.entry.renamed_to
        if newer and self.entry.kind == "env":
            return newer, value
        if newer in self.among.build.flags:
            newer_value = self.renamed_value(value)
            if newer_value is None or (
                self.info.in_xla_flags and self.among[newer].is_default(newer_value)
            ):
                return None
            return newer, newer_value
        return None if self.info.in_xla_flags else self._older_pair(value)

    def _older_pair(self, value: str) -> Pair | None:
        newer_value = "default" if value.lower() == "off" else value.lower()
        for name, entry in self.among.catalog.items():
            if entry.renamed_to == self.name and self.among[name].info.in_xla_flags:
                for older_value, same in entry.renamed_values.items():
                    if same.lower() == newer_value:
                        return name, older_value
        return None

    def hint(self, *, as_flag: bool = False) -> str:
        """Close matches of an unknown name, as a clause; of the build for a name in XLA_FLAGS."""
        if self.exists or self.is_catalogued:
            return ""
        if as_flag or self.name.startswith(("xla_", "jax_")):
            build = self.among.build
            return close_matches(self.name, [*build.flags, *build.jax_options])
        return close_matches(self.name, self.among.catalog)


@dataclass(frozen=True)
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
        default = entry.defaults.get("")  # a flag's is the build's own
        if flag:
            default = flag.default if entry.tri_state else flag.effective_default
        elif option:
            default = option.default
        blank = FlagInfo(name=name, type=entry.type, in_xla_flags=False)
        return KnownSetting(name, entry, flag, option, flag or option or blank, default, self)


def canonical_value(value: str, spellings: TextMap) -> str:
    """Normalizes a value: ``1`` to ``true``, enum items to the spelling of `FlagInfo.values`."""
    items = []
    for item in value.split(","):
        bare = item.lstrip("+-")
        sign = item.removesuffix(bare)
        items.append(sign + spellings.get(bare, spellings.get(bare.lower(), bare)))
    return ",".join(items)


def is_default(value: str, default: str | None, spellings: TextMap) -> bool:
    """Returns whether a value is the default; where items have `spellings`, in any order."""
    if default is None or default == UNSET:
        return False
    if spellings:
        items = canonical_value(value, spellings).split(",")
        return sorted(items) == sorted(canonical_value(default, spellings).split(","))
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


def _words_problem(value: str, words: Texts) -> str:
    """Why NCCL refuses a list of words (`parseList` of src/graph/tuning.cc), as a clause."""
    for number, function_list in enumerate(value.split(";")):
        function, colon, listed = function_list.rpartition(":")
        if number and not colon:
            return (
                "must begin with a function, such as allreduce:, in each part behind the "
                f"first, not {function_list!r}"
            )
        if colon and function.lower() not in NCCL_FUNCTIONS:
            return f"must name {', '.join(NCCL_FUNCTIONS)} before a colon, not {function!r}"
        for word in listed.removeprefix("^").split(","):
            if word.lower() not in map(str.lower, words):
                return f"must list {', '.join(words)}, not {word!r}"
    return ""


def _flag_problem(value: str, flag: FlagInfo) -> str:
    """Why the XLA_FLAGS parser refuses a value, as a clause; empty if it accepts it."""
    if flag.type in _INTEGER_BITS:
        bits = _INTEGER_BITS[flag.type]
        if not _INTEGER.fullmatch(value) or not -(1 << bits) <= int(value) < 1 << bits:
            return f"must be a {bits + 1}-bit integer"
    elif flag.type == "float" and not is_number(value) and not _HEXADECIMAL.fullmatch(value):
        return "must be a number"
    elif flag.type == "enum" and flag.spellings:
        return _enum_problem(value, flag)
    return ""


def _enum_problem(value: str, flag: FlagInfo) -> str:
    if not value:
        return "" if flag.allows_empty else "must not be empty"
    items = value.split(",") if flag.repeated else [value]
    edits = [item for item in items if item.startswith(("+", "-"))]
    if edits and not flag.edits:
        return "must not start with + or -"
    if edits and edits != items:
        return "must have + or - before every item or before none"
    for item in items:
        name = item[1:] if edits else item
        spelling = name.lower() if flag.any_case else name
        if name and spelling not in flag.spellings:
            return f"has no value {name!r}{close_matches(name, flag.spellings)}"
    return ""


def format_setting(entry: Setting, known: KnownSettings) -> list[Pair]:
    """Formats what build and catalogue say of a setting as (label, text); a text may be empty."""
    setting = known[entry.name]
    in_build = setting.flag or setting.option
    place = known.build.build
    if entry.kind == "env":
        place = "an environment variable"
    elif in_build is None:
        place += " does not have it"
    sources = [known.catalog.sources[source] for source in entry.sources]
    links = [s.link(entry.source_line) for s in sources if s.commit and entry.source_line]
    return [
        ("in this build", place),
        ("type", setting.info.type),
        *_fields(in_build),
        ("in the catalogue", f"{entry.tier}, acts in stage {entry.stage}"),
        *_fields(entry),
        ("sources", "; ".join(f"{s.title} <{s.url}>" for s in sources)),
        ("source line", "".join(links[:1])),
    ]


def _fields(described: BaseModel | None) -> list[Pair]:
    if described is None:
        return []
    values = described.model_dump(exclude_defaults=True, exclude=_SHOWN_APART)
    return [(n.replace("_", " "), _in_words(value)) for n, value in values.items()]


def _in_words(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(
            f"{key}: {_in_words(of_key)}".removeprefix(": ") for key, of_key in value.items()
        )
    if isinstance(value, tuple):
        return ", ".join(repr(str(item)) for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) or "''"
