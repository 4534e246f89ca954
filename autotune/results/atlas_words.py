"""What the atlas says of a setting, of a part of a block and of a published set: a frame, rows and sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.model import SettingError, close_matches
from autotune.settings import (
    Atlas,
    AtlasRow,
    AtlasVerdict,
    Places,
    is_default,
    load_atlas,
    load_catalog,
    newest_not_after,
    place_of,
    read_atlas,
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd

HOW_TO_BUILD = "the atlas must have a row but has none: nothing was compiled yet; `autotune atlas build` does"

STRONGEST = (
    AtlasVerdict.CHANGES, AtlasVerdict.FAILS, AtlasVerdict.UNSEEN, AtlasVerdict.SAME, AtlasVerdict.UNSETTLED,
    AtlasVerdict.ELSEWHERE, AtlasVerdict.REJECTED, AtlasVerdict.DEFAULT,
)  # fmt: skip
"""Of the verdicts of a setting's values in one cell, the first that any of them has is the setting's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPart:
    """What the atlas says of one setting with its value, in cells of one release where it says the same.

    Attributes:
        name: Name of the setting.
        value: Its value.
        jaxlib: The release.
        verdict: See `AtlasVerdict`; empty where the table does not have the setting, or not this value.
        cells: In how many cells it is that.
        of: Of how many that were asked about.
        places: Those cells, as `place_of` spells them.
        words: What changes, what it needs, why; of the first of these cells.
    """

    name: str
    value: str
    jaxlib: str
    verdict: str
    cells: int
    of: int
    places: tuple[str, ...]
    words: str


def atlas(folder: str | Path | None = None) -> pd.DataFrame:
    """The atlas as a frame: what each value of each setting does to each kind of model, compiled beforehand.

    Args:
        folder: Where a table lies that ``autotune atlas build`` made; None for the one that comes with this package.

    Returns:
        One row for each `autotune.settings.AtlasRow`, with its fields as columns: ``changes`` and ``needs`` as text,
        parted by semicolons; ``peak_bytes`` (bytes), ``compiled`` (programs) and ``gpus`` as integers; as floats
        ``predicted_change`` (step time over the default's, minus one), ``step_s`` and ``seconds`` (s); missing where
        nobody can say. Empty, with the same columns, where no table was built.

    Raises:
        SettingError: If `folder` is none, or a file of it is no table.
    """
    import pandas as pd

    found = load_atlas() if folder is None else read_atlas(Path(folder))
    rows = [
        {**row.model_dump(mode="json"), "changes": "; ".join(row.changes), "needs": "; ".join(row.needs)}
        for row in found
    ]
    frame = pd.DataFrame(rows, columns=list(AtlasRow.model_fields))
    whole = dict.fromkeys(("gpus", "peak_bytes", "compiled"), "Int64")
    return frame.astype({**whole, **dict.fromkeys(("predicted_change", "step_s", "seconds"), "float64")})


def told_setting(table: Atlas, name: str, places: Places, *, kind: str = "setting") -> list[ToldPart]:
    """All that the table says of a setting or published set, newest release first, most cells first.

    Args:
        table: The table.
        name: Of the setting or set.
        places: Which cells are asked about.
        kind: ``setting`` or ``recipe``.

    Raises:
        SettingError: If the table is empty or does not have it; close matches are named.
    """
    if not table.cells:
        raise SettingError(HOW_TO_BUILD)
    rows = table.of(name, kind=kind)
    if not rows:
        known = {r.name for r in table if r.kind == kind}
        raise SettingError(f"the atlas must have the {kind} but has no {name!r}{close_matches(name, known)}")
    found = []
    for jaxlib in reversed(table.jaxlibs):
        for value in dict.fromkeys(r.value for r in rows if r.jaxlib == jaxlib):
            found += _grouped(table, name, value, jaxlib, [r for r in rows if r.value == value], places)
    return found


def told_parts(table: Atlas, parts: Iterable[tuple[str, str | None]], jaxlib: str, places: Places) -> list[ToldPart]:
    """What the table says of each part of a block, in its order.

    Args:
        table: The table.
        parts: Name and value of each setting; None for a bare name.
        jaxlib: The release that is asked about; the newest of the table that is not after it answers, else the oldest.
        places: Which cells are asked about.

    Raises:
        SettingError: If the table is empty.
    """
    if not table.cells:
        raise SettingError(HOW_TO_BUILD)
    release = newest_not_after(jaxlib, table.jaxlibs)
    of = sum(c.jaxlib == release and places.fits(c) for c in table.cells)
    found = []
    for name, given in parts:
        value = "true" if given is None else given
        entry = load_catalog().get(name)
        kind = entry.type if entry is not None else "string"
        there = [r for r in table.of(name) if r.jaxlib == release]
        equal = [r for r in there if is_default(value, r.value, kind, {})]
        told = _grouped(table, name, value, release, equal, places)
        default = entry.default_in(release) if entry is not None else None
        if not told and is_default(value, default, kind, {}):
            told = [_part(name, value, release, AtlasVerdict.DEFAULT, of, of, (), "the value in force anyway")]
        elif not told and there and all(r.verdict is AtlasVerdict.REJECTED for r in there):
            told = [_part(name, value, release, AtlasVerdict.REJECTED, of, of, (), there[0].message)]
        elif not told:
            others = "; ".join(
                f"{v}: {p.verdict} in {p.cells} of {p.of}" for v, p in _others(table, name, there, places)
            )
            words = f"this value was not tried; of others, {others}" if others else "not in the table"
            told = [_part(name, value, release, "", of, of, (), words)]
        found += told
    return found


