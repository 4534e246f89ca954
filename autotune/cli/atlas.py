"""Commands `atlas show` and `atlas build`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options
from autotune.cli.printing import print_json, print_table
from autotune.cli.tune import seconds_of

if TYPE_CHECKING:
    from autotune.settings.atlas import Atlas

atlas_app = typer.Typer(help="What each setting does to each kind of model, compiled beforehand.", no_args_is_help=True)

MOST_PLACES = 3
"""Limit of cells that are named; of more, only their number is shown."""

Table = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where a table lies; default: the one that comes with autotune.", file_okay=False
    ),
]


@atlas_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A setting, with or without dashes.")],
    table: Table = None,
    as_json: options.Json = False,
) -> None:
    """Shows where a setting is active, and what it does there."""
    from autotune.results.atlas_views import atlas_findings

    found = atlas_findings(_table(table), name.strip().lstrip("-").partition("=")[0])
    if as_json:
        print_json(found)
        return
    rows = []
    for f in found:
        count = f"{f.cells} of {f.of} cells"
        are_named = 0 < len(f.places) <= MOST_PLACES and f.cells < f.of
        where = f"{count}: {', '.join(f.places)}" if are_named else count
        rows.append((f.jaxlib, f.value or "''", f.verdict, where, f.words))
    print_table(("jaxlib", "value", "verdict", "in", "what"), rows)


@atlas_app.command("build")
def build(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help="Kind of model, such as dense-fsdp; may be repeated. Default: all."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="GPU", help="GPU (`autotune targets list`); may be repeated."),
    ] = None,
    gpus: Annotated[
        list[int] | None, typer.Option("--gpus", metavar="N", min=1, help="How many of them; may be repeated.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the table lies; default: within this package.")
    ] = None,
    time_budget: Annotated[str | None, typer.Option(help="No compilation begins after that, such as 2h.")] = None,
) -> None:
    """Compiles every setting for every kind of model and GPU, by the jaxlib that is installed; needs no GPU.

    The table of that release is written cell by cell; the same command goes on where it was stopped.
    """
    from importlib.resources import as_file

    from autotune.compiler.atlas_builder import Plan, build_atlas, planned_cells
    from autotune.machine.environment import caller_environment, default_cache_dir
    from autotune.settings.atlas import atlas_folder

    began_s = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)

    cells = planned_cells(kind or (), target or (), gpus or ())
    with as_file(atlas_folder()) as packaged:
        plan = Plan(
            cells=cells,
            folder=into or packaged,
            cache_dir=default_cache_dir(caller_environment()) / "screen",
            limit_s=seconds_of(time_budget, "--time-budget"),
        )
        print(build_atlas(plan, say))


def _table(folder: Path | None) -> Atlas:
    from autotune.settings.atlas import load_atlas, read_atlas

    return load_atlas() if folder is None else read_atlas(folder)
