"""Rows and charts of trials and settings, as the report shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.model import (
    PREDICTED,
    TURNS,
    BlameRecord,
    ConfirmRun,
    FloorResult,
    SoakRecord,
    TrialResult,
    TrialStatus,
    format_bytes,
    format_change,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
)
from autotune.results import charts
from autotune.results.words import STAGE_WORDS, describe_soak, describe_trial
from autotune.rundir import Store, node_effects
from autotune.stats import Estimate

STYLES = {"faster": "faster", "slower": "slower", "no difference": "same", "unresolved": "unresolved"}
LONGEST_TRACE_BLOCKS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart with its title and what it says in words."""

    title: str
    svg: str
    note: str = ""


def rank(result: TrialResult) -> tuple[int, float]:
    """Best first; then what changes nothing, then failures."""
    if result.failure is not None:
        return (2, result.number)
    if result.prediction is not None:
        return (0, result.prediction.ratio)
    if result.comparison is None:
        return (1, result.number)
    return (0, result.comparison.estimate.ratio)


def _style(result: TrialResult) -> str:
    if result.failure is not None:
        return "failed"
    return STYLES[result.comparison.verdict] if result.comparison is not None else "same"


def soak_lines(store: Store) -> list[str]:
    """What became of the winner's long runs."""
    return [f"soak of {s.settings}: {describe_soak(s)}" for s in store.of(SoakRecord)]


def cause_lines(store: Store) -> list[str]:
    """The smallest parts of sets that crashed or hung, as far as they were found."""
    return [
        f"trial {b.trial}: the {'cause' if b.is_minimal else 'smallest failing part found'} of the "
        f"{str(b.failure_kind).replace('_', ' ')} is {b.smallest} ({b.starts} starts to find it)"
        for b in store.of(BlameRecord)
    ]


def node_rows(store: Store) -> list[dict[str, str]]:
    """The reference on each node of a study by several workers, slowest first."""
    trials = store.of(TrialResult)
    return [
        {
            "worker": n.worker,
            "host": n.host,
            "step": format_seconds(n.step_s),
            "ratio": format_ratio(n.ratio),
            "range": format_interval(n.low, n.high),
            "trials": str(sum(t.by == n.worker for t in trials)),
            "state": "slow" if n.is_slow else "",
        }
        for n in node_effects(store.of(FloorResult), trials)
    ]


def trial_row(r: TrialResult) -> dict[str, str]:
    """A row of the table of trials; a model's figures carry their mark in the cell."""
    e = r.comparison.estimate if r.comparison else None
    w = r.worker
    row = {
        "trial": str(r.number),
        "settings": str(r.settings),
        "origin": r.origin,
        "ratio": format_ratio(e.ratio) if e and r.failure is None else "-",
        "interval": format_interval(e.low, e.high) if e and r.failure is None else "",
        "verdict": describe_trial(r) if r.failure or e is None else str(r.comparison.verdict) if r.comparison else "",
        "style": _style(r),
        "measured": _measured(r),
        "step": format_seconds(r.comparison.candidate_step_s) if r.comparison else "-",
        "energy": format_joules(r.comparison.energy.candidate_step_j) if r.comparison and r.comparison.energy else "-",
        "compile": format_seconds(w.compile_s) if w else "-",
        "memory": format_bytes(w.peak_bytes) if w else "-",
    }
    if (p := r.prediction) is not None and r.failure is None:
        row |= {
            "ratio": f"{format_ratio(p.ratio)} (predicted)",
            "verdict": PREDICTED if r.same_as is None else f"{PREDICTED}, the program of trial {r.same_as}",
            "style": "same",
            "step": f"{format_seconds(p.step_s)} (predicted)",
            "compile": format_seconds(p.compile_s),
            "memory": format_bytes(p.peak_bytes),
        }
    return row


def _measured(r: TrialResult) -> str:
    """How often a trial was compared, in its own unit: one sandwich is worth several pairs of blocks, and lasts so."""
    if r.comparison is None or r.failure is not None:
        return ""
    count = r.comparison.estimate.pair_count
    return f"{count} pairs" if r.comparison.mode == TURNS else f"{count} sandwiches"


def forest_rows(store: Store, ordered: Sequence[TrialResult]) -> list[charts.Interval]:
    """Rows of the forest plot: the noise floor on top, then all trials that did not fail."""
    floor = store.last(FloorResult)
    rows = []
    if floor is not None:
        e = floor.floor.estimate
        rows.append(_interval("the default against itself", "the noise floor", e, "floor"))
    for r in ordered:
        if r.failure is None and (r.comparison is not None or r.is_the_default):
            estimate = r.comparison.estimate if r.comparison else None
            label = f"{r.number}  {_short(str(r.settings))}"
            detail = f"trial {r.number}: {r.settings}: {describe_trial(r)}"
            rows.append(_interval(label, detail, estimate, _style(r)))
    return rows


def _interval(label: str, detail: str, estimate: Estimate | None, style: str) -> charts.Interval:
    """A row of the forest plot; without an estimate it is the default's own program."""
    if estimate is None:
        return charts.Interval(label=label, detail=detail, ratio=1.0, low=math.nan, high=math.nan, style=style)
    e = estimate
    return charts.Interval(label=label, detail=detail, ratio=e.ratio, low=e.low, high=e.high, style=style)


