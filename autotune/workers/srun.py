"""Trials on several nodes of a SLURM job: each rank is a job step behind a guard on its node.

``srun`` forwards the guard's stdin and stdout: no port is needed, all ranks end with the driver.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from autotune.machine.environment import Environment
from autotune.machine.slurm import (
    lost_slurm_nodes,
    slurm_address,
    slurm_client_environment,
    slurm_hosts,
    slurm_step_command,
)
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.options import shell_words
from autotune.model.spec import StudySpec
from autotune.workers.base import GuardedProcess, Progress, WorkerFailed, machine_failure
from autotune.workers.local import Jobs, LocalLauncher, LocalWorker, Ranks, worker_command

NODES_VARIABLE = "AUTOTUNE_NODES"  # nodes to use, in SLURM's notation; default: all
SRUN_VARIABLE = "AUTOTUNE_SRUN"  # more arguments for ``srun``, quoted as for a shell
STEP_LIMIT_S = 300.0  # for the start of a trial's steps; a SLURM controller may be slow
SRUN_LAST_WORDS_S = 2.0

# Failures that the settings caused, whatever happened to other ranks.
FOR_SURE_OF_SETTINGS = (
    FailureKind.UNKNOWN_FLAG,
    FailureKind.COMPILE_ERROR,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.OUT_OF_HOST_MEMORY,
    FailureKind.NOT_APPLIED,
    FailureKind.WRONG_LOSS,
)


class SrunLauncher(LocalLauncher):
    """Starts the ranks of an `entry` on the nodes of the driver's SLURM job, if it has enough."""

    def __init__(self, spec: StudySpec, *, study_dir: str, base: Environment) -> None:
        super().__init__(spec, study_dir=study_dir, base=base)
        count = spec.device.node_count
        listed = base.get(NODES_VARIABLE) or base.get("SLURM_JOB_NODELIST")
        if not listed or not base.get("SLURM_JOB_ID"):
            raise LaunchError(
                f"a study with `device.node_count = {count}` must run inside a SLURM job but "
                f"there is none; submit one with `autotune submit STUDY --nodes {count} ...`, or "
                f"call this in `salloc --nodes={count}`"
            )
        if spec.workload.command is not None:
            raise LaunchError(
                "a trial of several nodes must be an `entry`, whose ranks are started here, but "
                'the study has a `command`; give the program as `entry = "module:function"`, or '
                "take `device.node_count = 1`"
            )
        nodes = slurm_hosts(listed, base)
        if len(nodes) < count:
            raise LaunchError(
                f"a study with `device.node_count = {count}` needs as many nodes but this job "
                f"has {len(nodes)} ({', '.join(nodes)}); ask for more nodes, or lower "
                "`device.node_count`"
            )
        self._nodes = nodes[:count]
        self._extra = shell_words(base.get(SRUN_VARIABLE), SRUN_VARIABLE)

    def _worker(self, processes: Ranks, settings: FlagSet) -> LocalWorker:
        worker = SrunWorker(processes, self._spec, settings)
        worker.nodes = self._nodes
        worker.base = self._base
        return worker

    def _started(self, rank: int, settings: FlagSet, env: Environment, log: Path) -> GuardedProcess:
        client = slurm_client_environment(self._base)
        node = self._nodes[rank * len(self._nodes) // self._spec.under(settings).device.rank_count]
        srun = slurm_step_command(node, client, f"--job-name=rank-{rank}", *self._extra)
        command = self.wrap(worker_command(), settings)
        return GuardedProcess(command, client, log, through=srun, remote_env=env)


class SrunWorker(LocalWorker):
    """All ranks of one trial on several nodes, a SLURM step each, started in `base`."""

    nodes: Sequence[str]
    base: Environment

    def wait_ready(self, jobs: Jobs, progress: Progress) -> None:
        """Waits for the guards, then sends jobs with the coordinator's address; see the base."""
        progress("launch")
        hello = self._gather("hello", STEP_LIMIT_S)
        try:
            host = slurm_address(hello[0]["node"], self.base)
        except LaunchError as error:
            raise machine_failure(str(error), phase="launch") from error
        ranks_per_node = len(jobs) // len(self.nodes)
        for rank, job in enumerate(jobs):
            job["local_rank"] = rank % ranks_per_node
            job["coordinator"] = f"{host}:{hello[0]['port']}"  # for other nodes
            job["coordinator_bind"] = None
        self._phase = "start"
        super().wait_ready(jobs, progress)

    def _ended(self) -> WorkerFailed:
        """Classifies the end of a worker: a step may have been cancelled, or its node lost."""
        failed = super()._ended()
        failure = failed.failure
        lines: list[str] = []
        for step in self._processes:
            # A kill by the kernel is reported only at the end of ``srun``.
            deadline = time.monotonic() + SRUN_LAST_WORDS_S
            while failure.signal == "SIGKILL" and step.is_running and time.monotonic() < deadline:
                time.sleep(0.05)
            lines += step.said_by_carrier()
        for line in lines:
            if "oom-kill" in line or "oom_kill" in line:
                update = {"kind": FailureKind.OUT_OF_HOST_MEMORY, "message": line}
                return WorkerFailed(failure.model_copy(update=update))
        # Of a cancelled step the guard was stopped, or vanished.
        steps = [s for s in self._processes if s.end is not None and s.end.get("stopped", True)]
        if steps and failure.kind not in FOR_SURE_OF_SETTINGS:
            why = " ".join(lines) or "srun does not say why"
            message = (
                f"the step of rank {self._processes.index(steps[0])} was ended from outside: {why}"
            )
            failed = machine_failure(message, phase=failure.phase, log=str(steps[0].log))
        return self._unless_lost(failed)

    def _failed(self, kind: FailureKind, message: str) -> WorkerFailed:
        if kind is FailureKind.HANG and self._phase == "launch":
            lines = " ".join(line for step in self._processes for line in step.said_by_carrier())
            self.close()
            message = f"the steps did not start: {message}; {lines}"
            failed = machine_failure(message, phase="launch")
        else:
            failed = super()._failed(kind, message)
        return self._unless_lost(failed)

    def _unless_lost(self, failed: WorkerFailed) -> WorkerFailed:
        """Returns the failure, or the loss of a node if that explains it."""
        failure = failed.failure
        if failure.kind in FOR_SURE_OF_SETTINGS:
            return failed
        self.close()
        lost = lost_slurm_nodes(self.nodes, self.base)
        if not lost:
            return failed
        nodes = "; ".join(f"{node}: {why}" for node, why in lost.items())
        message = f"lost a node ({nodes})"
        kind = FailureKind.NODE_LOST
        return machine_failure(message, kind=kind, phase=failure.phase, log=failure.log)
