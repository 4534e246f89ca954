"""Decides a study's next step from its records, the time left and the tasks in hand, without I/O.

A study that is resumed goes on by the same call. The best of many noisy estimates is biased, so the
search only decides which sets are proven, in fresh pairs of processes by a sequential test whose
plan is recorded before the first pair. The rule of one proof is `autotune.model.proofs.standing`.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from autotune.measure.context import time_limits_after
from autotune.measure.durations import RECENT
from autotune.measure.failing import failing_task, most_starts, needs_search
from autotune.measure.tasks import (
    AblationTask,
    AnyTask,
    FailingSetTask,
    PairTask,
    SoakTask,
    TrialTask,
)
from autotune.model.files import Texts
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, LossBasis
from autotune.model.proofs import Report, Standing, is_interleaved, report_of, standing
from autotune.model.records import (
    AB,
    CONFIRM,
    ISOLATED,
    AaRecord,
    AblationResult,
    AnyRecord,
    ConfirmRun,
    EffectsRecord,
    FailingSetRecord,
    FinalistResult,
    LeftOut,
    Objection,
    ProofRecord,
    SearchEnd,
    SoakRecord,
    TrialResult,
    TrialStatus,
    names_left_out,
)
from autotune.model.spec import StudySpec
from autotune.model.units import format_seconds
from autotune.stats.aa_noise import proof_size
from autotune.stats.estimates import Estimate, least_ratio
from autotune.stats.proof import (
    EQUAL_SIDES,
    ERROR,
    FIRST_LOOK,
    LEAST_PAIRS,
    OTHER_SIDE,
    ProofPlan,
    allot,
    alone_plan,
)
from autotune.study.budget import TRIAL_SHARE, TimeLeft

LEAST_GROUP = 2  # fewest settings that are left out together rather than in turn
ENOUGH_TO_TELL = 12  # trials that the search needs to end with the best expected set


class TryNext(NamedTuple):
    """Try the next set, as last the best expected one; `block_pairs` is None without a limit."""

    number: int
    is_last: bool
    block_pairs: int | None


class EndSearch(NamedTuple):
    """Record the estimated effects and the end of the search; no reason if all trials were made."""

    reason: str


class Give(NamedTuple):
    """Give a task to a lane; `detail` is shown as its stage begins, if the caller did not do so."""

    task: AnyTask
    folder: Texts
    name: str
    stage: str = ""
    detail: str = ""


class Write(NamedTuple):
    """Append records: the plan of a proof, or verdicts."""

    records: tuple[AnyRecord, ...]


class Wait:
    """Nothing can begin until a task in hand has ended."""


Step = TryNext | EndSearch | Give | Write | Wait


class Conclude(NamedTuple):
    """The study ends; `unproven` is the best trial for whose proof the budget left no time."""

    winner: FinalistResult | None = None
    report: Report = Report()
    objections: Mapping[FlagSet, Objection] = {}
    unproven: TrialResult | None = None


class Plan:
    """One look at a study whose A/A run is recorded.

    Sets are proven one after the other, best first, each in fresh pairs of processes until its
    sequential test is settled. Once one is proven, only sets that look better than it go on.
    """

    def __init__(self, clock: TimeLeft, in_hand: Sequence[AnyTask] = ()) -> None:
        self._clock = clock
        self._records = clock.records
        self._study = clock.records.spec
        self._in_hand = in_hand
        self._min_effect = self._study.measure.min_effect
        self._results = self._records.of(TrialResult)
        self._runs = self._records.of(ConfirmRun)
        self._pairs = [t for t in in_hand if isinstance(t, PairTask)]
        self._objections: dict[FlagSet, Objection] = {}
        self._standing = functools.cache(self._judge)
        self._end = self._records.last(SearchEnd)
        search = self._study.search
        size = (search.trials, search.time_budget)
        if self._end and (self._end.asked, self._end.budget_s) != size:
            self._end = None  # of a search of other size

    def next_step(self) -> Step | Conclude:
        """Returns the next step of a study that searches."""
        if self._end and self._end.trials == len(self._results):
            return next(step for step in self._steps() if step)
        clock = self._clock
        kept_s = 0.0  # where no proof fits, the search names the best set so far
        if clock.is_enough and self._end is None:
            kept_s = clock.still_kept_s
        elif clock.is_enough and clock.allows_proof():
            kept_s = clock.least_s
        return self._search(kept_s)

    def _steps(self) -> Iterator[Step | Conclude | None]:
        """Yields what comes after the search, most urgent first; None where nothing is due."""
        if not any(isinstance(r, ConfirmRun) and r.stage == CONFIRM for r in self._since_search):
            yield self._next_finalist(self._chosen(), has_winner=True)
        yield self._next_of(CONFIRM, self._plans.values())
        results = [self._standing(plan).result for plan in self._plans.values()]
        results.sort(key=lambda r: r.corrected.ratio if r.corrected else 1.0)
        for result in results:
            if result.is_passed:
                yield self._soak(result)
        yield self._next_finalist(self._chosen())
        unproven = None
        if self._clock.has_budget:
            if self._clock.is_enough and not (self._end and self._end.is_exhausted):
                # Where no other proof fits, the search gets all of the time that proofs left.
                for kept_s in (self._clock.least_s, 0.0):
                    step = self._search(kept_s)
                    yield None if isinstance(step, EndSearch) else step
            yield self._next_finalist(self._chosen(without=self._plans))
            unproven = self._unproven
        yield Conclude(objections=self._objections, unproven=unproven)

    def _search(self, kept_s: float) -> Step:
        count = len(self._results)
        trial_s = longer_trial_s(self._clock.takes.trial_s, self._results)
        numbers = {r.number for r in self._results}
        numbers.update(t.config.number for t in self._in_hand if isinstance(t, TrialTask))
        trials = self._study.search.trials
        to_go = trials - len(numbers)
        reason = None
        if to_go <= 0:
            reason = ""
        elif self._clock.is_used_up(trial_s, kept_s):
            reason = f"time budget used: the search ends after {count} of {trials} trials"
            if kept_s:
                reason += ", what is left is kept for proofs"
        if reason is not None:
            return Wait() if self._in_hand else EndSearch(reason)
        is_last = to_go == 1 or self._clock.is_used_up(2 * trial_s, kept_s)
        return self._failing_set(kept_s) or TryNext(
            number=_first_free(numbers, 1),
            is_last=is_last and count >= ENOUGH_TO_TELL,
            block_pairs=self._clock.pairs_for(kept_s, starts=1, share=TRIAL_SHARE),
        )

    def _failing_set(self, kept_s: float) -> Give | None:
        """Returns the search for a minimal failing set, if a trial failed and there is time."""
        causes = self._records.of(FailingSetRecord)
        busy = {t.trial for t in self._in_hand if isinstance(t, FailingSetTask)}
        for trial in self._results:
            if trial.failure is None or trial.number in busy or not needs_search(trial, causes):
                continue
            kind = trial.failure.kind
            start_s = self._clock.takes.start_s
            if kind is FailureKind.HANG:
                start_s = time_limits_after(self._study, self._records.of(AaRecord)[0]).start_s
            if self._clock.is_used_up(most_starts(kind) * start_s, kept_s):
                return None
            number = f"{trial.number:04d}"
            task = failing_task(trial, kind, self._results)
            return Give(task, ("failing", number), f"failing-{number}")
        return None

    @functools.cached_property
    def _plans(self) -> dict[int, ProofRecord]:
        return {p.trial: p for p in self._records.of(ProofRecord) if p.stage == CONFIRM}

    @functools.cached_property
    def _since_search(self) -> Sequence[AnyRecord]:
        records = self._records.records()
        begins = [at + 1 for at, record in enumerate(records) if isinstance(record, SearchEnd)]
        return records[max(begins, default=0) :]

    def _chosen(self, without: Container[int] = ()) -> list[TrialResult]:
        return worth_proving(
            [r for r in self._results if r.number not in without],
            self._records.last(EffectsRecord),
            count=self._study.confirm.finalists,
            min_effect=self._min_effect,
        )

    def _next_finalist(
        self, chosen: Sequence[TrialResult], *, has_winner: bool = False
    ) -> Step | None:
        """Makes the best unproven trial minimal or plans its proof, unless a better one may win."""
        count = sum(t.number not in self._plans for t in chosen)
        for trial in chosen:
            plan = self._plans.get(trial.number)
            if plan:
                proof = self._standing(plan)
                if not proof.is_over or (has_winner and proof.result.is_passed):
                    return None
                continue
            if not self._clock.allows_proof():
                return None
            settings = self._minimal(trial.settings)
            if not isinstance(settings, FlagSet):
                return settings
            if all(p.settings != settings for p in self._plans.values()):
                return Write((self._plan(CONFIRM, settings, trial.number, count),))
        return None

    @property
    def _unproven(self) -> TrialResult | None:
        """The best trial that is waiting for its proof, or for the end of it."""
        planned = {p.settings for p in self._plans.values()}
        unfinished = [n for n, p in self._plans.items() if self._next_pair(p) is not None]
        for trial in self._chosen():
            is_planned = trial.number in self._plans or self._minimal(trial.settings) in planned
            if trial.number in unfinished or not is_planned:
                return trial
        return next((r for r in self._results if r.number in unfinished), None)

    def _minimal(self, settings: FlagSet) -> FlagSet | Step:
        """Returns a set without the settings that do not pay, or the step that measures one.

        Settings of no expected use are left out together first. If they pay after all, each setting
        in turn is measured against the set without it. It stays if leaving it out is measurably
        slower or, if unresolved, slower by the estimate: what is dropped by mistake is lost.
        """
        if not self._study.confirm.minimise or len(settings) < 2:
            return settings
        detail = f"{len(settings)} settings, each left out once; no gain: dropped"
        group = self._of_no_use(settings)
        current = settings
        queue: list[LeftOut] = list(settings)
        if len(group) >= LEAST_GROUP:
            queue = [group, *settings.without(*group)]
        while queue and len(current) > 1:
            left_out = queue.pop(0)
            result = self._ablation(current, left_out, 1.0 / (1 + len(queue)), detail)
            if not isinstance(result, AblationResult):
                return result or current
            if not result.kept:
                current = current.without(*names_left_out(left_out))
            elif left_out == group:
                queue = list(settings)
        return current

    def _of_no_use(self, settings: FlagSet) -> Texts:
        """Returns the settings of no expected use; at least the likeliest one to act is left."""
        effects = self._records.last(EffectsRecord)
        if effects is None:
            return ()
        useful = effects.useful(settings, least=self._min_effect)
        likeliest = [s.name for s in effects.settings if s.name in settings][:1]
        group = tuple(n for n in settings if n not in (useful or likeliest))
        return group if len(group) < len(settings) else ()

    def _ablation(
        self, settings: FlagSet, left_out: LeftOut, share: float, detail: str
    ) -> AblationResult | Step | None:
        """Returns what leaving settings out did, or the step that measures it, if there is time."""
        for result in self._records.of(AblationResult):
            if (result.settings, result.left_out) == (settings, left_out):
                return result
        if self._in_hand:
            return Wait()
        clock = self._clock
        kept_s = clock.kept_after("minimise")
        if clock.is_used_up(clock.takes.ablation_s, kept_s):
            return None
        pairs = clock.pairs_for(kept_s, starts=2, share=share)
        task = AblationTask(settings=settings, left_out=left_out, most=pairs)
        if isinstance(left_out, str):
            label = left_out.lower()
        else:
            label = f"{len(left_out)}-of-{task.rest.digest}"
        name = f"{settings.digest}-without-{label}"[:120]
        return Give(task, ("minimise", name), name, "minimise", detail)

    def alone(self, proven: FinalistResult) -> Step | FinalistResult | None:
        """Returns the proof of a proven set in isolated runs, or its next step; None if not due."""
        if self._study.confirm.isolated and self._is_interleaved(proven):
            return self.prove(ISOLATED, proven.settings, proven.trial)
        return None

    def _is_interleaved(self, proven: FinalistResult) -> bool:
        return is_interleaved(proven, self._records.last(AaRecord), self._runs)

    def _soaks_by_turns(self, proven: FinalistResult) -> bool:
        """Whether a long run may go by turns; on a GPU the set's heat would slow both arms."""
        clocks_follow_load = self._study.block_sizes.settle_s > 0.0
        can_wait = self._study.workload.can_wait
        return can_wait and not clocks_follow_load and self._is_interleaved(proven)

    def _soak(self, proven: FinalistResult) -> Step | Conclude | None:
        """Returns an isolated run, a soak or the win of a proven set; None if they refuse it."""
        isolated = self.alone(proven)
        if isinstance(isolated, Step):
            return isolated
        report = report_of(proven, isolated, self._runs)
        if report.objection:
            self._objections[proven.settings] = report.objection
            return None
        if self._study.confirm.soak:
            soak = self._last_soak(proven.settings)
            if soak is None:
                return Wait() if self._in_hand else self._soak_task(proven)
            if soak.failure or soak.unsettled:
                return None
            report = report_of(proven, isolated, self._runs, soak.arms)
        return Conclude(winner=proven, report=report, objections=self._objections)

    def _last_soak(self, settings: FlagSet) -> SoakRecord | None:
        """Returns the newest soak of a set that failed, or was as long as is asked for now."""
        confirm = self._study.confirm
        for record in reversed(self._records.of(SoakRecord)):
            is_long = record.step_count >= self._study.soak_steps(settings)
            is_enough = is_long and record.steps_s >= confirm.soak
            may_settle = record.unsettled and record.arms and record.arms.most < confirm.soaks
            is_valid = (is_enough or record.failure) and not may_settle
            if record.settings == settings and is_valid:
                return record
        return None

    def _soak_task(self, proven: FinalistResult) -> Give:
        settings = proven.settings
        confirm = self._study.confirm
        least_steps = self._study.soak_steps(settings)
        name = f"soak-{settings.digest}-{confirm.soak:.0f}-{least_steps}-{confirm.soaks}"
        runs = [r for r in self._runs if r.settings == settings]
        bases = [r.loss.basis for r in runs if r.loss]
        step_counts = [r.total.candidate.steps for r in runs if r.stage == proven.stage and r.total]
        task = SoakTask(
            settings=settings,
            least_s=confirm.soak,
            least_steps=least_steps,
            basis=bases[-1] if bases else LossBasis.STEPS,
            proven=proven.corrected,
            process_sd=max(_spread(runs, proven.stage), _spread(runs, ISOLATED)),
            proven_steps=round(statistics.median(step_counts or [0])),
            most=confirm.soaks,
            is_interleaved=self._soaks_by_turns(proven),
        )
        place = "beside" if task.is_interleaved else "in isolation, before"
        detail = (
            f"{format_seconds(confirm.soak)} of the winner's steps {place} the default: looks for "
            "hangs, divergence, stalls, slower steps and leaks"
        )
        return Give(task, ("soak", name), name, "soak", detail)

    def _judge(self, plan: ProofRecord) -> Standing:
        cap = most_pairs(self._study, plan.stage)
        return standing(plan, self._runs, most=cap, min_effect=self._min_effect)

    def _next_pair(self, plan: ProofRecord) -> int | None:
        """Returns the index of the next pair to run, from 0; None if there is none."""
        if self._standing(plan).is_over:
            return None
        pairs: list[ConfirmRun | PairTask] = [*self._runs, *self._pairs]
        key = (plan.stage, plan.settings)
        repeat = _first_free({p.repeat for p in pairs if (p.stage, p.settings) == key}, 0)
        return repeat if repeat < most_pairs(self._study, plan.stage) else None

    def _next_of(self, stage: str, plans: Collection[ProofRecord]) -> Step | None:
        """Returns the next pair, or the verdicts to record; None if there are none."""
        results = [self._standing(p).result for p in plans]
        for plan, result in zip(plans, results, strict=True):
            repeat = self._next_pair(plan)
            if repeat is None:
                continue
            passed = [r for r in results if r.is_passed]
            if stage == CONFIRM:
                passed = [r for r in passed if self._soak(r)]
            estimate = result.estimate
            # Only what looks better is planned, so it goes on until it has an estimate.
            is_best = not estimate or all(
                estimate.ratio < r.estimate.ratio for r in passed if r.estimate
            )
            if is_best and self._clock.allows_pair(stage, is_needed=not passed):
                return self._pair(plan, repeat)
        if any(task.stage == stage for task in self._pairs):
            return Wait()
        news = tuple(r for r in results if self._records.is_news(r))
        return Write(news) if news else None

    def _pair(self, plan: ProofRecord, repeat: int) -> Give:
        stage = plan.stage
        settings = plan.settings
        # Of the first lane: the same in every session.
        noise = self._records.of(AaRecord)[0].noise
        pairs = proof_size(noise, starts=self._study.block_sizes.starts)
        task = PairTask(
            stage=stage, settings=settings, trial=plan.trial, repeat=repeat, pairs=pairs
        )
        count = most_pairs(self._study, stage)
        details = {
            CONFIRM: f"{settings} in up to {count} fresh pairs of processes",
            ISOLATED: "isolated runs of each arm, compared with the interleaved pairs",
        }
        name = f"{stage}-{settings.digest}-{repeat:02d}"
        return Give(task, ("confirm", name), name, CONFIRM, details.get(stage, ""))

    def prove(
        self, stage: str, settings: FlagSet, trial: int, count: int = 1
    ) -> Step | FinalistResult:
        """Returns the next step of the proof of one set, or its result; see `_plan`."""
        for plan in self._records.of(ProofRecord):
            if (plan.stage, plan.settings) == (stage, settings):
                return self._next_of(stage, [plan]) or self._standing(plan).result
        return Write((self._plan(stage, settings, trial, count),))

    def _plan(self, stage: str, settings: FlagSet, trial: int, count: int) -> ProofRecord:
        """Returns the plan of a proof, one of `count` that share what is left of the error."""
        cap = most_pairs(self._study, stage)
        if stage == ISOLATED:
            plan = alone_plan(cap)
        else:
            proofs = [p for p in self._records.of(ProofRecord) if p.stage == stage]
            used = sum(p.error for p in proofs)
            recent = [p.error for p in proofs if p in self._since_search]
            # That of the proofs since the last search, if there is so much left.
            share = allot(ERROR, used - sum(recent), len(recent) + count)
            if used + count * share > ERROR:
                share = allot(ERROR, used, count)
            plan = ProofPlan(
                base=cap,
                error=share,
                least=LEAST_PAIRS,
                other_side=EQUAL_SIDES if stage == AB else OTHER_SIDE,
            )
        return ProofRecord(stage=stage, settings=settings, trial=trial, **asdict(plan))


