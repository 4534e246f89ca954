"""Where measurements are made: starts workers, and keeps the living reference."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from autotune.child.steps import plain
from autotune.machine.environment import caller_environment
from autotune.machine.telemetry import NO_WATCH, open_meter, open_watch
from autotune.measure.loss_gate import (
    LossGate,
    LossTrace,
    Reports,
    Sets,
    not_comparable,
    not_finite,
    refuse_not_finite,
    refuse_resumed,
    refuse_unusable_dtype,
)
from autotune.measure.memory import MemoryShare, refuse_over_limit
from autotune.measure.tasks import AaTask, AblationTask, Assignment, TrialTask
from autotune.model.block_sizes import LEAST_LINES, LEAST_PAUSED_S, BlockSizes
from autotune.model.errors import LaunchError, NodeLostError, StoppedError
from autotune.model.files import Texts
from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, Failure, FailureKind, Pair, WorkerReport, WorkPerStep
from autotune.model.records import AaRecord
from autotune.model.spec import StudySpec
from autotune.model.stop import result_of
from autotune.model.time_limits import TimeLimits, limits_after
from autotune.programs.look import program_python
from autotune.rundir.store import Folders
from autotune.settings.doctor import gpu_findings
from autotune.stats.loss_check import LossSpread
from autotune.workers.base import CannotPause, Launcher, Worker, WorkerFailed
from autotune.workers.failures import is_without_gpu, may_be_killed_from_outside

R = TypeVar("R")

INFRASTRUCTURE_RETRIES = 2
REFERENCE_RESTARTS = 3
# Processors from which on a process may import JAX beside the start of another one.
CORES_FOR_SPARE = 4


class ReferenceFailed(WorkerFailed):
    """It was the reference that failed, or the machine under both: not the candidate's fault."""

    def __init__(self, error: WorkerFailed) -> None:
        super().__init__(error.failure, infrastructure=error.infrastructure)


class ProgressSink(Protocol):
    """Receives what a lane reports while it works; the driver is at its other end."""

    def phase(self, what: str) -> None:
        """What is under way."""

    def pair(self, folder: Path, pair: Pair, work: WorkPerStep | None = None) -> None:
        """One more raw pair of the measurement in a folder; `work` where it differs."""

    def incident(self, what: str) -> None:
        """Something happened to the tuner, not to a trial."""


