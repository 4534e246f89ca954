"""How the commands print tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence


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
    print(json.dumps(data, indent=2, ensure_ascii=False))
