"""Where workers run: starts them, keeps the living reference, and knows which program a worker holds."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from autotune.child import plain
from autotune.machine import NO_WATCH, GpuWatch, caller_environment, open_meter, open_watch
from autotune.model import (
    Arm,
    Artefact,
    Failure,
    FailureKind,
    FlagSet,
    LaunchError,
    LossCheck,
    NodeLostError,
    Pair,
    SameStep,
    StudySpec,
    TimeLimits,
    WorkerReport,
    WorkPerStep,
    artefacts_of,
)
from autotune.rundir import ARTEFACTS, Folders, in_force, place_artefacts
from autotune.stats import LossSpread
from autotune.study.kernel_book import KernelBook
from autotune.study.limits import refuse_over_limit
from autotune.study.loss_gate import check_block, check_loss, unusable_dtype
from autotune.study.no_gpu import why_no_gpu
from autotune.study.share import MemoryShare
from autotune.study.traces import LossTrace, not_finite, refuse_not_finite
from autotune.study.work import with_declared_work
from autotune.workers import Launcher, Worker, WorkerFailed, is_without_gpu

R = TypeVar("R")

INFRASTRUCTURE_RETRIES = 2
REFERENCE_RESTARTS = 3


class ReferenceFailed(WorkerFailed):
    """It was the reference that failed, or the machine under both: not the candidate's fault."""

    def __init__(self, error: WorkerFailed) -> None:
        super().__init__(error.failure, infrastructure=error.infrastructure)


class Desk(Protocol):
    """What a bench tells the driver while it works, wherever that is."""

    def phase(self, what: str) -> None:
        """What is under way."""

    def pair(self, folder: Path, pair: Pair, work: WorkPerStep | None = None) -> None:
        """One more raw pair of blocks of the measurement in a folder, to be kept; `work` where a step's differs."""

    def incident(self, what: str) -> None:
        """Something happened to the tuner, not to a trial."""


