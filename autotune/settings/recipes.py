"""Published flag sets and symptoms, kept as TOML under ``autotune/data``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import TypeVar

from pydantic import ConfigDict

from autotune.model import FlagSet, SettingError, close_matches
from autotune.settings.catalog import read_entries

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One published flag set, as it was published.

    Attributes:
        name: Name of the recipe.
        source: Where it stands, with the revision that was read.
        date: When it was published or last read there, as far as known: year, year-month or ``HEAD`` of mid
            2026.
        for_hardware: What its authors used it on; empty if they do not say.
        flags: The XLA_FLAGS text, unchanged.
        environment: Further variables.
        note: What a reader should know.
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
    """What one sees, and the groups of settings worth a search then."""

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
    return _find(name, load_recipes(), "a recipe must be one of `autotune recipes list`")


@functools.cache
def load_symptoms() -> dict[str, Symptom]:
    """All symptoms by name."""
    return read_entries(resources.files("autotune") / "data" / "symptoms.toml", Symptom)


def _find(name: str, entries: Mapping[str, T], rule: str) -> T:
    if name not in entries:
        raise SettingError(f"{rule} but got {name!r}{close_matches(name, entries)}")
    return entries[name]


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
