"""Finalists prove themselves: fresh processes, one setting left out at a time, and a second, independent proof.

The best of many noisy estimates is too good to be true. So the search's own figures decide nothing here: a finalist is
measured in several fresh pairs of processes, and the interval is over processes. What is left after minimising is
measured once more in processes of its own, and that figure, which nothing was selected by, is the one reported.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autotune import measure, objectives, sandwich
from autotune.claims import MOST_DEATHS, Unit, attempts, work_off
from autotune.evaluate import Bench, node_lost
from autotune.flags import FlagSet
from autotune.launch.base import Worker, WorkerFailed
from autotune.records import (
    AblationResult,
    Comparison,
    ConfirmRun,
    EnergyUse,
    Failure,
    FailureKind,
    FinalistResult,
    Objective,
    Pair,
    TrialResult,
    TrialStatus,
    WorkerReport,
)
from autotune.stats import Estimate, SequentialPlan, Verdict, confirm, estimate_pairs, judge, processes_to_settle
from autotune.store import Store


def choose_finalists(results: Sequence[TrialResult], *, count: int, sesoi: float) -> list[TrialResult]:
    """The most promising measured trials: those whose interval leaves room for an effect, best first."""
    promising = [
        r
        for r in results
        if r.status is TrialStatus.MEASURED and r.comparison is not None and r.comparison.estimate.low < 1 - sesoi
        and r.comparison.estimate.ratio < 1
    ]  # fmt: skip
    return sorted(promising, key=lambda r: r.comparison.estimate.ratio if r.comparison else math.inf)[:count]


def prove(bench: Bench, sets: Sequence[tuple[int, FlagSet]], *, stage: str, processes: int) -> list[FinalistResult]:
    """Measures some sets against the baseline, each in fresh pairs of processes, and judges them together.

    The sets take turns, so that a slow hour of the machine is shared by all. Pairs already recorded are not run again.

    Args:
        bench: Where.
        sets: Trial number and settings of each.
        stage: Under which name the runs are recorded; runs of another stage are never used.
        processes: Fresh pairs of processes for each set.
    """

    def failed(settings: FlagSet) -> Failure | None:
        runs = bench.store.of(ConfirmRun)
        return next((r.failure for r in runs if r.stage == stage and r.settings == settings and r.failure), None)

    def unit(trial: int, settings: FlagSet, repeat: int) -> Unit:
        key = f"{stage}-{settings.digest}-{repeat:02d}"

        def do(attempt: int) -> None:
            run = _run_pair(bench, trial, settings, stage, repeat, key, attempt)
            if run is not None:
                bench.watcher.proof(run, processes)

        return Unit(
            key, lambda: failed(settings) is not None or _recorded(bench, stage, settings, repeat) is not None, do
        )

    for _, settings in sets:
        for repeat in range(processes):
            if (run := _recorded(bench, stage, settings, repeat)) is not None:
                bench.watcher.proof(run, processes)
    units = [unit(trial, settings, repeat) for repeat in range(processes) for trial, settings in sets]
    work_off(bench.store.claims, units, waiting=bench.store.watch.waiting)
    results = []
    for trial, settings in sets:
        result = _judge(bench, trial, settings, stage, family=family_size(bench, sets), failure=failed(settings))
        bench.store.append_once(result, key=f"judge-{stage}-{settings.digest}-{result.process_count}-{len(sets)}")
        results.append(result)
    return results


def family_size(bench: Bench, sets: Sequence[tuple[int, FlagSet]]) -> int:
    """How many intervals must hold together: one for each set and objective."""
    return len(sets) * len(bench.spec.search.objectives)


def _judge(
    bench: Bench, trial: int, settings: FlagSet, stage: str, *, family: int, failure: Failure | None
) -> FinalistResult:
    runs = [r for r in bench.store.of(ConfirmRun) if r.stage == stage and r.settings == settings]
    ratios = [r.log_ratio for r in runs if r.log_ratio is not None]
    found = confirm(ratios, family=family) if failure is None and len(ratios) >= 2 else None
    verdict = Verdict.UNRESOLVED
    if found is not None:
        verdict = judge(found.corrected, sesoi=bench.spec.measure.smallest_effect)
    return FinalistResult(
        stage=stage,
        trial=trial,
        settings=settings,
        estimate=found.ordinary if found else None,
        corrected=found.corrected if found else None,
        verdict=verdict,
        process_count=len(ratios),
        failure=failure,
        others=_judge_others(bench, runs, family=family) if found else None,
    )


def _judge_others(bench: Bench, runs: Sequence[ConfirmRun], *, family: int) -> dict[Objective, Estimate] | None:
    """Ratios of the objectives other than step time, each over the fresh pairs of processes that told it."""
    found = {}
    for objective in bench.spec.search.objectives:
        ratios = [r.others[objective] for r in runs if r.others is not None and objective in r.others]
        if len(ratios) >= 2:
            found[objective] = confirm(ratios, family=family).corrected
    return found or None


def _recorded(bench: Bench, stage: str, settings: FlagSet, repeat: int) -> ConfirmRun | None:
    for run in bench.store.of(ConfirmRun):
        if run.stage == stage and run.settings == settings and run.repeat == repeat:
            return run
    return None


def _run_pair(
    bench: Bench, trial: int, settings: FlagSet, stage: str, repeat: int, name: str, attempt: int
) -> ConfirmRun | None:
    """One fresh pair of processes: recorded, failed or not; None if another worker took it over meanwhile."""
    started = time.monotonic()
    folder = bench.store.folder("confirm", attempts(name, attempt))
    base = ConfirmRun(
        stage=stage,
        settings=settings,
        trial=trial,
        repeat=repeat,
        log_ratio=None,
        pair_count=0,
        directory=bench.store.relative(folder),
    )
    alone = bench.mode == sandwich.MODE
    while True:
        if (deaths := bench.store.claims.deaths(name)) >= MOST_DEATHS:
            run = base.model_copy(update={"failure": node_lost(deaths)})
            break
        try:
            update = (_pair_alone if alone else _pair_in_turns)(bench, settings, folder, name)
        except sandwich.ReferenceFailed as error:
            bench.lose_reference(str(error))
            continue
        except WorkerFailed as error:
            if not alone and bench.must_run_alone(error.failure):
                alone = True
                continue
            update = {"failure": error.failure}
        run = base.model_copy(update=update)
        break
    run = run.model_copy(update={"duration_s": round(time.monotonic() - started, 3)})
    if not bench.store.claims.commit(name, attempt):
        return None
    bench.store.append(run)
    return run


def _pair_in_turns(bench: Bench, settings: FlagSet, folder: Path, name: str) -> dict[str, object]:
    """Two fresh processes side by side; what a `ConfirmRun` says of them."""
    try:
        reference, candidate = start_both(bench, folder, FlagSet(), settings)
    except WorkerFailed as error:
        raise (sandwich.ReferenceFailed(error) if _is_of_reference(error) else error) from error
    try:
        if wrong := bench.check_loss(reference.report, candidate.report):
            return {"failure": Failure(kind=FailureKind.WRONG_LOSS, message=wrong, phase="check")}
        stop = measure.fixed(bench.spec.confirm.pairs, sesoi=bench.spec.measure.smallest_effect)
        pairs, _ = bench.run_turns(reference, candidate, folder, name=name, stop=stop)
        reports = (reference.report, candidate.report)
    except WorkerFailed as error:
        raise (sandwich.ReferenceFailed(error) if _is_of_reference(error) else error) from error
    finally:
        candidate.close()
        reference.close()
    return _figures(bench, pairs, *reports)


def _is_of_reference(error: WorkerFailed) -> bool:
    """Whether it was the reference that failed; out of memory is nobody's fault where two share a device."""
    log = error.failure.log
    return (
        log is not None and Path(log).parent.name == "reference" and error.failure.kind is not FailureKind.OUT_OF_MEMORY
    )


