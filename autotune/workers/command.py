"""The user's own program as a worker: measured in interleaved blocks by the hook, else by its output."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.machine.environment import with_packages
from autotune.machine.files import remove_tree
from autotune.machine.gpus import is_without_gpus
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import NOT_TOLD, DeviceMemory, Failure, FailureKind, GpuState, WorkerReport
from autotune.model.options import FOLDER, filled
from autotune.model.spec import StudySpec
from autotune.workers.base import GuardedProcess, Progress, WorkerFailed, reader_command
from autotune.workers.failures import NO_GPU
from autotune.workers.local import LocalLauncher, LocalWorker, log_name
from autotune.workers.own_folder import OwnFolder
from autotune.workers.programs import NotKnown, ProgramWatch
from autotune.workers.settings_check import (
    SettingsCheck,
    check_environment,
    check_options,
    check_processes,
    files_that_name,
)

READ_DTYPE = "tensorfloat32"
"""Precision assumed for the loss of a user's program: its arithmetic is unknown, and some print few digits."""

ON_CPU = f'{NO_GPU} in this program, which runs on the CPU; the study says device.platform = "cuda"'

READY_SHARE = 0.95
"""Share of the start limit after which the reader gives up itself, since it can report the reason."""

FILES = "files"
"""Folder of a process in that of its measurement, for ``{folder}`` in its command."""


class CommandLauncher(LocalLauncher):
    """Starts the study's `command` under a guard, in a folder of its own, with the settings in its environment."""

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> LocalWorker:
        """Starts the program and waits until it is warm; see `base.Launcher`."""
        if self._spec.device.platform == "cuda" and is_without_gpus(self._base):
            message = f'{NO_GPU}: none is here, and the study says device.platform = "cuda"; nothing was started'
            raise WorkerFailed(Failure(kind=FailureKind.LAUNCH, message=message, phase="launch"))
        env, command = self._environment(settings), self._command(settings, folder)
        if self._spec.workload.uses_folder:
            remove_tree(folder / FILES)  # of an earlier process, which this one must not go on from
            (folder / FILES).mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            own = self._own_folder(stack)
            watch, problem = self._watch()
            if watch is not None:
                stack.callback(watch.close)
                try:
                    env = watch.variables(env)
                except NotKnown as error:
                    watch, problem = None, str(error)
            kind: type[CommandWorker] = HookWorker
            if self._spec.workload.hook:
                env = with_packages(env)
            else:
                kind, command = ReadWorker, reader_command("read_output")
            process = GuardedProcess(own.command(command, [folder]), env, folder / log_name(0), cwd=self._study_dir)
            worker = kind(process, self._spec, settings, own, watch, problem, stack.pop_all())
        return self._begin(worker, [{**job, "cwd": own.cwd} for job in self._jobs(settings, folder)], progress)

    def _own_folder(self, stack: contextlib.ExitStack) -> OwnFolder:
        """Makes the folder of a process, removed with the stack."""
        try:
            own = OwnFolder(self._study_dir, self._spec.workload.folder)
        except OSError as error:
            raise LaunchError(
                f"each process of a study must get a folder of its own but {tempfile.gettempdir()}: "
                f"{error.strerror or error}; make room there, or name another one by TMPDIR"
            ) from error
        stack.callback(own.close)
        return own

    def _watch(self) -> tuple[ProgramWatch | None, str]:
        """Makes a folder for the compiled programs of a process, or returns the reason why there is none."""
        if self._spec.device.platform != "cpu":
            return None, "on GPUs a dump does not show all that runs"
        try:
            return ProgramWatch(), ""
        except OSError as error:
            return None, f"there is no folder for it: {error.strerror or error}"

    def _command(self, settings: FlagSet, folder: Path) -> list[str]:
        return self._spec.under(settings).workload.arguments(str(folder / FILES))

    def _rules(self, settings: FlagSet, folder: Path) -> dict[str, Any]:
        """Returns the rules for reading steps, with tokens per step for rates of tokens."""
        if (read := self._spec.workload.read) is None:
            return {}
        rules = read.rules()
        if (tokens := self._spec.work_under(settings)) is not None:
            rules["tokens_per_step"] = tokens
        if read.file is not None:
            rules["file"] = filled(read.file, {FOLDER: str(folder / FILES)})
        return rules

    def _jobs(self, settings: FlagSet, folder: Path) -> list[dict[str, Any]]:
        job = self._job(
            settings,
            command=self._command(settings, folder),
            rules=self._rules(settings, folder),
            run_steps=self._spec.measure.run_steps,
            device_count=self._spec.device.count,
            limit_s=READY_SHARE * self.limits.start_s,
        )
        return [job]


