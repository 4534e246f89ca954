"""The front of a study by several objectives, as the report shows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from autotune.model import FloorResult, Objective, TrialResult, format_interval, format_ratio, trial_log_ratio
from autotune.results import charts
from autotune.results.report_parts import Chart
from autotune.results.words import describe_trial
from autotune.rundir import Store


def front_rows(store: Store, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of the table of the front, from `analysis.front_frame`, with one cell for each objective."""
    wanted = store.spec.search.objectives
    return [
        {
            "trial": str(row["trial"]),
            "state": "proven" if row["is_proven"] else "not measured again",
            "style": "faster" if row["is_proven"] else "unresolved",
            "settings": row["settings"],
            "cells": [_cell(row, objective) for objective in wanted],
        }
        for row in frame.to_dict("records")
    ]


def front_charts(store: Store, frame: pd.DataFrame, results: Sequence[TrialResult]) -> list[Chart]:
    """Step time over each other objective: the front with its intervals among all trials."""
    floor = store.last(FloorResult)
    if floor is None or frame.empty:
        return []
    members = set(frame["trial"])
    found = []
    for objective in store.spec.search.objectives:
        if objective is Objective.STEP_TIME:
            continue
        crosses = [
            charts.Cross(
                x=_ends(row, objective),
                y=_ends(row, Objective.STEP_TIME),
                label=str(row["trial"]),
                detail=f"trial {row['trial']}: {row['settings']}",
                style="faster" if row["is_proven"] else "unresolved",
            )
            for row in frame.to_dict("records")
        ]
        others = []
        for r in results:
            x, y = (trial_log_ratio(o, r, floor.reference) for o in (objective, Objective.STEP_TIME))
            if r.number not in members and x is not None and y is not None:
                detail = f"trial {r.number}: {r.settings}: {describe_trial(r)}"
                others.append(charts.Point(x=math.exp(x), y=math.exp(y), detail=detail, style="same"))
        svg = charts.plane(crosses, others, x_title=objective.words)
        found.append(Chart(title=f"Step time and {objective.words}", svg=svg))
    return found


def _cell(row: dict[Any, Any], objective: Objective) -> str:
    ratio, low, high = _ends(row, objective)
    return format_ratio(ratio) + ("" if math.isnan(low) else f" {format_interval(low, high)}")


def _ends(row: dict[Any, Any], objective: Objective) -> tuple[float, float, float]:
    return row[str(objective)], row[f"{objective}_low"], row[f"{objective}_high"]
