"""Views of the atlas: a static page, a pandas frame, and findings on one setting."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from autotune.model.errors import SettingError, close_matches
from autotune.model.redaction import visible
from autotune.results.pages import render
from autotune.settings.atlas import Atlas, AtlasRow, AtlasVerdict, load_atlas, load_kinds, place_of, read_atlas
from autotune.settings.catalog import Setting, load_catalog

if TYPE_CHECKING:
    import pandas as pd

_VERDICTS = tuple(AtlasVerdict)
_TRIED = ("", "alone", "together")


def render_atlas(atlas: Atlas) -> str:
    """Renders the atlas as an HTML page; the page of an empty atlas says how to build one."""
    data = json.dumps(pack(atlas), ensure_ascii=True, separators=(",", ":"))
    # `</script>` and `<!--` would end the script, so no bracket is left.
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    script = render("atlas_logic.js.j2") + render("atlas.js.j2")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    return render("atlas.html.j2", data=Markup(data), script=Markup(script), script_digest=digest)


def pack(atlas: Atlas) -> dict[str, Any]:
    """Packs the atlas for the page's script: texts are interned, and empty values at the end of a row are cut off.

    Returns:
        jaxlibs, kinds (name and title), targets, verdicts, cells, words (all other texts, the first empty),
        settings (each with its values and their rows), known (settings of the catalogue that the atlas lacks).
    """
    catalog = load_catalog()
    cells = sorted(
        atlas.cells, key=lambda c: (atlas.jaxlibs.index(c.jaxlib), _order(c.workload), c.gpus, _generation(c.target))
    )
    kinds = list(dict.fromkeys(c.workload for c in cells))
    targets = list(dict.fromkeys(c.target for c in cells))
    words = _Words()
    where = {c.cell: i for i, c in enumerate(cells)}
    packed = _Packer(atlas, where, words)
    names = list(dict.fromkeys(r.name for r in atlas if r.kind == "setting"))
    titles = {name: kind.title for name, kind in load_kinds().items()}
    return {
        "jaxlibs": list(atlas.jaxlibs),
        "kinds": [[k, titles.get(k, k)] for k in kinds],
        "targets": targets,
        "verdicts": [str(v) for v in _VERDICTS],
        "cells": [
            [
                atlas.jaxlibs.index(c.jaxlib), kinds.index(c.workload), targets.index(c.target), c.gpus,
                words[c.program], c.peak_bytes, c.compiled, c.seconds,
            ]
            for c in cells
        ],
        "settings": [
            [visible(name), *_told(catalog.get(name), atlas.jaxlibs), packed.values(name)]
            for name in sorted(names)
        ],
        "known": [[name, s.summary] for name, s in catalog.items() if name not in names],
        "words": words.all,
    }  # fmt: skip


class _Words:
    """Interned texts; number 0 is the empty text."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def __getitem__(self, text: str) -> int:
        return self._numbers.setdefault(visible(text), len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


class _Packer:
    """Packs rows of the atlas into lists."""

    def __init__(self, atlas: Atlas, where: Mapping[tuple[str, str, str, int], int], words: _Words) -> None:
        self._atlas, self._where, self._words = atlas, where, words

    def values(self, name: str) -> list[list[Any]]:
        """Returns each value of a setting with its rows."""
        rows: dict[str, list[list[Any]]] = {}
        for row in self._atlas.of(name):
            place = self._where.get(row.cell)
            if not row.workload:  # a whole release is below zero
                place = -1 - self._atlas.jaxlibs.index(row.jaxlib)
            if place is not None:
                rows.setdefault(visible(row.value), []).append(self._row(place, row))
        return [[value, found] for value, found in rows.items()]

    def _row(self, place: int, row: AtlasRow) -> list[Any]:
        number: Callable[[str], int] = self._words.__getitem__
        packed: list[Any] = [
            place,
            _VERDICTS.index(row.verdict),
            _TRIED.index(row.tried) if row.tried in _TRIED else 0,
            number(row.program),
            row.peak_bytes or 0,
            number(row.message),
            list(map(number, row.changes)),
            list(map(number, row.needs)),
        ]
        while packed[-1] in (0, None, []):
            if len(packed) == 2:  # a verdict may be the first one
                break
            packed.pop()
        return packed


def _told(setting: Setting | None, jaxlibs: Iterable[str]) -> list[Any]:
    """Returns group, stage, type, summary and the default in each release from the catalogue."""
    if setting is None:
        return ["", "", "", "", {}]
    defaults = {j: d for j in jaxlibs if (d := setting.default_in(j)) is not None}
    return [setting.group, str(setting.stage), setting.type, setting.summary, defaults]


def _order(workload: str) -> tuple[int, str]:
    """Sort key of kinds of models: the order of their file, others last."""
    names = list(load_kinds())
    return names.index(workload) if workload in names else len(names), workload


def _generation(target: str) -> tuple[int, str]:
    """Sort key of GPUs by generation: Ampere, Ada, Hopper, Blackwell, others last."""
    letters = [letter for letter in target if letter in "alhb"]
    return "alhb".index(letters[0]) if letters else 4, target


def atlas(folder: str | Path | None = None) -> pd.DataFrame:
    """Loads the atlas as a frame: the effect of each value of each setting on each kind of model.

    Args:
        folder: Output of ``autotune atlas build``; None for the atlas of this package.

    Returns:
        One row per `AtlasRow` with its fields as columns: ``changes`` and ``needs`` joined by semicolons;
        ``peak_bytes`` (bytes), ``compiled`` (programs) and ``gpus`` as integers; ``seconds`` (s) as floats; missing
        where unknown.

    Raises:
        SettingError: If `folder` is not a folder, or a file in it is not an atlas.
    """
    import pandas as pd

    found = load_atlas() if folder is None else read_atlas(Path(folder))
    rows = [
        {**row.model_dump(mode="json"), "changes": "; ".join(row.changes), "needs": "; ".join(row.needs)}
        for row in found
    ]
    frame = pd.DataFrame(rows, columns=list(AtlasRow.model_fields))
    return frame.astype({**dict.fromkeys(("gpus", "peak_bytes", "compiled"), "Int64"), "seconds": "float64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AtlasFinding:
    """One verdict on a value of a setting, with all cells of a release that share it.

    Attributes:
        cells: Number of cells with this verdict.
        of: Number of cells of the release.
        places: The cells, formatted by `place_of`.
    """

    value: str
    jaxlib: str
    verdict: str
    cells: int
    of: int
    places: tuple[str, ...]
    words: str


def atlas_findings(table: Atlas, name: str) -> list[AtlasFinding]:
    """Returns the findings on a setting, newest release first, most cells first.

    Raises:
        SettingError: If the atlas is empty or lacks the setting.
    """
    if not table.cells:
        raise SettingError("the atlas has no row: nothing was compiled yet; `autotune atlas build` does")
    rows = table.of(name)
    if not rows:
        known = {r.name for r in table if r.kind == "setting"}
        raise SettingError(f"the atlas must have the setting but has no {name!r}{close_matches(name, known)}")
    found = []
    for jaxlib in reversed(table.jaxlibs):
        of = sum(c.jaxlib == jaxlib for c in table.cells)
        groups: dict[tuple[str, str, str], list[AtlasRow]] = defaultdict(list)
        for row in rows:
            if row.jaxlib == jaxlib:
                groups[row.value, row.verdict, row.tried].append(row)
        order = list(dict.fromkeys(value for value, _, _ in groups))
        for (value, verdict, _), there in sorted(groups.items(), key=lambda g: (order.index(g[0][0]), -len(g[1]))):
            finding = AtlasFinding(
                value=value,
                jaxlib=jaxlib,
                verdict=str(verdict),
                cells=len(there) if there[0].workload else of,
                of=of,
                places=tuple(dict.fromkeys(map(place_of, there))),
                words=_format_rows(there),
            )
            found.append(finding)
    return found


def _format_rows(rows: list[AtlasRow]) -> str:
    """Formats rows of one verdict: changes of the first row that has any, what it needs, and why."""
    first = next((r for r in rows if r.changes), rows[0])
    words = list(first.changes)
    if first.needs:
        words.append(f"{'needs' if first.changes else 'only together with'} {', '.join(first.needs)}")
    if first.verdict is AtlasVerdict.SAME and first.tried:
        words.append(
            "compiled alone" if first.tried == "alone" else "compiled together with others that change nothing"
        )
    return "; ".join(w for w in (*words, first.message) if w)