def _first_free(numbers: Container[int], start: int) -> int:
    return next(n for n in itertools.count(start) if n not in numbers)


def _spread(runs: Sequence[ConfirmRun], stage: str) -> float:
    """Returns the standard deviation of a stage's log ratios between pairs; 0 of fewer than two."""
    ratios = [r.log_ratio for r in runs if r.stage == stage and r.log_ratio is not None]
    return statistics.stdev(ratios) if len(ratios) > 1 else 0.0


def longer_trial_s(planned_s: float, results: Sequence[TrialResult]) -> float:
    """Returns the seconds of the next trial: as planned, or as the shortest recent one took."""
    took_s = [
        r.duration_s for r in results[-RECENT:] if r.status is TrialStatus.MEASURED and r.duration_s
    ]
    return max(planned_s, min(took_s, default=0.0))


def worth_proving(
    results: Sequence[TrialResult], effects: EffectsRecord | None, *, count: int, min_effect: float
) -> list[TrialResult]:
    """Returns the best `count` trials whose intervals allow a gain of `min_effect`, best first.

    Where processes differ by as much as a gain, one set in eight that gains 2 % does not look
    promising after its trial, so an interval that only allows a gain is enough. The best expected
    set comes first, unless it was surely slower than the fastest one, then the others as expected,
    so that no lucky trial takes the place of a better set. Of trials that differ only in settings
    of no expected use one is taken, and of trials of such settings alone those that were faster.
    """
    bound = 1.0 - min_effect
    hopeful = [
        (r.comparison.estimate, r)
        for r in results
        if r.status is TrialStatus.MEASURED and r.comparison and r.comparison.estimate.low < bound
    ]
    hopeful.sort(key=lambda pair: pair[0].ratio)
    if effects is None or not hopeful:
        return [r for _, r in hopeful[:count]]
    expected = dict(effects.expected)
    fastest, _ = hopeful[0]

    def rank(pair: tuple[Estimate, TrialResult]) -> tuple[bool, float, float]:
        estimate, result = pair
        is_other = result.settings != effects.best.settings or least_ratio(estimate, fastest) > 1.0
        return is_other, expected.get(result.number, estimate.ratio), estimate.ratio

    different: dict[FlagSet, TrialResult] = {}
    for estimate, result in sorted(hopeful, key=rank):
        useful = effects.useful(result.settings, least=min_effect)
        if useful or estimate.ratio < bound:
            different.setdefault(useful, result)
    return list(different.values())[:count]


def most_pairs(study: StudySpec, stage: str) -> int:
    """Returns the most pairs of processes of a proof of a study."""
    confirm = study.confirm
    return max(FIRST_LOOK, confirm.isolated if stage == ISOLATED else confirm.processes)
