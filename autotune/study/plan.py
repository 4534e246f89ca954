"""Decides what a study does next, from its records, the time left and the tasks in hand: no I/O and
no state.

A study that was killed, or has more trials or time than before, goes on by the same call. The best
of many noisy estimates is biased, so the search's own figures decide only which sets are proven. A
set is proven in fresh pairs of processes by a sequential test whose plan, with the error that all
looks share, is recorded before the first pair. The rule of one proof is
`autotune.model.proofs.standing`.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from weakref import WeakKeyDictionary

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
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, LossBasis
from autotune.model.proofs import Report, Standing, is_alone_due, report_of, standing
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
from autotune.rundir.store import Store
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

STAGES = ("probe", "A/A run", "screen", "search", "minimise", "confirm", "soak", "conclude")
"""In order, by their names in docs/study.md."""

LEAST_GROUP = 2
"""Fewest settings that are left out together rather than in turn."""

ENOUGH_TO_TELL = 12
"""Trials that are needed for the search to end with the best expected set."""


# ---------------------------------------------------------------------- steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TryNext:
    """Try the sampler's next set as trial `number`, in at most `most` pairs of blocks (None: no
    limit).

    Attributes:
        is_last: Whether the best expected set is tried.
    """

    number: int
    is_last: bool
    most: int | None


@dataclass(frozen=True, slots=True)
class EndSearch:
    """Record the estimated effects and that the search ended; `reason` is empty if all trials were
    made.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """Give a task to a lane; `detail` is shown when its stage begins, empty where the caller has
    shown it.
    """

    task: AnyTask
    folder: tuple[str, ...]
    name: str
    stage: str
    detail: str


