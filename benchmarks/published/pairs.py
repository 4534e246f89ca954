"""Published changes: a configuration twice, with a setting and without, and what is predicted for the pair."""

from __future__ import annotations

import time
import tomllib
from typing import Any

from benchmarks.published.rows import HERE, Row, compiled, predicted, published

Pair = dict[str, Any]


def published_pairs() -> dict[str, Pair]:
    """Every pair by name, both arms as rows (``arms``: off, on) whose flags are in words."""
    found = tomllib.loads((HERE / "pairs.toml").read_text(encoding="utf-8"))
    named = {name: _like(row, found["configurations"]) for name, row in found["configurations"].items()}
    rows = {**published(), **{name: {**row, "flags": found["flags"][row["flags"]]} for name, row in named.items()}}
    pairs = {name: {"kind": "flags", **_like(pair, found["pairs"])} for name, pair in found["pairs"].items()}
    return {name: {**pair, **_of(rows[pair["of"]], pair)} for name, pair in pairs.items()}


def unasked_pairs() -> dict[str, str]:
    """What sources say that cannot be asked here, and why."""
    found: dict[str, str] = tomllib.loads((HERE / "pairs.toml").read_text(encoding="utf-8"))["unasked"]
    return found


def _like(entry: Row, others: dict[str, Row]) -> Row:
    """An entry with what it takes over from another one."""
    return {**(others[entry["like"]] if "like" in entry else {}), **entry}


def _of(row: Row, pair: Pair) -> dict[str, Any]:
    arms = [
        {
            **row,
            "flags": f"{row['flags']} {pair.get(f'flags_{arm}', '')}".strip(),
            "options": {**row["options"], **pair.get(arm, {})},
        }
        for arm in ("off", "on")
    ]
    weak = [words for words in (row.get("weak"), pair.get("weak")) if words]
    return {"arms": arms, "weak": "; ".join(dict.fromkeys(weak))}


def one_pair(name: str, pair: Pair) -> dict[str, Any]:
    """What is predicted for both arms, and the change in percent; or why nothing is."""
    started = time.perf_counter()
    steps, programs = [], []
    for arm, row in zip(("off", "on"), pair["arms"], strict=True):
        try:
            programs.append(compiled(name, row))
        except RuntimeError as error:
            return {"failure": f"{arm}: {str(error)[:400]}"}
        steps.append(predicted(row, programs[-1]))
    off, on = steps
    return {
        "predicted": round(100.0 * (on.step_s / off.step_s - 1.0), 3),
        **{name: [getattr(step, name) for step in steps] for name in ("step_s", "compute_s", "exposed_s", "idle_s")},
        "fingerprints": [program.fingerprint for program in programs],
        "peak_gib": [round(p.memory.peak_bytes / 2**30, 1) if p.memory else None for p in programs],
        "wall_s": round(time.perf_counter() - started, 1),
    }
