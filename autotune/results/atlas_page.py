"""The atlas as a page that works from a folder: the table packed into it, one script, nothing loaded."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from markupsafe import Markup

from autotune.model import visible
from autotune.results.pages import render
from autotune.settings import Atlas, AtlasRow, AtlasVerdict, Setting, load_catalog, load_kinds, load_recipes

_TRIED = ("", "alone", "together", "company")
_VERDICTS = tuple(AtlasVerdict)


def render_atlas(atlas: Atlas) -> str:
    """The page of a table, which may be empty: it then says how to build one."""
    data = json.dumps(pack(atlas), ensure_ascii=True, separators=(",", ":"))
    # Within a script nothing is markup but its own end, and what opens a comment: so no bracket is left.
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    script = render("atlas_logic.js.j2") + render("atlas.js.j2")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    return render("atlas.html.j2", data=Markup(data), script=Markup(script), script_digest=digest)


def pack(atlas: Atlas) -> dict[str, Any]:
    """The table as the page's script reads it: every text once, a row as a list without what is empty at its end.

    Returns:
        jaxlibs, kinds (name and title), targets, verdicts, cells, words (all other texts, the first empty),
        settings and recipes, each with its values and their rows, and known: settings that the catalogue has and the
        table lacks.
    """
    catalog, recipes = load_catalog(), load_recipes()
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
                words[c.program], c.step_s, c.peak_bytes, c.compiled, c.seconds,
            ]
            for c in cells
        ],
        "settings": [
            [visible(name), *_told(catalog.get(name), atlas.jaxlibs), packed.values("setting", name)]
            for name in sorted(names)
        ],
        "recipes": [
            [
                visible(name), *([r.source, r.date, r.for_hardware, r.note] if (r := recipes.get(name)) else [""] * 4),
                packed.values("recipe", name),
            ]
            for name in dict.fromkeys(r.name for r in atlas if r.kind == "recipe")
        ],
        "known": [[name, s.summary] for name, s in catalog.items() if name not in names],
        "words": words.all,
    }  # fmt: skip


class _Words:
    """Texts by number, each kept once; 0 is the empty one."""

    def __init__(self) -> None:
        self._numbers = {"": 0}

    def __getitem__(self, text: str) -> int:
        return self._numbers.setdefault(visible(text), len(self._numbers))

    @property
    def all(self) -> list[str]:
        return list(self._numbers)


class _Packer:
    """Makes lists of rows."""

    def __init__(self, atlas: Atlas, where: Mapping[tuple[str, str, str, int], int], words: _Words) -> None:
        self._atlas, self._where, self._words = atlas, where, words

    def values(self, kind: str, name: str) -> list[list[Any]]:
        """Each value of a setting, or the set of a recipe, with its rows."""
        rows: dict[str, list[list[Any]]] = {}
        for row in self._atlas.of(name, kind=kind):
            place = self._place(row)
            if place is not None:
                rows.setdefault(visible(row.value), []).append(self._row(place, row))
        return [[value, found] for value, found in rows.items()]

    def _place(self, row: AtlasRow) -> int | None:
        """The cell's number; below zero for a whole release; None for a cell that was not compiled."""
        return self._where.get(row.cell) if row.workload else -1 - self._atlas.jaxlibs.index(row.jaxlib)

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
    """Group, stage, type, summary and the default in each release, as far as the catalogue says."""
    if setting is None:
        return ["", "", "", "", {}]
    defaults = {j: d for j in jaxlibs if (d := setting.default_in(j)) is not None}
    return [setting.group, str(setting.stage), setting.type, setting.summary, defaults]


def _order(workload: str) -> tuple[int, str]:
    """Kinds of models in the order of their file, others behind."""
    names = list(load_kinds())
    return names.index(workload) if workload in names else len(names), workload


def _generation(target: str) -> tuple[int, str]:
    """GPUs in the order of their generations: Ampere, Ada, Hopper, Blackwell, others behind."""
    letters = [letter for letter in target if letter in "alhb"]
    return "alhb".index(letters[0]) if letters else 4, target
