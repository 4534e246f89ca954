"""Trials of a study: the set to try next, and sets whose result is known without a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    EffectsRecord,
    FailingSetRecord,
    SearchEnd,
    TrialConfig,
    TrialOutcome,
    TrialResult,
    TrialStatus,
)
from autotune.model.spec import FEWEST_TRIALS
from autotune.rundir.optuna_study import JOURNAL
from autotune.settings.space import SearchSpace, format_cannot_act
from autotune.stats.estimates import REFERENCE, Estimate
from autotune.study.plan import TryNext
from autotune.study.preflight import RECIPE
from autotune.study.proposer import Proposer, known_memory, open_study
from autotune.study.run import StudyRun
from autotune.study.screen import (
    NO_OPS_TOGETHER,
    NoOpRecheck,
    Precheck,
    StudyScreener,
    contradicts,
    priors_of,
    recheck_of,
    screened_by,
)


def open_trials(run: StudyRun, screener: StudyScreener | None) -> Trials:
    """Builds the space of a study whose A/A run is recorded, and removes by compiling what needs no trial."""
    reference = run.store.of(AaRecord)[-1].reference
    space = run.setup.space(reference)
    for name, remark in space.notes.items():
        run.view.note(f"{name}: {remark}")
    if cannot_act := format_cannot_act(space):
        run.view.note(f"left out: {cannot_act}")
    whole = space
    recheck: NoOpRecheck | None = None
    if screener is not None:
        space, recheck = narrow_space(run, screener, space, reference)
    ideas = [(origin, settings) for origin, settings in space.first if space.locate(settings) is not None]
    first = [*run.setup.first, *ideas]
    first.sort(key=lambda pair: pair[0].startswith(RECIPE))  # recipes come last
    screened, first_aa_run = screened_by(run.store), run.store.of(AaRecord)[0]
    power = first_aa_run.power
    proposer = Proposer(
        run.spec, space, first=first, stored=open_study(run.spec, run.storage or run.store.path / JOURNAL),
        recheck=recheck, priors=priors_of(space, screened),
        memory=known_memory(run.spec, space, first_aa_run, screened),
        provable=(power.smallest if power is not None else None) or 0.0,
    )  # fmt: skip
    return Trials(run, proposer, screener, whole)


def narrow_space(
    run: StudyRun, screener: StudyScreener, space: SearchSpace, reference: WorkerReport
) -> tuple[SearchSpace, NoOpRecheck | None]:
    """Removes from a space what compiling shows to need no measurement; also returns what is to be rechecked."""
    screener.is_measuring = lambda: run.lanes.is_measuring
    if (table := run.time.timetable()) is not None:
        if not table.is_enough:
            return space, None
        screener.kept_s = table.reserved_s + FEWEST_TRIALS * table.trial_s
    left = screener.narrow(space, reference)
    if screener.report is None or run.spec.device.platform != "cuda":
        return left, None
    return left, recheck_of(space, screener.report)


class Trials:
    """The trials of one session."""

    def __init__(self, run: StudyRun, proposer: Proposer, screener: StudyScreener | None, whole: SearchSpace) -> None:
        self._run = run
        self._store = run.store
        self._proposer = proposer
        self._screener = screener
        self._whole = whole
        self._results_seen = self._causes_seen = 0

    def refresh(self) -> None:
        """Tells the proposer what was recorded since the last call, and the user what the proposer has to say."""
        self.settle()
        results = self._store.since(TrialResult, self._results_seen)
        self._results_seen += len(results)
        for result in results:
            self._proposer.tell(result)
        causes = self._store.since(FailingSetRecord, self._causes_seen)
        self._causes_seen += len(causes)
        failing = self._proposer.failing
        failing += [cause.smallest for cause in causes if cause.smallest not in failing]
        for text in self._proposer.news():
            self._run.view.note(text)

    def settle(self, *, wait: bool = False) -> bool:
        """Takes in what the screen has shown beside the search, once; returns whether there was anything.

        Args:
            wait: Whether to wait for it.
        """
        if self._screener is None or not self._screener.settled(wait=wait):
            return False
        assert self._screener.report is not None
        report, left = self._screener.report, self._screener.left(self._whole)
        self._proposer.move_to(left, recheck=recheck_of(self._whole, report), priors=priors_of(left, report))
        return True

    def begin(self, config: TrialConfig, *, most: int | None) -> PendingTask | None:
        """Returns a trial for a lane; None if its result is known already, which it records."""
        self._run.view.trial_starts(config, self._run.spec.search.trials)
        trial = self._evaluate(config)
        if isinstance(trial, TrialResult):
            self._end(trial)
            return None
        self._proposer.begin(config)
        task = trial.model_copy(update={"most": most})
        return PendingTask(task, ("trials", f"{config.number:04d}"), f"trial-{config.number}", self._end)

    def propose(self, step: TryNext, trying: Sequence[FlagSet] = ()) -> TrialConfig | None:
        """Returns the set to try next while lanes try the sets `trying`; None if there is none."""
        number = step.number
        config = self._proposer.ask_enqueued(number, taken=trying)
        if config is None and step.is_last:
            config = self._proposer.ask_best(number, taken=trying)
        return config or self._proposer.ask(number, taken=trying)

    @property
    def why_none(self) -> str:
        """Why nothing was proposed when there was nothing."""
        return self._proposer.why_none

    def _evaluate(self, config: TrialConfig) -> TrialResult | TrialTask:
        """Returns a set's result if it needs no measurement, or the task of a lane."""
        precheck = Precheck()
        outcome: TrialOutcome | None = None
        if self._screener is not None:
            precheck = self._screener.precheck(config.settings)
            if config.origin == NO_OPS_TOGETHER or self._is_screen_refuted:
                precheck = Precheck(failure=precheck.failure)  # equal programs are what the recheck is about
            if precheck.failure is not None:
                outcome = TrialOutcome(status=TrialStatus.FAILED, failure=precheck.failure)
            elif precheck.key is not None:
                outcome = self._same_program(precheck.key, self._screener.precheck(FlagSet()).key)
        if outcome is not None:
            return TrialResult(**dict(config), **dict(outcome), compiled_key=precheck.key)
        # A trial surely worse than the best one is given up.
        best = incumbent(self._store.of(TrialResult)) if config.origin != NO_OPS_TOGETHER else None
        return TrialTask(config=config, incumbent=best, compiled_key=precheck.key)

    def _same_program(self, key: str, reference_key: str | None) -> TrialOutcome | None:
        """Returns the reference or the trial with the same key of a compiled program, if there is one."""
        if key == reference_key:
            return TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=REFERENCE_NUMBER)
        for result in self._store.of(TrialResult):
            if result.compiled_key == key and result.status is TrialStatus.MEASURED:
                return _duplicate_of(result)
        return None

    @property
    def _is_screen_refuted(self) -> bool:
        """Whether settings that the screen calls no-ops turned out to act."""
        return contradicts(self._store.of(TrialResult), min_effect=self._run.spec.measure.min_effect)

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Whether by the screen two sets give the same program, so that one measurement serves both."""
        if self._screener is None or self._is_screen_refuted:
            return False
        key = self._screener.precheck(one).key
        return key is not None and key == self._screener.precheck(other).key

    def _end(self, result: TrialResult) -> None:
        if result.same_as:  # a lane does not know the figures of another trial
            original = next(r for r in self._store.of(TrialResult) if r.number == result.same_as)
            result = result.model_copy(update=dict(_duplicate_of(original)))
        self._run.record(result)

    def end_search(self, *, is_exhausted: bool = False) -> None:
        """Records the estimated effects and the end of the search, and brings the study's storage up to date."""
        self.refresh()
        count, search = len(self._store.of(TrialResult)), self._run.spec.search
        effects = self._store.last(EffectsRecord)
        if effects is None or effects.trials != count:
            effects = self._proposer.effects()
            if effects is not None:
                self._store.append(effects)
        self._store.append(
            SearchEnd(trials=count, asked=search.trials, budget_s=search.time_budget, is_exhausted=is_exhausted)
        )
        self._proposer.finish()
        for text in self._proposer.news():
            self._run.view.note(text)


def _duplicate_of(earlier: TrialResult) -> TrialOutcome:
    return TrialOutcome(
        status=TrialStatus.SAME_PROGRAM, same_as=earlier.number, comparison=earlier.comparison, failure=earlier.failure
    )


def incumbent(results: Iterable[TrialResult]) -> Estimate:
    """Returns the best estimate so far, or the reference's own while nothing is better."""
    measured = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison is not None]
    return min([REFERENCE, *measured], key=lambda e: e.ratio)