class Bench:
    """The place where comparisons are made; each lane has one.

    Args:
        spec: The study.
        folders: Where logs go.
        launcher: Starts workers.
        desk: Told what is under way, and given what must be kept.
        is_shared: Other lanes may be at work on the same machine.

    Attributes:
        lane: Its name; empty where there is only one.
        runtime: Names of settings that are read when the program runs, not when it is compiled: programs that are
            equal but for those must both be measured.
        programs: Names of programs that were measured before, here or elsewhere, each with the number of its trial.
        loss_tolerance: What the noise floor of this bench allows first losses to differ.
        loss_spread: How far references were apart there, by step.
        reference_trace: What the living reference told of its loss.
        spread: What one pair of equal processes may differ by here, in log: trials' intervals have it in them.
        artefacts: Those that the settings in hand stand for.
        kernels: What XLA's autotuner chose in processes so far.
        has_run: Whether a reference ever ran: one that never did cannot run at all.
        restarts: How often the reference was lost over the unit in hand.
        share: What two processes on one GPU get of its memory, and who does not fit so.
    """

    def __init__(
        self, spec: StudySpec, folders: Folders, launcher: Launcher, desk: Desk, *, is_shared: bool = False
    ) -> None:
        self.spec = spec
        self.folders = folders
        self.desk = desk
        self.lane = ""
        self.runtime: frozenset[str] = frozenset()
        self.programs: dict[str, int] = {}
        self.loss_tolerance = 0.0
        self.loss_spread = LossSpread()
        self.reference_trace: LossTrace | None = None
        self.spread = 0.0
        self.artefacts: tuple[Artefact, ...] = ()
        self.has_run = False
        self.restarts = 0
        self.share = MemoryShare(spec)
        self.gpus = watch_of(spec)
        self.meter = open_meter(spec, self.gpus, is_shared=is_shared)
        self.kernels = KernelBook(desk.incident)
        self._launcher = launcher
        self._reference: Worker | None = None
        self._began_at_s, self._began_s = 0.0, time.monotonic()

    def begin(self, lane: str, at_s: float) -> None:
        """A unit begins on this lane, so many seconds after the study did."""
        self.lane = lane
        self._began_at_s, self._began_s = at_s, time.monotonic()
        self.restarts = 0

    @property
    def begun_at_s(self) -> float:
        """Seconds since the study began when the unit in hand did."""
        return self._began_at_s

    def limit_times(self, limits: TimeLimits) -> None:
        """Processes that are started from now on may take so long."""
        self._launcher.limits = limits

    @property
    def now_s(self) -> float:
        """Seconds since the study began."""
        return self._began_at_s + time.monotonic() - self._began_s

    # ------------------------------------------------------------------ workers

    def start(self, settings: FlagSet, folder: Path, *, alone: bool = False) -> Worker:
        """Starts a worker under the baseline plus `settings`; faults of the machine are retried, others never.

        Raises:
            WorkerFailed: If it never became ready.
            NodeLostError: If nodes that it needs are gone.
        """
        attempt = 0
        while True:
            is_given = self.share.is_given(settings, alone=alone)
            merged = self._in_force(self.share.settings_of(settings, alone=alone))
            try:
                self.kernels.forget(folder)
                worker = self._checked(self._launcher.start(merged, folder, progress=self.desk.phase), settings)
                worker.report = self.kernels.told_by(worker.report, folder)
                return worker
            except WorkerFailed as error:
                if is_given and self.share.is_refused(error.failure):
                    self._leave_share_to_program(error)
                    continue
                if not error.infrastructure:
                    raise
                if attempt == INFRASTRUCTURE_RETRIES:
                    if error.failure.kind is FailureKind.NODE_LOST:  # no trial can run here any more
                        raise NodeLostError(
                            f"all nodes of a trial must start it but: {error}; everything so far is kept; run the same "
                            "command again on other nodes, and it goes on"
                        ) from error
                    raise
                self.desk.incident(f"start tried again after: {error}")
                attempt += 1
                time.sleep(0.5 * attempt)

    def where_it_fits(self, work: Callable[[bool], R], *, alone: bool) -> R:
        """Has one process do something; where it finds too little memory beside the reference, once more alone.

        Args:
            work: Starts the process, and ends it; told whether that is alone.
            alone: Whether it is alone from the start.

        Raises:
            WorkerFailed: If that fails.
        """
        try:
            return work(alone)
        except WorkerFailed as error:
            if alone or not self.share.is_too_small(error.failure):
                raise
        self.release_reference()
        return work(True)

    def _leave_share_to_program(self, error: WorkerFailed) -> None:
        """Gives no process a share of the GPU's memory from now on: their program takes what it wants."""
        if not self.share.is_programs_own:
            self.share.is_programs_own = True
            self.desk.incident(
                f"the program sets its share of the GPU's memory itself, so it is left to it: {error}"[:300]
            )

    def _checked(self, worker: Worker, settings: FlagSet) -> Worker:
        """A worker whose report holds what the study file says of its work; ended if it is not within the limits."""
        try:
            worker.report = with_declared_work(self.spec, settings, worker.report)
            refuse_over_limit(self.spec, worker.report)
            self.gpus.follow([g.uuid for g in worker.report.gpus or () if g.uuid is not None])
            if (failure := unusable_dtype(worker.report)) is not None:
                raise WorkerFailed(failure)
        except WorkerFailed:
            worker.close()
            raise
        return worker

    def _in_force(self, settings: FlagSet) -> FlagSet:
        """The set with the paths of its artefacts, which are written where this bench keeps its logs.

        Raises:
            AutotuneError: If they cannot be written, or a set stands for one that this bench was not given.
        """
        if not artefacts_of(settings):
            return settings
        folder = self.folders.folder(ARTEFACTS)
        place_artefacts(self.artefacts, folder)
        return in_force(settings, folder)

    def start_both(self, reference: FlagSet, candidate: FlagSet, folder: Path, *, name: str) -> tuple[Worker, Worker]:
        """Starts two fresh workers, at once or, where the device asks for it, in an order that a coin decides.

        Args:
            reference: What is compared with.
            candidate: The set.
            folder: Where the candidate's log goes.
            name: Seeds the coin: whoever starts second chooses its kernels beside a neighbour.

        Raises:
            ReferenceFailed: If the first one failed, whatever became of the second.
            WorkerFailed: If the second one did.
        """
        beside = self.folders.folder(*Path(self.folders.relative(folder)).parts, "reference")
        asked = {Arm.REFERENCE: (reference, beside), Arm.CANDIDATE: (candidate, folder)}
        if self.spec.turns.in_order:
            arms = [*asked]
            random.Random(f"{self.spec.seed}/{name}/start").shuffle(arms)
            found = self._start_in_order({arm: asked[arm] for arm in arms})
        else:
            found = self._start_at_once(asked)
        workers = {arm: w for arm, w in found.items() if not isinstance(w, WorkerFailed)}
        if len(workers) == len(asked):
            first, second = workers[Arm.REFERENCE], workers[Arm.CANDIDATE]
            if not reference:
                refuse_not_finite(first.report)
            return first, second
        for worker in workers.values():
            worker.close()
        of_first, of_second = found[Arm.REFERENCE], found.get(Arm.CANDIDATE)
        if isinstance(of_first, WorkerFailed):
            raise ReferenceFailed(of_first) from of_first
        assert isinstance(of_second, WorkerFailed)
        raise of_second

    def _start_in_order(self, asked: Mapping[Arm, tuple[FlagSet, Path]]) -> dict[Arm, Worker | WorkerFailed]:
        """Starts one after the other; where the reference fails, nothing is to be learned of the candidate."""
        found: dict[Arm, Worker | WorkerFailed] = {}
        for arm, (settings, folder) in asked.items():
            try:
                found[arm] = self.start(settings, folder)
            except WorkerFailed as error:
                found[arm] = error
                if arm is Arm.REFERENCE:
                    break
            except BaseException:
                self.close()
                raise
        return found

    def _start_at_once(self, asked: Mapping[Arm, tuple[FlagSet, Path]]) -> dict[Arm, Worker | WorkerFailed]:
        """Starts all at once: starting is not measured, and most of a short run."""
        found: dict[Arm, Worker | WorkerFailed] = {}
        with ThreadPoolExecutor(max_workers=len(asked)) as pool:
            futures = {arm: pool.submit(self.start, *one) for arm, one in asked.items()}
            try:
                errors = {arm: future.exception() for arm, future in futures.items()}
            except BaseException:  # interrupted: do not wait until all have compiled
                self.close()
                raise
        for arm, error in errors.items():
            if error is not None and not isinstance(error, WorkerFailed):
                self.close()
                raise error
            found[arm] = futures[arm].result() if error is None else error
        return found

    def reference(self) -> Worker:
        """The living reference; started when first asked for, and again after it died, a bounded number of times.

        Raises:
            ReferenceFailed: If its share of the GPU's memory is too small for it; alone it may run.
            LaunchError: If it cannot be started: there is nothing to compare with.
        """
        if self._reference is None:
            folder = self.folders.folder(*floor_folder(self.lane), "reference")
            try:
                self._reference = self.start(FlagSet(), folder)
            except WorkerFailed as error:
                if self.share.is_too_small(error.failure):
                    raise ReferenceFailed(error) from error
                raise LaunchError(self.reference_cannot_run(error.failure)) from error
            refuse_not_finite(self._reference.report)
            self.has_run = True
            self.reference_trace = LossTrace(self.spec, self._reference.report)
        return self._reference

    def lose_reference(self, error: WorkerFailed) -> None:
        """Ends the reference, to be started anew when next asked for.

        Raises:
            ReferenceFailed: If that happened too often over the unit in hand: it is not tried again, but others are.
            LaunchError: If it told a loss that is no number.
        """
        self.release_reference()
        if error.failure.kind is FailureKind.WRONG_LOSS:
            raise not_finite(error.failure.message) from error
        self.restarts += 1
        self.desk.incident(f"reference lost: {error}")
        if self.restarts > REFERENCE_RESTARTS:
            message = f"the reference beside it ended {self.restarts} times; the last time: {error}"
            lost = error.failure.model_copy(update={"message": message[:2000]})
            raise ReferenceFailed(WorkerFailed(lost, infrastructure=error.infrastructure)) from error

    def release_reference(self) -> None:
        """Ends the living reference, so that another process is alone; it is started again when next asked for."""
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def reference_cannot_run(self, failure: Failure) -> str:
        """What to tell a user whose reference cannot run."""
        lines = "\n".join(f"    {plain(line)[:200]}" for line in failure.last_lines[-8:])
        advice = why_no_gpu(self.spec) if is_without_gpu(failure) else f"  {self.share.advice(failure)}"
        return (
            f"the reference (baseline settings: {self.spec.baseline}) must run but did not: {failure.kind}: "
            f"{failure.message}\n  its log is {failure.log}; its last lines:\n{lines}\n"
            f"{advice}, then run the same command again"
        )

    def close(self) -> None:
        """Ends every worker."""
        self._launcher.close()
        self._reference = None

    # ------------------------------------------------------------------ what a worker says of itself

    def steps_for(self, worker: Worker) -> int:
        """Steps in a block, those that are not counted included, from the warm-up of a worker."""
        return self.spec.turns.steps(typical_step_s(worker))

    def check_loss(self, settings: FlagSet, reference: WorkerReport, candidate: WorkerReport) -> LossCheck | Failure:
        """What is wrong with a candidate's loss or gradients, or how they were compared; see `loss_gate.check_loss`."""
        return check_loss(
            self.spec, settings, reference, candidate, aa_tolerance=self.loss_tolerance, spread=self.loss_spread
        )

    def hold_to(
        self, sets: tuple[FlagSet, FlagSet], reports: tuple[WorkerReport, WorkerReport], told: SameStep | None
    ) -> None:
        """Holds what a candidate told after a block against the reference; see `loss_gate.check_block`.

        Raises:
            WorkerFailed: If it does not train as the reference does.
        """
        if (failure := check_block(self.spec, sets, reports, told, self.loss_spread)) is not None:
            raise WorkerFailed(failure)

    def program_key(self, settings: FlagSet, report: WorkerReport) -> str:
        """Names what really runs: the compiled program, plus the settings that are read at run time."""
        runtime = {n: v for n, v in self.spec.baseline.merge(settings).items() if n in self.runtime}
        body = json.dumps([report.fingerprint, runtime, report.process_count], sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()[:16]


def floor_folder(lane: str) -> tuple[str, ...]:
    """Where a lane's reference and noise floor lie, in parts: each compares with its own."""
    return ("floor", lane) if lane else ("floor",)


def typical_step_s(worker: Worker) -> float:
    """Seconds of a step of a worker, from its warm-up."""
    times = worker.report.warmup_step_times_s
    return sorted(times)[len(times) // 2]


def watch_of(spec: StudySpec) -> GpuWatch:
    """A watch over the GPUs of a study; one that sees nothing in a study on CPUs."""
    if spec.device.platform != "cuda" or spec.replay is not None:
        return NO_WATCH
    count = spec.device.count
    return open_watch(caller_environment(), None if count is None else max(1, count // spec.device.node_count))
