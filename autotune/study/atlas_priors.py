"""What the atlas adds to what is thought of settings before anything is measured or compiled for the study itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from autotune.compiler import ScreenReport
from autotune.model import StudySpec
from autotune.settings import Atlas, AtlasRow, AtlasVerdict, load_atlas, load_kinds, newest_not_after
from autotune.study.priors import FAILS, LIVE, MOST, Prior

_NOTHING = (AtlasVerdict.SAME, AtlasVerdict.DEFAULT)


def by_atlas(
    priors: Mapping[str, Prior], spec: StudySpec, device_count: int | None, jaxlib: str, report: ScreenReport | None
) -> dict[str, Prior]:
    """Priors with what the atlas that comes with this package says; see `heard`.

    Args:
        priors: Parameter to what is thought of it.
        spec: The study.
        device_count: Devices of the study; None if nobody knows.
        jaxlib: Its release.
        report: Its screen; None if it has none.
    """
    table = load_atlas()
    cells = cells_alike(table, spec, device_count, jaxlib)
    return heard(priors, table, cells, {s.name for s in report.settings} if report is not None else ())


def heard(
    priors: Mapping[str, Prior], table: Atlas, cells: Collection[AtlasRow], screened: Collection[str]
) -> dict[str, Prior]:
    """Priors with what the atlas says of settings of which the study's own screen says nothing.

    A setting that changes a program of a model alike is likelier to act, one that changes none in all of them less;
    how many are thought to act in all stays.

    Args:
        priors: Parameter to what is thought of it.
        table: The atlas.
        cells: Those of it that are alike the study; see `cells_alike`.
        screened: Settings that were compiled for the study.
    """
    if not cells:
        return dict(priors)
    told = {name: _by_atlas(table, name, cells) for name in priors if name not in screened}
    found = {}
    for name, prior in priors.items():
        factor, why = told.get(name, (1.0, ""))
        found[name] = replace(prior, act=prior.act * factor, why=(*prior.why, why) if why else prior.why)
    scale = sum(p.act for p in priors.values()) / (sum(p.act for p in found.values()) or 1.0)
    return {name: replace(p, act=min(MOST, p.act * scale)) for name, p in found.items()}


def cells_alike(table: Atlas, spec: StudySpec, device_count: int | None, jaxlib: str) -> list[AtlasRow]:
    """Cells of the table that a study is like: its release, one GPU or several, and its preset where the table has it.

    Args:
        table: The atlas.
        spec: The study.
        device_count: Devices of the study; None if nobody knows.
        jaxlib: Its release; see `newest_not_after`; empty if it is made up.
    """
    if spec.device.platform != "cuda" or not jaxlib or not table.cells:
        return []
    release = newest_not_after(jaxlib, table.jaxlibs)
    cells = [c for c in table.cells if c.jaxlib == release]
    if device_count is not None:
        cells = [c for c in cells if (c.gpus > 1) == (device_count > 1)]
    same = {kind.name for kind in load_kinds().values() if kind.entry == spec.workload.entry}
    return [c for c in cells if c.workload in same] or cells


def _by_atlas(table: Atlas, name: str, cells: Collection[AtlasRow]) -> tuple[float, str]:
    """By what factor a setting is likelier to act, and why; (1, "") where the atlas cannot say."""
    wanted = {c.cell for c in cells}
    rows = [r for r in table.of(name) if r.cell in wanted]
    live = {r.cell for r in rows if r.verdict is AtlasVerdict.CHANGES}
    models = f"{len(wanted)} models alike" if len(wanted) > 1 else "a model alike"
    if live:
        of = f"of {len(live)} of {models}" if len(wanted) > 1 else f"of {models}"
        return LIVE, f"in the atlas it changes the program {of}"
    if rows and {r.cell for r in rows} == wanted and all(r.verdict in _NOTHING for r in rows):
        return FAILS, f"in the atlas it changes nothing in {models}"
    return 1.0, ""
