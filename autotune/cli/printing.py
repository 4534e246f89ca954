"""Prints to terminals, which obey no control character of text that comes from outside."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.rundir.store import Store


class _Guarded:
    """Stream that escapes control characters."""

    def __init__(self, stream: TextIO) -> None:
        self.exact = stream

    def write(self, text: str) -> int:
        # `--help` is printable, and imports no rules.
        if not text.replace("\n", "").isprintable():
            from autotune.model.redaction import visible

            text = visible(text)
        self.exact.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact, name)


def guard_streams() -> None:
    """Makes stdout and stderr escape control characters, and replace what they cannot encode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        if stream is not None and not isinstance(stream, _Guarded):
            setattr(sys, name, _Guarded(stream))


def _exact(stream: TextIO) -> TextIO:
    return cast(TextIO, getattr(stream, "exact", stream))


def make_console(*, stderr: bool = False) -> Console:
    """Makes a console that escapes nothing; 160 columns wide where the output is no terminal."""
    from rich.console import Console

    file = _exact(sys.stderr if stderr else sys.stdout)
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
        console.no_color = True
    return console


def print_lines(
    lines: Iterable[str], *, style: str | None = None, stderr: bool = False, at_words: bool = False
) -> None:
    """Prints each text on one line, folded by a terminal, or here `at_words` for its width."""
    from autotune.model.redaction import visible_line

    console = make_console(stderr=stderr)
    soft_wrap = not (at_words and console.is_terminal)
    for line in lines:
        console.print(visible_line(line), style=style, soft_wrap=soft_wrap)


def note(text: str) -> None:
    """Prints a remark to standard error."""
    print(f"autotune: {text}", file=sys.stderr, flush=True)


_COLOURS = {
    "good": "bold green",
    "bad": "red",
    "same": "dim",
    "open": "yellow",
    "promising": "cyan",
    "unpromising": "dim",
    "failed": "magenta",
}


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table on a terminal; elsewhere tab-separated lines for grep and cut."""
    from autotune.model.redaction import visible_line

    console = make_console()
    if not console.is_terminal:
        for row in (columns, *rows):
            print("\t".join(map(visible_line, row)))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in columns:
        table.add_column(visible_line(column), overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(visible_line(c), style=_COLOURS.get(getattr(c, "style", ""), "")) for c in row)
        )
    console.print(table)


def print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """Prints rows of text by the headings of their columns as a table; nothing without any."""
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


def print_study(store: Store) -> None:
    """Prints the tables and the conclusion of a study."""
    from autotune.model.records import ConclusionRecord, Outcome
    from autotune.results.effects import effect_lines, study_tables

    for title, rows in study_tables(store).items():
        print_lines(["", title])
        print_rows(rows)
    print_lines(effect_lines(store))
    conclusion = store.last(ConclusionRecord)
    if conclusion:
        style = "bold green" if conclusion.outcome is Outcome.WINNER else "bold"
        print_lines(["", conclusion.sentence], style=style)


def plain(data: object, **more: object) -> dict[str, Any]:
    """Converts a record or dataclass to plain data for JSON and adds fields."""
    from pydantic_core import to_jsonable_python

    return {**to_jsonable_python(data, fallback=_as_plain), **more}


def print_json(data: object, *, exclude_none: bool = False) -> None:
    """Prints records, dataclasses and plain data as JSON; NaN and infinite numbers are null."""
    from pydantic_core import to_json

    text = to_json(
        data, indent=1, exclude_none=exclude_none, fallback=_as_plain, inf_nan_mode="null"
    )
    print(text.decode())


def _as_plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def print_exact(text: str) -> None:
    """Prints text for another program unchanged; escapes it only on a terminal."""
    stream = sys.stdout if sys.stdout.isatty() else _exact(sys.stdout)
    stream.write(text)


def write_text(text: str, output: Path | None, hint: str) -> None:
    """Writes text atomically to a file, whose use the hint tells, or to standard output."""
    from autotune.rundir.files import write_atomically

    if output is None:
        print_exact(text)
        return
    write_atomically(output, text)
    print(f"written to {output}; {hint}", file=sys.stderr)
