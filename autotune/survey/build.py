"""Builds the table cell by cell, for the release of jaxlib that is installed; goes on where it was stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.compiler import Screener, TimeUp, facts_of, open_screener
from autotune.machine import driver_python, replace_file
from autotune.model import AutotuneError, LaunchError, StudySpec
from autotune.settings import (
    NEVER_SEARCHED,
    AtlasRow,
    AtlasVerdict,
    KnownSettings,
    SearchSpace,
    Stage,
    Tier,
    atlas_text,
    for_build,
    load_recipes,
    probe_build,
    read_rows,
    space_of_all,
)
from autotune.survey.cells import Cell
from autotune.survey.judge import Judge, silent_settings

GUESSED_TIERS = (Tier.TUNE, Tier.NUMERICS, Tier.LEGACY)
"""Settings of these are thought to act where neither a cell nor a test program has told of them yet."""

_UNSEEN = {
    Stage.RUNTIME: "read while the program runs",
    Stage.AUTOTUNER: "decides kernels that are timed on the device",
    Stage.CLIENT: "read when the process or its backend starts",
}
_NOT_COMPILED = {
    Tier.TOOL: "not compiled: diagnostics or compile time only",
    Tier.DANGER: "not compiled: not for training",
    Tier.LISTED: "not compiled: nobody judged yet which values are worth a try",
}


class BuildView(Protocol):
    """Is told how a build goes on."""

    def cell(self, number: int, of: int, words: str) -> None:
        """A cell begins."""

    def compiled(self, done: int, of: int) -> None:
        """So many of the sets that are planned so far are compiled."""

    def at_work(self, what: str) -> None:
        """What is under way, such as one compilation of those that take a set apart."""

    def note(self, text: str) -> None:
        """Something that a person should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be built.

    Attributes:
        cells: In their order.
        folder: Where the table lies.
        cache_dir: Where programs are kept, so that none is compiled twice; None keeps none.
        limit_s: Seconds after which no compilation begins; None for no limit.
        processors: How many compilations may run at once.
        is_thorough: See `Judge`.
        has_recipes: Whether published sets are judged, too.
        is_again: Whether cells that are in the table are judged anew.
    """

    cells: Sequence[Cell]
    folder: Path
    cache_dir: Path | None = None
    limit_s: float | None = None
    processors: int = 1
    is_thorough: bool = False
    has_recipes: bool = True
    is_again: bool = False


def build_atlas(plan: Plan, view: BuildView, clock: Callable[[], float] = time.monotonic) -> Path:
    """Compiles what is missing, and writes each cell into the table as soon as it is whole.

    Args:
        plan: What is to be built.
        view: Is told how it goes on.
        clock: A monotonic clock, in seconds.

    Returns:
        The file of the installed release.

    Raises:
        LaunchError: If nothing can be compiled with what is installed.
        SettingError: If the table that is there cannot be read.
    """
    known = KnownSettings(probe_build(driver_python(), platform="cuda"))
    if known.build.plugin is None:
        raise LaunchError(
            "to build the atlas a CUDA plugin must be installed but none is; in a clone: pip install -e '.[screen]'"
        )
    jaxlib = known.build.jaxlib
    path = plan.folder / f"jaxlib-{jaxlib}.jsonl"
    rows = read_rows(path) if path.exists() else []
    told = [r for other in sorted(plan.folder.glob("jaxlib-*.jsonl")) if other != path for r in read_rows(other)]
    started = clock()

    def is_over() -> bool:
        return plan.limit_s is not None and clock() - started > plan.limit_s

    cells, there = plan.cells, {r.cell for r in rows if r.kind == "cell"}
    for number, cell in enumerate(cells, 1):
        name = (jaxlib, cell.kind.name, cell.target.name, cell.gpus)
        if name in there and not plan.is_again:
            continue
        if is_over():
            view.note(f"the time is up: {len(cells) - number + 1} cells are left; the same command goes on")
            break
        view.cell(number, len(cells), str(cell))
        try:
            found, space = _judged(plan, cell, known, Guess([*told, *rows], cell, known), view, is_over)
        except TimeUp:
            view.note(f"the time is up within {cell}: what was compiled is kept, and the same command goes on")
            break
        except AutotuneError as error:
            view.note(f"{cell} is left out: {error}")
            continue
        rows = [r for r in rows if r.cell != name and r.workload] + found + build_rows(known, space)
        plan.folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, atlas_text(rows))
    return path


def _screener_of(plan: Plan, cell: Cell, view: BuildView) -> AbstractContextManager[tuple[StudySpec, Screener]]:
    return open_screener(
        cell.study,
        study_dir=Path(os.curdir),
        target=cell.target,
        topology=cell.topology,
        cache_dir=plan.cache_dir,
        processors=lambda: plan.processors,
        progress=view.at_work,
    )


def _judged(
    plan: Plan, cell: Cell, known: KnownSettings, guess: Guess, view: BuildView, is_over: Callable[[], bool]
) -> tuple[list[AtlasRow], SearchSpace]:
    """All rows of a cell, and what was tried in it."""
    fields = {
        "jaxlib": known.build.jaxlib,
        "workload": cell.kind.name,
        "target": cell.target.name,
        "gpus": cell.gpus,
    }
    with _screener_of(plan, cell, view) as (moved, screener):
        space = space_of_all(moved, known, facts_of(screener.reference(), screener.job.topology))
        judge = Judge(
            screener,
            space,
            acts=guess.acts,
            is_thorough=plan.is_thorough,
            progress=view.compiled,
            is_over=is_over,
        )
        rows = judge.settings(fields)
        if plan.has_recipes:
            dead = silent_settings(rows)
            for name, recipe in load_recipes().items():
                settings = for_build(recipe.settings, known)
                if settings:
                    rows.append(judge.recipe(name, recipe.settings, settings, dead, fields))
                else:
                    rows.append(_of_no_use(name, str(recipe.settings), fields))
        return [judge.cell(fields), *rows], space


def _of_no_use(name: str, published: str, fields: Mapping[str, object]) -> AtlasRow:
    """The row of a recipe of which the build has nothing that is not the default."""
    return AtlasRow.model_validate(
        {
            **fields,
            "kind": "recipe",
            "name": name,
            "value": published,
            "verdict": AtlasVerdict.SAME,
            "message": "this release takes nothing of it, or has it as its default",
        }
    )


class Guess:
    """Guesses which settings act in a cell, from the cell of its kind that is most like it, else from all there are.

    Args:
        rows: Of all cells that are known, of any release.
        cell: The cell.
        known: What is known of settings on the installed build.
    """

    def __init__(self, rows: Iterable[AtlasRow], cell: Cell, known: KnownSettings) -> None:
        self._known = known
        by_cell: dict[tuple[str, str, str, int], list[AtlasRow]] = {}
        for row in rows:
            if row.workload and row.kind == "setting":
                by_cell.setdefault(row.cell, []).append(row)

        def likeness(name: tuple[str, str, str, int]) -> tuple[bool, bool, bool]:
            jaxlib, _, target, gpus = name
            return jaxlib == known.build.jaxlib, gpus == cell.gpus, target == cell.target.name

        nearest = max((n for n in by_cell if n[1] == cell.kind.name), key=likeness, default=None)
        told = by_cell[nearest] if nearest is not None else [r for found in by_cell.values() for r in found]
        self._told = {r.name for r in told}
        self._acting = {r.name for r in told if r.verdict is not AtlasVerdict.SAME}

    def acts(self, name: str) -> bool:
        """Whether a setting is thought to act: as cells tell, else the catalogue's test programs, else its tier."""
        if name in self._told:
            return name in self._acting
        entry = self._known[name].entry
        assert entry is not None
        return entry.tier in GUESSED_TIERS if entry.changed_programs is None else bool(entry.changed_programs)


