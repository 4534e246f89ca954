"""What a study by several objectives ends in: a front of sets, each proven in fresh processes, none of them the winner.

A set of the front is not minimised: a setting that does nothing for step time may be the one that saves memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune import objectives
from autotune.confirm import prove
from autotune.evaluate import Bench
from autotune.records import FinalistResult, Objective, TrialResult, WorkerReport
from autotune.stats import Estimate
from autotune.units import format_interval, format_ratio


def finalists(
    results: Sequence[TrialResult],
    wanted: Sequence[Objective],
    reference: WorkerReport,
    *,
    count: int,
    sesoi: float,
) -> list[TrialResult]:
    """The members of the search's front that are to be proven, at most `count`."""
    return objectives.choose(objectives.front(results, wanted, reference, tolerance=sesoi), count=count)


def prove_front(bench: Bench, members: Sequence[TrialResult]) -> tuple[list[FinalistResult], list[FinalistResult]]:
    """Measures the members in fresh pairs of processes.

    Returns:
        What was found of each, and those that are proven to belong to the front, fastest first.
    """
    spec = bench.spec
    sets = [(m.number, m.settings) for m in members]
    found = prove(bench, sets, stage="confirm", processes=spec.confirm.processes)
    return found, proven(found, spec.search.objectives, sesoi=spec.measure.smallest_effect)


def proven(found: Sequence[FinalistResult], wanted: Sequence[Objective], *, sesoi: float) -> list[FinalistResult]:
    """Finalists that surely better the default in an objective, and that no other finalist beats in all; fastest first.

    An objective is surely better if its interval, widened for all finalists and objectives, lies below 1 by more than
    the smallest effect of interest.
    """
    able = [(f, figures) for f in found if (figures := estimates(f, wanted)) is not None]
    able = [(f, e) for f, e in able if any(x.high < 1 - sesoi for x in e.values())]
    able.sort(key=lambda fe: fe[1][Objective.STEP_TIME].ratio)
    kept = objectives.unbeaten([[math.log(x.ratio) for x in e.values()] for _, e in able], tolerance=sesoi)
    return [f for (f, _), is_kept in zip(able, kept, strict=True) if is_kept]


def estimates(finalist: FinalistResult, wanted: Sequence[Objective]) -> dict[Objective, Estimate] | None:
    """Every objective of a finalist with its corrected interval; None if one is not known."""
    found = {Objective.STEP_TIME: finalist.corrected, **(finalist.others or {})}
    known = {o: e for o in wanted if (e := found.get(o)) is not None}
    return known if len(known) == len(wanted) and finalist.failure is None else None


def describe(finalist: FinalistResult, wanted: Sequence[Objective]) -> str:
    """A member with its ratios: ``trial 4 (a=1): step time 0.950 [0.940, 0.960], memory 1.200 [1.199, 1.201]``."""
    figures = (estimates(finalist, wanted) or {}).items()
    words = [f"{o.words} {format_ratio(e.ratio)} {format_interval(e.low, e.high)}" for o, e in figures]
    return f"trial {finalist.trial} ({finalist.settings}): {', '.join(words)}"


def sentence(members: Sequence[FinalistResult], wanted: Sequence[Objective], *, sesoi: float) -> str:
    """The conclusion of a study by several objectives: how far down each goes that surely goes down."""
    count = f"{len(members)} sets" if len(members) > 1 else "1 set"
    known = [(m.trial, figures) for m in members if (figures := estimates(m, wanted)) is not None]
    ends = []
    for objective in wanted:
        surely = [(f[objective].ratio, trial, f[objective]) for trial, f in known if f[objective].high < 1 - sesoi]
        if surely:
            _, trial, e = min(surely, key=lambda s: s[:2])
            ratio = f"{format_ratio(e.ratio)} {format_interval(e.low, e.high)}"
            ends.append(f"{objective.words} down to ratio {ratio} (trial {trial})")
    return f"a front of {count} by {', '.join(o.words for o in wanted)} is proven on this machine: {', '.join(ends)}"
