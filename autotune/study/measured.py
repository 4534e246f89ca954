"""What is measured, and what need not be: compiling tells which sets are equal, too large, or of no effect."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.compiler import Screener, domains, facts_of
from autotune.model import (
    FlagSet,
    FloorResult,
    TrialConfig,
    TrialOutcome,
    TrialResult,
    TrialStatus,
    WorkerReport,
)
from autotune.settings import SearchSpace
from autotune.study.doubt import DEAD_TOGETHER, contradicts, doubt_of
from autotune.study.need import ForeseenShares
from autotune.study.run import StudyRun
from autotune.study.screen import Precheck
from autotune.study.time_left import FEWEST_TRIALS
from autotune.study.trial import Known
from autotune.study.units import TrialUnit
from autotune.study.work import refuse_untold_work


def measure_reference(run: StudyRun) -> WorkerReport:
    """Measures the noise floor, unless an earlier session did, and tells what the reference is."""
    if run.screener is not None:
        shares = ForeseenShares(run, run.screener)
        run.lanes.must_be_alone = shares.must_be_alone
        run.screener.is_measuring = lambda: run.lanes.is_measuring
        shares.compile_reference()
        if not run.store.of(FloorResult):
            run.screener.compile_beside(lambda screen: _foreseen(run, screen))
    floor = run.lanes.first_floor()
    refuse_untold_work(run.spec, floor.reference)
    return floor.reference


def _foreseen(run: StudyRun, screen: Screener) -> Sequence[FlagSet]:
    """What the screen is going to compile, before the reference has run: its program tells what the space needs."""
    space = run.setup.space(facts_of(screen.reference(), screen.job.topology))
    return screen.wanted(domains(space), dict(run.first))


def narrow_space(run: StudyRun, space: SearchSpace) -> SearchSpace:
    """The space without what compiling shows to need no measurement."""
    screener, reference = run.screener, run.reference
    if screener is None or reference is None:
        return space
    if (table := run.time.timetable()) is not None:
        screener.kept_s = table.reserved_s + FEWEST_TRIALS * table.trial_s
    left = screener.narrow(space, dict(run.first), reference)
    if screener.report is not None and run.spec.device.platform == "cuda":
        run.doubt = doubt_of(space, screener.report)
    return left


def _is_refuted(run: StudyRun, results: Sequence[TrialResult]) -> bool:
    """Whether what the screen calls dead turned out to act."""
    return contradicts(results, min_effect=run.spec.measure.min_effect)


def is_same_program(run: StudyRun, one: FlagSet, other: FlagSet) -> bool:
    """Whether the screen knows, without starting anything, that one measurement serves two sets."""
    if run.screener is None or _is_refuted(run, run.store.of(TrialResult)):
        return False
    return run.screener.is_same_program(one, other)


def evaluate(run: StudyRun, config: TrialConfig, known: Known) -> TrialResult | TrialUnit:
    """What a lane has to do, unless the set's result is known already."""
    precheck = Precheck()
    outcome: TrialOutcome | None = known.same_set(config.settings)
    if outcome is None and run.screener is not None:
        precheck = run.screener.precheck(config.settings)
        if config.origin == DEAD_TOGETHER or _is_refuted(run, known.results):
            precheck = Precheck(failure=precheck.failure)  # its word for what is equal is what is in doubt
        if precheck.failure is not None:
            outcome = TrialOutcome(status=TrialStatus.FAILED, failure=precheck.failure)
        elif precheck.key is not None:
            outcome = known.same_program(precheck.key, run.screener.precheck(FlagSet()).key)
    if outcome is not None:
        return TrialResult(**dict(config), **dict(outcome), compiled_key=precheck.key)
    best = known.incumbent if config.origin != DEAD_TOGETHER else None  # what is surely not the best is given up
    return TrialUnit(config=config, incumbent=best, compiled_key=precheck.key)
