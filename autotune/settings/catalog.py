"""The catalogue of published settings.

By hand, under ``autotune/data``: ``flags/*.toml`` has what is searched, advised or dangerous,
``meanings.toml`` what the rest means, ``names.toml`` what holds for all names of a form. In
``asked/*.json`` is what `docs/ask_builds.py` read from releases of jaxlib and NCCL.
"""

from __future__ import annotations

import functools
import json
import math
import re
import tomllib
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from autotune.model.errors import SettingError, close_matches
from autotune.model.files import packaged_table, packaged_text
from autotune.model.flags import FlagSet

T = TypeVar("T")

Texts = tuple[str, ...]  # names, or values of settings
TextMap = Mapping[str, str]  # names to values or words
Values = dict[str, str]  # settings to values, while they are collected
Pair = tuple[str, str]  # a setting with its value

DATA = resources.files("autotune") / "data"


def _by_version(default: Any) -> Any:
    return default if isinstance(default, dict) else {"": default}


Defaults = Annotated[TextMap, BeforeValidator(_by_version), Field(validation_alias="default")]


class Stage(StrEnum):
    """Where a setting acts, which decides how it is judged.

    ``program``: the compiled program; equal fingerprints mean no effect. ``runtime``: read while
    running. ``autotuner``: decides kernels or machine code; a compilation without the device proves
    nothing. ``client``: read when the process or its backend starts.
    """

    PROGRAM = "program"
    RUNTIME = "runtime"
    AUTOTUNER = "autotuner"
    CLIENT = "client"


