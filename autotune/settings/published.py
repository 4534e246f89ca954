"""What others published of settings: a prior of the search and the ideas of its first trials, never evidence."""

from __future__ import annotations

import functools
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from autotune.model.flags import FlagSet
from autotune.settings.catalog import DATA, Scope, Stage
from autotune.settings.known import KnownSettings, is_number
from autotune.settings.space import LISTABLE, Expected, Parameter, SearchSpace, with_other_values

MOST_SETTINGS = 4
"""Limit of the settings of an idea: what more settings did together tells of none of them."""

MOST_IDEAS = 16
"""Limit of ideas that are tried before the published recipes."""

LIKE_SD = 0.03
"""Standard deviation of an effect here around one published of like GPUs and a like model, as a log ratio."""

UNLIKE = 1.5
"""Factor of the standard deviation for each way in which the published run was another one."""

EXPOSED = {"step": 1.0, "inference": 0.5, "collective": 0.1}
"""Share of the published log ratio that is expected of a training step: collectives are mostly hidden."""

LIKE_SCALE = 4
"""Factor of the numbers of GPUs within which two runs are of like scale."""

SIZES_FROM, LIKE_SIZE = 2.0**20, 4.0
"""Values from which on they are sizes in bytes, and the factor within which the nearest size stands for another."""

