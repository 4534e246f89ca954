"""A study that measures: its numbers come from processes that run beside each other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

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
from autotune.study.noise_floor import measured_floor
from autotune.study.run import StudyRun
from autotune.study.screen import Precheck, StudyScreener, open_study_screener
from autotune.study.trial import find_twin, measure_trial, same_set


class Measuring:
    """See `autotune.study.run.Evaluator`."""

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._resources = contextlib.ExitStack()
        self._screen: StudyScreener | None = self._resources.enter_context(open_study_screener(run.store, run.view))

    def reference(self) -> WorkerReport:
        """Measures the noise floor, unless an earlier session did."""
        floor: FloorResult = measured_floor(self._run)
        refuse_unknown_objectives(self._run.spec.search.objectives, floor.reference, floor.comparison.energy)
        return floor.reference

    def narrow(self, space: SearchSpace) -> SearchSpace:
        """The space without what compiling shows to need no measurement."""
        reference = self._run.reference
        if self._screen is None or reference is None:
            return space
        return self._screen.narrow(space, dict(self._run.setup.first), reference)

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Whether the screen knows, without starting anything, that one measurement serves two sets."""
        return self._screen is not None and self._screen.is_same_program(one, other)

    def evaluate(self, config: TrialConfig, known: Sequence[TrialResult], *, attempt: int) -> TrialResult:
        """The result of one trial: nothing is launched for what is known already."""
        started = time.monotonic()
        precheck, outcome = Precheck(), same_set(config.settings, known)  # type: Precheck, TrialOutcome | None
        if outcome is None and self._screen is not None:
            precheck = self._screen.precheck(config.settings)
            outcome = self._without_launch(precheck, known)
        if outcome is None:
            result = measure_trial(self._run, config, known, precheck, attempt=attempt)
        else:
            result = TrialResult(**dict(config), outcome=outcome, compiled_key=precheck.key)
        return result.model_copy(update={"duration_s": round(time.monotonic() - started, 3)})

    def _without_launch(self, precheck: Precheck, known: Sequence[TrialResult]) -> TrialOutcome | None:
        """The outcome of a set that needs no worker, or None."""
        if precheck.failure is not None:
            return Failed(failure=precheck.failure)
        if precheck.key is None or self._screen is None:
            return None
        default = self._screen.precheck(FlagSet()).key
        return find_twin(precheck.key, default, known, lambda earlier: earlier.compiled_key)

    def compile_ahead(self, guess: Callable[[], FlagSet | None]) -> None:
        """Has the screen compile what would be proposed next."""
        if self._screen is not None:
            self._screen.compile_ahead(guess)

    def close(self) -> None:
        """Ends the compile worker."""
        self._resources.close()