def _pair_alone(bench: Bench, settings: FlagSet, folder: Path, name: str) -> dict[str, object]:
    """Two fresh processes one after the other; what a `ConfirmRun` says of them."""
    wrong: list[str] = []
    reports: list[WorkerReport] = []

    def inspect(reference: WorkerReport, candidate: WorkerReport) -> None:
        wrong.extend(filter(None, [bench.check_loss(reference, candidate)]))
        reports.extend((reference, candidate))

    pair = sandwich.run_fresh_pair(bench, settings, folder, name=name, inspect=inspect)
    if wrong:
        return {"failure": Failure(kind=FailureKind.WRONG_LOSS, message=wrong[0], phase="check")}
    return _figures(bench, [pair], *reports)


def _figures(
    bench: Bench, pairs: Sequence[Pair], reference: WorkerReport, candidate: WorkerReport
) -> dict[str, object]:
    estimate = estimate_pairs([measure.log_ratio(p) for p in pairs])
    sesoi = bench.spec.measure.smallest_effect
    found = measure.compare(pairs, estimate, sesoi=sesoi, stopped="all pairs run", meter=bench.meter)
    return {
        "log_ratio": math.log(found.estimate.ratio),
        "pair_count": found.pair_count,
        "reference_step_s": found.reference_step_s,
        "candidate_step_s": found.candidate_step_s,
        "energy": found.energy,
        "others": _others(bench, reference, candidate, found.energy),
    }


