"""Base class of records, and the facts of a machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from autotune.model.files import Table, TextTable
from autotune.stats.numbers import Amount, Count


class Record(BaseModel):
    """Base of all records: immutable, and unknown fields are an error, as of another schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


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
