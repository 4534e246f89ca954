"""A record as one text, the same whoever reads it and whenever: what digests go over.

A field that is younger than a run must not change the run's digest. One that is None where it says nothing never does;
any other is listed here with what stands for saying nothing (`tests/rundir/test_made_before.py` finds what is missing).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autotune.model import AS_RECORDED, RECORD, Stamped

_YOUNGER: Mapping[str, Mapping[str, Any]] = {
    "confirm_run": {"is_alone": False},
    "effects": {"together": False},
    "finalist": {"reason": ""},
    "floor": {
        "floor": {"degrees": 0, "pair_s": 0.0, "spread": 0.0, "start_s": 0.0},
        "loss_spread": {"steps": [], "losses": [], "norms": [], "is_rounded": False},
    },
}
"""Of each kind of record, what an older one does not have."""


def canonical(record: Stamped) -> str:
    """A record as one text, the same whether it was just made or read from a file of any version."""
    again = RECORD.validate_json(record.model_dump_json(exclude_none=True, context=AS_RECORDED))
    data = json.loads(again.model_dump_json(exclude_none=True, context=AS_RECORDED))
    return json.dumps(_without(data, _YOUNGER.get(data["kind"], {})), sort_keys=True)


def _without(data: Mapping[str, Any], younger: Mapping[str, Any]) -> dict[str, Any]:
    """Data less the younger fields that say nothing."""
    found = {}
    for name, value in data.items():
        nothing = younger.get(name)
        if name in younger and value == nothing:
            continue
        found[name] = _without(value, nothing) if isinstance(nothing, dict) and isinstance(value, dict) else value
    return found