def alive_lines(table: Atlas, name: str) -> list[str]:
    """Where a setting is alive, a line for each release, newest first; none where the table does not have it."""
    lines = []
    for jaxlib in reversed(table.jaxlibs):
        each = _by_cell([r for r in table.of(name) if r.jaxlib == jaxlib])
        cells = sum(c.jaxlib == jaxlib for c in table.cells)
        if not each:
            continue
        live = {cell: rows for cell, rows in each.items() if _strongest(rows) is AtlasVerdict.CHANGES}
        if not live:
            counts = Counter(_strongest(rows) for rows in each.values())
            lines.append(f"{jaxlib}: {counts.most_common(1)[0][0]}, in no cell another program")
            continue
        kinds = Counter(cell[1] for cell in live)
        where = ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
        line = f"{jaxlib}: changes the program in {len(live)} of {cells} cells: {where}"
        lines.append(line)
    return lines


def recipe_lines(table: Atlas, name: str) -> list[str]:
    """Which program a published set gives, a line for each release, newest first; none where the table lacks it."""
    lines, programs = [], _recipes_by_program(table)
    for jaxlib in reversed(table.jaxlibs):
        rows = [r for r in table.of(name, kind="recipe") if r.jaxlib == jaxlib and r.workload]
        if not rows:
            continue
        said: Counter[str] = Counter()
        for row in rows:
            others = sorted(n for n in programs.get((row.cell, row.program), ()) if n != name)
            if row.verdict is not AtlasVerdict.CHANGES:
                said["the default's program" if row.verdict is AtlasVerdict.SAME else str(row.verdict)] += 1
            elif others:
                said[f"one program with {', '.join(others)}"] += 1
            else:
                said["a program that no other published set gives"] += 1
        lines.append(
            f"{jaxlib}: " + "; ".join(f"{what} in {n} of {len(rows)} cells" for what, n in said.most_common(4))
        )
    return lines


# ---------------------------------------------------------------------- helpers


def _part(
    name: str, value: str, jaxlib: str, verdict: str, cells: int, of: int, places: tuple[str, ...], words: str
) -> ToldPart:
    return ToldPart(
        name=name, value=value, jaxlib=jaxlib, verdict=str(verdict), cells=cells, of=of, places=places, words=words
    )  # fmt: skip


def _grouped(
    table: Atlas, name: str, value: str, jaxlib: str, rows: Iterable[AtlasRow], places: Places
) -> list[ToldPart]:
    """Rows of one value in a release, those with an equal verdict as one."""
    of = sum(c.jaxlib == jaxlib and places.fits(c) for c in table.cells)
    groups: dict[tuple[str, str], list[AtlasRow]] = defaultdict(list)
    for row in rows:
        if row.jaxlib == jaxlib and places.fits(row):
            groups[row.verdict, row.tried].append(row)
    found = []
    for (verdict, _), there in sorted(groups.items(), key=lambda item: -len(item[1])):
        is_for_all = not there[0].workload
        cells = of if is_for_all else len(there)
        where = tuple(dict.fromkeys(map(place_of, there)))
        found.append(_part(name, value, jaxlib, verdict, cells, of, where, row_words(there)))
    return found


def row_words(rows: list[AtlasRow]) -> str:
    """What rows with one verdict say: clauses of the first that has any, needs, why."""
    first = next((r for r in rows if r.changes), rows[0])
    words = list(first.changes)
    if first.needs:
        words.append(f"{'needs' if first.changes else 'only together with'} {', '.join(first.needs)}")
    if first.verdict is AtlasVerdict.SAME and first.tried:
        words.append(
            "compiled alone" if first.tried == "alone" else "compiled together with others that change nothing"
        )
    return "; ".join(w for w in (*words, first.message) if w)


def _others(table: Atlas, name: str, rows: list[AtlasRow], places: Places) -> list[tuple[str, ToldPart]]:
    """What the most of the cells say of each other value."""
    found = []
    for value in dict.fromkeys(r.value for r in rows):
        told = _grouped(table, name, value, rows[0].jaxlib, [r for r in rows if r.value == value], places)
        found += [(value, told[0])] if told else []
    return found


def _by_cell(rows: Iterable[AtlasRow]) -> dict[tuple[str, str, str, int], list[AtlasRow]]:
    found = defaultdict(list)
    for row in rows:
        found[row.cell].append(row)
    return dict(found)


def _strongest(rows: Iterable[AtlasRow]) -> AtlasVerdict:
    return min((r.verdict for r in rows), key=STRONGEST.index)


def _recipes_by_program(table: Atlas) -> dict[tuple[tuple[str, str, str, int], str], list[str]]:
    """Cell and program to the published sets that give it."""
    found = defaultdict(list)
    for row in table:
        if row.kind == "recipe" and row.program:
            found[row.cell, row.program].append(row.name)
    return dict(found)