def _others(
    bench: Bench, reference: WorkerReport, candidate: WorkerReport, energy: EnergyUse | None
) -> dict[Objective, float] | None:
    """Log ratios of the study's objectives other than step time, as far as this pair of processes tells them."""
    wanted = [o for o in bench.spec.search.objectives if o is not Objective.STEP_TIME]
    found = {o: objectives.told(o, candidate, reference, energy) for o in wanted}
    return {o: v for o, v in found.items() if v is not None} or None


def start_both(bench: Bench, folder: Path, reference: FlagSet, candidate: FlagSet) -> tuple[Worker, Worker]:
    """Starts two workers at once: starting is not measured, and most of a short run.

    Raises:
        WorkerFailed: If the candidate failed; a reference that failed is tried again and then is the study's error.
    """
    beside = bench.store.folder(*Path(bench.store.relative(folder)).parts, "reference")
    with ThreadPoolExecutor(max_workers=2) as pool:
        first = pool.submit(bench.start, reference, beside)
        second = pool.submit(bench.start, candidate, folder)
        try:
            failed = first.exception() or second.exception()
        except BaseException:  # interrupted: do not wait until both have compiled
            bench.close()
            raise
    if failed is None:
        return first.result(), second.result()
    for future in (first, second):
        if future.exception() is None:
            future.result().close()
    raise failed


def more_processes(store: Store) -> tuple[FinalistResult, int] | None:
    """The most promising set that its proof left unresolved, and how many pairs of processes may settle it."""
    found: list[tuple[FinalistResult, int]] = []
    for result in store.of(FinalistResult):
        if result.verdict is Verdict.UNRESOLVED and result.failure is None and result.process_count >= 2:
            runs = [r for r in store.of(ConfirmRun) if r.stage == result.stage and r.settings == result.settings]
            ratios = [r.log_ratio for r in runs if r.log_ratio is not None]
            if count := processes_to_settle(ratios, sesoi=store.spec.measure.smallest_effect):
                found.append((result, max(count, len(ratios) + 1)))
    return min(found, key=lambda f: f[1], default=None)


def minimise(bench: Bench, winner: FlagSet, *, plan: SequentialPlan) -> tuple[FlagSet, list[AblationResult]]:
    """Leaves out one setting after the other, each time measured against what is left; keeps what pays.

    A setting stays if leaving it out is measurably slower, or, where that is not resolved, if the estimate says that
    it costs more than the smallest effect of interest. What is dropped by mistake is found by the proof that follows.

    Returns:
        The minimal set, and what was found of each setting.
    """
    current = winner
    found: list[AblationResult] = []
    for name in list(winner):
        if len(current) == 1:
            break
        key = f"minimise-{current.digest}-{name.lower()}"[:120]
        recorded = functools.partial(_recorded_ablation, bench, current, name)
        unit = Unit(
            key,
            lambda recorded=recorded: recorded() is not None,  # type: ignore[misc]
            functools.partial(_ablate, bench, current, name, plan, key),
        )
        work_off(bench.store.claims, [unit], waiting=bench.store.watch.waiting)
        result = recorded()
        assert result is not None
        found.append(result)
        if not result.kept:
            current = current.without(name)
    return current, found


