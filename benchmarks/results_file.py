"""Results of a benchmark that runs in parts: rows by part and machine, shown as tables."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def keep(
    path: Path, part: str, row: Row, *, parts: Sequence[str], machines: Mapping[str, Any]
) -> None:
    """Replaces the row of the same part and machine; several runs may do so at once.

    Args:
        path: A JSON file; made if it is not there.
        part: Which part of the benchmark.
        row: Its figures, with the key ``machine``.
        parts: All parts in order; rows of others are left out.
        machines: All machines in order, each with what describes it; likewise.
    """
    with _locked(path.parent):
        results = read(path)
        mine = [r for r in results.get(part, []) if r["machine"] != row["machine"]]
        results[part] = [*mine, json.loads(json.dumps(row))]
        order = list(machines)
        ordered = {
            p: sorted(
                (r for r in results[p] if r["machine"] in machines),
                key=lambda r: order.index(r["machine"]),
            )
            for p in parts
            if p in results
        }
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps({"machines": machines, "results": ordered}, indent=1) + "\n")
        beside.replace(path)


def read(path: Path) -> dict[str, list[Row]]:
    """Rows of each part, less those without made-with; empty where there is no file."""
    if not path.exists():
        return {}
    results: dict[str, list[Row]] = json.loads(path.read_text())["results"]
    return {part: rows for part, rows in results.items() if all("made" in row for row in rows)}


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else changes what lies in the folder meanwhile."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of equal keys as a Markdown table; nested mappings become columns of their own."""
    flat = [_flatten(row) for row in rows]
    lines = ["| " + " | ".join(flat[0]) + " |", "|" + " --- |" * len(flat[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in flat]
    return "\n".join(lines)


def _flatten(row: Mapping[str, object]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key} {inner}": text for inner, text in _flatten(value).items()}
        elif isinstance(value, float):
            flat[key] = (
                "-" if math.isnan(value) else f"{value:.1f}" if value >= 2 else f"{value:.4f}"
            )
        else:
            flat[key] = "-" if value is None else str(value)
    return flat
