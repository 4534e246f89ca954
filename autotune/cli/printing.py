"""How commands print: JSON, tables, lines, files, and the results of a study."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.rundir import Store


def make_console(*, stderr: bool = False) -> Console:
    """Where text goes, as it is; a pipe has no width, so that tables are not folded at 80 columns in a log."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(stderr=stderr, highlight=False, markup=False, width=160, no_color=True)


def print_lines(lines: Iterable[str], *, style: str | None = None) -> None:
    """Lines that a terminal folds and nothing else does."""
    console = make_console()
    for line in lines:
        console.print(line, style=style, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere one line a row, cells parted by tabs, for grep and cut."""
    console = make_console()
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


def print_study(store: Store) -> None:
    """The tables of a study, and what it concluded if it did."""
    from autotune.model import ConclusionRecord
    from autotune.results import conclusion_style, study_tables

    console = make_console()
    for table in study_tables(store):
        console.print(table)
    if (conclusion := store.last(ConclusionRecord)) is not None:
        print_lines(["", conclusion.sentence], style=conclusion_style(conclusion))


def plain(data: object, **more: object) -> dict[str, Any]:
    """A record or dataclass as plain data for JSON, with more fields beside its own."""
    from pydantic_core import to_jsonable_python

    return {**to_jsonable_python(data), **more}


def print_json(data: object, *, exclude_none: bool = False) -> None:
    """Records, dataclasses and plain data as JSON on standard output; `autotune schema` describes all of it."""
    from pydantic_core import to_json

    print(to_json(data, indent=1, exclude_none=exclude_none, fallback=_as_plain).decode())


def _as_plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def write_text(text: str, output: Path | None, *, hint: str = "") -> None:
    """Text to a file, whole or not at all, or to standard output."""
    from autotune.rundir import write_atomically

    if output is None:
        sys.stdout.write(text)
        return
    write_atomically(output, text)
    print(f"written to {output}" + (f"; {hint}" if hint else ""), file=sys.stderr)
