"""What the commands share: common arguments, and how they print tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

RUNS = Path("runs")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/quickstart.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (schema: `autotune schema`).")]


def make_console(*, stderr: bool = False) -> Console:
    """Where text goes; a pipe has no width, so that tables are not folded at 80 columns in a log."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=160, no_color=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere one line a row, cells parted by tabs, for grep and cut."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        for row in (columns, *rows):
            print("\t".join(row))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def print_json(data: object) -> None:
    """Data as JSON on standard output."""
    print(json.dumps(data, indent=1, ensure_ascii=False, default=str))
