"""A study that measures: its numbers come from processes that run beside each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from autotune.compiler import Screener, domains
from autotune.model import (
    Failed,
    FlagSet,
    FloorResult,
    TrialConfig,
    TrialOutcome,
    TrialResult,
    WorkerReport,
    refuse_unknown_objectives,
)
from autotune.settings import SearchSpace
from autotune.study.doubt import DEAD_TOGETHER, Doubt, contradicts, doubt_of
from autotune.study.need import ForeseenShares
from autotune.study.predicted import facts_of
from autotune.study.run import StudyRun
from autotune.study.screen import Precheck, StudyScreener, open_study_screener
from autotune.study.time_left import FEWEST_TRIALS
from autotune.study.trial import Known
from autotune.study.units import TrialUnit
from autotune.study.work import refuse_untold_work


class Measuring:
    """See `autotune.study.run.Evaluator`."""

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._resources = contextlib.ExitStack()
        self.doubt: Doubt | None = None
        self._screen: StudyScreener | None = self._resources.enter_context(open_study_screener(run.store, run.view))
        self._shares = ForeseenShares(run, self._screen) if self._screen is not None else None

    def reference(self) -> WorkerReport:
        """Measures the noise floor, unless an earlier session did."""
        if self._screen is not None and self._shares is not None:
            self._run.lanes.must_be_alone = self._shares.must_be_alone
            self._screen.is_measuring = lambda: self._run.lanes.is_measuring
            self._shares.compile_reference()
        if self._screen is not None and not self._run.store.of(FloorResult):
            self._screen.compile_beside(self._foreseen)
        floor = self._run.lanes.first_floor()
        refuse_untold_work(self._run.spec, floor.reference)
        refuse_unknown_objectives(self._run.spec.search.objectives, floor.reference, floor.comparison.energy)
        return floor.reference

    def _foreseen(self, screen: Screener) -> Sequence[FlagSet]:
        """What the screen is going to compile, before the reference has run: its program tells what the space needs."""
        space = self._run.setup.space(facts_of(screen.reference(), screen.job.topology))
        return screen.wanted(domains(space), dict(self._run.first))

    def narrow(self, space: SearchSpace) -> SearchSpace:
        """The space without what compiling shows to need no measurement."""
        reference = self._run.reference
        if self._screen is None or reference is None:
            return space
        if (table := self._run.time.timetable()) is not None:
            self._screen.kept_s = table.reserved_s + FEWEST_TRIALS * table.trial_s
        left = self._screen.narrow(space, dict(self._run.first), reference)
        if self._screen.report is not None and self._run.spec.device.platform == "cuda":
            self.doubt = doubt_of(space, self._screen.report)
        return left

    def _is_refuted(self, results: Sequence[TrialResult]) -> bool:
        """Whether what the screen calls dead turned out to act."""
        return contradicts(results, sesoi=self._run.spec.measure.smallest_effect)

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Whether the screen knows, without starting anything, that one measurement serves two sets."""
        if self._screen is None or self._is_refuted(self._run.store.of(TrialResult)):
            return False
        return self._screen.is_same_program(one, other)

    def evaluate(self, config: TrialConfig, known: Known) -> TrialResult | TrialUnit:
        """What a lane has to do, unless the set's result is known already."""
        precheck, outcome = Precheck(), known.same_set(config.settings)  # type: Precheck, TrialOutcome | None
        if outcome is None and self._screen is not None:
            precheck = self._screen.precheck(config.settings)
            if config.origin == DEAD_TOGETHER or self._is_refuted(known.results):
                precheck = Precheck(failure=precheck.failure)  # its word for what is equal is what is in doubt
            outcome = self._without_launch(precheck, known)
        if outcome is not None:
            return TrialResult(**dict(config), outcome=outcome, compiled_key=precheck.key)
        # By step time alone a set that is surely not the best is given up; as one of a front it may still count.
        is_for_the_best = len(self._run.spec.search.objectives) == 1 and config.origin != DEAD_TOGETHER
        best = known.incumbent if is_for_the_best else None
        return TrialUnit(config=config, incumbent=best, compiled_key=precheck.key)

    def _without_launch(self, precheck: Precheck, known: Known) -> TrialOutcome | None:
        """The outcome of a set that needs no worker, or None."""
        if precheck.failure is not None:
            return Failed(failure=precheck.failure)
        if precheck.key is None or self._screen is None:
            return None
        return known.same_program(precheck.key, self._screen.precheck(FlagSet()).key)

    @property
    def looks_ahead(self) -> bool:
        """See `autotune.study.run.Evaluator`."""
        return self._screen is not None and self._screen.looks_ahead

    def compile_ahead(self, guess: Callable[[], FlagSet | None]) -> None:
        """Has the screen compile what would be proposed next."""
        if self._screen is not None:
            self._screen.compile_ahead(guess)

    def rest(self) -> None:
        """Ends what is being compiled ahead."""
        if self._screen is not None:
            self._screen.rest()

    def close(self) -> None:
        """Ends the compile worker."""
        self._resources.close()
