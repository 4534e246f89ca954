"""The tables of a study on a terminal: every trial, and the front of a study by several objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from autotune.model import (
    PREDICTED,
    TURNS,
    Comparison,
    FinalistResult,
    FloorResult,
    Objective,
    TrialResult,
    format_bytes,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
)
from autotune.results.words import STAGE_WORDS, shorten
from autotune.rundir import Store
from autotune.stats import Estimate, Verdict

_STYLES = {
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "red",
    Verdict.NO_DIFFERENCE: "dim",
    Verdict.UNRESOLVED: "yellow",
}
_LONGEST_SETTINGS = 120


def study_tables(store: Store) -> list[Table]:
    """The table of all trials, and of a study by several objectives its front."""
    newest = {(f.stage, f.settings): f for f in store.of(FinalistResult)}  # a study that went on judges anew
    tables = [results_table(store.last(FloorResult), store.of(TrialResult), list(newest.values()))]
    wanted = store.spec.search.objectives
    if len(wanted) > 1:
        from autotune.results.analysis import front_frame  # pandas: only where it is needed

        tables.append(front_table(front_frame(store).to_dict("records"), wanted))
    return tables


def results_table(
    floor: FloorResult | None, results: Sequence[TrialResult], finalists: Sequence[FinalistResult]
) -> Table:
    """Every trial's ratio with interval and verdict, best first, the reference on top; energy where it is known."""
    if any(r.prediction is not None for r in results):
        return _predicted_table(results)
    has_energy = any(r.comparison is not None and r.comparison.energy is not None for r in results)
    columns = ["trial", "settings", "ratio", "95 % interval", "verdict", *(["energy of a step"] if has_energy else [])]
    table = Table(title="step time over the default's (below 1 is faster)", title_justify="left")
    for name in columns:
        table.add_column(name, justify="right" if name in ("trial", "ratio") else "left", overflow="fold")
    if floor is not None:
        step = format_seconds(floor.comparison.reference_step_s)
        energy = floor.comparison.energy
        joules = [format_joules(energy.reference_step_j) if energy else ""] if has_energy else []
        settings = f"(default), {step} a step; against itself:"
        table.add_row("ref", settings, *_figures(floor.floor.estimate), "noise floor", *joules)
    for r in sorted(results, key=_rank):
        cells = _figures(r.comparison.estimate) if r.comparison else ("-", "")
        joules = [_energy(r.comparison)] if has_energy else []
        table.add_row(str(r.number), shorten(r.settings, limit=_LONGEST_SETTINGS), *cells, _verdict(r), *joules)
    for f in finalists:
        stage = STAGE_WORDS.get(f.stage, f.stage)
        shown, verdict = ("-", ""), Text(f"failed ({stage})", style="magenta")
        if f.estimate is not None and f.corrected is not None:
            shown = (format_ratio(f.estimate.ratio), format_interval(f.corrected.low, f.corrected.high))
            verdict = Text(f"{f.verdict} ({stage})", style=_STYLES[f.verdict])
        number = str(f.trial) if f.trial else ""  # a recheck is of no trial
        table.add_row(number, shorten(f.settings, limit=_LONGEST_SETTINGS), *shown, verdict)
    return table


def _predicted_table(results: Sequence[TrialResult]) -> Table:
    """Every trial with what a model says of it, best first."""
    steps = [r.prediction for r in results if r.prediction is not None]
    place = f"{steps[0].topology} {steps[0].target}"
    table = Table(title=f"{PREDICTED}: a model's step time over the default's on {place}", title_justify="left")
    for name in ("trial", "settings", "predicted ratio", "predicted step", "exposed", "peak memory", ""):
        table.add_column(name, justify="left" if name in ("settings", "") else "right", overflow="fold")

    def key(result: TrialResult) -> tuple[bool, float]:
        return (result.prediction is None, result.prediction.ratio if result.prediction else result.number)

    for r in sorted(results, key=key):
        p = r.prediction
        figures = ["-"] * 4
        if p is not None:
            exposed, peak = format_seconds(p.exposed_s), format_bytes(p.peak_bytes)
            figures = [format_ratio(p.ratio), format_seconds(p.step_s), exposed, peak]
        said = Text("predicted", style="cyan")
        if r.failure is not None:
            said = Text(str(r.failure.kind).replace("_", " "), style="magenta")
        elif r.same_as is not None:
            said = Text("same program as " + (f"trial {r.same_as}" if r.same_as else "the default"), style="dim")
        table.add_row(str(r.number), shorten(r.settings, limit=_LONGEST_SETTINGS), *figures, said)
    return table


def front_table(rows: Sequence[Mapping[Any, Any]], wanted: Sequence[Objective]) -> Table:
    """The sets that no other beats in all objectives, from rows of `analysis.front_frame`."""
    table = Table(title="the front: ratios over the default's, proven sets first", title_justify="left")
    for name in ("trial", "settings", *(o.words for o in wanted), ""):
        table.add_column(name, justify="right" if name == "trial" else "left", overflow="fold")
    for row in rows:
        cells = []
        for o in wanted:
            low, high = row[f"{o}_low"], row[f"{o}_high"]
            cells.append(format_ratio(row[o]) + ("" if math.isnan(low) else f" {format_interval(low, high)}"))
        proven = Text("proven", style="bold green") if row["is_proven"] else Text("not measured again", style="dim")
        table.add_row(str(row["trial"]), row["settings"][:_LONGEST_SETTINGS], *cells, proven)
    return table


def _rank(result: TrialResult) -> tuple[int, float]:
    if result.failure is not None:
        return (2, result.number)
    return (0, result.comparison.estimate.ratio) if result.comparison else (1, result.number)


def _figures(estimate: Estimate) -> tuple[str, str]:
    return format_ratio(estimate.ratio), format_interval(estimate.low, estimate.high)


def _verdict(result: TrialResult) -> Text:
    if result.failure is not None:
        return Text(str(result.failure.kind).replace("_", " "), style="magenta")
    if result.comparison is None:
        return Text(str(result.status).replace("_", " "), style="dim")
    found = result.comparison
    how = "" if found.mode == TURNS else f", {found.estimate.pair_count} sandwiches"
    return Text(f"{found.verdict}{how}", style=_STYLES[found.verdict])


def _energy(found: Comparison | None) -> str:
    if found is None or found.energy is None:
        return ""
    e = found.energy
    interval = format_interval(e.estimate.low, e.estimate.high)
    return f"{format_joules(e.candidate_step_j)}, {format_ratio(e.estimate.ratio)} {interval}"
