"""Does the tasks of one lane: the far side of `autotune.study.lanes`, in this process or in one of
its own.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from dataclasses import replace
from pathlib import Path

from autotune.cluster.engine import JOINED, Engine, Message, Told
from autotune.machine.host import describe_machine
from autotune.measure.compare import (
    AaRun,
    Compared,
    Comparer,
    ComparisonRequest,
    Interleaved,
    Isolated,
    StoppingRule,
    fixed,
    sequential,
)
from autotune.measure.context import MeasurementContext, ProgressSink, ReferenceFailed
from autotune.measure.failing import minimise_failure, most_again
from autotune.measure.loss_gate import ROUNDINGS, spread_of_aa_run, spread_of_rounding
from autotune.measure.soak import soak_isolated
from autotune.measure.tasks import (
    AaTask,
    AblationTask,
    Assignment,
    FailingSetTask,
    PairTask,
    SoakTask,
    TrialTask,
)
from autotune.model.errors import LaunchError
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
from autotune.workers.base import Launcher, WorkerFailed
from autotune.workers.failures import collision_of

MOST_LOST_IN_A_ROW = 3
"""Tasks in a row over which the reference did not stay alive, after which the lane is of no use."""

ONLY_LANE = ""
"""Name of the only lane of this process: its records need none."""


class TaskRunner:
    """One lane's measurement context, and how it compares: that may change once the A/A run tells
    what fits.
    """

    def __init__(
        self, spec: StudySpec, folders: Folders, launcher: Launcher, progress: ProgressSink
    ) -> None:
        self._lost_in_a_row = 0
        self.context = MeasurementContext(spec, folders, launcher, progress)
        self.comparer = self._open_comparer(spec.measure.mode)

    def _open_comparer(self, mode: str) -> Comparer:
        """Returns how a study compares."""
        return Isolated(self.context) if mode == ABA else Interleaved(self.context)

    def do(self, assignment: Assignment) -> AnyRecord:
        """Does one task; a failing set is data, never an exception.

        Raises:
            LaunchError: If the reference cannot be kept alive here.
            RunDirectoryError: If the logs cannot be written.
        """
        task = assignment.task
        context = self.context
        started = time.monotonic()
        context.begin(assignment)
        if (
            assignment.aa_run is not None
            and assignment.aa_run.comparison.mode != self.comparer.mode
        ):
            self.comparer = self._open_comparer(assignment.aa_run.comparison.mode)
        if isinstance(task, PairTask | AblationTask | SoakTask) or self.comparer.mode == ABA:
            # Proofs start fresh processes of both arms, and nothing else may run beside.
            context.release_reference()
        folder = context.folders.folder(*assignment.folder)
        try:
            record = self._record(assignment, folder)
            self._lost_in_a_row = 0
        except WorkerFailed as error:
            self._lost_in_a_row = (
                self._lost_in_a_row + 1 if isinstance(error, ReferenceFailed) else 0
            )
            if self._lost_in_a_row >= MOST_LOST_IN_A_ROW or isinstance(task, AaTask):
                raise LaunchError(
                    f"the reference must stay alive but {error.failure.message}. Look at "
                    f"{'/'.join(assignment.folder)} and aa_run/reference/worker.log, then run "
                    "the same command again"
                ) from error
            record = task.failed(error.failure)
        done: dict[str, object] = {"directory": "/".join(assignment.folder)}
        if not isinstance(task, AaTask):
            done["duration_s"] = round(time.monotonic() - started, 3)
        failure: Failure | None = getattr(record, "failure", None)
        if failure is not None and failure.log is not None:
            path = Path(failure.log)
            is_inside = path.is_relative_to(context.folders.path)
            log = context.folders.relative(path) if is_inside else path.name
            done["failure"] = failure.model_copy(update={"log": log})
        return record.model_copy(update=done)

    def _record(self, assignment: Assignment, folder: Path) -> AnyRecord:
        name = assignment.name
        match assignment.task:
            case AaTask():
                return self._measure_aa(folder)
            case TrialTask() as task:
                return self._trial(task, folder, name)
            case PairTask() as task:
                return self._pair(task, folder, name)
            case AblationTask() as task:
                return self._ablation(task, folder, name)
            case SoakTask() as task:
                return soak_isolated(self.context, task, folder)
            case FailingSetTask() as task:
                return minimise_failure(
                    self.context, task, folder, isolated=self.comparer.mode == ABA
                )

    def close(self) -> None:
        """Ends every process of the lane."""
        self.context.close()

    # ------------------------------------------------------------------ A/A run

    def _measure_aa(self, folder: Path) -> AaRecord:
        """The reference against other processes of itself."""
        aa_run = self._aa_run(folder)
        reports = [aa_run.reference, *aa_run.seconds]
        spread = spread_of_aa_run(reports, aa_run.pairs)
        if spread.has_other_data:
            self.context.progress.incident(
                f"losses of equal runs differ by {max(spread.losses):.0%}, so their data or its "
                "order differs: sets "
                "are compared by the mean loss of a long run; a fixed seed lets every step be "
                "compared"
            )
        else:
            spread = spread.joined(self._rounding(aa_run, folder))
        return AaRecord(
            noise=aa_run.noise,
            reference=aa_run.reference,
            comparison=aa_run.comparison,
            provenance=describe_machine(),
            loss_spread=spread,
            directory=self.context.folders.relative(folder),
        )

    def _aa_run(self, folder: Path) -> AaRun:
        while True:
            try:
                return self.comparer.aa_run(folder)
            except ReferenceFailed:
                raise
            except WorkerFailed as error:
                if (
                    error.failure.phase != "step"
                    and error.failure.kind is not FailureKind.WRONG_LOSS
                ):
                    raise LaunchError(
                        f"a second reference must run beside the first but did not: {error}; its "
                        "log is "
                        f"{error.failure.log}. If both cannot have the same "
                        f"{collision_of(error.failure) or 'memory'}, "
                        'let them run one at a time (measure.mode = "auto" or "aba")'
                    ) from error
                self.context.lose_reference(error)

    def _rounding(self, aa_run: AaRun, folder: Path) -> LossSpread:
        """How far the reference in another rounding is off, over the steps that the A/A run's
        reference reported.
        """
        context = self.context
        beside = context.folder_in(folder, "rounding")

        def look(settings: FlagSet, isolated: bool) -> LossSpread:
            with contextlib.closing(context.start(settings, beside, isolated=isolated)) as worker:
                return spread_of_rounding(context.spec, worker, aa_run.reference, aa_run.pairs)

        for settings in ROUNDINGS:
            try:
                return context.where_it_fits(
                    functools.partial(look, settings), isolated=aa_run.comparison.mode == ABA
                )
            except (WorkerFailed, ValueError) as error:
                context.progress.incident(
                    f"what rounding does to the loss is not known from {settings}: {error}"
                )
        return LossSpread()

    # ------------------------------------------------------------------ trials, proofs and
    # ablations

    def _rule(
        self, most: int | None, incumbent: Estimate | None = None, *, starts: float = 1.0
    ) -> StoppingRule:
        measure = self.context.spec.measure
        noise = self.context.assignment.noise
        plan = trial_plan(noise, most=measure.pairs_cap, starts=starts)
        return sequential(
            plan, min_effect=measure.min_effect, incumbent=incumbent, spread=noise.spread, most=most
        )

    def _trial(self, task: TrialTask, folder: Path, name: str) -> TrialResult:
        """Measures a set, unless its program is known already; then the driver adds the duplicate's
        figures.
        """
        context = self.context
        settings = task.config.settings
        report: WorkerReport | None = None
        loss: LossCheck | None = None
        key: str | None = None
        same_as: int | None = None

        def inspect(reference: WorkerReport, candidate: WorkerReport) -> bool:
            nonlocal report, key, loss, same_as
            report = candidate
            key = context.program_key(settings, candidate)
            loss = context.losses.check(settings, (reference, candidate))
            programs = {
                **context.assignment.programs,
                context.program_key(FlagSet(), reference): REFERENCE_NUMBER,
            }
            same_as = programs.get(key)
            return same_as is not None

        rule = self._rule(task.most, task.incumbent)
        request = ComparisonRequest(
            candidate=settings, folder=folder, name=name, rule=rule, inspect=inspect
        )
        try:
            compared = self._compare(request)
        except ReferenceFailed:
            raise
        except WorkerFailed as error:
            outcome = TrialOutcome(status=TrialStatus.FAILED, failure=error.failure)
        else:
            if compared.comparison is None:
                outcome = TrialOutcome(status=TrialStatus.SAME_PROGRAM, same_as=same_as)
            else:
                loss = context.losses.with_blocks(loss, compared.pairs, compared.reference)
                outcome = TrialOutcome(status=TrialStatus.MEASURED, comparison=compared.comparison)
                if context.program_key(settings, compared.candidate) != key:
                    # it compiles more as it runs, or another program each time
                    report = compared.candidate
                    key = None
        known = {
            "worker": report,
            "program_key": key,
            "compiled_key": task.compiled_key,
            "loss": loss,
        }
        return TrialResult(**dict(task.config), **dict(outcome), **known)

    def _compare(self, request: ComparisonRequest) -> Compared:
        """Returns the comparison of a set, which is started again before it is blamed for a
        failure.

        Raises:
            WorkerFailed: If it failed each time.
        """
        failures: list[Failure] = []
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
        if not failures or compared.comparison is None:
            return compared
        flaky = f"flaky: {failures[0].kind} in {len(failures)} of {len(failures) + 1} starts"
        warnings = (*compared.comparison.warnings, flaky)
        return replace(
            compared, comparison=compared.comparison.model_copy(update={"warnings": warnings})
        )

    def _pair(self, task: PairTask, folder: Path, name: str) -> AnyRecord:
        """One fresh pair of processes."""
        losses = self.context.losses
        loss: LossCheck | None = None

        def inspect(reference: WorkerReport, candidate: WorkerReport) -> bool:
            nonlocal loss
            loss = losses.check(task.settings, (reference, candidate))
            return False

        comparer = Isolated(self.context, beside=task.pairs) if task.is_isolated else self.comparer
        rule = fixed(task.pairs)
        compared = comparer.compare(
            ComparisonRequest(
                candidate=task.settings,
                folder=folder,
                name=name,
                rule=rule,
                is_proof=True,
                inspect=inspect,
            )
        )
        figures = compared.comparison
        assert figures is not None
        return task.base().model_copy(
            update={
                **figures_of(compared.pairs, figures.work),
                "energy": figures.energy,
                "warnings": figures.warnings,
                "during": figures.during,
                "work": figures.work,
                "loss": losses.with_blocks(loss, compared.pairs, compared.reference),
                "is_isolated": task.is_isolated or figures.mode != self.comparer.mode,
            }
        )

    def _ablation(self, task: AblationTask, folder: Path, name: str) -> AblationResult:
        """A set without one setting, or several, against the whole set."""
        context = self.context
        settings = task.settings
        min_effect = context.spec.measure.min_effect
        less = task.rest

        def is_one_program(whole: WorkerReport, without: WorkerReport) -> bool:
            return context.program_key(settings, whole) == context.program_key(less, without)

        rule = self._rule(task.most, starts=context.spec.block_sizes.starts)
        request = ComparisonRequest(
            candidate=less,
            folder=folder,
            name=name,
            rule=rule,
            against=settings,
            inspect=is_one_program,
        )
        base = AblationResult(settings=settings, left_out=task.left_out, kept=True, reason="")
        try:
            compared = self.comparer.compare(request)
        except WorkerFailed as error:
            return base.model_copy(
                update={"failure": error.failure, "reason": "the rest does not run without it"}
            )
        kept, reason = pays(compared.comparison, min_effect)
        return base.model_copy(
            update={"comparison": compared.comparison, "kept": kept, "reason": reason}
        )


def pays(comparison: Comparison | None, min_effect: float) -> tuple[bool, str]:
    """Whether a setting stays, from what leaving it out does (None: nothing, the program is the
    same), and why.
    """
    if comparison is None:
        return False, "the program is the same without it"
    # Of the set without it, in two processes: no proof either.
    verdict = judge(comparison.estimate, min_effect=min_effect)
    if verdict is Verdict.SLOWER:
        return True, "it seems to pay"
    if (
        verdict is Verdict.UNRESOLVED and comparison.estimate.ratio > 1.0
    ):  # to lose what pays costs more than a passenger
        return True, "not settled, but faster by its estimate"
    return False, "no sign of a gain"


# ---------------------------------------------------------------------- this process as the only
# lane


class LocalExecutor(Engine):
    """The engine of a study with one lane: this very process; see
    `autotune.cluster.engine.Engine`.
    """

    words = "this process"

    def __init__(self, runner: TaskRunner) -> None:
        self.runner = runner
        self._has_joined = False
        self._next: Assignment | None = None

    def begin(self, lane: str, message: Message) -> None:
        """Takes a task; it is done when news are asked for."""
        self._next = Assignment.model_validate(message["assignment"])

    def news(self, wait_s: float) -> list[Told]:
        """Does what there is to do, however long it takes."""
        if not self._has_joined:
            self._has_joined = True
            return [
                Told(ONLY_LANE, {"type": JOINED, "host": socket.gethostname(), "devices": None})
            ]
        if self._next is None:
            return []
        assignment = self._next
        self._next = None
        return [Told(ONLY_LANE, {"type": "result", "record": self.runner.do(assignment)})]

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Ends what runs."""
        self.runner.close()

    def close(self) -> None:
        """Ends every process that was started."""
        self.runner.close()
