"""The commands of the atlas: what every setting does to every kind of model, compiled beforehand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options
from autotune.cli.printing import print_json, print_table

if TYPE_CHECKING:
    from autotune.results import ToldPart
    from autotune.settings import Atlas

atlas_app = typer.Typer(help="What each setting does to each kind of model, compiled beforehand.", no_args_is_help=True)

Table = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where a table lies; default: the one that comes with autotune.", file_okay=False
    ),
]


@atlas_app.command("html")
def html(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the page is put.", file_okay=False)] = Path(
        "atlas"
    ),
    table: Table = None,
) -> None:
    """Writes the table as a page to search, compare and check blocks of flags in; it needs no network."""
    from autotune.results import render_atlas
    from autotune.rundir import write_atomically

    found = _table(table)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "index.html", render_atlas(found))
    if not found.cells:
        print(
            "autotune: the table is empty; `autotune atlas build` compiles one, and the page says so", file=sys.stderr
        )
    print(f"written to {folder / 'index.html'}", file=sys.stderr)


@atlas_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A setting, with or without dashes, or a published set.")],
    where: options.Places = None,
    table: Table = None,
    as_json: options.Json = False,
) -> None:
    """Tells where a setting is alive, and what it does there."""
    from autotune.results import told_setting
    from autotune.settings import Places, load_recipes, parse_places

    found, bare = _table(table), name.strip().lstrip("-").partition("=")[0]
    places = parse_places(where, found) if where else Places()
    kind = "recipe" if bare in load_recipes() else "setting"
    told = told_setting(found, bare, places, kind=kind)
    if as_json:
        print_json(told)
        return
    rows = [(t.jaxlib, t.value or "''", t.verdict, cells_words(t), t.words) for t in told]
    print_table(("jaxlib", "value", "verdict", "in", "what"), rows)


def cells_words(told: ToldPart, *, most: int = 3) -> str:
    """In how many cells, and in which if they are few."""
    count = f"{told.cells} of {told.of} cells"
    return f"{count}: {', '.join(told.places)}" if 0 < len(told.places) <= most and told.cells < told.of else count


def _table(folder: Path | None) -> Atlas:
    from autotune.settings import load_atlas, read_atlas

    return load_atlas() if folder is None else read_atlas(folder)
