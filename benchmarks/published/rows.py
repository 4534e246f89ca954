"""The published rows, and a prediction for one, compiled for its GPUs in its own process."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.compiler.predict import Prediction, predict_step
from autotune.compiler.program import CompiledProgram
from autotune.compiler.screen import open_screener
from autotune.compiler.targets import load_target, parse_topology
from autotune.machine.environment import default_cache_dir
from autotune.model.flags import FlagSet, parse_set
from autotune.model.spec import parse_study

HERE = Path(__file__).parent

Row = dict[str, Any]


def published() -> dict[str, Row]:
    """Every row by name, its flags in words."""
    found = tomllib.loads((HERE / "rows.toml").read_text(encoding="utf-8"))
    return {
        name: {**row, "flags": found["flags"][row["flags"]]} for name, row in found["rows"].items()
    }


def is_held_out(name: str) -> bool:
    """Whether a row is in the third that no figure may be fitted to, by a hash of its name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


def compiled(name: str, row: Row) -> CompiledProgram:
    """The program of a row: from the cache, else compiled within `LIMIT_S`.

    Raises:
        RuntimeError: If it does not compile; the message is the compiler's.
    """
    topology = parse_topology(row["topology"])
    study = {
        "name": name,
        "workload": {"entry": row["entry"], "options": row["options"]},
        "device": {
            "platform": "cuda",
            "count": topology.device_count,
            "node_count": topology.nodes,
        },
        "baseline": dict(parse_set(row["flags"])),
    }
    folder = default_cache_dir() / "screen"
    with contextlib.ExitStack() as stack:
        _, screener = stack.enter_context(
            open_screener(
                parse_study(study),
                study_dir=HERE,
                topology=topology,
                cache_dir=folder,
                target=replace(load_target(row["target"]), memory_share=row.get("memory_fraction")),
            )
        )
        result = screener.result(FlagSet())
    if result.program is None:
        raise RuntimeError(result.failure.message if result.failure else "it did not compile")
    return result.program


def predicted(row: Row, program: CompiledProgram) -> Prediction:
    """What a step of a row would take in its cluster."""
    target = load_target(row["target"]).on_network(row.get("nic_bytes_per_s"))
    return predict_step(program, target, parse_topology(row["topology"]))
