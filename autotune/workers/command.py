"""The user's own program as a worker: measured in interleaved blocks by the hook, else by its
output.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune.child.channel import Message
from autotune.machine.environment import Environment, with_packages
from autotune.machine.files import remove_tree
from autotune.machine.gpus import is_without_gpus
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import NOT_TOLD, Failure, FailureKind, WorkerReport
from autotune.model.options import FOLDER, filled
from autotune.model.spec import StudySpec
from autotune.workers.base import (
    CannotPause,
    GuardedProcess,
    Progress,
    WorkerFailed,
    reader_command,
)
from autotune.workers.failures import NO_GPU
from autotune.workers.local import LocalLauncher, LocalWorker, log_name
from autotune.workers.own_folder import OwnFolder
from autotune.workers.plain_run import pace_outside, without_channel
from autotune.workers.programs import NotKnown, ProgramWatch
from autotune.workers.settings_check import check_options, files_that_set

READ_DTYPE = "tensorfloat32"
"""Precision assumed for the loss of a user's program: its arithmetic is unknown, and some print few
digits.
"""

ON_CPU = f'{NO_GPU} in this program, which runs on the CPU; the study says device.platform = "cuda"'

READY_SHARE = 0.95
"""Share of the start limit after which the reader gives up itself, since it can report the
reason.
"""

FILES = "files"
"""Folder of a process in that of its measurement, for ``{folder}`` in its command."""


class CommandLauncher(LocalLauncher):
    """Starts the study's `command` under a guard, in a folder of its own, with the settings in its
    environment.
    """

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> LocalWorker:
        """Starts the program and waits until it is warm; see `base.Launcher`."""
        if self._spec.device.platform == "cuda" and is_without_gpus(self._base):
            message = (
                f'{NO_GPU}: none is here, and the study says device.platform = "cuda"; '
                "nothing was started"
            )
            raise WorkerFailed(Failure(kind=FailureKind.LAUNCH, message=message, phase="launch"))
        command = self._command(settings, folder)
        with contextlib.ExitStack() as stack:
            own, watch = self._folders(stack, self._environment(settings))
            job = self._job(
                settings,
                command=command,
                cwd=own.cwd,
                rules=self._rules(settings, folder),
                run_steps=self._spec.measure.run_steps,
                device_count=self._spec.device.count,
                limit_s=READY_SHARE * self.limits.start_s,
            )
            env = own.added_to(watch.environment)
            kind: type[CommandWorker] = HookWorker
            if self._spec.workload.hook:
                env = with_packages(env)
            else:
                kind, command = ReadWorker, reader_command("read_output")
            kept = [*self.opened]  # not its raw pairs and logs
            if self._spec.workload.uses_folder:
                kept.append(folder / FILES)
            command = self.wrap(own.command(command, kept), settings)
            process = GuardedProcess(command, env, folder / log_name(0), cwd=self._study_dir)
            worker = kind(process, self._spec, settings, own, watch)
            stack.pop_all()  # the worker closes them from now on
        return self._begin(worker, [job], progress)

    def pace_outside(self, settings: FlagSet, folder: Path, *, limit_s: float) -> float | None:
        """Runs the program without hook or reader; see `base.Launcher`."""
        command = self._command(settings, folder)
        with contextlib.ExitStack() as stack, contextlib.suppress(WorkerFailed):
            own, _ = self._folders(stack, {})
            env = with_packages(own.added_to(self._environment(settings)))
            command = self.wrap(without_channel(own.command(command, [folder])), settings)
            return pace_outside(
                command, env, folder / log_name(0), cwd=self._study_dir, limit_s=limit_s
            )
        return None

    def _folders(
        self, stack: contextlib.ExitStack, env: Environment
    ) -> tuple[OwnFolder, ProgramWatch]:
        """Makes the folder of a process and that of its compiled programs, removed with the
        stack.
        """
        try:
            own = OwnFolder(self._study_dir, self._spec.workload.folder)
            stack.callback(own.close)
            watch = ProgramWatch(env, self._spec.device.platform)
            stack.callback(watch.close)
        except OSError as error:
            raise LaunchError(
                "each process of a study must get a folder of its own but "
                f"{tempfile.gettempdir()}: "
                f"{error.strerror or error}; make room there, or name another one by TMPDIR"
            ) from error
        return own, watch

    def _command(self, settings: FlagSet, folder: Path) -> list[str]:
        """Returns the command of a process, and makes its folder anew if the command names one."""
        if self._spec.workload.uses_folder:
            remove_tree(folder / FILES)  # of an earlier process, which this one must not go on from
            (folder / FILES).mkdir(parents=True)
        return self._spec.under(settings).workload.arguments(str(folder / FILES))

    def _rules(self, settings: FlagSet, folder: Path) -> Message:
        """Returns the rules for reading steps, with tokens per step for rates of tokens."""
        if (read := self._spec.workload.read) is None:
            return {}
        rules = read.rules()
        if (tokens := self._spec.work_under(settings)) is not None:
            rules["tokens_per_step"] = tokens
        if read.file is not None:
            rules["file"] = filled(read.file, {FOLDER: str(folder / FILES)})
        return rules


class CommandWorker(LocalWorker):
    """A user's program in its own folder, with a watch of its compiled programs; both are closed
    with it.
    """

    def __init__(
        self,
        process: GuardedProcess,
        spec: StudySpec,
        settings: FlagSet,
        own: OwnFolder,
        watch: ProgramWatch,
    ) -> None:
        super().__init__([process], spec, settings)
        self._own = own
        self._watch = watch

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Runs a block, and drops the fingerprint if the program compiled meanwhile."""
        times = super().run_block(steps)
        if self._watch.has_compiled_more():
            self.report = self.report.model_copy(
                update=self._unknown("it compiled more after its warm-up")
            )
        return times

    def close(self) -> None:
        """Ends everything; see `base.Worker`."""
        if not self.closed:
            super().close()
            self.written = self._own.size()
        self._own.close()
        self._watch.close()

    def _made(
        self, fields: Message, notes: Sequence[str], *, process_count: int = 1
    ) -> WorkerReport:
        """Makes the report from the fields that are known; `process_count` processes have loaded
        XLA.
        """
        try:
            programs = self._watch.read_programs(process_count)
        except (NotKnown, OSError) as error:
            programs = self._unknown(str(error))
        defaults = {
            "platform": self._spec.device.platform,
            "device_kind": NOT_TOLD,
            "device_count": self._spec.device.count or 1,
            "grad_norms": (),
            "dtype": READ_DTYPE,
            **programs,
        }
        if self._own.warning:
            notes = (*notes, self._own.warning)
        return super()._made({**defaults, **fields}, notes)

    def _unknown(self, problem: str) -> Message:
        """Returns the fields of a report without a compiled program: only equal settings give equal
        programs then.
        """
        return {
            "fingerprint": f"settings-{self._settings.digest}",
            "program_problem": problem[:300],
        }


