"""Views of the atlas: a pandas frame, and findings on one setting."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.model.errors import SettingError, close_matches
from autotune.settings.atlas import Atlas, AtlasRow, AtlasVerdict, load_atlas, place_of, read_atlas

if TYPE_CHECKING:
    import pandas as pd


def atlas(folder: str | Path | None = None) -> pd.DataFrame:
    """Loads the atlas as a frame: the effect of each value of each setting on each kind of model.

    Args:
        folder: Output of ``python -m harness.build_atlas``; None for the atlas of this package.

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
    """One verdict on a value of a setting, with all cells of a release that share it."""

    value: str
    jaxlib: str
    verdict: str
    cells: int
    """Number of cells with this verdict."""
    of: int
    """Number of cells of the release."""
    places: tuple[str, ...]
    """The cells, formatted by `place_of`."""
    words: str


def atlas_findings(table: Atlas, name: str) -> list[AtlasFinding]:
    """Returns the findings on a setting, newest release first, most cells first.

    Raises:
        SettingError: If the atlas is empty or lacks the setting.
    """
    if not table.cells:
        raise SettingError("the atlas must have rows but has none")
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
