"""A winner against the default once more, and nothing else: does it still hold after an upgrade?"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from autotune import environment
from autotune.confirm import prove
from autotune.evaluate import Bench
from autotune.floor import measure_floor
from autotune.records import (
    ConclusionRecord,
    FinalistResult,
    Objective,
    Outcome,
)
from autotune.session import session
from autotune.stats import Estimate, SequentialPlan, Verdict
from autotune.told import View
from autotune.units import format_interval, format_ratio
from autotune.view import describe_finalist
from autotune.winner import Winner

STAGE = "recheck"


def recheck(bench: Bench, winner: Winner, *, view: View, command: Sequence[str] = ()) -> ConclusionRecord:
    """Measures a winner in fresh pairs of processes against the default; the run directory then is its new proof.

    Goes on where it was stopped: the floor and pairs of processes already recorded are not run again.

    Args:
        bench: Over a run directory of the same study, with the same workload, baseline and measuring.
        winner: What was proven before.
        view: Told what happens.
        command: How the driver was called, for the record.

    Raises:
        LaunchError: If the default itself cannot run.
        RunDirectoryError: If the run directory cannot be written.
    """
    store = bench.store
    with session(store, trials=0, command=command), contextlib.closing(bench):
        plan = SequentialPlan(cap=store.spec.measure.pairs_cap)
        floor = measure_floor(store, bench, plan, view)
        bench.loss_tolerance = floor.loss_tolerance
        bench.close()
        view.stage(STAGE, f"{winner.settings} in {store.spec.confirm.processes} fresh pairs of processes")
        sets = [(0, winner.settings)]
        result = prove(bench, sets, stage=STAGE, processes=store.spec.confirm.processes)[0]
        view.finalist(result)
        conclusion = _conclusion(winner, result, sesoi=store.spec.measure.smallest_effect)
        store.append(conclusion)
        return conclusion


def _conclusion(winner: Winner, result: FinalistResult, *, sesoi: float) -> ConclusionRecord:
    holds = _holds(winner, result, sesoi=sesoi)
    return ConclusionRecord(
        outcome=Outcome.WINNER if holds else Outcome.NOTHING_BEATS_THE_DEFAULT,
        sentence=_sentence(winner, result, holds=holds),
        settings=winner.settings if holds else None,
        estimate=result.estimate if holds else None,
        trial_count=0,
        ended=environment.now(),
        provenance=environment.provenance(),
    )


def _holds(winner: Winner, result: FinalistResult, *, sesoi: float) -> bool:
    """Whether a set is still better in all in which it was proven better; for a winner that is its step time."""
    if winner.others is None:
        return result.verdict is Verdict.FASTER
    before = {Objective.STEP_TIME: winner.estimate, **winner.others}
    now = {Objective.STEP_TIME: result.corrected, **(result.others or {})}
    better = [o for o, e in before.items() if e is not None and e.high < 1 - sesoi]
    return bool(better) and all((e := now.get(o)) is not None and e.high < 1 - sesoi for o in better)


def _sentence(winner: Winner, result: FinalistResult, *, holds: bool) -> str:
    """What became of a winner, with both figures."""
    before = _figures(winner.estimate, winner.others)
    if result.failure is not None:
        return f"{winner.settings} does not run any more: {describe_finalist(result)}; it was {before}"
    figures = _figures(result.estimate, result.others)
    figures = f"{figures} over {result.process_count} fresh pairs of processes, it was {before}"
    if winner.others is not None:
        words = "still holds" if holds else "does not hold any more in all in which it was better than the default"
        return f"{winner.settings} {words}: step time ratio {figures}"
    verdicts = {
        Verdict.FASTER: "still holds",
        Verdict.SLOWER: "does not hold any more: it is slower than the default",
        Verdict.NO_DIFFERENCE: "does not hold any more: it is no faster than the default",
        Verdict.UNRESOLVED: "is not proven any more: the difference is not resolved",
    }
    return f"{winner.settings} {verdicts[result.verdict]}: step time ratio {figures}"


def _figures(estimate: Estimate | None, others: Mapping[Objective, Estimate] | None) -> str:
    if estimate is None:
        return "not measured"
    named = [("", estimate), *((f"{o.words} ", e) for o, e in (others or {}).items())]
    return ", ".join(f"{name}{format_ratio(e.ratio)} {format_interval(e.low, e.high)}" for name, e in named)