class HookWorker(CommandWorker):
    """The user's program with `autotune.hook` in its loop."""

    def _report(self, message: Message) -> WorkerReport:
        fields = message["report"]
        if self._spec.device.platform == "cuda" and fields.get("platform") == "cpu":
            raise self._failed(FailureKind.LAUNCH, ON_CPU)
        changed = check_options(self._settings, message["jax_options"])
        return self._made(
            fields, self._check([message], changed), process_count=int("platform" in fields)
        )


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
        is_on_cpu = self._spec.device.platform == "cpu"
        if not is_on_cpu and processes and all(p["opens_gpu"] is False for p in processes):
            raise self._failed(FailureKind.LAUNCH, ON_CPU)
        notes = [*self._check(processes, self._watch.lost(self._settings) if processes else ())]
        if self._watch.problem and self._settings.of_kind("xla"):
            for script in files_that_set(
                "XLA_FLAGS", self._spec.workload.command or (), Path(self._own.cwd)
            ):
                notes.append(
                    f"{script} sets XLA_FLAGS itself: behind given ones, the settings under "
                    "trial do not arrive"
                )
        first: Message = processes[0] if processes else {}
        machine = message["ran_on"]
        gpus = machine.get("gpus", [])
        kinds = " and ".join(sorted({gpu["name"] for gpu in gpus if gpu["name"] is not None}))
        fields = {
            **message["report"],
            **machine,
            "device_kind": "cpu" if is_on_cpu else kinds or NOT_TOLD,
            "versions": {**first.get("versions", {}), **machine.get("versions", {})},
            "packages": first.get("packages"),
        }
        return self._made(fields, notes, process_count=len(processes))
