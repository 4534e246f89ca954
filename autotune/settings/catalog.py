"""The catalogue: what is known of every published setting, kept as TOML under ``autotune/data/flags``.

The installed build (see `autotune.settings.probe`) says what exists; the catalogue says what it means: purpose, scope,
stage, risks, what it needs. Where both speak (existence, type, default), a test holds the catalogue to the
real builds.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from autotune.model.errors import SettingError, close_matches
from autotune.model.flags import FlagSet

T = TypeVar("T")


def _by_version(default: Any) -> Any:
    """A table of defaults by version, also where the file gives one default for all."""
    return default if isinstance(default, dict) else {"": default}


Defaults = Annotated[Mapping[str, str], BeforeValidator(_by_version), Field(validation_alias="default")]


class Stage(StrEnum):
    """Where a setting acts, and so how it may be judged.

    ``program``: the compiled program; equal fingerprints mean no effect. ``runtime``: read while running.
    ``autotuner``: decides kernels or machine code; a compilation without the device proves nothing. ``client``: read
    when the process or its backend starts.
    """

    PROGRAM = "program"
    RUNTIME = "runtime"
    AUTOTUNER = "autotuner"
    CLIENT = "client"


class Tier(StrEnum):
    """Whether a setting belongs in a search.

    ``tune``: by group. ``numerics``: changes results, so only by a group of that name. ``legacy``: an older
    name. ``expert``: only if named. ``avoid``: site, fault tolerance, known trouble. ``tool``: diagnostics.
    ``danger``: never. ``noop``: accepted, does nothing. ``removed``: gone. ``listed``: described, but nobody judged
    whether it pays.
    """

    TUNE = "tune"
    NUMERICS = "numerics"
    LEGACY = "legacy"
    EXPERT = "expert"
    AVOID = "avoid"
    TOOL = "tool"
    DANGER = "danger"
    NOOP = "noop"
    REMOVED = "removed"
    LISTED = "listed"


NEVER_SEARCHED = {
    "tpu": "acts on TPUs, whose compiler (libtpu) no build here holds: no study runs there",
    "rocm": "acts on AMD GPUs: no study runs there",
}
"""Platforms of which settings are catalogued only, and why."""


class Scope(StrEnum):
    """What a program must have for the setting to act.

    ``single_device``: nothing that not every program has. ``sharded_matmul``: a matrix product whose operand or result
    is gathered or scattered.
    """

    SINGLE_DEVICE = "single_device"
    MULTI_DEVICE = "multi_device"
    MULTI_NODE = "multi_node"
    LOOP = "loop"
    COLLECTIVE_PERMUTE = "collective_permute"
    SHARDED_MATMUL = "sharded_matmul"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One entry of the catalogue.

    Attributes:
        name: As in a `FlagSet`; ``process_layout`` is the one entry that is no setting of a process.
        group: Name under which it is searched.
        also_in: Further groups that it belongs to.
        platform: ``cuda``, ``cpu``, ``any``, or one of `NEVER_SEARCHED`.
        type: One of bool, int, int32, int64, float, string, enum, message.
        tri_state: Whether being unset differs from every value.
        repeated: Whether it holds a list or a map.
        values: Values worth trying, spelled as in a `FlagSet`; the default is always among the choices.
        minimum: Least sensible value; the parser may let others pass.
        maximum: Greatest sensible value.
        scopes: What the program must have; all of them.
        makes: What it may bring into a program that had none, so that other settings act.
        since: First jaxlib that has it, of those that `docs/ask_builds.py` asked; empty if the oldest of them has it.
        removed: First asked jaxlib that lacks it after one that has it.
        defaults: Version from which on, to default; an empty key if it never changed.
        numerics: ``rounding``, ``order``, ``precision`` or ``values``; empty if results do not change.
        memory: How it moves peak memory; empty if not at all, or not known.
        compile: How it moves compile time; empty if little, or not known.
        danger: Why it must not be used in training; empty if it may.
        needs: What must hold for it to act, in words.
        when: Other setting to the values under which this one acts.
        unless: Other setting to the values under which it does nothing.
        condition_since: First jaxlib for which `when` and `unless` hold; empty if for all.
        renamed_to: What took its place.
        renamed_values: Its values to those of what took its place; a value that is absent needs no
            replacement.
        layer_bytes: ``weights`` or ``gradients`` if its values are multiples of one layer's bytes.
        changed_programs: Test programs whose executable one value changed; None if that was not tried.
        source_line: ``FILE:LINE`` of XLA's source from which the summary was taken, at the commit of the source
            ``xla``, or ``FILE:LINE@COMMIT`` of the last one that had it; empty if the flag is newer than that.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    summary: str
    group: str
    tier: Tier
    platform: str
    type: str
    also_in: tuple[str, ...] = ()
    tri_state: bool = False
    repeated: bool = False
    values: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    step: int = 1
    power_of_two: bool = False
    minimum: float | None = None
    maximum: float | None = None
    scopes: tuple[Scope, ...] = ()
    makes: tuple[Scope, ...] = ()
    stage: Stage = Stage.PROGRAM
    since: str = ""
    removed: str = ""
    defaults: Defaults = field(default_factory=dict)
    numerics: str = ""
    memory: str = ""
    compile: str = ""
    danger: str = ""
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    condition_since: str = ""
    renamed_to: str = ""
    renamed_values: Mapping[str, str] = field(default_factory=dict)
    layer_bytes: str = ""
    changed_programs: tuple[str, ...] | None = None
    sources: tuple[str, ...] = ()
    source_line: str = ""

    @property
    def kind(self) -> str:
        """How it reaches a process: ``xla``, ``jax``, ``env`` or ``layout``."""
        if self.name.startswith(("xla_", "jax_")):
            return self.name[:3]
        return "env" if self.name.isupper() else "layout"

    def default_in(self, version: str) -> str | None:
        """Default that the catalogue gives for this jaxlib; None if it does not say."""
        fitting = [v for v in self.defaults if not v or not older(version, v)]
        return self.defaults[max(fitting, key=release_of)] if fitting else None


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a fact; `commit` is the one that was read."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    title: str
    url: str
    commit: str = ""

    def link(self, line: str) -> str:
        """Where a `Setting.source_line` can be read."""
        path, _, commit = line.partition("@")
        file, _, number = path.partition(":")
        return f"{self.url.partition('/blob/')[0]}/blob/{commit or self.commit}/{file}#L{number}"


class Catalog(dict[str, Setting]):
    """All settings by name, in the order of the files."""

    def __init__(self, settings: Iterable[Setting], sources: Mapping[str, Source]) -> None:
        super().__init__((s.name, s) for s in settings)
        self.sources = dict(sources)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups that can be searched: those with at least one setting of tier tune or numerics."""
        return tuple(sorted({s.group for s in self.values() if s.tier in (Tier.TUNE, Tier.NUMERICS)}))

    def find(self, name: str) -> Setting:
        """The setting of a name, with or without dashes and value.

        Raises:
            SettingError: If it is not in the catalogue; close matches are named.
        """
        bare = name.strip().lstrip("-").partition("=")[0]
        for candidate in (bare, bare.lower()):
            if candidate in self:
                return self[candidate]
        raise SettingError(f"a setting must be in the catalogue but {name!r} is not{close_matches(bare, self)}")


