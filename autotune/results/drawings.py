"""The charts of a study, as its report and notebooks show them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autotune.model import (
    REESTIMATES,
    REFERENCE_NUMBER,
    AutotuneError,
    ConfirmRun,
    FloorResult,
    TrialResult,
    TrialStatus,
    format_bytes,
    format_joules,
    format_ratio,
    format_seconds,
    format_share,
)
from autotune.results import charts
from autotune.results.charts import Chart, Mark
from autotune.results.proof_words import STAGE_WORDS
from autotune.results.rows import TrialRow
from autotune.results.words import describe_trial, time_words
from autotune.rundir import Store

if TYPE_CHECKING:
    import pandas as pd

LONGEST_TRACE_BLOCKS = 240
_FLOOR_TITLE = "the default against itself (noise floor)"

_RESOURCES: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
    ("Step time and memory", "peak memory", format_bytes, "peak_bytes"),
    ("Step time and compile time", "compile time", format_seconds, "compile_s"),
    ("Step time and energy", "energy of a step", format_joules, "step_j"),
)


def _detail(row: TrialRow) -> str:
    return f"trial {row.trial}: {row.settings}: {describe_trial(row.result, row.outlook)}"


def forest_chart(store: Store, trials: Sequence[TrialRow], *, most: int | None = None) -> Chart:
    """Ratio and interval of every trial that did not fail, best first, below the noise floor.

    Args:
        store: The run directory.
        trials: Its trials.
        most: Of the trials only the best so many; None for all.
    """
    floor, rows = store.last(FloorResult), []
    if floor is not None:
        label, e = "the default against itself", floor.floor.estimate
        rows.append(Mark(label=label, detail="the noise floor", x=e.ratio, x_ends=(e.low, e.high), style="floor"))
    shown = [r for r in sorted(trials, key=lambda r: r.rank) if r.failure is None and not math.isnan(r.ratio)]
    for r in shown[:most]:
        short = r.settings.replace("xla_gpu_", "").replace("xla_cpu_", "").replace("xla_", "")
        label, ends = f"{r.trial}  {short}", (r.low, r.high)
        rows.append(Mark(label=label, detail=_detail(r), x=r.ratio, x_ends=ends, style=r.style))
    draw = functools.partial(charts.forest, rows, band=store.spec.measure.min_effect, of=time_words(store))
    note = "Intervals hold over all looks at a trial. The shaded band is too small to matter."
    note = f"{note} Search figures choose; they prove nothing."
    return Chart(title="All trials", svg=draw(), note=note, narrow=draw(is_narrow=True))


def history_chart(trials: Sequence[TrialRow]) -> Chart:
    """Ratio of each trial in the order of the search, and the best so far."""
    points: list[Mark] = []
    best: list[tuple[float, float]] = []
    for r in trials:
        is_failed = r.failure is not None
        if math.isnan(r.ratio) and not is_failed:
            continue
        ratio = math.nan if is_failed else r.ratio
        points.append(Mark(x=r.trial, y=ratio, detail=_detail(r), style=r.style))
        if not is_failed and (not best or ratio < best[-1][1]):
            best.append((r.trial, min(1.0, ratio)))
    svg = charts.scatter(points, x_title="trial", x_format=charts.format_whole, best=best)
    note = "The line is the best estimate so far; failures stand along the upper edge."
    return Chart(title="Search history", svg=svg, note=note)


def resource_charts(trials: Sequence[TrialRow]) -> list[Chart]:
    """Step time against memory, compile time and energy, as far as trials recorded them."""
    found = []
    for title, x_title, show, column in _RESOURCES:
        points = []
        for r in trials:
            x = getattr(r, column)
            if r.is_measured and r.failure is None and x > 0:
                detail = f"trial {r.trial}: {format_ratio(r.ratio)}, {show(x)}: {r.settings}"
                points.append(Mark(x=x, y=r.ratio, detail=detail, style=r.style))
        if points:
            found.append(Chart(title=title, svg=charts.scatter(points, x_title=x_title, x_format=show)))
    return found


def importance_chart(importance: pd.DataFrame) -> Chart:
    """How much of the spread of ratios each setting explains, from `analysis.importance_frame`."""
    shares = [(r["setting"], r["importance"]) for r in importance.head(20).to_dict("records")]
    method = f" ({importance['method'].iloc[0]})" if len(importance) else ""
    svg = charts.bars(shares, value_format=format_share)
    note = "Share of the spread of all trials' ratios; shares overlap and need not add up."
    return Chart(title=f"Importance over all trials{method}", svg=svg, note=note)


# ---------------------------------------------------------------------- raw steps


def steps_chart(store: Store, number: int = REFERENCE_NUMBER) -> Chart:
    """Raw step times of a trial, or of the noise floor, in the order of running.

    Raises:
        AutotuneError: If it has none.
    """
    directories = {r.number: r.directory for r in store.of(TrialResult)}
    if (floor := store.last(FloorResult)) is not None:
        directories[REFERENCE_NUMBER] = floor.directory
    title = f"trial {number}" if number != REFERENCE_NUMBER else _FLOOR_TITLE
    found = _trace(store, title, directories.get(number), most=None)
    if found is None:
        raise AutotuneError(f"a trial with raw steps must be named but {number} has none; see `.steps`")
    return found


def trace_charts(store: Store, trials: Sequence[TrialRow]) -> list[Chart]:
    """The floor, the best trial and one pair of the proof, raw."""
    wanted: list[tuple[str, str | None]] = []
    if (floor := store.last(FloorResult)) is not None:
        wanted.append((_FLOOR_TITLE, floor.directory))
    measured = [r for r in trials if r.status == TrialStatus.MEASURED and r.result.directory]
    if measured:
        best = min(measured, key=lambda r: r.rank)
        wanted.append((f"trial {best.trial}, the best of the search", best.result.directory))
    others = ("confirm", *REESTIMATES)
    proofs = [r for r in store.of(ConfirmRun) if r.stage not in others and r.directory and r.failure is None]
    if proofs:
        last = proofs[-1]
        title = f"{STAGE_WORDS.get(last.stage, last.stage)} of trial {last.trial}, pair of processes {last.repeat + 1}"
        wanted.append((title, last.directory))
    found = [_trace(store, title, directory, most=LONGEST_TRACE_BLOCKS) for title, directory in wanted]
    return [chart for chart in found if chart is not None]


def _trace(store: Store, title: str, directory: str | None, *, most: int | None) -> Chart | None:
    """One measurement; None if it has no raw steps."""
    blocks: list[tuple[str, Sequence[float]]] = []
    for pair in store.pairs(directory) if directory else ():
        arms = [("reference", pair.reference_s), ("candidate", pair.candidate_s)]
        blocks += arms if pair.first == "reference" else arms[::-1]
    if not blocks:
        return None
    svg = charts.traces(blocks[:most], y_format=format_seconds)
    return Chart(title=title, svg=svg, note=f"{len(blocks) // 2} pairs of blocks; raw in {directory}/pairs.jsonl")