class CommandWorker(LocalWorker):
    """A user's program, whose compiled programs are dumped by XLA.

    Args:
        own: Folder in which it runs.
        watch: Folder of the dump.
        problem: Reason why there is no `watch`.
        resources: Closed with the worker.
    """

    def __init__(
        self,
        process: GuardedProcess,
        spec: StudySpec,
        settings: FlagSet,
        own: OwnFolder,
        watch: ProgramWatch | None,
        problem: str,
        resources: contextlib.ExitStack,
    ) -> None:
        super().__init__([process], spec, settings)
        self._own = own
        self._watch = watch
        self._problem = problem
        self._resources = resources

    def wait_ready(self, jobs: list[dict[str, Any]], progress: Progress) -> None:
        """Waits until the program is warm; the report says where its folder is not its own."""
        super().wait_ready(jobs, progress)
        if self._own.warning:
            warnings = (*self.report.warnings, self._own.warning)
            self.report = self.report.model_copy(update={"warnings": warnings})

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Runs a block; see `base.Worker`. The fingerprint is dropped if the program compiled during the block."""
        times = super().run_block(steps)
        if self._watch is not None and self._watch.has_compiled_more():
            self.report = self.report.model_copy(update=self._unknown("it compiled more after its warm-up"))
        return times

    def close(self) -> None:
        """Ends everything; see `base.Worker`."""
        super().close()
        self._resources.close()

    def _own_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the variables of the program without the flag of the watch."""
        return dict(values) if self._watch is None else self._watch.without_own(values)

    def _programs(self, process_count: int) -> dict[str, Any]:
        """Returns the report's fields on the compiled programs; `process_count` processes have loaded XLA."""
        try:
            if self._watch is None:
                raise NotKnown(self._problem)
            found = self._watch.read_programs(process_count)
        except (NotKnown, OSError) as error:
            return self._unknown(str(error))
        return {"fingerprint": found.fingerprint, "peak_bytes": found.peak_bytes, "compile_s": found.compile_s}

    def _unknown(self, problem: str) -> dict[str, Any]:
        return {"fingerprint": f"settings-{self._settings.digest}", "program_problem": problem[:300]}


class HookWorker(CommandWorker):
    """The user's program with `autotune.hook` in its loop."""

    def _report(self, message: Mapping[str, Any]) -> WorkerReport:
        check = check_environment(self._settings, self._own_values(message["values"]))
        jax = message["jax"] or {}
        if self._spec.device.platform == "cuda" and jax.get("platform") == "cpu":
            raise self._failed(FailureKind.LAUNCH, ON_CPU)
        lost = (*check.lost, *check_options(self._settings, jax.get("options", {})))
        self._refuse_lost(lost)
        ran_on = jax.get("ran_on", {})
        memory = [DeviceMemory(peak_bytes=p, limit_bytes=n) for p, n in jax.get("memory", []) if p is not None]
        report = _report(self._spec, self._settings, message, check, begun=self._begun)
        programs = self._programs(1 if jax else 0)
        return report.model_copy(
            update={
                **programs,
                "platform": jax.get("platform", report.platform),
                "device_kind": jax.get("device_kind", report.device_kind),
                "device_count": jax.get("device_count", report.device_count),
                "process_count": jax.get("process_count", 1),
                "peak_bytes": max((m.peak_bytes for m in memory), default=programs.get("peak_bytes")),
                "grad_norms": tuple(float(x) for x in message["grad_norms"]),
                "loss_dtype": message.get("loss_dtype"),
                "norm_dtype": message.get("norm_dtype"),
                "device_memory": tuple(memory),
                "versions": _versions(jax),
                "packages": jax.get("packages"),
                "gpus": tuple(GpuState.model_validate(g) for g in ran_on.get("gpus", ())) or None,
            }
        )


class ReadWorker(CommandWorker):
    """The user's unchanged program, whose output `autotune.child.read_output` reads."""

    def _report(self, message: Mapping[str, Any]) -> WorkerReport:
        processes = message["processes"]
        if self._spec.device.platform == "cuda" and processes and all(p["opens_gpu"] is False for p in processes):
            raise self._failed(FailureKind.LAUNCH, ON_CPU)
        given = [{**p, "values": self._own_values(p["values"])} if "values" in p else p for p in processes]
        check = check_processes(self._settings, given)
        lost = self._watch.lost(self._settings) if self._watch is not None and processes else ()
        self._refuse_lost((*check.lost, *lost))
        if self._watch is None and self._settings.of_kind("xla"):
            scripts = files_that_name("XLA_FLAGS", self._spec.workload.command or (), Path(self._own.cwd))
            doubts = [f"{s} names XLA_FLAGS: if it sets them, the settings under trial do not arrive" for s in scripts]
            check = replace(check, notes=(*check.notes, *doubts))
        report = _report(self._spec, self._settings, message, check, begun=self._begun)
        first: Mapping[str, Any] = processes[0] if processes else {}
        ran_on = message.get("ran_on", {})
        gpus = tuple(GpuState.model_validate(g) for g in ran_on.get("gpus", ()))
        kinds = " and ".join(sorted({g.name for g in gpus if g.name is not None}))
        return report.model_copy(
            update={
                **self._programs(len(processes)),
                "device_kind": "cpu" if report.platform == "cpu" else kinds or NOT_TOLD,
                "versions": {**first.get("versions", {}), **ran_on.get("versions", {})},
                "packages": first.get("packages"),
                "gpus": gpus or None,
            }
        )


def _versions(jax: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions in the process of the hook; empty if it has not imported JAX."""
    if not jax:
        return {}
    return {**jax.get("versions", {}), "jax": jax["version"], **jax.get("ran_on", {}).get("versions", {})}


def _report(
    spec: StudySpec, settings: FlagSet, message: Mapping[str, Any], check: SettingsCheck, *, begun: float
) -> WorkerReport:
    """Makes the report of a user's program from a message of its reader or hook."""
    return WorkerReport(
        # Unless the compiled program is known, only equal settings are known to give equal programs.
        fingerprint=f"settings-{settings.digest}",
        platform=spec.device.platform,
        device_kind=NOT_TOLD,
        device_count=spec.device.count or 1,
        compile_s=None,
        start_s=time.monotonic() - begun,
        losses=tuple(float(x) for x in message["losses"]),
        grad_norms=(),
        dtype=READ_DTYPE,
        step_numbers=tuple(message.get("step_numbers", ())),
        warmup_step_times_s=tuple(message["warmup_step_times_s"]),
        warnings=check.notes,
    )