def older(version: str, other: str) -> bool:
    """Whether one release comes before another: ``0.10.2`` before ``0.12.0.1``."""
    return release_of(version) < release_of(other)


def release_of(version: str) -> tuple[int, ...]:
    """What releases are ordered by: ``0.12.0.1`` as (0, 12, 0, 1)."""
    parts = []
    for part in version.split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits or not part[0].isdigit():
            break
        parts.append(int(digits))
    return tuple(parts)


@functools.cache
def load_catalog() -> Catalog:
    """The catalogue that comes with this package."""
    data = resources.files("autotune") / "data"
    settings: dict[str, Setting] = {}
    for path in sorted((data / "flags").iterdir(), key=lambda p: p.name):
        settings |= read_entries(path, Setting)
    sources = read_entries(data / "sources.toml", Source)
    return Catalog(settings.values(), sources)


def read_entries(path: Traversable, kind: type[T]) -> dict[str, T]:
    """The entries of one data file of this package, by name.

    Raises:
        SettingError: See `read_data`.
    """
    return read_data(path, dict[str, kind], named=True)  # type: ignore[valid-type]


def read_data(path: Traversable, kind: type[T], *, named: bool = False) -> T:
    """One data file of this package.

    Args:
        kind: What it holds, with the types of all keys.
        named: Whether each table takes its own name as ``name``.

    Raises:
        SettingError: If the file does not fit; the key, what must hold and what is there are named.
    """
    data = tomllib.loads(path.read_text("utf-8"))
    if named:
        data = {name: {"name": name, **entry} for name, entry in data.items()}
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(str(part) for part in wrong["loc"])
        raise SettingError(f"{path.name}: `{key}`: {wrong['msg']} but got {wrong['input']!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One published flag set, as it was published.

    Attributes:
        source: Where it stands, with the revision that was read.
        date: When it was published or last read there, as far as known: year, year-month or ``HEAD`` of mid
            2026.
        for_hardware: What its authors used it on; empty if they do not say.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    source: str
    date: str
    flags: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    for_hardware: str = ""
    note: str = ""

    @property
    def settings(self) -> FlagSet:
        """The recipe as a flag set; JAX options by their lower-case names."""
        named = {n.lower() if n.startswith("JAX_") else n: v for n, v in self.environment.items()}
        return FlagSet.parse(self.flags).merge(named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A performance problem and the groups of settings that may help."""

    name: str
    title: str
    words: tuple[str, ...]
    groups: tuple[str, ...]
    advice: str


@functools.cache
def load_recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order of the files."""
    folder = resources.files("autotune") / "data" / "recipes"
    found: dict[str, Recipe] = {}
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        found |= read_entries(path, Recipe)
    return found


def find_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        SettingError: If there is none; close matches are named.
    """
    recipes = load_recipes()
    if name not in recipes:
        raise SettingError(
            f"a recipe must be one of `autotune recipes list` but got {name!r}{close_matches(name, recipes)}"
        )
    return recipes[name]


@functools.cache
def load_symptoms() -> dict[str, Symptom]:
    """All symptoms by name."""
    return read_entries(resources.files("autotune") / "data" / "symptoms.toml", Symptom)


def search_symptoms(text: str) -> tuple[Symptom, ...]:
    """Symptoms that fit a free text, best first; none if no word of it is known."""
    asked = re.findall(r"[a-z0-9]+", text.lower())

    def score(symptom: Symptom) -> int:
        title = re.findall(r"[a-z0-9]{4,}", symptom.title.lower())
        return sum(
            3 * (word == symptom.name) + 2 * _stands_in(word, symptom.words) + _stands_in(word, title)
            for word in asked
            if len(word) > 2
        )

    scored = [(score(s), s) for s in load_symptoms().values()]
    return tuple(s for points, s in sorted(scored, key=lambda p: -p[0]) if points)


def _stands_in(word: str, words: list[str] | tuple[str, ...]) -> bool:
    """Whether a word is among others, plural or not."""
    return any(word.rstrip("s") == other.rstrip("s") for other in words)


def select_settings(catalog: Catalog, *, group: str | None, scope: str | None, word: str = "") -> list[Setting]:
    """Filters settings by group, scope, and a word in name or summary.

    Raises:
        SettingError: If there is no such group or scope.
    """
    every_group = sorted({s.group for s in catalog.values()})
    for given, legal, what in ((group, every_group, "group"), (scope, list(Scope), "scope")):
        if given is not None and given not in legal:
            hint = close_matches(given, legal)
            raise SettingError(f"--{what} must be one of {', '.join(legal)} but got {given!r}{hint}")
    return [
        s
        for s in catalog.values()
        if (group is None or group in (s.group, *s.also_in))
        and (scope is None or scope in s.scopes)
        and (word.lower() in s.name.lower() or word.lower() in s.summary.lower())
    ]
