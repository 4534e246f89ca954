"""Made-up tables of the atlas: a small one whose answers are known by hand, and one of realistic size. Never data."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from autotune.settings.atlas import Atlas, AtlasRow, AtlasVerdict
from autotune.settings.catalog import load_catalog
from harness.build_atlas import atlas_text

KINDS = ("dense-fsdp", "tensor-parallel", "pipeline", "moe", "recurrent", "long-context")
TARGETS = ("a100-sxm-80", "h100-sxm", "h200", "b200", "gb200")
JAXLIBS = ("0.10.2", "0.11.0", "0.12.0.1")
CLAUSES = {
    "combining": "all-gather: {0} -> {1}",
    "async": "all-gather (async): {0} -> {1}",
    "scheduling": "order of {1} instructions",
    "command_buffer": "command buffers: 0 -> {1}",
    "fusion": "kernels: 1{0}0 -> 1{1}2",
}


def row(cell: tuple[str, str, str, int], name: str, value: str, verdict: str, **more: Any) -> AtlasRow:
    """A row of a cell, or of a whole release."""
    jaxlib, workload, target, gpus = cell
    place = {"jaxlib": jaxlib, "workload": workload, "target": target, "gpus": gpus}
    return AtlasRow(**place, name=name, value=value, verdict=AtlasVerdict(verdict), **more)


def small() -> Atlas:
    """Two releases, three cells of the old and two of the new; every answer is told in the tests."""
    old, new = "0.10.2", "0.12.0.1"
    a, b, c = (old, "dense-fsdp", "h100-sxm", 8), (old, "dense-fsdp", "h100-sxm", 64), (old, "moe", "h200", 8)
    d, e = (new, "dense-fsdp", "h100-sxm", 8), (new, "moe", "h200", 8)
    every = [a, b, c, d, e]
    cell = {
        "kind": "cell",
        "program": "p0",
        "peak_bytes": 40_000_000_000,
        "compiled": 45,
        "seconds": 512.0,
    }
    combine, graph, gone = (
        "xla_gpu_all_gather_combine_threshold_bytes",
        "xla_gpu_enable_command_buffer",
        "xla_gpu_enable_async_collectives",
    )
    schedule, level = "xla_gpu_enable_latency_hiding_scheduler", "xla_gpu_autotune_level"
    merged = ("all-gather: 226 -> 33", "order of 812 instructions")
    rows = [row(x, "", "", "default", **cell) for x in every]
    rows += [
        row(
            a,
            combine,
            "1073741824",
            "changes",
            changes=merged,
            program="p1",
            peak_bytes=41_000_000_000,
        ),
        row(b, combine, "1073741824", "changes", changes=merged[:1], program="p1"),
        row(c, combine, "1073741824", "same", tried="alone", program="p0"),
        row(d, combine, "1073741824", "same", tried="together"),
        row(e, combine, "1073741824", "same", tried="together"),
        *(row(x, schedule, "true", "changes", changes=merged, program="p1") for x in (a, b)),
        row(c, schedule, "true", "changes", needs=(combine,)),
        *(row(x, schedule, "true", "default") for x in (d, e)),
        *(row(x, graph, "''", "changes", changes=("command buffers: 12 -> 0",), program="p2") for x in every),
        row((old, "", "", 0), gone, "true", "same", tried="together"),
        row((new, "", "", 0), gone, "true", "rejected", message="0.12.0.1 does not have it"),
        *(row(x, level, "0", "unseen", message="decided on the device") for x in every),
        row(c, "xla_gpu_graph_level", "2", "fails", message="crash: <script>alert(1)</script>"),
    ]
    return Atlas(rows)


def big(*, seed: int = 0, jaxlibs: tuple[str, ...] = JAXLIBS, most: int = 150) -> Atlas:
    """36 cells of each release and some 150 values, names from the catalogue: what acts where is drawn by chance."""
    chance = random.Random(seed)
    places = [("dense-one-gpu", t, 1) for t in TARGETS] + [(k, t, 8) for k in KINDS for t in TARGETS]
    places.append(("dense-fsdp", "h100-sxm", 64))
    rows: list[AtlasRow] = []
    settings = [
        s for s in load_catalog().values() if s.name.startswith("xla_") and s.tier in ("tune", "expert", "numerics")
    ]
    values = [(s, v) for s in settings for v in _values(s)][:most]
    habits = {s.name: _habit(s, chance) for s, _ in values}
    for jaxlib in jaxlibs:
        for kind, target, gpus in places:
            cell = (jaxlib, kind, target, gpus)
            told = {"kind": "cell", "program": "p0", "peak_bytes": chance.randrange(30, 70) * 10**9, "compiled": 45}
            rows.append(row(cell, "", "", "default", **told, seconds=540.0))
            rows += [_drawn(cell, s, v, habits[s.name], chance) for s, v in values]
        rows += [
            row((jaxlib, "", "", 0), s.name, "true", "rejected", message=f"{jaxlib} does not have it")
            for s in load_catalog().values()
            if s.removed and s.name.startswith("xla_gpu")
        ]
    return Atlas(rows)


def _values(setting: Any) -> list[str]:
    if setting.type == "bool":
        return ["false" if setting.default_in("0.12.0.1") == "true" else "true"]
    if setting.low is not None:
        return [str(setting.low), str(setting.high)]
    return [v for v in setting.values if v != setting.default_in("0.12.0.1")][:3] or ["1"]


def _habit(setting: Any, chance: random.Random) -> tuple[str, dict[str, float]]:
    """What a setting mostly does, and how likely that is for each kind of model."""
    if setting.stage in ("runtime", "autotuner"):
        return "unseen", {}
    is_alive = chance.random() < 0.4
    return "changes", {k: chance.choice((0.0, 0.9, 1.0)) if is_alive else 0.0 for k in (*KINDS, "dense-one-gpu")}


def _drawn(cell: tuple[str, str, str, int], setting: Any, value: str, habit: Any, chance: random.Random) -> AtlasRow:
    verdict, alive = habit
    if verdict == "unseen":
        return row(
            cell,
            setting.name,
            value,
            "unseen",
            message=f"acts at the stage {setting.stage}, which no compilation shows",
        )
    if chance.random() < 0.004:
        return row(cell, setting.name, value, "fails", message="out of memory: 84.1 GB needed")
    if chance.random() >= alive[cell[1]]:
        return row(cell, setting.name, value, "same", tried="together")
    clause = CLAUSES.get(setting.group, "kernels: 1{0}0 -> 1{1}1").format(
        chance.randrange(9, 90), chance.randrange(1, 9)
    )
    return row(
        cell, setting.name, value, "changes", changes=(clause, f"order of {chance.randrange(900)} instructions"),
        program=f"{setting.name[-6:]}{value}{chance.randrange(2)}", peak_bytes=chance.randrange(30, 80) * 10**9,
    )  # fmt: skip


def write(atlas: Atlas, folder: Path) -> Path:
    """A table as `harness.build_atlas` leaves it: a file for each release."""
    folder.mkdir(parents=True, exist_ok=True)
    for jaxlib in atlas.jaxlibs:
        text = atlas_text(r for r in atlas if r.jaxlib == jaxlib)
        (folder / f"{jaxlib}.jsonl").write_text(text, encoding="utf-8")
    return folder