class Tier(StrEnum):
    """Whether a setting belongs in a search.

    ``tune``: by group. ``numerics``: changes results, so only if the study names its group.
    ``legacy``: an older name. ``expert``: only if named. ``avoid``: site, fault tolerance, known
    trouble. ``tool``: diagnostics. ``danger``: never. ``noop``: accepted without effect.
    ``removed``: gone. ``listed``: described, but not judged.
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


SEARCHED = (Tier.TUNE, Tier.NUMERICS)  # with their group
# Platforms whose settings are only catalogued, and why.
NEVER_SEARCHED = {
    "tpu": "acts on TPUs, whose compiler (libtpu) no build here holds: no study runs there",
    "rocm": "acts on AMD GPUs: no study runs there",
}
# Start of a danger that arises in studies only: caches of autotuning may serve production.
OF_CACHES = "cache control"


class Scope(StrEnum):
    """Feature that a program or its machines must have for a setting to act.

    ``single_device``: every program has it. ``sharded_matmul``: a matrix product whose operand or
    result is gathered or scattered. ``nvls``: an NVSwitch that reduces. ``nvlink_domains``:
    several. ``nvlink_over_hosts``: one over several hosts. ``infiniband``: active ports of
    InfiniBand or RoCE, which NCCL's own transport uses. ``efa``: cards of AWS's Elastic Fabric
    Adapter. ``gvnic``: Google Cloud's network cards, as TCPXO needs.
    """

    SINGLE_DEVICE = "single_device"
    MULTI_DEVICE = "multi_device"
    MULTI_NODE = "multi_node"
    LOOP = "loop"
    COLLECTIVE_PERMUTE = "collective_permute"
    SHARDED_MATMUL = "sharded_matmul"
    NVLINK = "nvlink"
    NVLS = "nvls"
    NVLINK_DOMAINS = "nvlink_domains"
    NVLINK_OVER_HOSTS = "nvlink_over_hosts"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    INFINIBAND = "infiniband"
    EFA = "efa"
    GVNIC = "gvnic"


# Other setting to the values under which one acts; or value to names.
Conditions = Mapping[str, Texts]


class Entry(BaseModel, frozen=True, extra="forbid"):
    """One table of a data file."""


class Setting(Entry):
    """One entry of the catalogue."""

    name: str  # as in a `FlagSet`; only ``process_layout`` is no setting of a process
    summary: str = ""
    group: str = ""
    tier: Tier = Tier.LISTED
    platform: str = "any"  # ``cuda``, ``cpu``, ``any``, or one of `NEVER_SEARCHED`
    type: str = "string"  # one of bool, int, int32, int64, float, string, enum, message
    also_in: Texts = ()
    tri_state: bool = False  # whether being unset differs from every value
    repeated: bool = False  # whether it holds a list or a map
    values: Texts = ()  # worth trying, besides the default, spelled as in a `FlagSet`
    words: Texts = ()  # of NCCL's lists (``Ring;allreduce:Tree,Ring``), or of a flag with a `form`
    form: str = ""  # pattern, in any case, of items whose words no build lists
    minimum: float = -math.inf  # sensible, though the parser may accept less
    maximum: float = math.inf
    scopes: tuple[Scope, ...] = ()  # program and machines must have all of them
    value_scopes: Mapping[str, tuple[Scope, ...]] = {}  # value to what it needs besides
    stage: Stage = Stage.PROGRAM
    since: str = ""  # first asked jaxlib that has it, or ``NCCL 2.28.3``; empty if the oldest has
    removed: str = ""  # first asked jaxlib or NCCL that lacks it again
    defaults: Defaults = {}  # first version to default; an empty key if it never changed
    numerics: str = ""  # ``rounding``, ``order``, ``precision`` or ``values``
    memory: str = ""  # effect on peak memory; empty if none or unknown
    compile: str = ""  # effect on compile time; empty if small or unknown
    danger: str = ""  # why it must not be used in training; empty if it may
    needs: Texts = ()  # requirements to act, in words
    excludes: Texts = ()
    against: TextMap = {}  # value to the reason against it: it changes nothing, or does harm
    beware: TextMap = {}  # pattern of values to what may go wrong with them
    not_on: Conditions = {}  # value to GPUs of `autotune targets list` on which it does harm
    nccl: str = ""  # first NCCL with which it works; empty if any does
    when: Conditions = {}  # other setting to the values under which this one acts
    unless: Conditions = {}  # other setting to the values under which it does nothing
    condition_since: str = ""  # first jaxlib for which `when` and `unless` hold
    renamed_to: str = ""
    renamed_values: TextMap = {}  # its values to those of the newer name, where they differ
    layer_bytes: str = ""  # ``weights`` or ``gradients``, whose multiples it takes
    merges: str = ""  # kind of collectives that it merges up to so many bytes
    pool_step_mib: int = 0  # steps of its values, if it is memory for collectives
    together: TextMap = {}  # settings with which a published set with it is tried
    sources: Texts = ()
    source_line: str = ""  # ``FILE:LINE`` of its first source, or ``FILE:LINE@COMMIT``

    @property
    def kind(self) -> str:
        """How a process receives it: ``xla``, ``jax``, ``env`` or ``layout``."""
        if self.name.startswith(("xla_", "jax_")):
            return self.name[:3]
        return "env" if self.name.isupper() else "layout"


class Source(Entry):
    """Source of a fact; `docs/ask_builds.py` read it at `commit`, if it did."""

    name: str
    title: str
    url: str
    commit: str = ""

    def link(self, line: str) -> str:
        """URL of a `Setting.source_line`."""
        path, _, commit = line.partition("@")
        file, _, number = path.partition(":")
        return f"{self.url.partition('/blob/')[0]}/blob/{commit or self.commit}/{file}#L{number}"


class Catalog(dict[str, Setting]):
    """All settings by name, in the order of the files."""

    def __init__(self, settings: Iterable[Setting], sources: Mapping[str, Source]) -> None:
        super().__init__((s.name, s) for s in settings)
        self.sources = sources

    @property
    def groups(self) -> Texts:
        """Searchable groups: those with a setting of tier tune or numerics."""
        return tuple(sorted({s.group for s in self.values() if s.tier in SEARCHED}))

    def find(self, name: str) -> Setting:
        """Finds a setting by name, with or without dashes and value, or raises SettingError."""
        bare = name.strip().lstrip("-").partition("=")[0]
        for candidate in (bare, bare.lower()):
            if candidate in self:
                return self[candidate]
        raise SettingError(
            f"a setting must be in the catalogue but {name!r} is not{close_matches(bare, self)}"
        )


def setting_of(variable: str) -> str:
    """Returns the name of a variable as a setting: a JAX option has its lower-case name."""
    return variable.lower() if variable.startswith("JAX_") else variable


def older(version: str, other: str) -> bool:
    """Returns whether one release comes before another: ``0.10.2`` before ``0.12.0.1``."""
    return release_of(version) < release_of(other)


def release_of(version: str) -> tuple[int, ...]:
    """Sort key of a release: (0, 12, 0, 1) for ``0.12.0.1``."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


