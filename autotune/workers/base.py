"""The bases of launchers and workers, and the guarded process that they use."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from autotune.child.channel import Message
from autotune.child.guard import GUARD_PROGRAM
from autotune.machine.child_process import ChildProcess
from autotune.machine.environment import ROOT, Environment, driver_python
from autotune.machine.slurm import end_slurm_step
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, WorkerReport
from autotune.model.records import MemoryUse
from autotune.model.redaction import secret_variables
from autotune.model.spec import StudySpec
from autotune.model.time_limits import limits_after
from autotune.workers.caches import Caches
from autotune.workers.failures import Lines, read_log

Times = tuple[float, ...]  # seconds of each step
LOG_BYTES = 4_000_000  # limit of a log's size
# Variables of its job step that a process on another node keeps: the GPUs of its node.
SET_BY_NODE = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "SLURMD_NODENAME",
)


class WorkerFailed(Exception):
    """A worker gave no figure: `evaluate` turns it into a record.

    With `infrastructure` the machine failed, not the settings: worth a retry.
    """

    def __init__(self, failure: Failure, *, infrastructure: bool = False) -> None:
        super().__init__(f"{failure.kind}: {failure.message}")
        self.failure = failure
        self.infrastructure = infrastructure


PAUSE_PHASE = "pause"  # phase of the failure of `CannotPause`


class CannotPause(WorkerFailed):
    """A program cannot take turns by being paused; the message says why, as a clause."""

    def __init__(self, why: str) -> None:
        super().__init__(Failure(kind=FailureKind.NO_RESULT, message=why, phase=PAUSE_PHASE))


def machine_failure(
    message: str, *, phase: str, kind: FailureKind = FailureKind.LAUNCH, log: str | None = None
) -> WorkerFailed:
    """Makes a failure of the machines, not of the settings."""
    failure = Failure(kind=kind, message=message[:1000], phase=phase, log=log)
    return WorkerFailed(failure, infrastructure=True)


class Worker(Protocol):
    """One running program under one flag set. Not thread-safe; idle between calls."""

    report: WorkerReport
    fresh_batches: bool = False  # orders a new batch for every step from now on
    watches_memory: bool = False  # orders memory in use with every block
    may_end: bool = False  # lets a program end within a block, which is then shorter
    has_ended: bool = False  # whether it did, without an error
    exit_status: int | None = None  # after `close`, of a failed rank; None if killed
    written: tuple[int, int] | None = None  # files left in its folder, and bytes

    # Of the last block; None before it, or if unknown. Losses have the numbers of their steps.
    last_loss: float | None = None  # of its last step
    last_norm: float | None = None  # global gradient norm of the same step
    last_memory: MemoryUse | None = None  # in use at its end
    last_clock_s: float | None = None  # by the clock of driver or reader
    loss_lag: int = 0  # steps between that of `last_loss` and the end of the block
    dropped_steps: int = 0  # those before it that were not counted, because of a pause
    passed_losses: Sequence[tuple[int, float]] = ()  # since the block before

    def run_block(self, steps: int) -> Times:
        """Runs steps and returns the seconds of each.

        Raises:
            WorkerFailed: If it died, hung, or its loss is not finite.
        """

    def pause(self) -> None:
        """Stops a program that does not wait for orders between blocks; may raise `CannotPause`."""
        return

    def close(self) -> None:
        """Ends the worker and its child processes; safe to call twice, never raises."""


# Called with the phase of a starting worker: ``import``, ``build``, ``compile``, ``warm-up``.
Progress = Callable[[str], None]


class Launcher(ABC):
    """Starts the workers of a study, each with all of its processes.

    A launcher of your own has its class in ``workload.launcher`` of the study. Most are a subclass
    of `LocalLauncher`, or of `CommandLauncher` for a study with a ``command``, that overrides
    `wrap`.

    Example:
        class Near(LocalLauncher):
            def wrap(self, command, settings):
                return ["numactl", "--localalloc", *command]

    Args:
        spec: The study; `spec.under(settings)` is the workload with the options of a flag set.
        study_dir: Folder of the study file.
        base: Environment of the caller.

    Attributes:
        limits: Time limits, in seconds, of workers that are started from now on.
        caches: What they keep of their compilations, and load.
        added: Variables that they get beside the caller's and the settings.
        opened: Folders of the run that they may write.

    Raises:
        LaunchError: If no worker of this study can be started here.
    """

    def __init__(self, spec: StudySpec, *, study_dir: str, base: Environment) -> None:
        self._spec = spec
        self._study_dir = study_dir
        self._base = base
        self.limits = limits_after(spec.measure)
        self.caches = Caches()
        self.added: Environment = {}
        self.opened: tuple[Path, ...] = ()

    @abstractmethod
    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> Worker:
        """Starts a worker and waits until it has compiled and run its warm-up steps.

        Args:
            settings: The whole flag set, the study's baseline included.
            folder: Where its logs go; each worker has another.

        Raises:
            WorkerFailed: If it never gets there; the trial is recorded as failed.
        """

    def wrap(self, command: list[str], settings: FlagSet) -> list[str]:
        """Returns the command that starts a process; a prefix must leave its open files open."""
        return command

    def pace_outside(self, settings: FlagSet, folder: Path, *, limit_s: float) -> float | None:
        """Returns the seconds between lines of the user's program as the user would run it.

        None where there is none, it does not start, or prints too few lines in `limit_s` seconds.
        """
        return None

    def keep_spare(self, wanted: bool) -> None:
        """Sets whether a start may have the next process import JAX; see `workers.spare`."""
        return

    @abstractmethod
    def close(self) -> None:
        """Ends all workers; safe to call twice."""


def reader_command(module: str) -> list[str]:
    """Returns the command that runs a module of `autotune.child` without `site`, soon started."""
    code = (
        f"import sys; sys.path.insert(0, sys.argv.pop(1)); from autotune.child.{module} "
        "import main; sys.exit(main())"
    )
    return [driver_python(), "-I", "-S", "-c", code, str(ROOT)]


class GuardedProcess(ChildProcess):
    """A process behind a guard, which ends the process tree with the driver (`child.guard`).

    Every message has a ``type``; the last one, kept in `end`, is of type ``exit``. On another node
    of a SLURM job the guard is started `through` a command (``srun ...``) in `env`, and the process
    has `remote_env` except `SET_BY_NODE`. WorkerFailed is raised if it cannot be started.
    """

    def __init__(
        self,
        command: list[str],
        env: Environment,
        log: Path,
        log_bytes: int = LOG_BYTES,
        cwd: str | None = None,
        through: Sequence[str] = (),
        remote_env: Environment | None = None,
    ) -> None:
        self.log = log
        self.end: Message | None = None
        self._env = env
        self._step = ""
        secrets = ",".join(secret_variables(remote_env or env))
        options = ["--remote"] if through else []
        arguments = [str(log), str(log_bytes), *options, secrets, "--", *command]
        try:
            with self.guard_log.open("wb") as errors:
                guard = [*through, driver_python(), "-I", "-S", GUARD_PROGRAM]
                super().__init__([*guard, *arguments], env, errors=errors, cwd=cwd)
        except OSError as error:
            raise machine_failure(f"cannot start a process: {error}", phase="launch") from error
        if through:
            self.send({"environment": {**(remote_env or {})}, "keep": SET_BY_NODE})

    @property
    def guard_log(self) -> Path:
        """Output of the guard and of the command that starts it; removed if empty."""
        return self.log.with_suffix(".guard")

    def move_log(self, log: Path) -> None:
        """Renames its log, into which its guard goes on to write."""
        with contextlib.suppress(OSError):
            self.guard_log.rename(log.with_suffix(self.guard_log.suffix))
            self.log.rename(log)
        self.log = log

    def receive(self) -> list[Message]:
        """Returns the messages received so far, without waiting."""
        messages = [m for m in super().receive() if isinstance(m.get("type"), str)]
        for message in messages:
            if message["type"] == "exit":
                self.end = self.end or message
            elif message["type"] == "hello":  # later ones are a program's
                self._step = self._step or str(message.get("step") or "")
        if self.is_over and self.end is None:  # the guard vanished
            self.end = {"type": "exit", "exit_status": None, "last_lines": []}
            messages.append(self.end)
        return messages

    def said_by_carrier(self) -> Lines:
        """Returns the last lines of the guard, or of ``srun`` that starts it; normally none."""
        lines = [line[:500] for line in read_log(self.guard_log).splitlines() if line.strip()]
        lines = [line for line in lines if "support for cpu binding" not in line]
        return tuple(lines[-8:])

    def why_ended(self) -> str:
        """Formats its end as a clause with the last words of its command, or of its carrier."""
        end = self.end or {}
        carrier = self.said_by_carrier()
        errors = [line for line in carrier if "error" in line]  # srun ends with advice
        lines = end.get("last_lines", [])[-3:] or errors[:1] or carrier[-1:]
        why = f"its process ended (status {end.get('exit_status')})"
        if lines:
            why += f": {' '.join(lines)}"
        return why[:1000]

    def first(self, kinds: Collection[str], limit_s: float) -> Message | None:
        """Waits up to `limit_s` seconds for a message of some kinds; None if there was none."""
        return next((m for m in self.messages(limit_s) if m["type"] in kinds), None)

    def close(self, patience_s: float) -> None:
        """Closes the guard's stdin, which ends the tree; kills it after `patience_s` seconds."""
        super().close(patience_s)
        # A SLURM step whose guard did not confirm its end would live on after its ``srun``.
        if self._step and (self.end is None or "stopped" not in self.end):
            end_slurm_step(self._step, self._env)
            self._step = ""
        with contextlib.suppress(OSError):
            if self.guard_log.stat().st_size == 0:
                self.guard_log.unlink()
