"""Sets prove themselves in fresh processes: the best of many noisy estimates is too good to be true.

So the search's own figures decide nothing here: a set is measured in several fresh pairs of processes, and the interval
is over processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from autotune.model import (
    ConfirmRun,
    EnergyUse,
    FinalistResult,
    FlagSet,
    Objective,
    WorkerReport,
    told_log_ratio,
)
from autotune.rundir import MOST_DEATHS, Store, Unit, attempts, work_off
from autotune.stats import Estimate, Verdict, confirm, judge, processes_to_settle
from autotune.study.run import StudyRun
from autotune.study.search import node_lost
from autotune.workers import WorkerFailed


def prove(run: StudyRun, sets: Sequence[tuple[int, FlagSet]], *, stage: str) -> list[FinalistResult]:
    """Measures some sets against the baseline, each in fresh pairs of processes, and judges them together.

    The sets take turns, so that a slow hour of the machine is shared by all. Pairs already recorded are not run again.

    Args:
        run: The study.
        sets: Trial number and settings of each.
        stage: Under which name the runs are recorded; runs of another stage are never used.
    """
    processes = run.spec.confirm.processes

    def unit(trial: int, settings: FlagSet, repeat: int) -> Unit:
        key = f"{stage}-{settings.digest}-{repeat:02d}"

        def is_done() -> bool:
            return any(r.failure is not None or r.repeat == repeat for r in _runs(run.store, stage, settings))

        def do(attempt: int) -> None:
            base = ConfirmRun(stage=stage, settings=settings, trial=trial, repeat=repeat, pair_count=0)
            found = _run_pair(run, base, key, attempt)
            if run.store.claims.commit(key, attempt):
                run.store.append(found)
                run.view.proof(found, processes)

        return Unit(key, is_done, do)

    for _, settings in sets:
        for known in _runs(run.store, stage, settings):
            run.view.proof(known, processes)
    units = [unit(trial, settings, repeat) for repeat in range(processes) for trial, settings in sets]
    work_off(run.store.claims, units, waiting=run.store.watch.waiting)
    family = len(sets) * len(run.spec.search.objectives)
    results = []
    for trial, settings in sets:
        result = _judge(run, trial, settings, stage, family=family)
        run.store.append_once(result, key=f"judge-{stage}-{settings.digest}-{result.process_count}-{len(sets)}")
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
    verdict = Verdict.UNRESOLVED
    others: dict[Objective, Estimate] = {}
    if found is not None:
        verdict = judge(found.corrected, sesoi=run.spec.measure.smallest_effect)
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
    )


def _run_pair(run: StudyRun, base: ConfirmRun, name: str, attempt: int) -> ConfirmRun:
    """One fresh pair of processes: its figures, or its failure."""
    started = time.monotonic()
    folder = run.store.folder("confirm", attempts(name, attempt))
    update: dict[str, object] = {"directory": run.store.relative(folder)}
    if (deaths := run.store.claims.deaths(name)) >= MOST_DEATHS:
        update["failure"] = node_lost(deaths)
    else:
        try:
            found = run.comparer.fresh_pair(base.settings, folder, name=name, inspect=run.bench.check_loss)
        except WorkerFailed as error:
            update["failure"] = error.failure
        else:
            if (figures := found.comparison) is None:
                update["failure"] = found.settled
            else:
                update |= {
                    "log_ratio": math.log(figures.estimate.ratio),
                    "pair_count": figures.pair_count,
                    "reference_step_s": figures.reference_step_s,
                    "candidate_step_s": figures.candidate_step_s,
                    "energy": figures.energy,
                    "others": _others(run, found.reference, found.candidate, figures.energy),
                }
    update["duration_s"] = round(time.monotonic() - started, 3)
    return base.model_copy(update=update)


def _others(
    run: StudyRun, reference: WorkerReport, candidate: WorkerReport, energy: EnergyUse | None
) -> dict[Objective, float] | None:
    """Log ratios of the study's objectives other than step time, as far as this pair of processes tells them."""
    wanted = [o for o in run.spec.search.objectives if o is not Objective.STEP_TIME]
    found = {o: told_log_ratio(o, candidate, reference, energy) for o in wanted}
    return {o: v for o, v in found.items() if v is not None} or None


def more_processes(store: Store) -> tuple[FinalistResult, int] | None:
    """The most promising set that its proof left unresolved, and how many pairs of processes may settle it."""
    found: list[tuple[FinalistResult, int]] = []
    for result in store.of(FinalistResult):
        if result.verdict is Verdict.UNRESOLVED and result.failure is None and result.process_count >= 2:
            ratios = [r.log_ratio for r in _runs(store, result.stage, result.settings) if r.log_ratio is not None]
            if count := processes_to_settle(ratios, sesoi=store.spec.measure.smallest_effect):
                found.append((result, max(count, len(ratios) + 1)))
    return min(found, key=lambda f: f[1], default=None)