class MeasurementContext:
    """The place where comparisons are made; each lane has one."""

    def __init__(
        self, spec: StudySpec, folders: Folders, launcher: Launcher, progress: ProgressSink
    ) -> None:
        self.spec = spec
        self.folders = folders
        self.progress = progress
        self.assignment = Assignment()
        self.losses = LossGate(spec, LossSpread())
        self.has_run = False  # a reference, ever
        self.restarts = 0
        self.share = MemoryShare(spec)
        self.gpus = NO_WATCH
        if spec.device.platform == "cuda":
            count = spec.device.count
            if count is not None:
                count = max(1, count // spec.device.node_count)
            self.gpus = open_watch(caller_environment(), count)
        self.meter = open_meter(spec, self.gpus)
        self._launcher = launcher
        self._reference: LossTrace | None = None
        self._first_report: WorkerReport | None = None
        self._began_s = time.monotonic()

    def begin(self, assignment: Assignment) -> None:
        """A task begins on this lane."""
        self.assignment = assignment
        self.restarts = 0
        self._began_s = time.monotonic()
        if (aa_run := assignment.aa_run) is not None:
            self._first_report = aa_run.reference
            self.losses = LossGate(self.spec, aa_run.loss_spread)
            self._launcher.limits = time_limits_after(self.spec, aa_run)
        # On GPUs each process of a proof, and of the A/A run that tells how far they differ, times
        # its own kernels.
        is_search = isinstance(assignment.task, TrialTask | AblationTask)
        times_kernels = self.spec.block_sizes.in_order
        self._launcher.caches.begin(
            programs=self.spec.device.node_count == 1 and (is_search or not times_kernels),
            kernels=self.spec.device.rank_count == 1 and is_search and times_kernels,
            # It tells how long a first start takes.
            anew=isinstance(assignment.task, AaTask),
        )
        self._launcher.keep_spare(is_search and len(os.sched_getaffinity(0)) >= CORES_FOR_SPARE)

    @property
    def settle_steps(self) -> int:
        """First steps of each process that are not measured."""
        return self.assignment.noise.settle_steps

    @property
    def sizes(self) -> BlockSizes:
        """Sizes of blocks and isolated runs, by what the A/A run showed."""
        return self.spec.block_sizes.learned(self.assignment.noise)

    @property
    def first_report(self) -> WorkerReport:
        """The report of the lane's first process; later ones may load what it has compiled."""
        assert self._first_report is not None
        return self._first_report

    @property
    def now_s(self) -> float:
        """Seconds since the study began."""
        return self.assignment.at_s + time.monotonic() - self._began_s

    def folder(self, *names: str) -> Path:
        """The folder of the task in hand, or one inside it for the logs of another process."""
        return self.folders.folder(*self.assignment.folder, *names)

    def start(self, settings: FlagSet, folder: Path, *, isolated: bool = False) -> Worker:
        """Starts a worker under the baseline plus `settings`; retries faults of the machine only.

        Raises:
            WorkerFailed: If it never became ready; `NodeLostError` if nodes that it needs are gone.
            LaunchError: If it goes on from an earlier run, or the reference's loss is no number.
        """
        attempt = 0
        while True:
            share = self.share.given(settings, isolated=isolated)
            merged = self.spec.baseline.merge(settings).merge(share)
            try:
                worker = self._launcher.start(merged, folder, progress=self.progress.phase)
                return self._checked(worker, settings, isolated=isolated)
            except WorkerFailed as error:
                if share and self.share.is_refused(error.failure):
                    if not self.share.is_programs_own:
                        self.share.is_programs_own = True
                        self.progress.incident(
                            "the program sets its share of the GPU's memory itself, so it is left "
                            f"to it: {error}"
                        )
                    continue
                # A kill is a fault of the machine where no setting could have caused it.
                is_reference = not settings and may_be_killed_from_outside(error.failure)
                if not error.infrastructure and not is_reference:
                    raise
                if attempt == INFRASTRUCTURE_RETRIES:
                    if error.failure.kind is not FailureKind.NODE_LOST:
                        raise
                    raise NodeLostError(
                        f"all nodes of a trial must start it but: {error}; everything so far is "
                        "kept; run the same command again on other nodes, and it continues"
                    ) from error
                self.progress.incident(f"start tried again after: {error}")
                attempt += 1
                time.sleep(0.5 * attempt)

    def pace_outside(self, settings: FlagSet, *names: str, limit_s: float) -> float | None:
        """Seconds between lines of the user's program under a set; see `Launcher`."""
        merged = self.spec.baseline.merge(settings)
        return self._launcher.pace_outside(merged, self.folder(*names), limit_s=limit_s)

    def where_it_fits(
        self, settings: FlagSet, folder: Path, use: Callable[[Worker], R], *, isolated: bool
    ) -> R:
        """Uses a worker and ends it; alone if asked for, or if memory was short beside another."""
        try:
            with contextlib.closing(self.start(settings, folder, isolated=isolated)) as worker:
                return use(worker)
        except WorkerFailed as error:
            if isolated or not self.share.is_too_small(error.failure):
                raise
            self.release_reference()
            return self.where_it_fits(settings, folder, use, isolated=True)

    def _checked(self, worker: Worker, settings: FlagSet, *, isolated: bool) -> Worker:
        """A worker whose report says what its steps do; ended if it is not within the limits."""
        try:
            if not isolated:
                worker.pause()
            worker.report = with_declared_work(self.spec, settings, worker.report)
            refuse_over_limit(self.spec, worker.report)
            self.gpus.follow([g.uuid for g in worker.report.gpus or () if g.uuid is not None])
            refuse_unusable_dtype(worker.report)
            if not settings:
                refuse_not_finite(worker.report)
            self._first_report = self._first_report or worker.report
            refuse_resumed(self._first_report, worker.report)
        except (WorkerFailed, LaunchError):
            worker.close()
            raise
        return worker

    def start_both(self, reference: FlagSet, candidate: FlagSet) -> tuple[Worker, Worker]:
        """Starts two fresh workers, at once or, where the device asks for it, one after the other.

        A coin decides who is first: the second chooses kernels, memory and cores beside another.
        """
        arms = {
            Arm.REFERENCE: (reference, self.folder("reference")),
            Arm.CANDIDATE: (candidate, self.folder()),
        }
        order = [*Arm]
        random.Random(f"{self.spec.seed}/{self.assignment.name}/start").shuffle(order)

        def start(arm: Arm) -> Worker | WorkerFailed:
            try:
                return self.start(*arms[arm])
            except WorkerFailed as error:
                return error

        with ThreadPoolExecutor(1 if self.spec.block_sizes.in_order else len(order)) as pool:
            futures = {arm: pool.submit(start, arm) for arm in order}
            try:
                of_reference, of_candidate = (result_of(futures[arm]) for arm in Arm)
            except BaseException:
                # Interrupted, or nothing can start here: do not wait until all have compiled.
                pool.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise
        if isinstance(of_reference, WorkerFailed):
            if not isinstance(of_candidate, WorkerFailed):
                of_candidate.close()
            raise ReferenceFailed(of_reference) from of_reference
        if isinstance(of_candidate, WorkerFailed):
            of_reference.close()
            raise of_candidate
        return of_reference, of_candidate

    def reference(self) -> LossTrace:
        """The living reference and its losses, started when first asked for or after it died.

        Raises:
            ReferenceFailed: If its share of the GPU's memory is too small for it; alone it may run.
            LaunchError: If it cannot be started.
        """
        if self._reference is None:
            folder = self.folders.folder(*aa_folder(self.assignment.lane), "reference")
            try:
                worker = self.start(FlagSet(), folder)
            except CannotPause:
                raise
            except WorkerFailed as error:
                if self.share.is_too_small(error.failure):
                    raise ReferenceFailed(error) from error
                is_stopped = error.infrastructure and may_be_killed_from_outside(error.failure)
                raise (StoppedError if is_stopped else LaunchError)(
                    self.reference_cannot_run(error.failure)
                ) from error
            self._reference = LossTrace(self.spec, worker)
            self.has_run = True
        return self._reference

    def lose_reference(self, error: WorkerFailed) -> None:
        """Ends the reference, to be started anew; ReferenceFailed if that happened too often."""
        self.release_reference()
        if error.failure.kind is FailureKind.WRONG_LOSS:
            raise not_finite(error.failure.message) from error
        self.restarts += 1
        self.progress.incident(f"reference lost: {error}")
        if self.restarts > REFERENCE_RESTARTS:
            message = f"the reference beside it ended {self.restarts} times; the last time: {error}"
            lost = error.failure.model_copy(update={"message": message[:2000]})
            raise ReferenceFailed(
                WorkerFailed(lost, infrastructure=error.infrastructure)
            ) from error

    def release_reference(self) -> None:
        """Ends the living reference, so that another process is alone, until it is asked for."""
        if self._reference is not None:
            self._reference.worker.close()
            self._reference = None

    def reference_cannot_run(self, failure: Failure) -> str:
        """What to tell a user whose reference cannot run."""
        log = ""
        if failure.log is not None:
            lines = "\n".join(f"    {plain(line)[:200]}" for line in failure.last_lines[-8:])
            log = f"  its log is {failure.log}; its last lines:\n{lines}\n"
        advice = f"  {self.share.advice(failure)}"
        if is_without_gpu(failure):
            advice = _why_no_gpu(self.spec)
        return (
            f"the reference (baseline settings: {self.spec.baseline}) must run but did not: "
            f"{failure.kind}: {failure.message}\n{log}{advice}, then run the same command again"
        )

    def close(self) -> None:
        """Ends every worker."""
        self._launcher.close()
        self._launcher.caches.close()
        self._reference = None

    def steps_for(self, worker: Worker) -> int:
        """Steps in a block, those that are not counted included, from the warm-up of a worker."""
        line_s = worker.report.line_s
        steps = self.sizes.steps(line_s or worker.report.step_s)
        if not line_s:
            return steps
        return max(steps, LEAST_LINES, math.ceil(LEAST_PAUSED_S / line_s))

    def program_key(self, settings: FlagSet, report: WorkerReport) -> str:
        """Names what really runs: the compiled program, and the settings that are read later."""
        merged = self.spec.baseline.merge(settings)
        runtime = {n: v for n, v in merged.items() if n in self.assignment.runtime}
        body = json.dumps([report.fingerprint, runtime, report.process_count], sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()[:16]


def aa_folder(lane: str) -> Texts:
    """Folder of a lane's reference and A/A run, in parts."""
    return ("aa_run", lane) if lane else ("aa_run",)


def time_limits_after(spec: StudySpec, aa_run: AaRecord) -> TimeLimits:
    """What processes of a lane may take, from what the reference took in its A/A run."""
    start_s = max(aa_run.noise.start_s, aa_run.reference.start_s)
    return limits_after(spec.measure, start_s=start_s, step_s=aa_run.comparison.reference_step_s)


def _why_no_gpu(spec: StudySpec) -> str:
    findings = gpu_findings(program_python(spec, Path.cwd(), note=None), caller_environment())
    causes = "".join(f"    {finding.problem}: {finding.command}\n" for finding in findings)
    causes = causes or "    nothing that keeps JAX from a GPU\n"
    return f'  `autotune doctor` finds here:\n{causes}  or write device.platform = "cpu"'


HOW_TO_SAY = (
    'say what a step does: `workload.tokens_per_step = "batch * seq"`, a product of options'
)


def work_between(sets: Sets, reports: Reports) -> WorkPerStep | None:
    """What a step of each arm does if that differs; WorkerFailed if it cannot be compared."""
    reference, candidate = (report.tokens_per_step or 0 for report in reports)
    if reference == candidate:
        return None
    if not (reference and candidate):
        raise not_comparable(
            "both arms must report their work per step but the reference says "
            f"{reference or 'nothing'}, the candidate {candidate or 'nothing'}; {HOW_TO_SAY}"
        )
    if sets[0].of_kind("option") == sets[1].of_kind("option"):
        raise not_comparable(
            f"a step must do the same under the same options but the reference says {reference} "
            f"tokens and the candidate {candidate}; flags change how fast it is, so the program "
            "reports something else than it does"
        )
    return WorkPerStep(reference=reference, candidate=candidate)


def with_declared_work(spec: StudySpec, settings: FlagSet, report: WorkerReport) -> WorkerReport:
    """A report with the study's work of a step; WorkerFailed if the program says another one."""
    try:
        declared = spec.work_under(settings)
    except ValueError as error:
        raise not_comparable(str(error)) from None
    if declared is None:
        return report
    tokens = report.tokens_per_step
    if tokens and tokens != declared:
        raise not_comparable(
            f"`workload.tokens_per_step` gives {declared} for {settings.of_kind('option')} but "
            f"the program says {tokens} tokens a step; mend the expression, or take it out"
        )
    return report.model_copy(update={"tokens_per_step": declared})


def refuse_untold_work(spec: StudySpec, reference: WorkerReport) -> None:
    """Refuses a search of options whose effect on a step's work nobody tells, by a LaunchError."""
    if spec.workload.entry is not None and spec.search.options and not reference.tokens_per_step:
        raise LaunchError(
            "where options are searched, the work of a step must be known but the workload does "
            "not tell its tokens per step, so half a batch would pass for twice the speed; "
            f"{HOW_TO_SAY}"
        )
