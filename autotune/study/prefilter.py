"""Finds sets that need no measurement, by earlier trials and compiled programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.measure.context import refuse_untold_work
from autotune.measure.tasks import TrialTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.records import REFERENCE_NUMBER, TrialConfig, TrialOutcome, TrialResult, TrialStatus
from autotune.model.spec import FEWEST_TRIALS
from autotune.rundir.store import Store
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import REFERENCE, Estimate
from autotune.study.run import StudyRun
from autotune.study.screen import NO_OPS_TOGETHER, Precheck, contradicts, recheck_of


def measure_reference(run: StudyRun) -> WorkerReport:
    """Makes the A/A run, unless an earlier session did, and returns the reference's report."""
    if run.screener is not None:
        run.screener.is_measuring = lambda: run.lanes.is_measuring
    aa_run = run.lanes.first_aa_run()
    refuse_untold_work(run.spec, aa_run.reference)
    return aa_run.reference


def narrow_space(run: StudyRun, space: SearchSpace) -> SearchSpace:
    """Removes from a space what compiling shows to need no measurement."""
    screener, reference = run.screener, run.reference
    if screener is None or reference is None:
        return space
    if (table := run.time.timetable()) is not None:
        if not table.is_enough:
            return space
        screener.kept_s = table.reserved_s + FEWEST_TRIALS * table.trial_s
    left = screener.narrow(space, dict(run.first), reference)
    if screener.report is not None and run.spec.device.platform == "cuda":
        run.recheck = recheck_of(space, screener.report)
    return left


def _is_refuted(run: StudyRun, results: Sequence[TrialResult]) -> bool:
    """Whether settings that the screen calls no-ops turned out to act."""
    return contradicts(results, min_effect=run.spec.measure.min_effect)


def is_same_program(run: StudyRun, one: FlagSet, other: FlagSet) -> bool:
    """Whether by the screen two sets give the same program, so that one measurement serves both."""
    if run.screener is None or _is_refuted(run, run.store.of(TrialResult)):
        return False
    key = run.screener.precheck(one).key
    return key is not None and key == run.screener.precheck(other).key


def evaluate(run: StudyRun, config: TrialConfig, known: Known) -> TrialResult | TrialTask:
    """Returns a set's result if it needs no measurement, or the task of a lane."""
    precheck = Precheck()
    outcome: TrialOutcome | None = known.same_set(config.settings)
    if outcome is None and run.screener is not None:
        precheck = run.screener.precheck(config.settings)
        if config.origin == NO_OPS_TOGETHER or _is_refuted(run, known.results):
            precheck = Precheck(failure=precheck.failure)  # equal programs are what the recheck is about
        if precheck.failure is not None:
            outcome = TrialOutcome(status=TrialStatus.FAILED, failure=precheck.failure)
        elif precheck.key is not None:
            outcome = known.same_program(precheck.key, run.screener.precheck(FlagSet()).key)
    if outcome is not None:
        return TrialResult(**dict(config), **dict(outcome), compiled_key=precheck.key)
    best = known.incumbent if config.origin != NO_OPS_TOGETHER else None  # a trial surely worse than it is given up
    return TrialTask(config=config, incumbent=best, compiled_key=precheck.key)


class Known:
    """Indexes of the results so far, updated as they come, so that a look-up takes constant time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.results: list[TrialResult] = []
        self.incumbent = REFERENCE
        self._by_number: dict[int, TrialResult] = {}
        self._by_set: dict[FlagSet, TrialResult] = {}
        self._by_key: dict[str, TrialResult] = {}
        self._lowest = 1

    def refresh(self) -> Sequence[TrialResult]:
        """Adds the results recorded since the last call, and returns them."""
        news = self._store.since(TrialResult, len(self.results))
        for result in news:
            self.results.append(result)
            self._by_number.setdefault(result.number, result)
            if result.status is not TrialStatus.SAME_SET:
                self._by_set.setdefault(result.settings, result)
            if result.compiled_key is not None and result.status is TrialStatus.MEASURED:
                self._by_key.setdefault(result.compiled_key, result)
        self.incumbent = min(self.incumbent, incumbent(news), key=lambda e: e.ratio)
        return news

    def free_number(self, taken: Iterable[int]) -> int:
        """Returns the lowest number that no trial has."""
        while self._lowest in self._by_number:
            self._lowest += 1
        number, taken = self._lowest, set(taken)
        while number in taken or number in self._by_number:
            number += 1
        return number

    def same_set(self, settings: FlagSet) -> TrialOutcome | None:
        """Returns the trial with the same set, if there is one."""
        earlier = self._by_set.get(settings)
        return _duplicate_of(earlier, TrialStatus.SAME_SET) if earlier is not None else None

    def same_program(self, key: str, reference_key: str | None) -> TrialOutcome | None:
        """Returns the reference or the trial with the same key of a compiled program, if there is one."""
        if key == reference_key:
            return TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=REFERENCE_NUMBER)
        earlier = self._by_key.get(key)
        return _duplicate_of(earlier, TrialStatus.SAME_PROGRAM) if earlier is not None else None

    def complete(self, result: TrialResult) -> TrialResult:
        """Adds to a duplicate the figures of its original trial, which a lane does not know."""
        if result.same_as is None or result.same_as == REFERENCE_NUMBER:
            return result
        return result.model_copy(update=dict(_duplicate_of(self._by_number[result.same_as], result.status)))


def _duplicate_of(earlier: TrialResult, status: TrialStatus) -> TrialOutcome:
    return TrialOutcome(status=status, same_as=earlier.number, comparison=earlier.comparison, failure=earlier.failure)


def incumbent(results: Iterable[TrialResult]) -> Estimate:
    """Returns the best estimate so far, or the reference's own while nothing is better."""
    found = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison is not None]
    best = min(found, key=lambda e: e.ratio, default=None)
    return best if best is not None and best.ratio < 1 else REFERENCE
