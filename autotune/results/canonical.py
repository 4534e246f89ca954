"""A record as one text, the same whether it was just made or read from a file: what digests go over."""

from __future__ import annotations

import json

from autotune.model import RECORD, Stamped


def canonical(record: Stamped) -> str:
    """A record as one text."""
    again = RECORD.validate_json(record.model_dump_json(exclude_none=True))
    return json.dumps(again.model_dump(mode="json", exclude_none=True), sort_keys=True)
