"""Does the tasks of one lane: the far side of `autotune.study.lanes`, here or in a process."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from autotune.cluster.engine import JOINED, Engine, LaneMessage, Message
from autotune.machine.host import describe_machine
from autotune.measure.compare import (
    Compared,
    Comparer,
    ComparisonRequest,
    Interleaved,
    Isolated,
    SameProgram,
    StoppingRule,
    fixed,
    sequential,
)
from autotune.measure.context import MeasurementContext, ProgressSink, ReferenceFailed
from autotune.measure.failing import minimise_failure, most_again
from autotune.measure.loss_gate import ROUNDINGS, Reports, spread_of_aa_run, spread_of_rounding
from autotune.measure.soak import soak_isolated
from autotune.measure.tasks import (
    AaTask,
    AblationTask,
    AnyTask,
    Assignment,
    FailingSetTask,
    PairTask,
    SoakTask,
    TrialTask,
)
from autotune.model.errors import LaunchError
from autotune.model.files import Table
from autotune.model.flags import FlagSet
from autotune.model.measurement import (
    ABA,
    Comparison,
    Failure,
    FailureKind,
    LossCheck,
    WorkerReport,
)
from autotune.model.proofs import figures_of
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    AblationResult,
    AnyRecord,
    TrialOutcome,
    TrialResult,
    TrialStatus,
)
from autotune.model.spec import StudySpec
from autotune.rundir.store import Folders
from autotune.stats.aa_noise import trial_plan
from autotune.stats.estimates import Estimate, Verdict, judge
from autotune.stats.loss_check import LossSpread
from autotune.workers.base import Launcher, Worker, WorkerFailed
from autotune.workers.failures import collision_of

# Tasks in a row over which the reference did not stay alive, after which the lane is of no use.
MOST_LOST_IN_A_ROW = 3
ONLY_LANE = ""


class TaskRunner:
    """One lane's measurement context, and how it compares once the A/A run tells what fits."""

    def __init__(
        self, spec: StudySpec, folders: Folders, launcher: Launcher, progress: ProgressSink
    ) -> None:
        self._lost_in_a_row = 0
        self.context = MeasurementContext(spec, folders, launcher, progress)
        self.comparer = self._open_comparer(spec.measure.mode)

    def _open_comparer(self, mode: str) -> Comparer:
        return Isolated(self.context) if mode == ABA else Interleaved(self.context)

    def do(self, assignment: Assignment) -> AnyRecord:
        """Does one task; a failing set is data, a reference that does not live LaunchError."""
        task = assignment.task
        context = self.context
        begun_s = time.monotonic()
        context.begin(assignment)
        if assignment.aa_run is not None:
            mode = assignment.aa_run.comparison.mode
            if mode != self.comparer.mode:
                self.comparer = self._open_comparer(mode)
        if isinstance(task, PairTask | AblationTask | SoakTask) or self.comparer.mode == ABA:
            # Proofs start fresh processes of both arms, and nothing else may run beside.
            context.release_reference()
        context.folder()  # its record names it, whatever becomes of the task
        try:
            record = self._record(task)
            self._lost_in_a_row = 0
        except WorkerFailed as error:
            self._lost_in_a_row += 1
            if not isinstance(error, ReferenceFailed):
                self._lost_in_a_row = 0
            if self._lost_in_a_row >= MOST_LOST_IN_A_ROW or isinstance(task, AaTask):
                raise LaunchError(
                    f"the reference must stay alive but {error.failure.message}. Look at "
                    f"{'/'.join(assignment.folder)} and aa_run/reference/worker.log, then run "
                    "the same command again"
                ) from error
            record = task.failed(error.failure)
        update: Table = {"directory": "/".join(assignment.folder)}
        if not isinstance(task, AaTask):
            update["duration_s"] = round(time.monotonic() - begun_s, 3)
        failure: Failure | None = getattr(record, "failure", None)
        if failure is not None and failure.log is not None:
            path = Path(failure.log)
            is_inside = path.is_relative_to(context.folders.path)
            log = context.folders.relative(path) if is_inside else path.name
            update["failure"] = failure.model_copy(update={"log": log})
        return record.model_copy(update=update)

    def _record(self, task: AnyTask) -> AnyRecord:
        match task:
            case AaTask():
                return self._measure_aa()
            case TrialTask():
                return self._trial(task)
            case PairTask():
                return self._pair(task)
            case AblationTask():
                return self._ablation(task)
            case SoakTask():
                return soak_isolated(self.context, task)
            case FailingSetTask():
                return minimise_failure(self.context, task, isolated=self.comparer.mode == ABA)

    def close(self) -> None:
        """Ends every process of the lane."""
        self.context.close()

    def _measure_aa(self) -> AaRecord:
        aa_run = self._aa_run()
        spread = spread_of_aa_run(aa_run.reports, aa_run.pairs)
        if spread.has_other_data:
            self.context.progress.incident(
                f"losses of equal runs differ by {max(spread.losses):.0%}, so their data or its "
                "order differs: sets are compared by the mean loss of a long run; a fixed seed "
                "lets every step be compared"
            )
        else:
            spread = spread.joined(self._rounding(aa_run))
        return AaRecord(
            noise=aa_run.noise,
            reference=aa_run.reports[0],
            comparison=aa_run.comparison,
            provenance=describe_machine(),
            loss_spread=spread,
            directory="/".join(self.context.assignment.folder),
        )

    def _aa_run(self) -> Compared:
        while True:
            try:
                return self.comparer.aa_run()
            except ReferenceFailed:
                raise
            except WorkerFailed as error:
                failure = error.failure
                if failure.phase != "step" and failure.kind is not FailureKind.WRONG_LOSS:
                    raise LaunchError(
                        f"a second reference must run beside the first but did not: {error}; its "
                        f"log is {failure.log}. If both cannot have the same "
                        f"{collision_of(failure) or 'memory'}, let them run one at a time "
                        '(measure.mode = "auto" or "aba")'
                    ) from error
                self.context.lose_reference(error)

    def _rounding(self, aa_run: Compared) -> LossSpread:
        """How far the reference in another rounding is off, over the steps that it reported."""
        context = self.context

        def look(worker: Worker) -> LossSpread:
            return spread_of_rounding(context.spec, worker, aa_run.reports[0], aa_run.pairs)

        for settings in ROUNDINGS:
            try:
                return context.where_it_fits(
                    settings,
                    context.folder("rounding"),
                    look,
                    isolated=aa_run.comparison.mode == ABA,
                )
            except (WorkerFailed, ValueError) as error:
                context.progress.incident(
                    f"what rounding does to the loss is not known from {settings}: {error}"
                )
        return LossSpread()

    def _rule(
        self, most: int | None, incumbent: Estimate | None = None, *, starts: float = 1.0
    ) -> StoppingRule:
        measure = self.context.spec.measure
        noise = self.context.assignment.noise
        plan = trial_plan(noise, most=measure.pairs_cap, starts=starts)
        return sequential(
            plan, min_effect=measure.min_effect, incumbent=incumbent, spread=noise.spread, most=most
        )

    def _trial(self, task: TrialTask) -> TrialResult:
        """Measures a set, unless its program is known: then the driver adds the figures of that."""
        context = self.context
        settings = task.config.settings
        report: WorkerReport | None = None
        loss: LossCheck | None = None
        key: str | None = None
        same_as: int | None = None

        def inspect(reports: Reports) -> None:
            nonlocal report, key, loss, same_as
            report = reports[1]
            key = context.program_key(settings, report)
            loss = context.losses.check(settings, reports)
            reference_key = context.program_key(FlagSet(), reports[0])
            programs = {**context.assignment.programs, reference_key: REFERENCE_NUMBER}
            same_as = programs.get(key)
            if same_as is not None:
                raise SameProgram

        request = ComparisonRequest(
            candidate=settings,
            rule=self._rule(task.most, task.incumbent),
            inspect=inspect,
        )
        try:
            compared = self._compare(request)
        except ReferenceFailed:
            raise
        except WorkerFailed as error:
            outcome = TrialOutcome(status=TrialStatus.FAILED, failure=error.failure)
        except SameProgram:
            outcome = TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=same_as)
        else:
            reference, candidate = compared.reports
            loss = context.losses.with_blocks(loss, compared.pairs, reference)
            outcome = TrialOutcome(status=TrialStatus.MEASURED, comparison=compared.comparison)
            if context.program_key(settings, candidate) != key:
                # it compiles more as it runs, or another program each time
                report = candidate
                key = None
        return TrialResult(
            **dict(task.config),
            **dict(outcome),
            worker=report,
            program_key=key,
            compiled_key=task.compiled_key,
            loss=loss,
        )

    def _compare(self, request: ComparisonRequest) -> Compared:
        """Compares a set, which is started again before it is blamed for a failure."""
        failures = []
        while True:
            try:
                compared = self.comparer.compare(request)
                break
            except ReferenceFailed:
                raise
            except WorkerFailed as error:
                failures.append(error.failure)
                if len(failures) > min(map(most_again, failures)):
                    raise
                self.context.progress.incident(
                    f"started again before its settings are blamed: {error}"
                )
        if not failures:
            return compared
        flaky = f"flaky: {failures[0].kind} in {len(failures)} of {len(failures) + 1} starts"
        warnings = (*compared.comparison.warnings, flaky)
        comparison = compared.comparison.model_copy(update={"warnings": warnings})
        return compared._replace(comparison=comparison)

    def _pair(self, task: PairTask) -> AnyRecord:
        losses = self.context.losses
        loss: LossCheck | None = None

        def inspect(reports: Reports) -> None:
            nonlocal loss
            loss = losses.check(task.settings, reports)

        comparer = Isolated(self.context, beside=task.pairs) if task.is_isolated else self.comparer
        compared = comparer.compare(
            ComparisonRequest(
                candidate=task.settings,
                rule=fixed(task.pairs),
                is_proof=True,
                inspect=inspect,
            )
        )
        figures = compared.comparison
        return task.base().model_copy(
            update={
                **figures_of(compared.pairs, figures.work),
                "energy": figures.energy,
                "warnings": figures.warnings,
                "during": figures.during,
                "work": figures.work,
                "loss": losses.with_blocks(loss, compared.pairs, compared.reports[0]),
                "is_isolated": task.is_isolated or figures.mode != self.comparer.mode,
            }
        )

    def _ablation(self, task: AblationTask) -> AblationResult:
        """A set without one setting, or several, against the whole set."""
        context = self.context

        def inspect(reports: Reports) -> None:
            whole_key = context.program_key(task.settings, reports[0])
            if whole_key == context.program_key(task.rest, reports[1]):
                raise SameProgram

        request = ComparisonRequest(
            candidate=task.rest,
            rule=self._rule(task.most, starts=context.spec.block_sizes.starts),
            against=task.settings,
            inspect=inspect,
        )
        try:
            comparison = self.comparer.compare(request).comparison
        except SameProgram:
            return task.of_same_program()
        except WorkerFailed as error:
            return task.failed(error.failure, "the rest does not run without it")
        is_kept, reason = pays(comparison, context.spec.measure.min_effect)
        return AblationResult(
            settings=task.settings,
            left_out=task.left_out,
            comparison=comparison,
            kept=is_kept,
            reason=reason,
        )