@dataclass(frozen=True, slots=True)
class Write:
    """Append records: the plan of a proof, or verdicts."""

    records: tuple[AnyRecord, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can begin until a task in hand has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude:
    """The study ends.

    Attributes:
        winner: The proof of the winner; None if there is none.
        report: What is reported of the winner.
        objections: What speaks against sets that looked faster.
        unproven: The best trial whose set is not proven because the budget left no time for it.
    """

    winner: FinalistResult | None = None
    report: Report = field(default_factory=Report)
    objections: Mapping[FlagSet, Objection] = field(default_factory=dict)
    unproven: TrialResult | None = None


Step = TryNext | EndSearch | Give | Write | Wait | Conclude


def next_step(
    study: StudySpec,
    records: Store,
    clock: TimeLeft,
    in_hand: Sequence[AnyTask] = (),
) -> Step:
    """Returns the next step of a study whose A/A run is recorded.

    Args:
        records: Those of all sessions; only read.
        clock: The time left now.
        in_hand: Tasks that lanes are doing.
    """
    return Plan(study, records, clock, in_hand).next_step()


class Plan:
    """One look at a study.

    Sets are proven one after the other, best first, each in fresh pairs of processes until its
    sequential test is settled. Once one is proven, only sets that look better than it go on.
    """

    def __init__(
        self,
        study: StudySpec,
        records: Store,
        clock: TimeLeft,
        in_hand: Sequence[AnyTask] = (),
    ) -> None:
        self._study = study
        self._records = records
        self._clock = clock
        self._in_hand = in_hand
        self._min_effect = study.measure.min_effect
        self._results = records.of(TrialResult)
        self._pairs = [t for t in in_hand if isinstance(t, PairTask)]
        self._objections: dict[FlagSet, Objection] = {}

    def next_step(self) -> Step:
        """See the function."""
        if not self._is_search_closed:
            return self._search(self._kept_for_proofs)
        step = self._next_finalist(self._chosen(), has_winner=True) if self._is_round_due else None
        step = step or self._next_of(CONFIRM, self._planned)
        if step is not None:
            return step
        for proven in self._confirmed():
            step = self._soak(proven)
            if step is not None:
                return step
        step = self._next_finalist(self._chosen())
        if step is None and self._clock.has_budget:
            step = self._more_search() or self._next_finalist(
                self._chosen([p.trial for p in self._planned])
            )
        unproven = self._unproven if self._clock.has_budget else None
        return step or Conclude(objections=self._objections, unproven=unproven)

    # ------------------------------------------------------------------ the search

    @property
    def _asked(self) -> int:
        return self._study.search.trials

    @property
    def _last_end(self) -> SearchEnd | None:
        """The end of a search of as many trials and as much time as are asked for now."""
        end = self._records.last(SearchEnd)
        if end is None or (end.asked, end.budget_s) != (
            self._asked,
            self._study.search.time_budget,
        ):
            return None
        return end

    @property
    def _is_search_closed(self) -> bool:
        return self._last_end is not None and self._last_end.trials == len(self._results)

    @property
    def _kept_for_proofs(self) -> float:
        """Seconds that the search leaves to proofs: to one of them, where those before it named no
        winner.

        Where no proof fits, the search gets the time, and names the best set so far.
        """
        if not self._clock.is_enough:
            return 0.0
        if self._last_end is None:
            return self._clock.still_kept_s
        return self._clock.least_s if self._clock.allows_proof() else 0.0

    def _more_search(self) -> Step | None:
        """Returns a step of a search that goes on with the time that proofs left; None if it
        cannot.

        Where no other proof fits, the search gets all of it, and the best set stays unproven.
        """
        end = self._last_end
        if not self._clock.is_enough or (end is not None and end.is_exhausted):
            return None
        steps = (self._search(kept_s) for kept_s in (self._clock.least_s, 0.0))
        return next((step for step in steps if not isinstance(step, EndSearch)), None)

    def _search(self, kept_s: float) -> Step:
        count = len(self._results)
        trial_s = longer_trial_s(self._clock.takes.trial_s, self._results)
        numbers = {r.number for r in self._results}
        numbers.update(t.config.number for t in self._in_hand if isinstance(t, TrialTask))
        left = self._asked - len(numbers)
        if left <= 0:
            return self._end_search("")
        if self._clock.is_used_up(trial_s, kept_s):
            kept = ", what is left is kept for proofs" if kept_s else ""
            return self._end_search(
                f"time budget used: the search ends after {count} of {self._asked} trials{kept}"
            )
        if (cause := self._failing_set(kept_s)) is not None:
            return cause
        is_last = left == 1 or self._clock.is_used_up(2 * trial_s, kept_s)
        return TryNext(
            number=_first_free(numbers, start=1),
            is_last=is_last and count >= ENOUGH_TO_TELL,
            most=self._clock.pairs_for(kept_s, starts=1, share=TRIAL_SHARE),
        )

    def _end_search(self, reason: str) -> Step:
        return Wait() if self._in_hand else EndSearch(reason)

    def _failing_set(self, kept_s: float) -> Give | None:
        """Returns the task of finding a minimal failing set, if a trial crashed or hung and there
        is time for it.
        """
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
            task = failing_task(trial, kind, self._results)
            number = f"{trial.number:04d}"
            return Give(
                task=task,
                folder=("failing", number),
                name=f"failing-{number}",
                stage="search",
                detail="",
            )
        return None

    # ------------------------------------------------------------------ finalists

    @functools.cached_property
    def _planned(self) -> list[ProofRecord]:
        """The plans of the finalists' proofs."""
        return [p for p in self._records.of(ProofRecord) if p.stage == CONFIRM]

    @functools.cached_property
    def _since_search(self) -> Sequence[AnyRecord]:
        """Records after the end of the last search."""
        records = self._records.records()
        begins = [at + 1 for at, record in enumerate(records) if isinstance(record, SearchEnd)]
        return records[max(begins, default=0) :]

    @property
    def _is_round_due(self) -> bool:
        """Whether no pair of a finalist's proof was run since the last search."""
        return not any(isinstance(r, ConfirmRun) and r.stage == CONFIRM for r in self._since_search)

    def _chosen(self, without: Container[int] = ()) -> list[TrialResult]:
        results = [r for r in self._results if r.number not in without]
        effects = self._records.last(EffectsRecord)
        return worth_proving(
            results, effects, count=self._study.confirm.finalists, min_effect=self._min_effect
        )

    def _next_finalist(
        self, chosen: Sequence[TrialResult], *, has_winner: bool = False
    ) -> Step | None:
        """Returns a step that makes the best trial without a proof minimal, or plans its proof;
        None if none is due.

        Args:
            chosen: Trials worth a proof, best first.
            has_winner: Whether a set that passed its proof may win, so that no worse one is proven.
        """
        plans = {p.trial: p for p in self._planned}
        planned = {p.settings for p in self._planned}
        left = sum(t.number not in plans for t in chosen)
        for trial in chosen:
            plan = plans.get(trial.number)
            if plan is not None:
                proof = self._standing(plan)
                if not proof.is_over or (has_winner and proof.result.is_passed):
                    return None
                continue
            if not self._clock.allows_proof():
                return None
            settings = self._minimal(trial.settings)
            if not isinstance(settings, FlagSet):
                return settings
            if settings not in planned:
                return Write((self._plan(CONFIRM, settings, trial.number, left=left),))
        return None

    @property
    def _unproven(self) -> TrialResult | None:
        """The best trial that is waiting for its proof, or for the end of it."""
        numbers = {p.trial for p in self._planned}
        planned = {p.settings for p in self._planned}
        unfinished = {p.trial for p in self._planned if self._next_pair(p) is not None}
        for trial in self._chosen():
            is_planned = trial.number in numbers or self._minimal(trial.settings) in planned
            if trial.number in unfinished or not is_planned:
                return trial
        return next((r for r in self._results if r.number in unfinished), None)

    # ------------------------------------------------------------------ minimal sets

    def _minimal(self, settings: FlagSet) -> FlagSet | Step:
        """Returns a set without the settings that do not pay, or the step that measures one of
        them.

        Settings of no expected use are left out first, together, by one measurement. If they pay
        after all, or nothing is expected, each setting in turn is measured against the set without
        it. A setting stays if leaving it out is measurably slower or, where that is not resolved,
        slower by the estimate: what is dropped by mistake is lost.
        """
        if not self._study.confirm.minimise or len(settings) < 2:
            return settings
        detail = f"{len(settings)} settings, each left out once; no gain: dropped"
        group = self._of_no_use(settings)
        current = settings
        waiting: list[LeftOut] = list(settings)
        if len(group) >= LEAST_GROUP:
            waiting = [group, *settings.without(*group)]
        while waiting and len(current) > 1:
            left_out = waiting.pop(0)
            result = self._ablation(current, left_out, 1.0 / (1 + len(waiting)), detail)
            if not isinstance(result, AblationResult):
                return result or current
            if not result.kept:
                current = current.without(*names_left_out(left_out))
            elif left_out == group:
                waiting = list(settings)
        return current

    def _of_no_use(self, settings: FlagSet) -> tuple[str, ...]:
        """Returns the settings of no expected use; if all are such, without the one that is
        likeliest to act.
        """
        effects = self._records.last(EffectsRecord)
        if effects is None:
            return ()
        useful = effects.useful(settings, least=self._min_effect)
        likeliest = next((s.name for s in effects.settings if s.name in settings), None)
        group = tuple(n for n in settings if n not in useful and (useful or n != likeliest))
        return group if len(group) < len(settings) else ()

    def _ablation(
        self, settings: FlagSet, left_out: LeftOut, share: float, detail: str
    ) -> AblationResult | Step | None:
        """Returns what leaving settings out did, or the step that measures it; None without time
        for that.
        """
        for result in self._records.of(AblationResult):
            if (result.settings, result.left_out) == (settings, left_out):
                return result
        if self._in_hand:
            return Wait()
        if not self._clock.allows_ablation():
            return None
        names = names_left_out(left_out)
        what = (
            names[0].lower()
            if isinstance(left_out, str)
            else f"{len(names)}-of-{settings.without(*names).digest}"
        )
        label = f"{settings.digest}-without-{what}"[:120]
        most = self._clock.pairs_for(self._clock.kept_after("minimise"), starts=2, share=share)
        task = AblationTask(settings=settings, left_out=left_out, most=most)
        return Give(
            task=task, folder=("minimise", label), name=label, stage="minimise", detail=detail
        )

    # ------------------------------------------------------------------ confirmed, proven and
    # soaked

    def _confirmed(self) -> list[FinalistResult]:
        """Returns the proofs that sets have passed, fastest first."""
        results = [self._standing(plan).result for plan in self._planned]
        passed = [r for r in results if r.is_passed]
        return sorted(passed, key=lambda r: r.corrected.ratio if r.corrected else 1.0)

    def _soak(self, proven: FinalistResult) -> Step | None:
        """Returns the step after a set's proof: isolated runs, soak or win; None if something
        speaks against it.
        """
        confirm = self._study.confirm
        settings = proven.settings
        runs = self._records.of(ConfirmRun)
        isolated: FinalistResult | None = None
        if is_alone_due(proven, self._records.last(AaRecord), runs, asked=confirm.isolated):
            step, isolated = self.prove(ISOLATED, settings, proven.trial)
            if step is not None:
                return step
        report = report_of(proven, isolated, runs)
        if report.objection is not None:
            self._objections[settings] = report.objection
            return None
        if confirm.soak:
            soak = self._last_soak(settings)
            if soak is None:
                return Wait() if self._in_hand else self._soak_task(proven)
            if soak.failure is not None or soak.unsettled is not None:
                return None
            report = report_of(proven, isolated, runs, soak.arms)
        return Conclude(winner=proven, report=report, objections=self._objections)

    def _last_soak(self, settings: FlagSet) -> SoakRecord | None:
        """Returns the newest soak of a set that failed, or was as long as the study asks for
        now.
        """
        confirm = self._study.confirm
        for record in reversed(self._records.of(SoakRecord)):
            steps_are_enough = record.step_count >= self._study.soak_steps(settings)
            is_enough = record.failure is not None or (
                record.steps_s >= confirm.soak and steps_are_enough
            )
            may_settle = (
                record.unsettled is not None
                and record.arms is not None
                and record.arms.most < confirm.soaks
            )
            if record.settings == settings and is_enough and not may_settle:
                return record
        return None

    def _soak_task(self, proven: FinalistResult) -> Give:
        settings, confirm = proven.settings, self._study.confirm
        least_s, least_steps = confirm.soak, self._study.soak_steps(settings)
        name = f"soak-{settings.digest}-{least_s:.0f}-{least_steps}-{confirm.soaks}"
        runs = self._records.of(ConfirmRun)
        runs_of_set = [r for r in runs if r.settings == settings]
        bases = [r.loss.basis for r in runs_of_set if r.loss is not None]
        step_counts = [
            r.total.candidate.steps
            for r in runs_of_set
            if r.stage == proven.stage and r.total is not None
        ]
        task = SoakTask(
            settings=settings,
            least_s=least_s,
            least_steps=least_steps,
            basis=bases[-1] if bases else LossBasis.STEPS,
            proven=proven.corrected,
            process_sd=max(_spread(runs_of_set, proven.stage), _spread(runs_of_set, ISOLATED)),
            proven_steps=round(statistics.median(step_counts)) if step_counts else 0,
            most=confirm.soaks,
        )
        detail = (
            f"the winner in isolation for {format_seconds(least_s)} of steps, then the default: "
            "looks for hangs, "
            "divergence, stalls, slower steps and leaks"
        )
        return Give(task=task, folder=("soak", name), name=name, stage="soak", detail=detail)

    # ------------------------------------------------------------------ proofs

    def _runs(self, plan: ProofRecord) -> list[ConfirmRun]:
        """Returns the pairs of processes of a plan's stage and set."""
        runs = self._records.of(ConfirmRun)
        return [r for r in runs if r.stage == plan.stage and r.settings == plan.settings]

    def _standing(self, plan: ProofRecord) -> Standing:
        """Returns the proof's verdict so far, and whether it is over."""
        runs, most = self._runs(plan), most_pairs(self._study, plan.stage)
        standings = _STANDINGS.setdefault(self._records, {})
        key = (plan.stage, plan.settings, len(runs), most)
        if key not in standings:
            min_effect = self._study.measure.min_effect
            standings[key] = standing(plan, runs, most=most, min_effect=min_effect)
        return standings[key]

    def _ratio(self, plan: ProofRecord) -> float:
        """Returns the ratio so far, 1 of too few pairs."""
        estimate = self._standing(plan).result.estimate
        return estimate.ratio if estimate is not None else 1.0

    def _next_pair(self, plan: ProofRecord) -> int | None:
        """Returns the index of the next pair to run, from 0; None if there is none."""
        if self._standing(plan).is_over:
            return None
        done = {r.repeat for r in self._runs(plan)}
        done |= {
            t.repeat for t in self._pairs if (t.stage, t.settings) == (plan.stage, plan.settings)
        }
        repeat = _first_free(done)
        return repeat if repeat < most_pairs(self._study, plan.stage) else None

    def _next_of(self, stage: str, plans: Sequence[ProofRecord]) -> Step | None:
        """Returns the next pair, or the verdicts to record; None if these are all recorded, or
        there are no plans.
        """
        passed = [self._ratio(p) for p in plans if self._standing(p).result.is_passed]
        best = min(passed, default=math.inf)
        for plan in plans:
            repeat = self._next_pair(plan)
            if repeat is None or self._ratio(plan) >= best:
                continue
            if self._clock.allows_pair(stage, is_needed=not passed):
                return self._pair(plan, repeat)
        if any(task.stage == stage for task in self._pairs):
            return Wait()
        results = [self._standing(p).result for p in plans]
        news = tuple(r for r in results if self._records.is_news(r))
        return Write(news) if news else None

    def _pair(self, plan: ProofRecord, repeat: int) -> Give:
        stage, settings = plan.stage, plan.settings
        noise = self._records.of(AaRecord)[
            0
        ].noise  # of the first lane: the same on every lane, and in every session
        pairs = proof_size(noise, starts=self._study.block_sizes.starts)
        task = PairTask(
            stage=stage, settings=settings, trial=plan.trial, repeat=repeat, pairs=pairs
        )
        details = {
            CONFIRM: f"{settings} in up to {most_pairs(self._study, stage)} fresh pairs of "
            "processes",
            ISOLATED: "isolated runs of each arm, compared with the interleaved pairs",
        }
        name = f"{stage}-{settings.digest}-{repeat:02d}"
        return Give(
            task=task,
            folder=("confirm", name),
            name=name,
            stage=CONFIRM,
            detail=details.get(stage, ""),
        )

    def prove(
        self, stage: str, settings: FlagSet, trial: int, *, count: int = 1
    ) -> tuple[Step | None, FinalistResult | None]:
        """Returns the next step of the proof of one set, or its result; see `_plan`."""
        plans = [
            p for p in self._records.of(ProofRecord) if (p.stage, p.settings) == (stage, settings)
        ]
        if not plans:
            return Write((self._plan(stage, settings, trial, left=count),)), None
        step = self._next_of(stage, plans[:1])
        return step, self._standing(plans[0]).result

    def _plan(self, stage: str, settings: FlagSet, trial: int, *, left: int = 1) -> ProofRecord:
        """Returns the plan of a proof with its share of the study's error; `left` proofs are to
        have as much each.
        """
        most = most_pairs(self._study, stage)
        if stage == ISOLATED:
            plan = alone_plan(most)
        else:
            other_side = OTHER_SIDE
            if stage == AB:
                other_side = EQUAL_SIDES
            plan = ProofPlan(
                base=most, error=self._share(stage, left), least=LEAST_PAIRS, other_side=other_side
            )
        return ProofRecord(stage=stage, settings=settings, trial=trial, **asdict(plan))

    def _share(self, stage: str, left: int) -> float:
        """Returns the error of each of the `left` proofs: that of those before it since the last
        search.
        """
        used = sum(p.error for p in self._records.of(ProofRecord) if p.stage == stage)
        begun = [r for r in self._since_search if isinstance(r, ProofRecord) and r.stage == stage]
        share = allot(ERROR, used - sum(p.error for p in begun), len(begun) + left)
        return share if used + left * share <= ERROR else allot(ERROR, used, left)


def _first_free(numbers: Container[int], *, start: int = 0) -> int:
    """Returns the least number from `start` on that is not among some."""
    return next(n for n in itertools.count(start) if n not in numbers)


def _spread(runs: Sequence[ConfirmRun], stage: str) -> float:
    """Returns the standard deviation of log ratios between the pairs of processes of a stage; 0 of
    fewer than two.
    """
    ratios = [r.log_ratio for r in runs if r.stage == stage and r.log_ratio is not None]
    return statistics.stdev(ratios) if len(ratios) > 1 else 0.0


def longer_trial_s(planned_s: float, results: Sequence[TrialResult]) -> float:
    """Returns the least seconds of the next trial: as planned, or of the shortest recent one if
    longer.
    """
    took_s = [
        r.duration_s for r in results[-RECENT:] if r.status is TrialStatus.MEASURED and r.duration_s
    ]
    return max(planned_s, min(took_s, default=0.0))


def worth_proving(
    results: Sequence[TrialResult], effects: EffectsRecord | None, *, count: int, min_effect: float
) -> list[TrialResult]:
    """Returns the best `count` measured trials whose intervals allow a gain of `min_effect` (a
    share), best first.

    A trial is one pair of processes, and where processes differ by as much as a gain, one set in
    eight that gains 2 % does not look promising after it. So an interval that only allows a gain is
    enough.

    The best expected set comes first, unless its own trial was surely slower than the fastest one,
    and the others by what is expected of them, so that no lucky trial takes the place of a better
    set. Of trials that differ only in settings of no expected use one is taken, and of trials of
    such settings alone those that were faster.

    Args:
        effects: Estimates from all trials; None where none of them is a point of the space.
    """
    hopeful = [
        (r.comparison.estimate, r)
        for r in results
        if r.status is TrialStatus.MEASURED
        and r.comparison
        and r.comparison.estimate.low < 1.0 - min_effect
    ]
    hopeful.sort(key=lambda pair: pair[0].ratio)
    if effects is None or not hopeful:
        return [r for _, r in hopeful[:count]]
    expected, best = dict(effects.expected), effects.best.settings
    fastest, _ = hopeful[0]

    def rank(pair: tuple[Estimate, TrialResult]) -> tuple[bool, float, float]:
        estimate, result = pair
        is_best = result.settings == best and least_ratio(estimate, fastest) <= 1.0
        return not is_best, expected.get(result.number, estimate.ratio), estimate.ratio

    different: dict[FlagSet, TrialResult] = {}
    for estimate, result in sorted(hopeful, key=rank):
        useful = effects.useful(result.settings, least=min_effect)
        if useful or estimate.ratio < 1.0 - min_effect:
            different.setdefault(useful, result)
    return list(different.values())[:count]


_STANDINGS: WeakKeyDictionary[Store, dict[tuple[str, FlagSet, int, int], Standing]] = (
    WeakKeyDictionary()
)
"""Standings that were computed, by stage, set, number of pairs and the most of them."""


def most_pairs(study: StudySpec, stage: str) -> int:
    """Returns the most pairs of processes of a proof of a study."""
    confirm = study.confirm
    return max(FIRST_LOOK, confirm.isolated if stage == ISOLATED else confirm.processes)
