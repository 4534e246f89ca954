"""Proposes how steps are read from lines that no known rule fits: lines of one shape, which differ in numbers only.

Their counter is read, with the clock; a printed duration of unknown meaning is not. Standard library only.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.child.output import LONGEST_LINE
from autotune.child.recognise import STEP, Recognised, fit_of, flat
from autotune.child.steps import plain

FEWEST_LINES = 5
"""Least number of lines of one shape for a proposal."""

BAR = re.compile(r"[^\w\s]{4,}(?:\s*[^\w\s])*|[^\w\s](?:[^\w\s]|\s){6,}[^\w\s]")
"""A progress bar."""

_NUMBER = re.compile(r"(?<![\d.])(?:(?<!\w)[-+])?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_LOSS = re.compile(r"(?i)(?:^|[\W_])(?:\w*loss|nll|xent|cost|ce|l)[\"']?\s*[=:]?\s*$")
_JSON = "JSON with"
_ANY_NUMBER = r"[-+\d.,eE]+"


@dataclass(frozen=True, slots=True)
class _Column:
    """The numbers at one place of the lines: text before and behind in the last line, and the values of all lines."""

    before: str
    behind: str
    values: tuple[float, ...]

    @property
    def counts(self) -> bool:
        """Whether they count something: whole, growing, no share of a hundred and no part of a date or time."""
        if self.behind.startswith("%") or {self.before, self.behind} & {":", "-", "."}:
            return False
        grows = all(b > a for a, b in itertools.pairwise(self.values))
        return grows and all(v.is_integer() for v in self.values)

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key of counters: the text before it says step, then the slowest."""
        return re.search(STEP, self.before) is None, self.values[1] - self.values[0]


def shape_of(line: str) -> str:
    """Returns what lines of one kind have in common: the text without numbers, progress bars and runs of blanks."""
    if keys := _numbers_of(line):
        return " ".join([_JSON, *sorted(keys)])
    return " ".join(_NUMBER.sub("#", BAR.sub("…", plain(line[:LONGEST_LINE]))).split())


def draws_bar(line: str) -> bool:
    """Whether a line holds a progress bar."""
    return BAR.search(plain(line)) is not None


def propose(lines: Sequence[str], *, at: Sequence[float] | None = None) -> Recognised | None:
    """Finds rules for the commonest shape of lines; None if there are none that read its lines.

    Args:
        at: Time of each line, seconds on any clock.
    """
    shapes = [shape_of(line) for line in lines]
    common = max(set(shapes), key=shapes.count, default="")
    chosen = [i for i, shape in enumerate(shapes) if shape == common]
    if len(chosen) < FEWEST_LINES:
        return None
    alike = [plain(lines[i][:LONGEST_LINE]) for i in chosen]
    times = [at[i] for i in chosen] if at is not None else None
    make = _json_rules if common.startswith(_JSON) else _text_rules
    fits = [fit for rules in make(alike) if (fit := fit_of(rules, alike, times, None)) is not None]
    return next((replace(fit, example=alike[-1]) for fit in fits if 2 * fit.steps >= len(alike)), None)


def _text_rules(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields patterns for lines of text: with a counter, and without one."""
    columns = _columns(lines)
    counter = min((c for c in columns if c.counts), key=lambda c: c.rank, default=None)
    loss = next((c for c in columns if c is not counter and _LOSS.search(c.before)), None)
    if counter is not None:
        yield {"pattern": _pattern(columns, {counter: "step", loss: "loss"})}
    if len(text := _NUMBER.split(lines[-1])[0].strip()) > 1 and not draws_bar(lines[-1]):
        yield {"pattern": "^" + _literal(text)}


def _columns(lines: Sequence[str]) -> list[_Column]:
    """Returns the numbers of lines of one shape, from left to right."""
    rows = [[float(n.replace(",", "")) for n in _NUMBER.findall(line)] for line in lines]
    pieces = _NUMBER.split(lines[-1])
    values = zip(*(row for row in rows if len(row) == len(pieces) - 1), strict=True)
    return [_Column(pieces[i], pieces[i + 1], column) for i, column in enumerate(values)]


def _pattern(columns: Sequence[_Column], names: Mapping[_Column | None, str]) -> str:
    """Returns the pattern that reads some columns under the names of their groups."""
    wanted = [i for i, column in enumerate(columns) if column in names]
    first = columns[wanted[0]]
    head = first.before.lstrip()
    if draws_bar(head):  # its end
        head = re.sub(r"^.*(?=\S)", "", head)
    parts = [_literal(head) or "^"]
    numbers = {"step": r"(?P<step>\d+)", "loss": r"(?P<loss>[-+\w.,]+)"}
    for column in columns[wanted[0] : wanted[-1] + 1]:
        parts += ["" if column is first else _literal(column.before), numbers.get(names.get(column, ""), _ANY_NUMBER)]
    return "".join(parts)


def _literal(text: str) -> str:
    """Returns the pattern of a text, with any number of blanks where it has some, and with any progress bar."""
    return ".*".join(" +".join(map(re.escape, re.split(r"\s+", part))) for part in BAR.split(text))


def _json_rules(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields keys of JSON lines that count."""
    rows = [_numbers_of(line) for line in lines]
    columns = {key: _Column(key, "", tuple(float(row[key]) for row in rows)) for key in rows[-1]}
    loss = next(({"loss": key} for key in columns if _LOSS.search(key)), {})
    yield from ({"json_key": key, "unit": "step", **loss} for key, column in columns.items() if column.counts)


def _numbers_of(line: str) -> dict[str, float]:
    """Returns the numbers of a JSON line by their dotted keys; none if it is not JSON."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        return dict(flat(json.loads(line)))
    except (ValueError, RecursionError):
        return {}
