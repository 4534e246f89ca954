"""The user's own program as a worker: measured in blocks by the hook, else by its output."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune.child.channel import CHANNEL_VARIABLE, Message
from autotune.machine.environment import Environment, with_packages
from autotune.machine.files import remove_tree
from autotune.machine.gpus import is_without_gpus
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import NOT_TOLD, Failure, FailureKind, WorkerReport
from autotune.model.options import FOLDER, filled
from autotune.workers.base import (
    CannotPause,
    GuardedProcess,
    Progress,
    Times,
    WorkerFailed,
    reader_command,
)
from autotune.workers.failures import NO_GPU
from autotune.workers.local import LocalLauncher, LocalWorker, log_name
from autotune.workers.own_folder import OwnFolder
from autotune.workers.plain_run import pace_outside
from autotune.workers.programs import NotKnown, ProgramWatch
from autotune.workers.settings_check import files_that_set

READ_DTYPE = "tensorfloat32"  # assumed for the loss of a program of unknown arithmetic
ON_CPU = f'{NO_GPU} in this program, which runs on the CPU; the study says device.platform = "cuda"'

READY_SHARE = 0.95  # of the start limit: then the reader gives up, for it knows why
FILES = "files"  # folder of a process for ``{folder}`` in its command


class CommandLauncher(LocalLauncher):
    """Starts the study's `command` under a guard in a folder of its own, with the settings."""

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> LocalWorker:
        """Starts the program and waits until it is warm; see `base.Launcher`."""
        spec = self._spec
        if spec.device.platform == "cuda" and is_without_gpus(self._base):
            message = (
                f'{NO_GPU}: none is here, and the study says device.platform = "cuda"; '
                "nothing was started"
            )
            raise WorkerFailed(Failure(kind=FailureKind.LAUNCH, message=message, phase="launch"))
        command = self._command(settings, folder)
        with contextlib.ExitStack() as stack:
            workspace, watch = self._folders(stack, self._environment(settings))
            job = self._job(
                settings,
                command=command,
                cwd=workspace.cwd,
                rules=self._rules(settings, folder),
                run_steps=spec.measure.run_steps,
                device_count=spec.device.count,
                limit_s=READY_SHARE * self.limits.start_s,
            )
            env = workspace.added_to(watch.environment)
            kind: type[CommandWorker] = ReadWorker
            if spec.workload.hook:
                kind = HookWorker
                env = with_packages(env)
            else:
                command = reader_command("read_output")
            writable = list(self.opened)  # not its raw pairs and logs
            if spec.workload.uses_folder:
                writable.append(folder / FILES)
            command = self.wrap(workspace.command(command, writable), settings)
            process = GuardedProcess(command, env, folder / log_name(0), cwd=self._study_dir)
            worker = kind([process], spec, settings)
            worker.workspace = workspace
            worker.watch = watch
            stack.pop_all()  # the worker closes them from now on
        self._begin(worker, [job], progress)
        return worker

    def pace_outside(self, settings: FlagSet, folder: Path, *, limit_s: float) -> float | None:
        """Runs the program without hook or reader; see `base.Launcher`."""
        command = self._command(settings, folder)
        with contextlib.ExitStack() as stack, contextlib.suppress(WorkerFailed):
            workspace, _ = self._folders(stack, {})
            env = with_packages(workspace.added_to(self._environment(settings)))
            command = workspace.command(command, [folder])
            command = self.wrap(["env", "-u", CHANNEL_VARIABLE, *command], settings)
            process = GuardedProcess(command, env, folder / log_name(0), cwd=self._study_dir)
            return pace_outside(process, limit_s)
        return None

    def _folders(
        self, stack: contextlib.ExitStack, env: Environment
    ) -> tuple[OwnFolder, ProgramWatch]:
        """Makes folders of a process and of its compiled programs, removed with the stack."""
        try:
            workspace = OwnFolder(self._study_dir, self._spec.workload.folder)
            stack.callback(workspace.close)
            watch = ProgramWatch(env, self._spec.device.platform)
            stack.callback(watch.close)
        except OSError as error:
            raise LaunchError(
                "each process of a study must get a folder of its own but "
                f"{tempfile.gettempdir()}: {error.strerror or error}; make room there, or name "
                "another one by TMPDIR"
            ) from error
        return workspace, watch

    def _command(self, settings: FlagSet, folder: Path) -> list[str]:
        """Returns the command of a process, and makes its folder anew if the command names one."""
        if self._spec.workload.uses_folder:
            remove_tree(folder / FILES)  # this process must not go on from them
            (folder / FILES).mkdir(parents=True)
        return self._spec.under(settings).workload.arguments(str(folder / FILES))

    def _rules(self, settings: FlagSet, folder: Path) -> Message:
        """Returns the rules for reading steps, with tokens per step for rates of tokens."""
        read = self._spec.workload.read
        if read is None:
            return {}
        rules = {**read.rules(), "tokens_per_step": self._spec.work_under(settings)}
        if read.file is not None:
            rules["file"] = filled(read.file, {FOLDER: str(folder / FILES)})
        return rules