def _recorded_ablation(bench: Bench, settings: FlagSet, name: str) -> AblationResult | None:
    for earlier in bench.store.of(AblationResult):
        if earlier.settings == settings and earlier.left_out == name:
            return earlier
    return None


def _ablate(bench: Bench, settings: FlagSet, name: str, plan: SequentialPlan, key: str, attempt: int) -> None:
    """Measures a set without one setting against the whole set, and records what was found."""
    started = time.monotonic()
    label = f"{settings.digest}-without-{name.lower()}"[:120]
    folder = bench.store.folder("minimise", attempts(label, attempt))
    base = AblationResult(
        settings=settings,
        left_out=name,
        comparison=None,
        kept=True,
        reason="",
        directory=bench.store.relative(folder),
    )
    less = settings.without(name)
    try:
        if bench.is_same_program(settings, less):
            comparison = None
        elif bench.mode == sandwich.MODE:
            comparison = _less_alone(bench, settings, less, folder)
        else:
            comparison = _less_in_turns(bench, settings, less, folder, label, plan)
    except WorkerFailed as error:
        result = base.model_copy(update={"failure": error.failure, "reason": "the rest does not run without it"})
    else:
        kept, reason = False, "the program is the same without it"
        if comparison is not None:
            kept, reason = _pays(comparison.verdict, comparison.estimate.ratio, bench.spec.measure.smallest_effect)
        result = base.model_copy(update={"comparison": comparison, "kept": kept, "reason": reason})
    if bench.store.claims.commit(key, attempt):
        bench.store.append(result.model_copy(update={"duration_s": round(time.monotonic() - started, 3)}))


def _less_in_turns(
    bench: Bench, settings: FlagSet, less: FlagSet, folder: Path, label: str, plan: SequentialPlan
) -> Comparison | None:
    """A smaller set against the whole, side by side; None if they make the same program."""
    try:
        whole, without = start_both(bench, folder, settings, less)
    except WorkerFailed as error:
        if bench.must_run_alone(error.failure):
            return _less_alone(bench, settings, less, folder)
        raise
    try:
        if bench.program_key(settings, whole.report) == bench.program_key(less, without.report):
            return None
        sesoi = bench.spec.measure.smallest_effect
        stop = measure.sequential(plan, sesoi=sesoi, incumbent=None)
        pairs, stopped = bench.run_turns(whole, without, folder, name=label, stop=stop)
        estimate = plan.estimate([measure.log_ratio(p) for p in pairs])
        return measure.compare(
            pairs, estimate, sesoi=sesoi, stopped=stopped, warnings=bench.gpus.warnings(), meter=bench.meter
        )
    finally:
        without.close()
        whole.close()


class _SameProgram(Exception):
    """Two sets make one program: there is nothing to measure."""


def _less_alone(bench: Bench, settings: FlagSet, less: FlagSet, folder: Path) -> Comparison | None:
    """A smaller set against the whole, in sandwiches; None if they make the same program."""

    def inspect(whole: WorkerReport, without: WorkerReport) -> None:
        if bench.program_key(settings, whole) == bench.program_key(less, without):
            raise _SameProgram

    try:
        pairs = sandwich.run_sandwiches(bench, settings, less, folder, inspect=inspect)
    except _SameProgram:
        return None
    except sandwich.ReferenceFailed as error:
        raise error.error from error
    return sandwich.compare(bench, pairs)


def _pays(verdict: Verdict, ratio: float, sesoi: float) -> tuple[bool, str]:
    """Whether a setting stays, from what leaving it out does, and why."""
    if verdict is Verdict.SLOWER:
        return True, "slower without it"
    if verdict is Verdict.UNRESOLVED and ratio > 1 + sesoi:
        return True, "not resolved, but the estimate is slower without it"
    return False, "no slower without it"
