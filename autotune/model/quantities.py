"""Times and sizes as study files hold them: numbers, or text with a unit."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from autotune.model.descriptions import number_or_text
from autotune.model.units import parse_bytes, parse_duration

_DURATION = r"^(\s*\d+(\.\d+)?\s*(ms|s|m|min|h|d)?)+\s*$"

Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda v: v, return_type=float),
    number_or_text(_DURATION),
]


def _duration_or_none(value: str | float) -> float:
    """Seconds of a duration that may be 0, for none."""
    return 0.0 if value in (0, "0", "0s") else parse_duration(value)


DurationOrNone = Annotated[
    float, BeforeValidator(_duration_or_none), Field(ge=0), number_or_text(_DURATION, least="minimum")
]

SoakSeconds = Annotated[float, BeforeValidator(_duration_or_none), number_or_text(_DURATION, least="minimum")]

Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(lambda v: v, return_type=int),
    number_or_text(r"^\s*\d+(\.\d+)?\s*([KMGT]i?)?B?\s*$"),
]