class CommandWorker(LocalWorker):
    """A user's program with its own folder and a watch of its compilations, closed with it."""

    workspace: OwnFolder
    watch: ProgramWatch
    _processes_with_xla = 1

    def run_block(self, steps: int) -> Times:
        """Runs a block, and drops the fingerprint if the program compiled meanwhile."""
        times = super().run_block(steps)
        if self.watch.has_compiled_more():
            unknown = self._unknown("it compiled more after its warm-up")
            self.report = self.report.model_copy(update=unknown)
        return times

    def close(self) -> None:
        """Ends everything; see `base.Worker`."""
        if not self.closed:
            super().close()
            self.written = self.workspace.size()
        self.workspace.close()
        self.watch.close()

    def _made(self, fields: Message, notes: Sequence[str]) -> WorkerReport:
        """Makes the report from the fields that are known."""
        try:
            programs = self.watch.read_programs(self._processes_with_xla)
        except (NotKnown, OSError) as error:
            programs = self._unknown(str(error))
        defaults = {
            "platform": self._spec.device.platform,
            "device_kind": NOT_TOLD,
            "device_count": self._spec.device.count or 1,
            "grad_norms": (),
            "dtype": READ_DTYPE,
        }
        if self.workspace.warning:
            notes = (*notes, self.workspace.warning)
        return super()._made({**defaults, **programs, **fields}, notes)

    def _unknown(self, problem: str) -> Message:
        """Returns the fields of an unknown program, which only equal settings have in common."""
        return {
            "fingerprint": f"settings-{self._settings.digest}",
            "program_problem": problem[:300],
        }


class HookWorker(CommandWorker):
    """The user's program with `autotune.hook` in its loop."""

    def _report(self, message: Message) -> WorkerReport:
        platform = message["report"].get("platform")
        if self._spec.device.platform == "cuda" and platform == "cpu":
            raise self._failed(FailureKind.LAUNCH, ON_CPU)
        self._processes_with_xla = int(platform is not None)
        return super()._report(message)


class ReadWorker(CommandWorker):
    """The user's unchanged program, whose output `autotune.child.read_output` reads."""

    def pause(self) -> None:
        """Stops the program between blocks; see `base.Worker`."""
        if self._why_no_pause:
            raise CannotPause(self._why_no_pause)
        for process in self._processes:
            process.send({"type": "pause"})

    def _report(self, message: Message) -> WorkerReport:
        self._why_no_pause = str(message["no_pause"])
        processes = message["processes"]
        self._processes_with_xla = len(processes)
        is_on_cpu = self._spec.device.platform == "cpu"
        if not is_on_cpu and processes and all(p["opens_gpu"] is False for p in processes):
            raise self._failed(FailureKind.LAUNCH, ON_CPU)
        lost = self.watch.lost(self._settings) if processes else ()
        notes = list(self._check(processes, lost))
        if self.watch.problem and self._settings.of_kind("xla"):
            command = self._spec.workload.command or ()
            for script in files_that_set("XLA_FLAGS", command, Path(self.workspace.cwd)):
                notes.append(
                    f"{script} sets XLA_FLAGS itself: behind given ones, the settings under "
                    "trial do not arrive"
                )
        process: Message = next(iter(processes), {})
        machine = message["ran_on"]
        kinds = " and ".join(sorted({gpu["name"] for gpu in machine.get("gpus", [])} - {None}))
        fields = {
            **message["report"],
            **machine,
            "device_kind": "cpu" if is_on_cpu else kinds or NOT_TOLD,
            "versions": {**process.get("versions", {}), **machine.get("versions", {})},
            "packages": process.get("packages"),
        }
        return self._made(fields, notes)
