"""A proven set is measured once more: how much faster it is, in pairs that decide nothing, and whether alone as well.

Whatever stopped a proof was a lucky figure more often than an unlucky one, so its own estimate is too good, the more so
the harder the proof was. Pairs that are run after it, in a number settled by then, know nothing of that: their plain
interval holds the truth as often as it says, given that the set was proven.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from autotune.model import (
    ALONE,
    GAIN,
    INTERLEAVED,
    ConfirmRun,
    FinalistResult,
    FloorResult,
    Reestimate,
    alone_of,
    gain_of,
    ratios_of,
    reestimate,
    runs_after,
)  # fmt: skip
from autotune.stats import (
    ALONE_PAIRS,
    FIRST_LOOK,
    gain_pairs,
    look_alone,
)
from autotune.study.proof import run_pairs
from autotune.study.run import StudyRun
from autotune.study.tasks import PairTask


def measure_again(run: StudyRun, proven: FinalistResult) -> Reestimate:
    """The gain of a set that its proof calls faster, and what speaks against it."""
    run.begin_stage("final proof", "gain: more fresh pairs of processes, which decide nothing: how much faster is it?")
    gain, alone = measure_gain(run, proven), None
    if not gain.is_vetoed:
        alone = check_alone(run, proven)
    return reestimate(gain, alone, run.store.of(ConfirmRun))


def measure_gain(run: StudyRun, proven: FinalistResult) -> FinalistResult:
    """The gain of a proven set in fresh pairs of processes that decide nothing, unless they contradict the proof."""
    count = gain_pairs(proven.process_count)
    _run(run, proven, GAIN, lambda done, begun: begun < count, asked=count)
    return _record(run, gain_of(proven, run.store.of(ConfirmRun), min_effect=run.spec.measure.min_effect))


def check_alone(run: StudyRun, proven: FinalistResult) -> FinalistResult | None:
    """Runs of each arm with nothing beside it: do they agree? None where nothing runs in turns, or none are asked."""
    floor, asked = run.store.last(FloorResult), run.spec.confirm.alone
    if floor is None or floor.comparison.mode != INTERLEAVED or asked == 0:
        return None
    run.begin_stage("final proof", "alone: each arm with nothing beside it: does that agree?")
    most, turns = max(asked, FIRST_LOOK), ratios_of(_runs(run, proven, GAIN))

    def goes_on(done: list[ConfirmRun], begun: int) -> bool:
        if len(done) >= ALONE_PAIRS and not run.time.allows(lambda takes: takes.alone_s / ALONE_PAIRS, "alone"):
            return False
        return begun == len(done) and not look_alone(ratios_of(done), turns, most=most).stop

    _run(run, proven, ALONE, goes_on, asked=most)
    every, min_effect = run.store.of(ConfirmRun), run.spec.measure.min_effect
    return _record(run, alone_of(proven, every, most=asked, min_effect=min_effect))


def _run(
    run: StudyRun,
    proven: FinalistResult,
    stage: str,
    goes_on: Callable[[list[ConfirmRun], int], bool],
    *,
    asked: int,
) -> None:
    """Has pairs run while they are wanted and none fails; `goes_on` is given those done and how many were begun."""
    begun = len(_runs(run, proven, stage))

    def next_pair() -> PairTask | None:
        nonlocal begun
        done = _runs(run, proven, stage)
        if any(r.failure is not None for r in done) or not goes_on(done, begun):
            return None
        begun += 1
        free = next(n for n in itertools.count() if n not in {r.repeat for r in done} | taken)
        taken.add(free)
        return PairTask(stage=stage, settings=proven.settings, trial=proven.trial, repeat=free, is_alone=stage == ALONE)

    taken: set[int] = set()
    run_pairs(run, _runs(run, proven, stage), next_pair, asked=asked)


def _runs(run: StudyRun, proven: FinalistResult, stage: str) -> list[ConfirmRun]:
    return runs_after(proven, run.store.of(ConfirmRun), stage)


def _record(run: StudyRun, result: FinalistResult) -> FinalistResult:
    run.store.append_news(result)
    run.view.finalist(result)
    return result
