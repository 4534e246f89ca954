"""The section [limits] of a study file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from autotune.model.descriptions import number_or_text
from autotune.model.sections import Section
from autotune.model.units import parse_bytes

Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(lambda v: v, return_type=int),
    number_or_text(r"^\s*\d+(\.\d+)?\s*([KMGT]i?)?B?\s*$"),
]


class LimitsSpec(Section):
    """What a candidate must keep, whatever its speed.

    Attributes:
        memory: Most bytes that it may need of each device, by its compiled program or as measured: ``"72GiB"``.
        rules: Constraints between options (by name) and settings (by full name), such as
            ``batch * accumulate == 16``; see `autotune.model.rules`.
    """

    memory: Bytes | None = None
    rules: tuple[str, ...] = ()
