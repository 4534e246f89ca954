"""Workers as guarded processes on this machine."""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.read_output import FOLLOW_UP
from autotune.machine.environment import (
    Environment,
    child_environment,
    driver_python,
    with_packages,
)
from autotune.model.block_sizes import CHECK_STEPS, WARMUP_STEPS
from autotune.model.clock import Stopwatch
from autotune.model.flags import READ_FILES, FlagSet, kind_of
from autotune.model.measurement import Failure, FailureKind, WorkerReport
from autotune.model.records import MemoryUse
from autotune.model.spec import StudySpec
from autotune.model.stop import LOOK_EVERY_S, check_stop
from autotune.model.time_limits import TimeLimits, limits_after
from autotune.workers.base import (
    CannotPause,
    GuardedProcess,
    Launcher,
    Progress,
    Times,
    Worker,
    WorkerFailed,
)
from autotune.workers.failures import (
    classify_failure,
    is_not_installed,
    is_without_gpu,
    last_lines,
    outside_in,
    reason_in,
)
from autotune.workers.settings_check import IN_FORCE, check_options, check_processes
from autotune.workers.spare import Spare

Jobs = list[Message]
Ranks = list[GuardedProcess]

STOP_PATIENCE_S = 5.0
KILL_PATIENCE_S = 15.0
LAST_WORDS_S = 0.5


class LocalLauncher(Launcher):
    """Starts workers here in the caller's environment `base`, less its settings."""

    def __init__(self, spec: StudySpec, *, study_dir: str, base: Environment) -> None:
        super().__init__(spec, study_dir=study_dir, base=base)
        self._alive: list[LocalWorker] = []
        self._spare = Spare()
        self._keeps_spare = False

    def keep_spare(self, wanted: bool) -> None:
        """See `base.Launcher`; a subclass has processes of another kind."""
        self._keeps_spare = wanted and type(self) is LocalLauncher
        if not self._keeps_spare:
            self._spare.close()

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> LocalWorker:
        """Starts one worker (all its processes) and waits until it is ready."""
        jobs = self._jobs(settings)
        worker = self._worker(self._processes(settings, folder), settings)
        entry = self._spec.workload.entry
        if self._keeps_spare and entry is not None and len(jobs) == 1:
            env = with_packages(self._environment(self._spec.baseline))
            self._spare.begin(worker_command(), entry, env, folder)
        self._begin(worker, jobs, progress)
        self._spare.wait()  # it imports nothing while blocks are timed
        return worker

    def _worker(self, processes: Ranks, settings: FlagSet) -> LocalWorker:
        """Makes a worker of started ranks."""
        return LocalWorker(processes, self._spec, settings)

    def _begin(self, worker: LocalWorker, jobs: Jobs, progress: Progress) -> None:
        """Waits until a worker is ready; ends it on failure."""
        self._alive = [*(w for w in self._alive if not w.closed), worker]
        worker.limits = self.limits
        try:
            worker.wait_ready(jobs, progress)
        except BaseException:
            worker.close()
            raise

    def close(self) -> None:
        """Ends all workers."""
        self._spare.close()
        for worker in self._alive:
            worker.close()

    def _environment(self, settings: FlagSet) -> Environment:
        """Returns the environment of a worker."""
        device = self._spec.under(settings).device
        virtual = None
        if device.platform == "cpu" and device.count:
            virtual = device.count // device.rank_count
        env = child_environment(
            self._base, settings, platform_name=device.platform, virtual_devices=virtual
        )
        return {**self.caches.added_to(env, settings), **self.added}

    def _processes(self, settings: FlagSet, folder: Path) -> Ranks:
        """Starts all ranks; if one cannot be started, ends the others."""
        env = with_packages(self._environment(settings))
        started: Ranks = []
        try:
            for rank in range(self._spec.under(settings).device.rank_count):
                started.append(self._started(rank, settings, env, folder / log_name(rank)))
        except BaseException:
            for process in started:
                process.close(KILL_PATIENCE_S)
            raise
        return started

    def _started(self, rank: int, settings: FlagSet, env: Environment, log: Path) -> GuardedProcess:
        """Starts one rank in the environment of a worker."""
        spare = self._spare.take(env, log)
        return spare or GuardedProcess(self.wrap(worker_command(), settings), env, log)

    def _jobs(self, settings: FlagSet) -> Jobs:
        spec = self._spec.under(settings)
        device = spec.device
        coordinator = f"127.0.0.1:{_free_port()}" if device.rank_count > 1 else None
        return [
            self._job(
                settings,
                entry=spec.workload.entry,
                options=spec.workload.options,
                seed=spec.seed,
                paths=[self._study_dir],
                device_count=device.count,
                process_index=rank,
                process_count=device.rank_count,
                local_rank=rank,
                coordinator=coordinator,
                coordinator_bind=coordinator,  # loopback only: all ranks are here
                files={n: settings[n] for n in READ_FILES if settings.get(n)},
            )
            for rank in range(device.rank_count)
        ]

    def _job(self, settings: FlagSet, **fields: Any) -> Message:
        """Makes the first message to a process from common fields and those of its kind."""
        return {
            "type": "job",
            "check_steps": CHECK_STEPS,
            "warmup_steps": WARMUP_STEPS,
            "variables": sorted(
                {"XLA_FLAGS", *IN_FORCE["memory_variables"], *settings.to_environment()}
            ),
            "jax_options": [n for n in settings if kind_of(n) == "jax"],
            "platform": self._spec.device.platform,
            **fields,
        }


