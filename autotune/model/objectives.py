"""What a study makes small besides step time: figures of one trial, and which trials no other beats in all of them.

Every figure is a ratio, candidate over reference, in logarithms: what halves memory weighs as much as what halves time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.model.errors import LaunchError
from autotune.model.measurement import EnergyUse, Objective, WorkerReport
from autotune.model.records import FinalistResult
from autotune.model.trial import TrialResult, TrialStatus
from autotune.model.units import format_interval, format_ratio
from autotune.stats import Estimate


def refuse_unknown_objectives(
    objectives: Sequence[Objective], reference: WorkerReport, energy: EnergyUse | None
) -> None:
    """Refuses objectives that the reference, once it ran, turned out not to tell.

    Raises:
        LaunchError: If there is one.
    """
    untold = [
        o
        for o in objectives
        if o is not Objective.STEP_TIME and told_log_ratio(o, reference, reference, energy) is None
    ]
    if untold:
        raise LaunchError(
            f"the reference must tell every objective of the study but does not tell {', '.join(untold)}; "
            "take it out of search.objectives"
            + (", or make blocks longer (measure.block_s)" if Objective.ENERGY in untold else "")
        )


def told_log_ratio(
    objective: Objective, candidate: WorkerReport, reference: WorkerReport, energy: EnergyUse | None
) -> float | None:
    """Log ratio of an objective other than step time, from what two processes say of themselves; None if unknown."""
    if objective is Objective.ENERGY:
        return math.log(energy.estimate.ratio) if energy is not None else None
    name = {Objective.MEMORY: "peak_bytes", Objective.COMPILE_TIME: "compile_s"}[objective]
    mine, base = getattr(candidate, name), getattr(reference, name)
    return math.log(mine / base) if mine and base else None


def trial_log_ratio(objective: Objective, result: TrialResult, reference: WorkerReport) -> float | None:
    """Log ratio of one objective of a trial; None if it failed or the figure is not known."""
    if result.failure is not None:
        return None
    if result.is_the_default and objective is not Objective.COMPILE_TIME:
        return 0.0  # one program takes one time, one memory, one energy
    if objective is Objective.STEP_TIME:
        return math.log(result.comparison.estimate.ratio) if result.comparison is not None else None
    energy = result.comparison.energy if result.comparison is not None else None
    return told_log_ratio(objective, result.worker, reference, energy) if result.worker is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A trial with its log ratios, one for each objective of the study."""

    result: TrialResult
    values: tuple[float, ...]


def front_points(
    results: Sequence[TrialResult], objectives: Sequence[Objective], reference: WorkerReport, *, tolerance: float
) -> list[FrontPoint]:
    """The trials that better the default in something and that no other trial beats in everything, fastest first.

    Args:
        results: All trials; those that failed, or lack a figure, are left out.
        objectives: Of the study.
        reference: What ratios are taken over.
        tolerance: Differences of log ratios below this do not count.
    """
    points = []
    for result in results:
        values = [trial_log_ratio(o, result, reference) for o in objectives]
        if result.status is not TrialStatus.SAME_SET and None not in values:
            points.append(FrontPoint(result=result, values=tuple(v for v in values if v is not None)))
    # Of sets that are alike in all, the one that needs the fewest settings.
    points.sort(key=lambda p: (_snapped(p.values, tolerance), len(p.result.settings), p.result.number))
    kept = unbeaten([p.values for p in points], tolerance=tolerance)
    return [p for p, is_kept in zip(points, kept, strict=True) if is_kept]


def unbeaten(points: Sequence[Sequence[float]], *, tolerance: float) -> list[bool]:
    """For each point whether it is below the origin somewhere and no other is as low everywhere and lower somewhere.

    Differences are told on a grid of `tolerance`; of points that are equal on it the first counts.
    """
    snapped = [_snapped(p, tolerance) for p in points]
    kept: dict[int, tuple[int, ...]] = {}
    for i in sorted(range(len(snapped)), key=lambda i: (snapped[i], i)):  # so that nobody is beaten by a later one
        mine = snapped[i]
        beaten = any(all(a <= b for a, b in zip(other, mine, strict=True)) for other in kept.values())
        if min(mine) < 0 and not beaten:
            kept[i] = mine
    return [i in kept for i in range(len(snapped))]


def _snapped(values: Sequence[float], tolerance: float) -> tuple[int, ...]:
    return tuple(round(v / tolerance) for v in values)


def choose_members(points: Sequence[FrontPoint], *, count: int) -> list[TrialResult]:
    """At most so many members of a front: the best of each objective, then always the one farthest from those."""
    if not points:
        return []
    chosen: list[FrontPoint] = []
    for objective in range(len(points[0].values)):
        # Of equals in one, that which is best in all together; the grain is far below any effect of interest.
        best = min(points, key=lambda p: (round(p.values[objective], 4), sum(p.values), p.result.number))
        if best not in chosen:
            chosen.append(best)
    rest = [p for p in points if p not in chosen]
    while rest and len(chosen) < count:
        chosen.append(max(rest, key=lambda p: (min(math.dist(p.values, c.values) for c in chosen), -p.result.number)))
        rest.remove(chosen[-1])
    return [p.result for p in chosen[:count]]


def proven_front(found: Sequence[FinalistResult], wanted: Sequence[Objective], *, sesoi: float) -> list[FinalistResult]:
    """Finalists that surely better the default in an objective, and that no other finalist beats in all; fastest first.

    An objective is surely better if its interval, widened for all finalists and objectives, lies below 1 by more than
    the smallest effect of interest.
    """
    able = [(f, figures) for f in found if (figures := front_estimates(f, wanted)) is not None]
    able = [(f, e) for f, e in able if any(x.high < 1 - sesoi for x in e.values())]
    able.sort(key=lambda fe: fe[1][Objective.STEP_TIME].ratio)
    kept = unbeaten([[math.log(x.ratio) for x in e.values()] for _, e in able], tolerance=sesoi)
    return [f for (f, _), is_kept in zip(able, kept, strict=True) if is_kept]


def front_estimates(finalist: FinalistResult, wanted: Sequence[Objective]) -> dict[Objective, Estimate] | None:
    """Every objective of a finalist with its corrected interval; None if one is not known, or the set is no winner."""
    found = {Objective.STEP_TIME: finalist.corrected, **(finalist.others or {})}
    known = {o: e for o in wanted if (e := found.get(o)) is not None}
    return known if len(known) == len(wanted) and (finalist.failure or finalist.veto) is None else None


def describe_member(finalist: FinalistResult, wanted: Sequence[Objective]) -> str:
    """A member with its ratios: ``trial 4 (a=1): step time 0.950 [0.940, 0.960], memory 1.200 [1.199, 1.201]``."""
    figures = (front_estimates(finalist, wanted) or {}).items()
    words = [f"{o.words} {format_ratio(e.ratio)} {format_interval(e.low, e.high)}" for o, e in figures]
    return f"trial {finalist.trial} ({finalist.settings}): {', '.join(words)}"
