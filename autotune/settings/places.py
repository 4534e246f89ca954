"""Places of the atlas as people spell them: ``dense-fsdp@8xh100-sxm``, or less of it for all that fit.

A kind of model, ``@``, how many GPUs, ``x``, and which: ``dense-fsdp``, ``@h100-sxm``, ``moe@64xh200``, ``@8x``. A GPU
may be shortened at a dash: ``h100`` is every H100 of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.model import SettingError, close_matches
from autotune.settings.atlas import Atlas, AtlasRow
from autotune.settings.catalog import older

_PLACE = re.compile(r"(?P<workload>[a-z0-9-]*)(?:@(?:(?P<gpus>\d+)x)?(?P<target>[a-z0-9-]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which cells are meant, whatever their release.

    Attributes:
        workload: Kind of model; empty for all.
        gpus: How many GPUs; 0 for any number.
        target: GPU, or the beginning of its name up to a dash; empty for all.
    """

    workload: str = ""
    gpus: int = 0
    target: str = ""

    def fits(self, row: AtlasRow) -> bool:
        """Whether a row is of such a cell; rows for all cells of a release always are."""
        if not row.workload:
            return True
        is_target = f"{row.target}-".startswith(f"{self.target}-") or not self.target
        return is_target and self.workload in ("", row.workload) and self.gpus in (0, row.gpus)


def place_of(row: AtlasRow) -> str:
    """Spells the place of a row: ``dense-fsdp@8xh100-sxm``; ``all cells`` for one that is of a whole release."""
    return f"{row.workload}@{row.gpus}x{row.target}" if row.workload else "all cells"


def parse_places(text: str, atlas: Atlas) -> Places:
    """Reads the spelling of places.

    Args:
        text: As in the module's description.
        atlas: The table that must have such cells.

    Raises:
        SettingError: If it is not of that form, or the table has no such cell; what it has is named.
    """
    known = sorted({place_of(cell) for cell in atlas.cells})
    if not known:
        raise SettingError(
            "the atlas must have a cell but has none: nothing was compiled yet; `autotune atlas build` does"
        )
    form = _PLACE.fullmatch(text.strip().lower())
    if form is None or not any(form.groupdict().values()):
        raise SettingError(
            f"a place of the atlas must be spelled like {known[0]} (each part may be left out) but got {text!r}"
        )
    found = Places(workload=form["workload"] or "", gpus=int(form["gpus"] or 0), target=form["target"] or "")
    if not any(found.fits(cell) for cell in atlas.cells):
        raise SettingError(
            f"the atlas must have a cell like {text!r} but has none{close_matches(text, known)}; "
            f"it has {_listed(known)}"
        )
    return found


def _listed(known: Iterable[str]) -> str:
    """Places, many of a kind of model on one name: ``dense-fsdp@8xa100-sxm-80|8xh200``."""
    by_kind: dict[str, list[str]] = {}
    for place in known:
        kind, _, machines = place.partition("@")
        by_kind.setdefault(kind, []).append(machines)
    return "; ".join(f"{kind}@{'|'.join(machines)}" for kind, machines in by_kind.items())


def newest_not_after(jaxlib: str, releases: Sequence[str]) -> str:
    """Of releases, oldest first, the newest that is not after one; the oldest if all are.

    Raises:
        SettingError: If there are none.
    """
    if not releases:
        raise SettingError("the atlas must have a release but has none; `autotune atlas build` compiles one")
    return ([r for r in releases if not older(jaxlib, r)] or [releases[0]])[-1]