_WHAT = {"step": "a training step", "inference": "generated tokens", "collective": "collectives alone"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEffect:
    """One row of ``autotune/data/effects.toml``."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: str
    settings: Mapping[str, str]
    ratio: float | None = None
    """Time with the settings over the time without them; None for advice without a figure."""
    of: str = "step"
    """What was timed: a key of `EXPOSED`."""
    gpu: str = ""
    generation: str = ""
    gpus: int = 0
    """Number of GPUs; 0 if it was not published."""
    experts: bool = False
    """Whether the model was a mixture of experts."""
    model: str = ""
    over: Mapping[str, str] = field(default_factory=dict)
    """Settings of the other arm; empty for the defaults."""
    note: str = ""


class Here(NamedTuple):
    """The study's machines and model, as far as they are known."""

    generation: str = ""
    gpus: int = 0
    experts: bool = False


@functools.cache
def load_effects() -> tuple[PublishedEffect, ...]:
    """Loads all published effects, in the order of the file."""
    tables: dict[str, dict[str, Any]] = tomllib.loads((DATA / "effects.toml").read_text("utf-8"))
    rows = []
    for source, table in tables.items():
        shared = {key: value for key, value in table.items() if key != "rows"}
        rows += [{"source": source, **shared, **row} for row in table["rows"]]
    return TypeAdapter(tuple[PublishedEffect, ...]).validate_python(rows)


def format_effects(name: str, value: str | None = None) -> list[str]:
    """Formats what was published of a setting, or of one of its values, a line each."""
    named = [e for e in load_effects() if name in e.settings]
    return [_format(e, name) for e in named if value is None or e.settings[name] == value]


def _format(effect: PublishedEffect, name: str) -> str:
    others = FlagSet(effect.settings).without(name)
    beside = f" with {others}" if others else ""
    over = f" over {FlagSet(effect.over)}" if effect.over else ""
    figure = f"{effect.ratio:.3f} times the time of {_WHAT[effect.of]}" if effect.ratio else "advised, without a figure"
    where = f"{effect.gpus or ''} {effect.gpu}".strip()
    details = ", ".join(filter(None, (where, effect.model, effect.note)))
    return f"{effect.settings[name]!r}{beside}{over}: {figure} ({details + '; ' if details else ''}{effect.source})"


def with_published(space: SearchSpace, known: KnownSettings, scopes: Mapping[Scope, bool], here: Here) -> SearchSpace:
    """Returns a space with what is expected by published effects, and with their ideas as the sets to try first.

    What is read at run time comes first, for it needs no compilation; then what is expected to gain most. An idea that
    is expected to lose, even if it is not as published, is none.
    """
    here = here._replace(generation=_generation(scopes))
    points: dict[FlagSet, list[PublishedEffect]] = {}
    for effect in load_effects():
        settings = _point(space, known, effect)
        if settings is not None:
            points.setdefault(settings, []).append(effect)
    expected = [_expected(settings, effects, here) for settings, effects in points.items()]
    hopeful = [e for e in expected if e.log_ratio <= e.sd]
    hopeful.sort(key=lambda e: (_is_compiled(e.settings, known), e.log_ratio))
    ideas = tuple((f"published: {points[e.settings][0].source}", e.settings) for e in hopeful[:MOST_IDEAS])
    return replace(space, first=ideas, expected=tuple(e for e in expected if math.isfinite(e.sd)))


def _generation(scopes: Mapping[Scope, bool]) -> str:
    if scopes.get(Scope.BLACKWELL):
        return "blackwell"
    return "hopper" if scopes.get(Scope.HOPPER) else ""


def _is_compiled(settings: FlagSet, known: KnownSettings) -> bool:
    return any(known[name].entry.stage in (Stage.PROGRAM, Stage.AUTOTUNER) for name in settings)


def _expected(settings: FlagSet, effects: Sequence[PublishedEffect], here: Here) -> Expected:
    """Weighs the published figures of a set by their likeness; without any, nothing is expected."""
    weight, total = 0.0, 0.0
    for effect in effects:
        if effect.ratio is None:
            continue
        sd = LIKE_SD * UNLIKE ** _unlikeness(effect, here)
        weight += sd**-2
        total += EXPOSED[effect.of] * math.log(effect.ratio) * sd**-2
    if not weight:
        return Expected(settings, 0.0, math.inf)
    return Expected(settings, total / weight, max(LIKE_SD, weight**-0.5))


def _unlikeness(effect: PublishedEffect, here: Here) -> int:
    """Counts in how many ways a published run was another one; what is unknown counts as another."""
    scale = max(effect.gpus, 1) / max(here.gpus, 1)
    is_like_scale = bool(effect.gpus and here.gpus) and 1 / LIKE_SCALE <= scale <= LIKE_SCALE
    is_like_gpu = bool(effect.generation) and effect.generation == here.generation
    return [is_like_scale, is_like_gpu, effect.experts == here.experts, effect.of == "step"].count(False)


def _point(space: SearchSpace, known: KnownSettings, effect: PublishedEffect) -> FlagSet | None:
    """Returns the point of a space that tries a published effect, with what its settings need; None if none does."""
    if effect.over:
        return None
    parameters = {p.name: p for p in space.parameters}
    chosen: dict[str, str] = {}
    for published in effect.settings.items():
        name, value = known.replacement(known[published[0]], published[1]) or published
        if value in known[name].entry.against:
            continue  # it says no more than the default
        nearest = _nearest(parameters[name], value) if name in parameters else None
        if nearest is None:
            return None
        if not parameters[name].is_absent(nearest):
            chosen[name] = nearest
    for name in list(chosen):
        needs = known[name].entry.together
        if needs:
            chosen = {**with_other_values(space, (name, *needs)), **chosen}
    settings = FlagSet(chosen)
    is_point = 0 < len(settings) <= MOST_SETTINGS and space.locate(settings) is not None
    return settings if is_point else None


def _nearest(parameter: Parameter, value: str) -> str | None:
    """Returns the value of a parameter that is the published one, or of sizes the nearest; None if none is."""
    found = parameter.match(value)
    if found is not None or not is_number(value) or float(value) < SIZES_FROM:
        return found
    sizes = [v for v in itertools.islice(parameter.values(), LISTABLE) if is_number(v) and float(v) > 0]

    def distance(text: str) -> float:
        return abs(math.log(float(text) / float(value)))

    best = min(sizes, key=distance, default=None)
    return best if best is not None and distance(best) <= math.log(LIKE_SIZE) else None