class LocalWorker(Worker):
    """All processes of one trial."""

    limits: TimeLimits  # those of its launcher, when it was started

    def __init__(self, processes: Ranks, spec: StudySpec, settings: FlagSet) -> None:
        self._processes = processes
        self._spec = spec
        self._settings = settings
        self._begun = time.monotonic()
        self._phase = "launch"
        self._progress: Progress | None = None
        self._errors: dict[int, Message] = {}
        self.closed = False
        self._trained = first_step(spec)

    def wait_ready(self, jobs: Jobs, progress: Progress) -> None:
        """Sends every rank its job and waits until all are compiled and warm."""
        self._progress = progress
        for process, job in zip(self._processes, jobs, strict=True):
            process.send(job)
        ready = self._gather("ready", self.limits.start_s)
        try:
            reports = [self._report(message) for message in ready]
        except (KeyError, TypeError, ValueError) as error:
            raise self._failed(
                FailureKind.NO_RESULT, f"the worker's report cannot be read: {error}"
            ) from error
        self.report = reports[0].model_copy(
            update={
                "peak_bytes": max(r.peak_bytes or 0 for r in reports) or None,
                "device_memory": tuple(m for r in reports for m in r.device_memory),
                "gpus": tuple(g for r in reports for g in r.gpus or ()) or None,
            }
        )
        if not self.limits.step_s:  # the reference sets its own limits
            report = self.report
            self.limits = limits_after(
                self._spec.measure, start_s=report.start_s, step_s=report.step_s
            )
        self._phase = "step"

    def _report(self, message: Message) -> WorkerReport:
        """Parses the report of one rank and checks that the settings are in force in it."""
        changed = check_options(self._settings, message["jax_options"])
        return self._made(message["report"], self._check([message], changed))

    def _made(self, fields: Message, notes: Sequence[str]) -> WorkerReport:
        """Makes the report from its other fields."""
        return WorkerReport.model_validate(
            {**fields, "start_s": time.monotonic() - self._begun, "warnings": notes}
        )

    def _check(self, processes: Sequence[Message], lost: Sequence[str]) -> Sequence[str]:
        """Returns remarks on settings in processes; WorkerFailed if one is (or was) `lost`."""
        check = check_processes(self._settings, processes)
        sentences = "; ".join([*check.lost, *lost])
        if sentences:
            self._phase = "check"
            raise self._failed(
                FailureKind.NOT_APPLIED,
                f"these settings did not arrive, for the program sets them itself: {sentences}",
            )
        return check.notes

    def run_block(self, steps: int) -> Times:
        """Runs a block on all ranks and returns the times of the slowest one; see `base.Worker`."""
        began_s = time.monotonic()
        order = {
            "type": "block",
            "steps": steps,
            "fresh": self.fresh_batches,
            "memory": self.watches_memory,
            "may_end": self.may_end,
        }
        for process in self._processes:
            process.send(order)
        blocks = self._gather("block", self.limits.of_block(steps))
        leader = blocks[0]
        self.has_ended = any(block.get("has_ended", False) for block in blocks)
        if leader.get("no_pause"):
            raise CannotPause(str(leader["no_pause"]))
        self.last_clock_s = float(leader.get("clock_s", time.monotonic() - began_s))
        self.dropped_steps = int(leader.get("dropped", 0))
        self._trained += self.dropped_steps + steps
        self._take_loss(leader)
        self.last_memory = _memory_of(blocks)
        return tuple(max((block["step_times_s"] for block in blocks), key=sum))

    def _take_loss(self, block: Message) -> None:
        """Keeps the loss and gradient norm of a block, which must be finite."""
        loss = float(block["loss"])
        norm = block.get("grad_norm")
        lag = int(block.get("loss_lag", 0))
        for quantity, value in (("loss", loss), ("gradient norm", norm)):
            if value is not None and not math.isfinite(value):
                why = f"the {quantity} became {value} by step {self._trained - 1 - lag}"
                raise self._failed(FailureKind.WRONG_LOSS, why)
        if self.report.losses:  # a worker without a loss sends 0
            self.last_loss = loss
            self.last_norm = norm
            self.loss_lag = lag
            self.passed_losses = block.get("losses", ())

    def close(self) -> None:
        """Asks all processes to stop, then ends them; see `base.Worker`."""
        if self.closed:
            return
        self.closed = True
        for process in self._processes:
            process.send({"type": "stop"})
        self._wait_for_ends(STOP_PATIENCE_S)
        ends = [p.end for p in self._processes if p.end is not None and not p.end.get("stopped")]
        if len(ends) == len(self._processes):
            statuses = [end["exit_status"] for end in ends]
            self.exit_status = next(filter(None, statuses), statuses[0])
        for process in self._processes:
            process.close(KILL_PATIENCE_S)

    def _gather(self, kind: str, limit_s: float) -> list[Message]:
        """Waits for a message of a kind from every rank; fails if one ends or the limit passes."""
        messages: dict[int, Message] = {}
        ranks = range(len(self._processes))
        watch = Stopwatch()  # does not count the time for which the job was suspended
        while len(messages) < len(ranks):
            remaining = limit_s - watch.session_s
            if remaining <= 0:
                missing = [rank for rank in ranks if rank not in messages]
                why = f"no answer within {limit_s:.0f} s in phase {self._phase}"
                if len(ranks) > 1:
                    why += f" (ranks {missing})"
                raise self._failed(FailureKind.HANG, why)
            check_stop()
            for rank, message in self._listen(min(remaining, LOOK_EVERY_S)):
                if message["type"] == kind:
                    messages[rank] = message
            if any(process.end is not None for process in self._processes):
                raise self._ended()
        return [messages[rank] for rank in ranks]

    def _listen(self, wait_s: float) -> list[tuple[int, Message]]:
        """Returns what ranks send within `wait_s` seconds, and keeps phases and errors."""
        select.select([p.descriptor for p in self._processes if p.end is None], [], [], wait_s)
        messages = []
        for rank, process in enumerate(self._processes):
            for message in process.receive():
                messages.append((rank, message))
                if message["type"] == "error":
                    self._errors[rank] = message
                elif message["type"] == "phase":
                    self._phase = str(message["phase"])
                    if self._progress is not None and rank == 0:
                        self._progress(self._phase)
        return messages

    def _wait_for_ends(self, limit_s: float) -> None:
        """Waits up to `limit_s` for all processes to end."""
        deadline = time.monotonic() + limit_s
        while (
            any(p.end is None for p in self._processes)
            and (remaining := deadline - time.monotonic()) > 0
        ):
            self._listen(remaining)

    def _ended(self) -> WorkerFailed:
        """Classifies the end of a worker; a rank that was killed in silence is the cause."""
        self._wait_for_ends(LAST_WORDS_S)
        errors = self._errors
        ends = {rank: p.end for rank, p in enumerate(self._processes) if p.end is not None}
        silent = [r for r, end in ends.items() if r not in errors and (end["exit_status"] or 0) < 0]
        causes = [
            r for r, error in errors.items() if r in ends and not FOLLOW_UP.search(error["message"])
        ]
        rank = next(iter([*silent, *causes, *ends]))
        end = ends[rank]
        error = errors.get(rank, {})
        log = self._processes[rank].log
        failure = classify_failure(
            exit_status=end["exit_status"],
            phase=error.get("phase", self._phase),
            error_type=error.get("error_type"),
            message=error.get("message"),
            last_lines=last_lines(log) or tuple(end["last_lines"]),
            log=str(log),
            platform=self._spec.device.platform,
        )
        is_lasting = is_without_gpu(failure) or is_not_installed(failure)
        is_transient = failure.is_from_outside and not is_lasting
        return WorkerFailed(failure, infrastructure=is_transient)

    def _failed(self, kind: FailureKind, message: str) -> WorkerFailed:
        """Ends the worker and makes a failure found by the driver, with a log's last lines."""
        phase = self._phase
        self.close()
        lines = next(filter(None, (last_lines(p.log) for p in self._processes)), ())
        log = str(self._processes[0].log)
        outside = None
        if kind is FailureKind.HANG:
            outside = outside_in(lines)
            kind = outside or kind
            message += reason_in(lines)
        failure = Failure(kind=kind, message=message, phase=phase, log=log, last_lines=lines)
        return WorkerFailed(failure, infrastructure=outside is not None)


def first_step(spec: StudySpec) -> int:
    """Returns the number of the first step of a worker's first block, counted from 0."""
    return WARMUP_STEPS + (CHECK_STEPS if spec.workload.can_wait else 0)


def _memory_of(blocks: Sequence[Message]) -> MemoryUse | None:
    """Sums the memory of all ranks at the end of a block; None if a rank does not report it."""
    ranks: list[Message] = [block.get("memory") or {} for block in blocks]
    if not all(ranks):
        return None
    sums: dict[str, int] = {}
    for name in MemoryUse.model_fields:
        values = [rank[name] for rank in ranks]
        if None not in values:
            sums[name] = sum(values)
    return MemoryUse(**sums)


def worker_command() -> list[str]:
    """Returns the command of one rank of an `entry`."""
    return [driver_python(), "-m", "autotune.child.measure"]


def log_name(rank: int) -> str:
    """Returns the file name of a rank's log."""
    return "worker.log" if rank == 0 else f"worker.{rank}.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
