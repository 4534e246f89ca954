"""What others published of settings: a prior of the search and its first trials, never evidence."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel

from autotune.model.files import packaged_table
from autotune.model.flags import FlagSet
from autotune.settings.catalog import Scope, TextMap, Values
from autotune.settings.known import KnownSettings, is_number
from autotune.settings.space import Expected, Parameter, Scopes, SearchSpace

MOST_IDEAS = 6  # limit of published sets that are tried first
# Standard deviation, in log ratio, of an effect here around one published of a like run.
LIKE_SD = 0.03
# Factor of the standard deviation for each way in which the published run was another one.
UNLIKE = 1.5
# Share of the published log ratio expected of a step, which mostly hides collectives.
EXPOSED = {"step": 1.0, "inference": 0.5, "collective": 0.1}
LIKE_SCALE = 4  # factor of the numbers of GPUs within which two runs are of like scale
SIZES_FROM = 2.0**20  # smallest value that is a size in bytes
LIKE_SIZE = 4.0  # factor within which the nearest size stands for another
_WHAT = {
    "step": "a training step",
    "inference": "generated tokens",
    "collective": "collectives alone",
}


class PublishedEffect(BaseModel, frozen=True, extra="forbid"):
    """One row of ``autotune/data/effects.toml``."""

    source: str
    settings: TextMap
    ratio: float | None = None  # time with over time without them; None for advice
    of: str = "step"  # a key of `EXPOSED`, for what was timed
    gpu: str = ""
    generation: str = ""
    gpus: int = 0  # number of GPUs; 0 if it was not published
    experts: bool = False  # whether the model was a mixture of experts
    model: str = ""
    over: TextMap = {}  # settings of the other arm; empty for the defaults
    note: str = ""


class Here(NamedTuple):
    """The study's machines and model, as far as they are known."""

    generation: str | None = None
    gpus: int = 0
    experts: bool = False


@functools.cache
def load_effects() -> tuple[PublishedEffect, ...]:
    """Loads all published effects, in the order of the file."""
    return tuple(
        PublishedEffect(source=source, **{**table, **row})
        for source, table in packaged_table("effects.toml").items()
        for row in table.pop("rows")
    )


def format_effects(name: str, value: str | None = None) -> list[str]:
    """Formats what was published of a setting, or of one of its values, a line each."""
    return [
        _format(effect, name)
        for effect in load_effects()
        if name in effect.settings and value in (None, effect.settings[name])
    ]


def _format(effect: PublishedEffect, name: str) -> str:
    setting = repr(effect.settings[name])
    if others := FlagSet(effect.settings).without(name):
        setting += f" with {others}"
    if effect.over:
        setting += f" over {FlagSet(effect.over)}"
    figure = "advised, without a figure"
    if effect.ratio:
        figure = f"{effect.ratio:.3f} times the time of {_WHAT[effect.of]}"
    place = f"{effect.gpus or ''} {effect.gpu}".strip()
    details = ", ".join(filter(None, (place, effect.model, effect.note)))
    return f"{setting}: {figure} ({'; '.join(filter(None, (details, effect.source)))})"


def with_published(
    space: SearchSpace, known: KnownSettings, scopes: Scopes, here: Here
) -> SearchSpace:
    """Returns a space with what is expected by published effects, and the sets to try first.

    These are the sets whose expected gain is larger than its standard deviation, the largest first.
    """
    for generation in (Scope.HOPPER, Scope.BLACKWELL):
        if scopes.get(generation):
            here = here._replace(generation=generation)
    published: dict[FlagSet, list[PublishedEffect]] = {}
    for effect in load_effects():
        if settings := _point(space, known, effect):
            published.setdefault(settings, []).append(effect)
    expected = [_expected(settings, effects, here) for settings, effects in published.items()]
    gains = sorted((e for e in expected if e.log_ratio < -e.sd), key=lambda e: e.log_ratio)
    ideas = tuple(
        (f"published: {published[gain.settings][0].source}", gain.settings)
        for gain in gains[:MOST_IDEAS]
    )
    return replace(space, first=ideas, expected=tuple(expected))


def _expected(settings: FlagSet, effects: Sequence[PublishedEffect], here: Here) -> Expected:
    weight = 0.0
    total = 0.0
    for effect in effects:
        precision = (LIKE_SD * UNLIKE ** _unlikeness(effect, here)) ** -2
        weight += precision
        total += EXPOSED[effect.of] * math.log(effect.ratio or 1.0) * precision
    return Expected(settings, total / weight, max(LIKE_SD, weight**-0.5))


def _unlikeness(effect: PublishedEffect, here: Here) -> int:
    """Counts in how many ways a published run was another one; unknown ones count."""
    is_like = effect.gpus > 0 and here.gpus / LIKE_SCALE <= effect.gpus <= here.gpus * LIKE_SCALE
    return (
        (not is_like)
        + (effect.generation != here.generation)
        + (effect.experts != here.experts)
        + (effect.of != "step")
    )


def _point(space: SearchSpace, known: KnownSettings, effect: PublishedEffect) -> FlagSet:
    """Returns the point with a published effect and what it needs; the default if none has it."""
    if effect.over or effect.ratio is None:
        return FlagSet()
    parameters = {parameter.name: parameter for parameter in space.parameters}
    values = {}
    needed: Values = {}
    for setting, published in effect.settings.items():
        name, value = known[setting].replacement(published) or (setting, published)
        entry = known[name].entry
        if value in entry.against:
            continue  # it says no more than the default
        nearest = _nearest(parameters[name], value) if name in parameters else None
        if nearest is None:
            return FlagSet()
        if not parameters[name].is_absent(nearest):
            values[name] = nearest
        needed |= entry.together

    def choose(parameter: Parameter) -> str:
        value = values.get(parameter.name, needed.get(parameter.name))
        return value if value in parameter.choices else parameter.usual

    settings = space.suggest(choose)
    return settings if values.keys() <= settings.keys() else FlagSet()


def _nearest(parameter: Parameter, value: str) -> str | None:
    """Returns the parameter's value that is the published one, or a like size; None if none is."""
    match = parameter.match(value)
    if match is not None or not is_number(value) or float(value) < SIZES_FROM:
        return match

    def distance(choice: str) -> float:
        return abs(math.log(float(choice) / float(value)))

    sizes = [c for c in parameter.choices if is_number(c) and float(c) > 0]
    like = [size for size in sizes if distance(size) <= math.log(LIKE_SIZE)]
    return min(like, key=distance, default=None)
