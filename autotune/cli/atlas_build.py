"""`autotune atlas build`: compiles what the table of the atlas lacks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.tune import seconds_of


class _Lines:
    """A line for each cell, and now and then how far it is and what is left."""

    TELL_EVERY_S, SILENT_S = 20.0, 60.0

    def __init__(self) -> None:
        self._began = self._cell_began = self._told = time.monotonic()
        self._number = self._of = 0

    def cell(self, number: int, of: int, words: str) -> None:
        """See `autotune.survey.BuildView`."""
        self._number, self._of = number, of
        self._cell_began = time.monotonic()
        self._print(f"cell {number} of {of}: {words}")

    def compiled(self, done: int, of: int) -> None:
        """See `autotune.survey.BuildView`."""
        now = time.monotonic()
        if now - self._told < self.TELL_EVERY_S or not done:
            return
        self._told = now
        left_s = (now - self._cell_began) / done * max(0, of - done)
        self._print(f"  {done} of {of} sets that are planned by now; about {max(1, round(left_s / 60))} min for them")

    def at_work(self, what: str) -> None:
        """See `autotune.survey.BuildView`; told where nothing else was for a while, as while a set is taken apart."""
        if time.monotonic() - self._told >= self.SILENT_S:
            self._told = time.monotonic()
            self._print(f"  {what[:100]}{' ...' if len(what) > 100 else ''}")

    def note(self, text: str) -> None:
        """See `autotune.survey.BuildView`."""
        self._print(text)

    def _print(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"[{minutes:3d}:{seconds:02d}] {text}", file=sys.stderr, flush=True)


def build(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help="Kind of model, such as dense-fsdp; may be repeated. Default: all."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="GPU", help="GPU (`autotune targets list`); may be repeated."),
    ] = None,
    gpus: Annotated[
        list[int] | None, typer.Option("--gpus", metavar="N", min=1, help="How many of them; may be repeated.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the table lies; default: within this package.")
    ] = None,
    time_budget: Annotated[str | None, typer.Option(help="No compilation begins after that, such as 2h.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compilations at once; default: one a processor.")] = None,
    thorough: Annotated[
        bool, typer.Option(help="Look for company of what changes nothing as thoroughly as a screen does.")
    ] = False,
    recipes: Annotated[bool, typer.Option(help="Judge the published sets, too.")] = True,
    again: Annotated[bool, typer.Option(help="Judge cells anew that are in the table.")] = False,
) -> None:
    """Compiles every setting for every kind of model and GPU, by the jaxlib that is installed; needs no GPU.

    The table of that release is written cell by cell; the same command goes on where it was stopped.
    """
    from importlib.resources import as_file

    from autotune.machine import caller_environment, default_cache_dir
    from autotune.settings import atlas_folder
    from autotune.survey import Plan, build_atlas, planned_cells

    cells = planned_cells(kind or (), target or (), gpus or ())
    with as_file(atlas_folder()) as packaged:
        plan = Plan(
            cells=cells,
            folder=into or packaged,
            cache_dir=default_cache_dir(caller_environment()) / "screen",
            limit_s=seconds_of(time_budget, "--time-budget"),
            processors=jobs or len(os.sched_getaffinity(0)),
            is_thorough=thorough,
            has_recipes=recipes,
            is_again=again,
        )
        print(build_atlas(plan, _Lines()))
