"""How commands print: JSON, tables, lines, files, and the results of a study.

Names, settings, messages and lines of logs come from outside: whatever is printed, `guard_streams` and the console
spell out what a terminal would obey.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.rundir import Store


class _Guarded:
    """A stream that spells out control characters; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.exact = stream

    def write(self, text: str) -> int:
        """Writes text in which nothing is obeyed."""
        if not text.replace("\n", "").isprintable():  # `--help` is, and needs no model
            from autotune.model import visible

            text = visible(text)
        self.exact.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Likewise of several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


def guard_streams() -> None:
    """From here on nothing printed to standard output or error is obeyed by a terminal, whoever prints it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Guarded):
            setattr(sys, name, _Guarded(stream))


def _exact(stream: TextIO) -> TextIO:
    """The stream behind its guard."""
    return cast(TextIO, getattr(stream, "exact", stream))


def make_console(*, stderr: bool = False) -> Console:
    """Where text goes, as it is; a pipe has no width, so that tables are not folded at 80 columns in a log."""
    from autotune.cli.console import VisibleConsole

    file = _exact(sys.stderr if stderr else sys.stdout)  # its own styles are escapes, too
    console = VisibleConsole(file=file)
    if console.is_terminal:
        return console
    return VisibleConsole(file=file, width=160, no_color=True)


def print_lines(lines: Iterable[str], *, style: str | None = None, stderr: bool = False) -> None:
    """Lines that a terminal folds and nothing else does, nor a line end in what they tell."""
    from autotune.model import visible_line

    console = make_console(stderr=stderr)
    for line in lines:
        console.print(visible_line(line), style=style, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere one line a row, cells parted by tabs, for grep and cut."""
    from autotune.model import visible_line

    console = make_console()
    if not console.is_terminal:
        for row in (columns, *rows):
            print("\t".join(map(visible_line, row)))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible_line(cell)) for cell in row))
    console.print(table)


def print_study(store: Store) -> None:
    """The tables of a study, and what it concluded if it did."""
    from autotune.model import ConclusionRecord
    from autotune.results import conclusion_style, effect_lines, study_tables

    console = make_console()
    for table in study_tables(store):
        console.print(table)
    print_lines(effect_lines(store))
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


def print_exact(text: str) -> None:
    """Text that another program reads, such as a script: as it is, unless a person looks at it."""
    stream = sys.stdout if sys.stdout.isatty() else _exact(sys.stdout)
    stream.write(text)


def write_text(text: str, output: Path | None, *, hint: str = "") -> None:
    """Text to a file, whole or not at all, or to standard output."""
    from autotune.rundir import write_atomically

    if output is None:
        print_exact(text)
        return
    write_atomically(output, text)
    print(f"written to {output}" + (f"; {hint}" if hint else ""), file=sys.stderr)