def pays(comparison: Comparison, min_effect: float) -> tuple[bool, str]:
    """Whether a setting stays, and why, from what leaving it out does."""
    # Of the set without it, in two processes: no proof either.
    verdict = judge(comparison.estimate, min_effect=min_effect)
    if verdict is Verdict.SLOWER:
        return True, "it seems to pay"
    if verdict is Verdict.UNRESOLVED and comparison.estimate.ratio > 1.0:
        # To lose what pays costs more than a passenger.
        return True, "not settled, but faster by its estimate"
    return False, "no sign of a gain"


class LocalExecutor(Engine):
    """The engine of a study with one lane: this very process; see `Engine`."""

    words = "this process"

    def __init__(self, runner: TaskRunner) -> None:
        self.runner = runner
        joined = {"type": JOINED, "host": socket.gethostname(), "devices": None}
        self._messages = [LaneMessage(ONLY_LANE, joined)]

    def begin(self, lane: str, message: Message) -> None:
        """Does a task, however long it takes."""
        record = self.runner.do(Assignment.model_validate(message["assignment"]))
        self._messages.append(LaneMessage(lane, {"type": "result", "record": record}))

    def news(self, wait_s: float) -> list[LaneMessage]:
        """Returns what is done."""
        messages = self._messages
        self._messages = []
        return messages

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Ends what runs."""
        self.runner.close()

    def close(self) -> None:
        """Ends every process that was started."""
        self.runner.close()