def _short(settings: str) -> str:
    for prefix in ("xla_gpu_", "xla_cpu_", "xla_"):
        settings = settings.replace(prefix, "")
    return settings


def history(results: Sequence[TrialResult]) -> str:
    """The chart of the search, in the order of trials."""
    points, failed = [], []
    best: list[tuple[float, float]] = []
    lowest = 1.0
    for r in results:
        detail = f"trial {r.number}: {r.settings}: {describe_trial(r)}"
        if r.failure is not None:
            failed.append(charts.Point(x=r.number, y=0.0, detail=detail, style="failed"))
            continue
        if r.comparison is None and not r.is_the_default:
            continue
        ratio = r.comparison.estimate.ratio if r.comparison else 1.0
        points.append(charts.Point(x=r.number, y=ratio, detail=detail, style=_style(r)))
        if ratio < lowest or not best:
            lowest = min(lowest, ratio)
            best.append((float(r.number), lowest))
    return charts.history(points, best, failed)


def traces(store: Store, results: Sequence[TrialResult]) -> list[Chart]:
    """The floor, the best trial and one pair of the proof, raw."""
    wanted: list[tuple[str, str]] = []
    floor = store.last(FloorResult)
    if floor is not None:
        wanted.append(("the default against itself (noise floor)", floor.directory))
    measured = [r for r in results if r.status is TrialStatus.MEASURED and r.directory]
    if measured:
        best = min(measured, key=rank)
        wanted.append((f"trial {best.number}, the best of the search", best.directory or ""))
    proofs = [r for r in store.of(ConfirmRun) if r.stage != "confirm" and r.directory and r.failure is None]
    if proofs:
        last = proofs[-1]
        title = f"{STAGE_WORDS.get(last.stage, last.stage)} of trial {last.trial}, pair of processes {last.repeat + 1}"
        wanted.append((title, last.directory or ""))
    found = []
    for title, directory in wanted:
        blocks: list[tuple[str, Sequence[float]]] = []
        for pair in store.pairs(directory):
            arms = [("reference", pair.reference_s), ("candidate", pair.candidate_s)]
            blocks += arms if pair.first == "reference" else arms[::-1]
        if blocks:
            svg = charts.traces(blocks[:LONGEST_TRACE_BLOCKS], y_format=format_seconds)
            found.append(
                Chart(
                    title=title,
                    svg=svg,
                    note=f"{len(blocks) // 2} pairs of blocks; raw in {directory}/pairs.jsonl",
                )
            )
    return found


# ---------------------------------------------------------------------- effects, resources


def effect_row(row: dict[Any, Any]) -> dict[str, str]:
    """A row of the table of effects, from one of `analysis.effects_frame`."""
    known = not pd.isna(row["ratio"])
    has_interval = known and not pd.isna(row["low"])
    style = "same"
    if has_interval and row["high"] < 1:
        style = "faster"
    elif has_interval and row["low"] > 1:
        style = "slower"
    return {
        "setting": f"{row['setting']}={row['value']}",
        "ratio": format_ratio(row["ratio"]) if known else "-",
        "interval": format_interval(row["low"], row["high"]) if has_interval else "",
        "change": format_change(row["ratio"]) if known and row["ratio"] != 1.0 else "",
        "how": row["how"],
        "trials": f"{row['trials']}" + (f" ({row['failed']} failed)" if row["failed"] else ""),
        "reason": row["reason"] or ("changes nothing in the program" if row["is_dead"] else ""),
        "style": style,
    }


def resource_charts(results: Sequence[TrialResult]) -> list[Chart]:
    """Step time against memory and against compile time, as far as trials recorded them."""
    found = []
    for title, x_title, show, pick in (
        ("Step time and memory", "peak memory", format_bytes, "peak_bytes"),
        ("Step time and compile time", "compile time", format_seconds, "compile_s"),
        ("Step time and energy", "energy of a step", format_joules, "energy"),
    ):
        points = []
        for r in results:
            value = _resource(r, pick)
            if r.comparison is None or r.failure is not None or not value:
                continue
            ratio = r.comparison.estimate.ratio
            detail = f"trial {r.number}: {format_ratio(ratio)}, {show(value)}: {r.settings}"
            points.append(charts.Point(x=float(value), y=ratio, detail=detail, style=_style(r)))
        if points:
            found.append(Chart(title=title, svg=charts.scatter(points, x_title=x_title, x_format=show)))
    return found


def _resource(r: TrialResult, pick: str) -> float | None:
    if pick == "energy":
        return r.comparison.energy.candidate_step_j if r.comparison and r.comparison.energy else None
    return getattr(r.worker, pick) if r.worker else None


def pareto_row(row: dict[Any, Any]) -> dict[str, str]:
    """A row of the table of trials that no other beats, from one of `analysis.pareto_frame`."""
    return {
        "trial": str(row["trial"]),
        "ratio": format_ratio(row["ratio"]),
        "memory": format_bytes(row["peak_bytes"]),
        "compile": format_seconds(row["compile_s"]),
        "energy": format_ratio(row["energy_ratio"]),
        "settings": row["settings"],
    }
