"""Trials of a study: the set to try next, and sets whose result is known without a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optuna.trial import TrialState

from autotune.compiler.screen import narrowed
from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import SettingError
from autotune.model.flags import FlagSet
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
from autotune.rundir.optuna_study import ENQUEUED_KEY, JOURNAL
from autotune.settings.space import format_cannot_act
from autotune.stats.estimates import REFERENCE, Estimate
from autotune.study.plan import TryNext
from autotune.study.preflight import RECIPE
from autotune.study.proposer import Proposer, known_memory, open_study
from autotune.study.run import StudyRun
from autotune.study.screen import (
    NO_OPS_TOGETHER,
    StudyScreener,
    contradicts,
    no_ops_together,
    priors_of,
    screened_by,
)


class Trials:
    """The trials of one session of a study whose A/A run is recorded."""

    def __init__(self, run: StudyRun, screener: StudyScreener) -> None:
        self._run = run
        self._store = run.store
        self._screener = screener
        self._whole = run.setup.space(run.store.of(AaRecord)[-1].reference)
        self._stored = open_study(run.spec, run.storage or run.store.path / JOURNAL)
        self._proposer = self._open_proposer()
        self._results_seen = 0

    def _open_proposer(self) -> Proposer:
        """Removes by compiling what needs no trial from the space, and opens the search of the
        rest.
        """
        run, whole = self._run, self._whole
        for name, remark in whole.notes.items():
            run.view.note(f"{name}: {remark}")
        if cannot_act := format_cannot_act(whole):
            run.view.note(f"left out: {cannot_act}")
        space = self._screener.narrow(whole, run.store.of(AaRecord)[-1].reference)
        ideas = [
            (origin, settings)
            for origin, settings in space.first
            if space.locate(settings) is not None
        ]
        first = [*run.setup.first, *ideas]
        first.sort(key=lambda pair: pair[0].startswith(RECIPE))  # recipes come last
        aa_run, report = run.store.of(AaRecord)[0], screened_by(run.store)
        provable = aa_run.power.smallest if aa_run.power is not None else None
        return Proposer(
            run.spec,
            space,
            first=[*first, *no_ops_together(whole, self._screener.report)],
            priors=priors_of(space, report),
            memory=known_memory(run.spec, space, aa_run, report),
            provable=provable or 0.0,
        )

    def refresh(self) -> None:
        """Tells the proposer what was recorded since the last call, and the user what the storage
        has to say.
        """
        self.settle()
        results = self._store.of(TrialResult)[self._results_seen :]
        self._results_seen += len(results)
        for result in results:
            finished = self._proposer.tell(result)
            if finished is not None:
                self._stored.put(finished)
        if self._is_screen_refuted:
            self._widen()
        self._proposer.failing = list(
            dict.fromkeys(c.smallest for c in self._store.of(FailingSetRecord))
        )
        self._tell_news()

    def _tell_news(self) -> None:
        for text in self._stored.news():
            self._run.view.note(text)

    def _widen(self) -> None:
        """Searches the settings that the screen called no-ops, too, unless they are: a measurement
        contradicts it.
        """
        if self._screener.report is None:
            return
        whole = narrowed(self._whole, self._screener.report, keeps_no_ops=True)
        more = len(whole.parameters) - len(self._proposer.space.parameters)
        if more:
            self._run.view.note(
                f"no-ops of the screen are active on this GPU: {more} settings are searched "
                "after all"
            )
            self._proposer.move_to(whole, first=(), priors=self._proposer.priors)

    def settle(self, *, wait: bool = False) -> bool:
        """Takes in what the screen has shown beside the search, once; returns whether there was
        anything.

        Args:
            wait: Whether to wait for it.
        """
        if not self._screener.settled(wait=wait):
            return False
        space, report = self._screener.left(self._whole), self._screener.report
        first = no_ops_together(self._whole, report)
        self._proposer.move_to(space, first=first, priors=priors_of(space, report))
        return True

    def begin(self, config: TrialConfig, *, most: int | None) -> PendingTask | None:
        """Returns a trial for a lane; None if its result is known already, which it records."""
        self._run.view.trial_starts(config, self._run.spec.search.trials)
        trial = self._evaluate(config, most)
        if isinstance(trial, TrialResult):
            self._end(trial)
            return None
        self._stored.put(self._proposer.begun(config))
        return PendingTask(
            trial, ("trials", f"{config.number:04d}"), f"trial-{config.number}", self._end
        )

    def propose(self, step: TryNext, trying: Sequence[FlagSet] = ()) -> TrialConfig | None:
        """Returns the set to try next while lanes try the sets `trying`; None if there is none."""
        config = self._enqueued(step.number, trying)
        if config is None and step.is_last:
            config = self._proposer.ask_best(step.number, taken=trying)
        return config or self._proposer.ask(step.number, taken=trying)

    def _enqueued(self, number: int, trying: Sequence[FlagSet]) -> TrialConfig | None:
        """Returns the first set that somebody enqueued in the study's storage; those that cannot be
        run are refused.
        """
        for trial in self._stored.enqueued():
            values = trial.system_attrs[ENQUEUED_KEY]
            try:
                config = self._proposer.enqueued(number, values)
            except SettingError as error:
                if trial.state is TrialState.WAITING:
                    self._run.view.note(
                        f"the enqueued trial {trial.number} ({values}) is not run: {error}"
                    )
                    self._stored.refuse(trial)
                continue
            if config.settings not in trying:
                return config
        return None

    def _evaluate(self, config: TrialConfig, most: int | None) -> TrialResult | TrialTask:
        """Returns a set's result if it needs no measurement, or the task of a lane."""
        precheck = self._screener.precheck(config.settings)
        is_recheck = config.origin == NO_OPS_TOGETHER
        key = precheck.key
        if is_recheck or self._is_screen_refuted:
            key = None  # equal programs are what the recheck is about
        outcome = self._same_program(key)
        if precheck.failure is not None:
            outcome = TrialOutcome(status=TrialStatus.FAILED, failure=precheck.failure)
        if outcome is not None:
            return TrialResult(**dict(config), **dict(outcome), compiled_key=key)
        # A trial surely worse than the best one is given up.
        best = incumbent(self._store.of(TrialResult)) if not is_recheck else None
        return TrialTask(config=config, incumbent=best, compiled_key=key, most=most)

    def _same_program(self, key: str | None) -> TrialOutcome | None:
        """Returns the reference or the trial with the same key of a compiled program, if there is
        one.
        """
        if key is None:
            return None
        if key == self._screener.precheck(FlagSet()).key:
            return TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=REFERENCE_NUMBER)
        for result in self._store.of(TrialResult):
            if result.compiled_key == key and result.status is TrialStatus.MEASURED:
                return _duplicate_of(result)
        return None

    @property
    def _is_screen_refuted(self) -> bool:
        """Whether settings that the screen calls no-ops turned out to act."""
        return contradicts(
            self._store.of(TrialResult), min_effect=self._run.spec.measure.min_effect
        )

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Returns whether by the screen two sets give the same program, so that one measurement
        serves both.
        """
        if self._is_screen_refuted:
            return False
        key = self._screener.precheck(one).key
        return key is not None and key == self._screener.precheck(other).key

    def _end(self, result: TrialResult) -> None:
        if result.same_as:  # a lane does not know the figures of another trial
            original = next(r for r in self._store.of(TrialResult) if r.number == result.same_as)
            result = result.model_copy(update=dict(_duplicate_of(original)))
        self._run.record(result)

    def exhaust(self) -> None:
        """Ends the search because nothing was proposed."""
        count, asked = len(self._store.of(TrialResult)), self._run.spec.search.trials
        self._run.view.note(
            f"{self._proposer.why_none}: the search ends after {count} of {asked} trials"
        )
        self.end_search(is_exhausted=True)

    def end_search(self, *, is_exhausted: bool = False) -> None:
        """Records the estimated effects and the end of the search, and brings the study's storage
        up to date.
        """
        self.refresh()
        count, search = len(self._store.of(TrialResult)), self._run.spec.search
        effects = self._store.last(EffectsRecord)
        if effects is None or effects.trials != count:
            effects = self._proposer.effects()
            if effects is not None:
                self._store.append(effects)
        self._store.append(
            SearchEnd(
                trials=count,
                asked=search.trials,
                budget_s=search.time_budget,
                is_exhausted=is_exhausted,
            )
        )
        self._stored.finish()
        self._tell_news()


def _duplicate_of(earlier: TrialResult) -> TrialOutcome:
    return TrialOutcome(
        status=TrialStatus.SAME_PROGRAM,
        same_as=earlier.number,
        comparison=earlier.comparison,
        failure=earlier.failure,
    )


def incumbent(results: Iterable[TrialResult]) -> Estimate:
    """Returns the best estimate so far, or the reference's own while nothing is better."""
    measured = [
        r.comparison.estimate
        for r in results
        if r.status is TrialStatus.MEASURED and r.comparison is not None
    ]
    return min([REFERENCE, *measured], key=lambda e: e.ratio)
