"""A proven set is measured once more: how much faster it is, in pairs that decide nothing, and whether alone as well.

Whatever stopped a proof was a lucky figure more often than an unlucky one, so its own estimate is too good, the more so
the harder the proof was. Pairs that are run after it, in a number settled by then, know nothing of that: their plain
interval holds the truth as often as it says, given that the set was proven.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from autotune.model import (
    TURNS,
    ConfirmRun,
    FinalistResult,
    FloorResult,
    OnceMore,
    format_change,
    plain_estimate,
    ratios_of,
    reported_gain,
    veto_of,
)
from autotune.results import describe_finalist
from autotune.stats import ALONE_PAIRS, FIRST_LOOK, Verdict, gain_pairs, judge, look_alone
from autotune.study.proof import run_pairs
from autotune.study.run import StudyRun
from autotune.study.units import PairUnit

GAIN, ALONE = "gain", "alone"


def measure_once_more(run: StudyRun, proven: FinalistResult) -> OnceMore:
    """The gain of a set that its proof calls faster, and what speaks against it.

    Of a proof by an older version that was all there was: no gain, and nothing against it.
    """
    if proven.goes_on is None:
        return OnceMore()
    run.begin_stage("final proof", "gain: more fresh pairs of processes, which decide nothing: how much faster is it?")
    gain, alone = measure_gain(run, proven), None
    if not gain.is_vetoed:
        alone = check_alone(run, proven)
    last = alone or gain
    every = [r for r in run.store.of(ConfirmRun) if r.settings == proven.settings and r.against is None]
    estimate = reported_gain(gain, alone, every)
    if last.is_vetoed:
        return OnceMore(estimate=estimate, objection=last.veto or describe_finalist(last))
    counts = alone is not None and estimate != reported_gain(gain, None, every)
    return OnceMore(
        estimate=estimate,
        alone=alone.process_count if alone is not None and counts else 0,
        objection=veto_of(every, gain.estimate),
    )


def measure_gain(run: StudyRun, proven: FinalistResult) -> FinalistResult:
    """The gain of a proven set in fresh pairs of processes that decide nothing, unless they contradict the proof."""
    count, sesoi = gain_pairs(proven.process_count), run.spec.measure.smallest_effect
    _run(run, proven, GAIN, lambda done, begun: begun < count, asked=count)
    runs = _runs(run, proven, GAIN)
    estimate = plain_estimate(runs)
    veto = None
    if estimate is not None and estimate.low > 1.0 - sesoi:
        veto = f"{len(runs)} more fresh pairs of processes contradict that: {format_change(estimate.ratio)}"
    return _record(run, proven, GAIN, runs, veto=veto, reason="these pairs decide nothing")


def check_alone(run: StudyRun, proven: FinalistResult) -> FinalistResult | None:
    """Runs of each arm with nothing beside it: do they agree? None where nothing runs in turns, or none are asked."""
    floor, most = run.store.last(FloorResult), run.spec.confirm.alone
    if floor is None or floor.comparison.mode != TURNS or most == 0:
        return None
    run.begin_stage("final proof", "alone: each arm with nothing beside it: does that agree?")
    most, beside = max(most, FIRST_LOOK), _runs(run, proven, GAIN)
    turns = ratios_of(beside)

    def goes_on(done: list[ConfirmRun], begun: int) -> bool:
        if len(done) >= ALONE_PAIRS and not run.time.allows(lambda takes: takes.alone_s / ALONE_PAIRS, "alone"):
            return False
        return begun == len(done) and not look_alone(ratios_of(done), turns, most=most).stop

    _run(run, proven, ALONE, goes_on, asked=most)
    runs = _runs(run, proven, ALONE)
    found = look_alone(ratios_of(runs), turns, most=most)
    alone, in_turns = plain_estimate(runs), plain_estimate(beside)
    veto = None
    if found.is_apart and alone is not None and in_turns is not None:
        veto = (
            "what idles beside an arm, or ran before it, changes its time: alone the set is "
            f"{format_change(alone.ratio)} than the default, in turns {format_change(in_turns.ratio)}; "
            '`measure.mode = "sandwich"` measures everything alone'
        )
    return _record(run, proven, ALONE, runs, used=found.used, veto=veto, reason=found.reason)


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

    def next_pair() -> PairUnit | None:
        nonlocal begun
        done = _runs(run, proven, stage)
        if any(r.failure is not None for r in done) or not goes_on(done, begun):
            return None
        begun += 1
        free = next(n for n in itertools.count() if n not in {r.repeat for r in done} | taken)
        taken.add(free)
        return PairUnit(stage=stage, settings=proven.settings, trial=proven.trial, repeat=free, is_alone=stage == ALONE)

    taken: set[int] = set()
    run_pairs(run, _runs(run, proven, stage), next_pair, asked=asked)


def _runs(run: StudyRun, proven: FinalistResult, stage: str) -> list[ConfirmRun]:
    mine = [r for r in run.store.of(ConfirmRun) if r.stage == stage and r.settings == proven.settings]
    return sorted(mine, key=lambda r: r.repeat)


def _record(
    run: StudyRun,
    proven: FinalistResult,
    stage: str,
    runs: list[ConfirmRun],
    *,
    veto: str | None,
    reason: str,
    used: int | None = None,
) -> FinalistResult:
    """The figures of so many of the pairs; one that failed speaks against the set, whichever it is."""
    failure = next((r.failure for r in runs if r.failure is not None), None)
    counted = [r for r in runs if r.failure is None][:used]
    estimate = plain_estimate(counted)
    verdict = judge(estimate, sesoi=run.spec.measure.smallest_effect) if estimate is not None else Verdict.UNRESOLVED
    result = FinalistResult(
        stage=stage, trial=proven.trial, settings=proven.settings, estimate=estimate, corrected=estimate,
        verdict=verdict if failure is None else Verdict.UNRESOLVED, process_count=len(counted), failure=failure,
        work=proven.work, goes_on=failure is None and veto is None, reason=reason, veto=veto,
    )  # fmt: skip
    run.store.append_news(result)
    run.view.finalist(result)
    return result
