"""What every record is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records: immutable, and unknown fields are an error (another schema wrote them)."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