@functools.cache
def load_catalog() -> Catalog:
    """Loads the catalogue. What releases no longer have, and nobody described, is left out."""
    sources = read_entries("sources.toml", Source)
    written = _written()
    rules = packaged_table("names.toml")
    facts = {}
    for source in ("xla", "nccl-source"):
        answers = read_asked(source)
        sources[source] = sources[source].model_copy(update={"commit": answers["commit"]})
        for name, fact in answers["settings"].items():
            if name in written or "removed" not in fact:
                facts[name] = fact
    entries: Tables = {}
    for name in {**written, **facts}:
        by_name = (keys for pattern, keys in rules.items() if re.fullmatch(pattern, name))
        entries[name] = ChainMap(written.get(name, {}), facts.get(name, {}), *by_name)
    return Catalog(_named(entries, Setting, "flags").values(), sources)


Tables = dict[str, MutableMapping[str, Any]]  # tables of a TOML file, by name


def read_asked(source: str) -> dict[str, Any]:
    """Reads what releases said: ``releases``, ``commit`` of the lines, and keys of ``settings``."""
    return dict(json.loads(packaged_text(f"asked/{source}.json")))


def _written() -> Tables:
    written = _read_tables(DATA / "flags")
    for group, tiers in packaged_table("meanings.toml").items():
        for tier, meanings in tiers.items():
            for name, meaning in meanings.items():
                keys = meaning if isinstance(meaning, dict) else {"summary": meaning}
                written[name] = {"group": group, "tier": tier, **keys}
    return written


def _read_tables(place: Traversable) -> Tables:
    """Reads the tables of a TOML file, or of all files of a folder in the order of their names."""
    files = [place]
    if place.is_dir():
        files = sorted(place.iterdir(), key=lambda path: path.name)
    return {
        name: table
        for path in files
        for name, table in tomllib.loads(path.read_text("utf-8")).items()
    }


def read_entries(name: str, kind: type[T], folder: Traversable = DATA) -> dict[str, T]:
    """Reads the tables of a data file or folder, each with its own name."""
    return _named(_read_tables(folder / name), kind, name)


def read_data(path: Traversable, kind: type[T]) -> T:
    """Reads a TOML file as some type; SettingError if it does not fit."""
    return _fit(_read_tables(path), kind, path.name)


def _named(tables: Tables, kind: type[T], where: str) -> dict[str, T]:
    entries = {name: {"name": name, **table} for name, table in tables.items()}
    return _fit(entries, dict[str, kind], where)  # type: ignore[valid-type]


def _fit(data: object, kind: type[T], where: str) -> T:
    """Takes data as some type; SettingError with the wrong key if it does not fit."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(map(str, wrong["loc"]))
        raise SettingError(
            f"{where}: `{key}`: {wrong['msg']} but got {wrong['input']!r}"
        ) from error


class Recipe(Entry):
    """One published flag set, unchanged."""

    name: str
    source: str  # URL, with the revision that was read
    date: str  # date of publication or last reading: year, year-month or ``HEAD`` of mid 2026
    flags: str = ""
    environment: TextMap = {}
    for_hardware: str = ""  # hardware of its authors; may be empty
    note: str = ""

    @property
    def settings(self) -> FlagSet:
        """The recipe as a flag set; JAX options by their lower-case names."""
        return FlagSet.parse(self.flags).merge(
            {setting_of(name): value for name, value in self.environment.items()}
        )


class Symptom(Entry):
    """A performance problem, and the groups of settings that may help."""

    name: str
    title: str
    groups: Texts
    advice: str


@functools.cache
def load_recipes() -> dict[str, Recipe]:
    """Loads the recipes by name, in the order of the files."""
    return read_entries("recipes", Recipe)


def find_recipe(name: str) -> Recipe:
    """Finds a recipe by name; SettingError if there is none."""
    recipes = load_recipes()
    if name not in recipes:
        raise SettingError(
            "a recipe must be one of `autotune recipes list` but got "
            f"{name!r}{close_matches(name, recipes)}"
        )
    return recipes[name]
