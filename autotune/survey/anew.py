"""Reads the table's programs anew, by the present reader and model of step times; judges nothing.

A model of step times is mended more often than a cell is worth judging: that takes some hundred compilations, this
about thirty, of those programs alone of which the table predicts something. Each must be the program that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.compiler import CompiledProgram, Screener, TimeUp
from autotune.model import FlagSet, LaunchError
from autotune.settings import AtlasRow, KnownSettings, for_build, load_recipes
from autotune.survey.judge import changes_told, predicted_change, predicted_step_s, silent_settings


def predicted_anew(
    rows: Sequence[AtlasRow],
    known: KnownSettings,
    screener: Screener,
    *,
    progress: Callable[[int, int], None] = lambda done, of: None,
    note: Callable[[str], None] = lambda text: None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[AtlasRow]:
    """The rows of one cell with what the present model predicts of their programs, and what is told of these.

    Args:
        rows: All rows of the cell.
        known: What is known of settings on the installed build.
        screener: Compiles for the cell.
        progress: Told how many of how many programs are compiled.
        note: Told of each program that the table names and nothing gives any more: its rows lose their prediction.
        is_over: Whether nothing more may be compiled.

    Raises:
        LaunchError: If the default's program is not the one that the table names, or does not compile.
        TimeUp: If not all could be compiled.
    """
    default = screener.reference()
    cell = next(r for r in rows if r.kind == "cell")
    if not _is_of(cell, default):
        raise LaunchError(
            f"to predict anew, the default's program must be the table's, {cell.program}, but it is "
            f"{default.fingerprint[: len(cell.program)]} now: judge the cell anew (--again)"
        )
    default_s = predicted_step_s(default, screener)
    makers = _makers(rows, known)
    screener.compile_all([sets[0] for sets in makers.values()], is_over=is_over, progress=progress)
    told: dict[str, tuple[str, ...]] = {}
    predicted: dict[str, float | None] = {}
    for name, sets in makers.items():
        for flags in dict.fromkeys(sets):
            if not screener.is_known(flags) and is_over():
                raise TimeUp
            program = screener.result(flags).program
            if program is not None and program.fingerprint.startswith(name):
                told[name] = changes_told(default, program)
                predicted[name] = predicted_change(predicted_step_s(program, screener), default_s)
                break
        else:
            note(f"nothing gives program {name} any more, such as {sets[0]}: predicted no longer")

    def anew(row: AtlasRow) -> AtlasRow:
        if row.kind == "cell":
            return row.model_copy(update={"step_s": default_s})
        row = row.model_copy(update={"changes": told.get(row.program, row.changes)})
        if row.predicted_change is None:
            return row
        return row.model_copy(update={"predicted_change": predicted.get(row.program)})

    return [anew(row) for row in rows]


def _is_of(row: AtlasRow, program: CompiledProgram) -> bool:
    return program.fingerprint.startswith(row.program)


def _makers(rows: Sequence[AtlasRow], known: KnownSettings) -> dict[str, list[FlagSet]]:
    """Each program of which something is predicted, to the sets that gave it; the plainest first."""
    judged = {r.name for r in rows if r.kind == "setting"} - silent_settings(rows)

    def settings(row: AtlasRow) -> FlagSet:
        if row.kind == "setting":
            return FlagSet({row.name: row.value})
        recipes = load_recipes()
        published = for_build(recipes[row.name].settings, known) if row.name in recipes else FlagSet()
        return FlagSet({n: v for n, v in published.items() if n in judged})

    makers: dict[str, list[FlagSet]] = {}
    for row in sorted(rows, key=lambda r: r.kind == "recipe"):
        if row.predicted_change is not None:
            makers.setdefault(row.program, []).append(settings(row))
    return makers
