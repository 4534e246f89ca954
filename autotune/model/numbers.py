"""Base class of records, and number types whose sums, logarithms and powers never overflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from autotune.model.files import Table, TextTable


class Record(BaseModel):
    """Base of all records: immutable, and unknown fields are an error, as of another schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


LONGEST_S = 1e11  # three thousand years, in seconds
Elapsed = Annotated[float, Field(ge=0, le=LONGEST_S)]  # seconds
StepTime = Annotated[float, Field(ge=1e-12, le=LONGEST_S)]  # seconds, never 0, for ratios
Ratio = Annotated[float, Field(ge=1e-9, le=1e9)]  # candidate over reference
LogRatio = Annotated[float, Field(ge=-20.7, le=20.7)]
Joules = Annotated[float, Field(ge=0, le=1e15)]
StepJoules = Annotated[float, Field(ge=1e-12, le=1e15)]  # never 0, for ratios
Count = Annotated[int, Field(ge=0, le=2**53)]  # whole in a float, too
AtLeastOne = Annotated[int, Field(ge=1, le=2**53)]
Change = Annotated[float, Field(ge=-1e30, le=1e30)]  # a relative difference, below 0 for less
Amount = Annotated[float, Field(ge=0, le=1e30)]  # counted but perhaps not whole, such as FLOPs


class _Facts(BaseModel):
    """Known fields of a machine's provenance; others are kept as they are."""

    model_config = ConfigDict(extra="allow")

    date: str = ""
    host: str = ""
    system: str = ""
    python: str = ""
    versions: TextTable = {}
    driver: str | None = None
    cpu: str = ""
    cpu_count: Count | None = None
    cpus_usable: Count = 0
    memory_bytes: Count = 0
    load_1min: Amount = 0.0
    variables: TextTable = {}


def _check_facts(value: Table) -> Table:
    _Facts.model_validate(value, strict=True)
    return value


Facts = Annotated[Table, AfterValidator(_check_facts)]
