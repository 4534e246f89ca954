"""What others published of settings: a prior of the search and its first trials, never evidence."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel

from autotune.model.files import packaged_table
from autotune.model.flags import FlagSet
from autotune.settings.catalog import Scope
from autotune.settings.known import KnownSettings, is_number
from autotune.settings.space import Expected, Parameter, SearchSpace

MOST_IDEAS = 6
"""Limit of published sets that are tried first."""

LIKE_SD = 0.03
"""Standard deviation of an effect here around one published of like GPUs and a like model, as a log
ratio.
"""

UNLIKE = 1.5
"""Factor of the standard deviation for each way in which the published run was another one."""

EXPOSED = {"step": 1.0, "inference": 0.5, "collective": 0.1}
"""Share of the published log ratio that is expected of a training step: collectives are mostly
hidden.
"""

LIKE_SCALE = 4
"""Factor of the numbers of GPUs within which two runs are of like scale."""

SIZES_FROM, LIKE_SIZE = 2.0**20, 4.0
"""Values from which on they are sizes in bytes, and the factor within which the nearest size stands
for another.
"""

_WHAT = {
    "step": "a training step",
    "inference": "generated tokens",
    "collective": "collectives alone",
}


class PublishedEffect(BaseModel, frozen=True, extra="forbid"):
    """One row of ``autotune/data/effects.toml``."""

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
    over: Mapping[str, str] = {}
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
    effects = []
    for source, table in packaged_table("effects.toml").items():
        rows = table.pop("rows")
        effects += [PublishedEffect(source=source, **{**table, **row}) for row in rows]
    return tuple(effects)


def format_effects(name: str, value: str | None = None) -> list[str]:
    """Formats what was published of a setting, or of one of its values, a line each."""
    named = [e for e in load_effects() if name in e.settings]
    return [_format(e, name) for e in named if value is None or e.settings[name] == value]


def _format(effect: PublishedEffect, name: str) -> str:
    others = FlagSet(effect.settings).without(name)
    beside = f" with {others}" if others else ""
    over = f" over {FlagSet(effect.over)}" if effect.over else ""
    figure = (
        f"{effect.ratio:.3f} times the time of {_WHAT[effect.of]}"
        if effect.ratio
        else "advised, without a figure"
    )
    where = f"{effect.gpus or ''} {effect.gpu}".strip()
    details = ", ".join(filter(None, (where, effect.model, effect.note)))
    return (
        f"{effect.settings[name]!r}{beside}{over}: {figure} "
        f"({details + '; ' if details else ''}{effect.source})"
    )


def with_published(
    space: SearchSpace, known: KnownSettings, scopes: Mapping[Scope, bool], here: Here
) -> SearchSpace:
    """Returns a space with what is expected by published effects, and the sets to try first.

    These are the sets whose expected gain is larger than its standard deviation, the largest first.
    """
    generations = [scope.value for scope in (Scope.BLACKWELL, Scope.HOPPER) if scopes.get(scope)]
    here = here._replace(generation="".join(generations[:1]))
    published: dict[FlagSet, list[PublishedEffect]] = {}
    for effect in load_effects():
        settings = _point(space, known, effect)
        if settings:
            published.setdefault(settings, []).append(effect)
    expected = [_expected(settings, effects, here) for settings, effects in published.items()]
    gains = sorted((e for e in expected if e.log_ratio < -e.sd), key=lambda e: e.log_ratio)
    first = [
        (f"published: {published[e.settings][0].source}", e.settings) for e in gains[:MOST_IDEAS]
    ]
    return replace(space, first=tuple(first), expected=tuple(expected))


def _expected(settings: FlagSet, effects: Sequence[PublishedEffect], here: Here) -> Expected:
    """Weighs the published figures of a set by their likeness."""
    weight = 0.0
    total = 0.0
    for effect in effects:
        sd = LIKE_SD * UNLIKE ** _unlikeness(effect, here)
        weight += sd**-2
        total += EXPOSED[effect.of] * math.log(effect.ratio or 1.0) * sd**-2
    return Expected(settings, total / weight, max(LIKE_SD, weight**-0.5))


def _unlikeness(effect: PublishedEffect, here: Here) -> int:
    """Counts in how many ways a published run was another one; what is unknown counts as
    another.
    """
    scale = max(effect.gpus, 1) / max(here.gpus, 1)
    is_like_scale = bool(effect.gpus and here.gpus) and 1 / LIKE_SCALE <= scale <= LIKE_SCALE
    is_like_gpu = bool(effect.generation) and effect.generation == here.generation
    return [is_like_scale, is_like_gpu, effect.experts == here.experts, effect.of == "step"].count(
        False
    )


def _point(space: SearchSpace, known: KnownSettings, effect: PublishedEffect) -> FlagSet:
    """Returns the point of a space that has a published effect, with what its settings need; the
    default if none.
    """
    if effect.over or effect.ratio is None:
        return FlagSet()
    parameters = {p.name: p for p in space.parameters}
    chosen = {}
    needed: dict[str, str] = {}
    for setting, published in effect.settings.items():
        name, value = known[setting].replacement(published) or (setting, published)
        if value in known[name].entry.against:
            continue  # it says no more than the default
        nearest = _nearest(parameters[name], value) if name in parameters else None
        if nearest is None:
            return FlagSet()
        if not parameters[name].is_absent(nearest):
            chosen[name] = nearest
        needed |= known[name].entry.together
    needed = {n: v for n, v in needed.items() if n in parameters and v in parameters[n].choices}
    values = {**needed, **chosen}
    settings = space.suggest(lambda parameter: values.get(parameter.name, parameter.usual))
    return settings if chosen.keys() <= settings.keys() else FlagSet()


def _nearest(parameter: Parameter, value: str) -> str | None:
    """Returns the value of a parameter that is the published one, or of sizes the nearest; None if
    none is.
    """
    match = parameter.match(value)
    if match is not None or not is_number(value) or float(value) < SIZES_FROM:
        return match
    distances = {
        v: abs(math.log(float(v) / float(value)))
        for v in parameter.choices
        if is_number(v) and float(v) > 0
    }
    best = min(distances, key=distances.__getitem__, default=None)
    return best if best is not None and distances[best] <= math.log(LIKE_SIZE) else None
