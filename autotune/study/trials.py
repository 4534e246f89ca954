"""Trials of a study: the set to try next, and sets whose result is known without a measurement."""

from __future__ import annotations

from collections.abc import Collection

from optuna.trial import TrialState

from autotune.compiler.screen import narrowed
from autotune.measure.tasks import AblationTask, PendingTask, TrialTask
from autotune.model.errors import SettingError
from autotune.model.flags import FlagSet
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    EffectsRecord,
    FailingSetRecord,
    SearchEnd,
    TrialConfig,
    TrialResult,
    TrialStatus,
)
from autotune.results.format import incumbent
from autotune.rundir.optuna_study import ENQUEUED_KEY, JOURNAL
from autotune.settings.space import format_cannot_act
from autotune.study.lanes import Tasks
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
        self._note = run.view.note
        self._screener = screener
        reference = run.store.of(AaRecord)[-1].reference
        self._whole = run.setup.space(reference)
        self._stored = open_study(run.spec, run.storage or run.store.path / JOURNAL)
        for name, remark in self._whole.notes.items():
            self._note(f"{name}: {remark}")
        if cannot_act := format_cannot_act(self._whole):
            self._note(f"left out: {cannot_act}")
        space = screener.narrow(self._whole, reference)
        origins = [*run.setup.first]
        origins += [pair for pair in space.first if space.locate(pair[1]) is not None]
        origins.sort(key=lambda pair: pair[0].startswith(RECIPE))  # recipes come last
        origins += no_ops_together(self._whole, screener.report)
        aa_run = run.store.of(AaRecord)[0]
        report = screened_by(run.store)
        provable = aa_run.power.smallest if aa_run.power else None
        self._proposer = Proposer(
            run.spec,
            space,
            first=origins,
            priors=priors_of(space, report),
            memory=known_memory(run.spec, space, aa_run, report),
            provable=provable or 0.0,
        )
        self._results_seen = 0

    @property
    def _results(self) -> list[TrialResult]:
        return self._store.of(TrialResult)

    def refresh(self) -> None:
        """Tells the proposer what was recorded since the last call; shows notes of the storage."""
        self._settle()
        results = self._results[self._results_seen :]
        self._results_seen += len(results)
        for result in results:
            finished = self._proposer.tell(result)
            if finished:
                self._stored.put(finished)
        report = self._screener.report
        if report and self._is_screen_refuted:
            space = narrowed(self._whole, report, keeps_no_ops=True)
            added = len(space.parameters) - len(self._proposer.space.parameters)
            if added:
                self._note(
                    f"no-ops of the screen are active on this GPU: {added} settings are searched "
                    "after all"
                )
                self._proposer.move_to(space, priors=self._proposer.priors)
        failing = (record.smallest for record in self._store.of(FailingSetRecord))
        self._proposer.failing = list(dict.fromkeys(failing))
        self._show_news()

    def _show_news(self) -> None:
        for text in self._stored.news():
            self._note(text)

    def _settle(self, *, wait: bool = False) -> bool:
        """Takes in what the screen has shown beside the search, once; returns whether it has."""
        screener = self._screener
        if not screener.settled(wait=wait):
            return False
        space = screener.left(self._whole)
        self._proposer.move_to(
            space,
            priors=priors_of(space, screener.report),
            first=no_ops_together(self._whole, screener.report),
        )
        return True

    def try_next(self, step: TryNext) -> Tasks:
        """Begins a trial: yields its task, or None if a task in hand must end before it."""
        self.refresh()
        trials = self._run.spec.search.trials
        count = len(self._results)
        self._run.begin_stage("search", f"{trials - count} of {trials} trials to go")
        tasks = self._run.lanes.in_hand
        trying = [t.config.settings for t in tasks if isinstance(t, TrialTask)]
        config = self._enqueued(step.number, trying)
        if config is None and step.is_last:
            config = self._proposer.ask_best(step.number, taken=trying)
        config = config or self._proposer.ask(step.number, taken=trying)
        if config:
            self._run.view.trial_starts(config, trials)
            yield from self._evaluate(config, step.block_pairs)
        elif tasks:
            yield None  # what is being tried may fail, or open the space
        elif not self._settle(wait=True):
            self._note(
                f"{self._proposer.why_none}: the search ends after {count} of {trials} trials"
            )
            self.end_search(is_exhausted=True)

    def _enqueued(self, number: int, trying: Collection[FlagSet]) -> TrialConfig | None:
        """Returns the first set that somebody enqueued in the storage; refuses impossible ones."""
        for trial in self._stored.enqueued():
            values = trial.system_attrs[ENQUEUED_KEY]
            try:
                config = self._proposer.enqueued(number, values)
            except SettingError as error:
                if trial.state is TrialState.WAITING:
                    self._note(f"the enqueued trial {trial.number} ({values}) is not run: {error}")
                    self._stored.refuse(trial)
                continue
            if config.settings not in trying:
                return config
        return None

    def _evaluate(self, config: TrialConfig, block_pairs: int | None) -> Tasks:
        """Yields the task of a set, or records its result if that needs no measurement."""
        precheck = self._screener.precheck(config.settings)
        is_recheck = config.origin == NO_OPS_TOGETHER
        key = precheck.key
        if is_recheck or self._is_screen_refuted:
            key = None  # equal programs are what the recheck is about
        # A trial surely worse than the best one is given up.
        best = None if is_recheck else incumbent(self._results)
        task = TrialTask(config=config, incumbent=best, compiled_key=key, most=block_pairs)
        same_as = self._same_program(key)
        if precheck.failure:
            self._run.lanes.record(task.failed(precheck.failure))
        elif same_as is not None:
            status = TrialStatus.SAME_PROGRAM
            self._run.lanes.record(
                TrialResult(**dict(config), status=status, same_as=same_as, compiled_key=key)
            )
        else:
            self._stored.put(self._proposer.begun(config))
            folder = ("trials", f"{config.number:04d}")
            yield PendingTask(task, folder, f"trial-{config.number}")

    def _same_program(self, key: str | None) -> int | None:
        if key is None:
            return None
        if key == self._screener.precheck(FlagSet()).key:
            return REFERENCE_NUMBER
        for result in self._results:
            if result.compiled_key == key and result.status is TrialStatus.MEASURED:
                return result.number
        return None

    @property
    def _is_screen_refuted(self) -> bool:
        """Whether settings that the screen calls no-ops turned out to act."""
        return contradicts(self._results, min_effect=self._run.spec.measure.min_effect)

    def is_same_program(self, task: AblationTask) -> bool:
        """Returns whether by the screen the program is the same without what is left out."""
        if self._is_screen_refuted:
            return False
        key = self._screener.precheck(task.settings).key
        return key is not None and key == self._screener.precheck(task.rest).key

    def end_search(self, *, is_exhausted: bool = False) -> None:
        """Records the estimated effects and the end of the search, and completes the storage."""
        self.refresh()
        count = len(self._results)
        effects = self._store.last(EffectsRecord)
        if effects is None or effects.trials != count:
            effects = self._proposer.effects()
            if effects:
                self._store.append(effects)
        search = self._run.spec.search
        self._store.append(
            SearchEnd(
                trials=count,
                asked=search.trials,
                budget_s=search.time_budget,
                is_exhausted=is_exhausted,
            )
        )
        self._stored.finish()
        self._show_news()
