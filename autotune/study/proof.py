"""Sets prove themselves in fresh processes: the best of many noisy estimates is too good to be true.

So the search's own figures decide nothing here: a set is measured in several fresh pairs of processes, and the interval
is over processes.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.model import ConfirmRun, FinalistResult, FlagSet, Objective, veto_of
from autotune.rundir import Store
from autotune.stats import Estimate, Verdict, confirm, judge, processes_to_settle
from autotune.study.run import StudyRun
from autotune.study.units import Job, PairUnit


def prove(
    run: StudyRun, sets: Sequence[tuple[int, FlagSet]], *, stage: str, against: FlagSet | None = None
) -> list[FinalistResult]:
    """Measures some sets against the baseline, each in fresh pairs of processes, and judges them together.

    The sets take turns, so that a slow hour of the machine is shared by all. Pairs already recorded are not run again.

    Args:
        run: The study.
        sets: Trial number and settings of each.
        stage: Under which name the runs are recorded; runs of another stage are never used.
        against: What to compare with instead of the baseline alone.
    """
    processes, store = run.spec.confirm.processes, run.store

    def record(found: ConfirmRun) -> None:
        store.append(found)
        run.view.proof(found, processes)

    def next_pair() -> Job | None:
        while todo:
            repeat, trial, settings = todo.pop(0)
            if not any(r.failure is not None or r.repeat == repeat for r in _runs(store, stage, settings)):
                name = f"{stage}-{settings.digest}-{repeat:02d}"
                unit = PairUnit(stage=stage, settings=settings, trial=trial, repeat=repeat, against=against)
                return Job(unit, ("confirm", name), name, record)
        return None

    for _, settings in sets:
        for known in _runs(store, stage, settings):
            run.view.proof(known, processes)
    todo = [(repeat, trial, settings) for repeat in range(processes) for trial, settings in sets]
    run.lanes.work(next_pair)
    family = len(sets) * len(run.spec.search.objectives)
    results = []
    for trial, settings in sets:
        result = _judge(run, trial, settings, stage, family=family)
        store.append_news(result)
        run.view.finalist(result)
        results.append(result)
    return results


def _runs(store: Store, stage: str, settings: FlagSet) -> list[ConfirmRun]:
    return [r for r in store.of(ConfirmRun) if r.stage == stage and r.settings == settings]


def _judge(run: StudyRun, trial: int, settings: FlagSet, stage: str, *, family: int) -> FinalistResult:
    """The verdict over all pairs of processes; `family` intervals (sets times objectives) must hold together."""
    runs = _runs(run.store, stage, settings)
    failure = next((r.failure for r in runs if r.failure is not None), None)
    ratios = [r.log_ratio for r in runs if r.log_ratio is not None]
    found = confirm(ratios, family=family) if failure is None and len(ratios) >= 2 else None
    verdict, veto = Verdict.UNRESOLVED, None
    others: dict[Objective, Estimate] = {}
    if found is not None:
        verdict = judge(found.corrected, sesoi=run.spec.measure.smallest_effect)
        veto = veto_of(runs, found.corrected) if verdict is Verdict.FASTER else None
        verdict = Verdict.UNRESOLVED if veto is not None else verdict
        for objective in run.spec.search.objectives:
            told = [r.others[objective] for r in runs if r.others is not None and objective in r.others]
            if len(told) >= 2:
                others[objective] = confirm(told, family=family).corrected
    return FinalistResult(
        stage=stage,
        trial=trial,
        settings=settings,
        estimate=found.ordinary if found else None,
        corrected=found.corrected if found else None,
        verdict=verdict,
        process_count=len(ratios),
        failure=failure,
        others=others or None,
        work=next((r.work for r in runs if r.work is not None), None),
        veto=veto,
    )


def more_processes(store: Store) -> tuple[FinalistResult, int] | None:
    """The most promising set that its proof left unresolved, and how many pairs of processes may settle it."""
    found: list[tuple[FinalistResult, int]] = []
    for result in store.of(FinalistResult):
        if (
            result.verdict is Verdict.UNRESOLVED
            and (result.failure or result.veto) is None
            and result.process_count >= 2
        ):
            ratios = [r.log_ratio for r in _runs(store, result.stage, result.settings) if r.log_ratio is not None]
            if count := processes_to_settle(ratios, sesoi=store.spec.measure.smallest_effect):
                found.append((result, max(count, len(ratios) + 1)))
    return min(found, key=lambda f: f[1], default=None)