def build_rows(known: KnownSettings, space: SearchSpace) -> list[AtlasRow]:
    """The rows of a release that hold for all its cells: what it lacks, what cannot be seen, and all defaults.

    Args:
        known: What is known of settings on the installed build.
        space: What was compiled.
    """
    compiled = {p.name for p in space.parameters}
    rows = []
    for name in known.catalog:
        verdict, message = _of_release(name, known, is_compiled=name in compiled)
        value = known[name].default or "" if verdict is AtlasVerdict.DEFAULT else ""
        row = AtlasRow(jaxlib=known.build.jaxlib, name=name, value=value, verdict=verdict, message=message)
        rows.append(row)
    return rows


def _of_release(name: str, known: KnownSettings, *, is_compiled: bool) -> tuple[AtlasVerdict, str]:
    """What can be said of a setting whatever the cell, and why."""
    setting = known[name]
    entry = setting.entry
    assert entry is not None
    if is_compiled:
        return AtlasVerdict.DEFAULT, ""
    if entry.platform in NEVER_SEARCHED:
        return AtlasVerdict.ELSEWHERE, NEVER_SEARCHED[entry.platform]
    if entry.kind in ("xla", "jax") and not setting.exists:
        since = f"it came with {entry.since}" if entry.since else ""
        gone = f"it went with {entry.removed}" if entry.removed else ""
        return AtlasVerdict.REJECTED, "; ".join(filter(None, ["this release does not have it", since, gone]))
    if entry.platform not in ("any", "cuda"):
        return AtlasVerdict.ELSEWHERE, f"acts on {entry.platform}"
    if entry.tier is Tier.NOOP or (setting.flag is not None and not setting.flag.sets):
        return AtlasVerdict.SAME, "this release takes it, but it does nothing"
    if entry.tier in _NOT_COMPILED:
        return AtlasVerdict.UNSETTLED, _NOT_COMPILED[entry.tier]
    if entry.stage is not Stage.PROGRAM:
        return AtlasVerdict.UNSEEN, _UNSEEN[entry.stage]
    return AtlasVerdict.UNSETTLED, "not compiled: the catalogue has no other value to try on this release"
