"""A made-up table of the atlas, whose answers are known by hand. Never data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.settings.atlas import Atlas, AtlasRow, AtlasVerdict
from harness.build_atlas import atlas_text


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
    cell = {"kind": "cell", "program": "p0", "peak_bytes": 40_000_000_000, "compiled": 45, "seconds": 512.0}
    combine, graph, gone = (
        "xla_gpu_all_gather_combine_threshold_bytes",
        "xla_gpu_enable_command_buffer",
        "xla_gpu_enable_async_collectives",
    )
    schedule, level = "xla_gpu_enable_latency_hiding_scheduler", "xla_gpu_autotune_level"
    merged = ("all-gather: 226 -> 33", "order of 812 instructions")
    rows = [row(x, "", "", "default", **cell) for x in every]
    rows += [
        row(a, combine, "1073741824", "changes", changes=merged, program="p1", peak_bytes=41_000_000_000),
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


def write(atlas: Atlas, folder: Path) -> Path:
    """A table as `harness.build_atlas` leaves it: a file for each release."""
    folder.mkdir(parents=True, exist_ok=True)
    for jaxlib in atlas.jaxlibs:
        text = atlas_text(r for r in atlas if r.jaxlib == jaxlib)
        (folder / f"{jaxlib}.jsonl").write_text(text, encoding="utf-8")
    return folder
