"""Trials on several nodes of a SLURM job: each rank is a job step behind a guard on its node.

``srun`` forwards the guard's stdin and stdout, so no port is needed, and all ranks end with the
driver.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.child.channel import Message
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
from autotune.model.measurement import Failure, FailureKind
from autotune.model.spec import StudySpec
from autotune.workers.base import GuardedProcess, Progress, WorkerFailed
from autotune.workers.failures import is_kernel_kill
from autotune.workers.local import LocalLauncher, LocalWorker, worker_command

NODES_VARIABLE = "AUTOTUNE_NODES"
"""Nodes of the job that a driver may use, in SLURM's notation; default: all."""

SRUN_VARIABLE = "AUTOTUNE_SRUN"
"""More arguments for each ``srun``, quoted as for a shell."""

STEP_LIMIT_S = 300.0
"""Limit for the start of a trial's steps, seconds; a SLURM controller under load makes callers
wait.
"""

SRUN_LAST_WORDS_S = 2.0

FOR_SURE_OF_SETTINGS = (
    FailureKind.UNKNOWN_FLAG,
    FailureKind.COMPILE_ERROR,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.OUT_OF_HOST_MEMORY,
    FailureKind.NOT_APPLIED,
    FailureKind.WRONG_LOSS,
)
"""Failures that the settings caused, whatever happened to other ranks."""


class SrunLauncher(LocalLauncher):
    """Starts the ranks of an `entry` on the nodes of the driver's SLURM job; LaunchError without
    one or enough.
    """

    def __init__(self, spec: StudySpec, *, study_dir: str, base: Environment) -> None:
        super().__init__(spec, study_dir=study_dir, base=base)
        wanted = spec.device.node_count
        given = base.get(NODES_VARIABLE) or base.get("SLURM_JOB_NODELIST")
        if not given or not base.get("SLURM_JOB_ID"):
            raise LaunchError(
                f"a study with `device.node_count = {wanted}` must run inside a SLURM job but "
                "there is none; submit "
                f"one with `autotune submit STUDY --nodes {wanted} ...`, or call this in `salloc "
                f"--nodes={wanted}`"
            )
        if spec.workload.command is not None:
            raise LaunchError(
                "a trial of several nodes must be an `entry`, whose ranks are started here, but "
                "the study has a "
                '`command`; give the program as `entry = "module:function"`, or take '
                "`device.node_count = 1`"
            )
        nodes = slurm_hosts(given, base)
        if len(nodes) < wanted:
            raise LaunchError(
                f"a study with `device.node_count = {wanted}` needs as many nodes but this job "
                f"has {len(nodes)} "
                f"({', '.join(nodes)}); ask for more nodes, or lower `device.node_count`"
            )
        self._nodes = nodes[:wanted]
        try:
            self._extra = shlex.split(base.get(SRUN_VARIABLE, ""))
        except ValueError as error:
            raise LaunchError(
                f"{SRUN_VARIABLE} must be quoted as for a shell but: {error}"
            ) from error

    def _worker(self, processes: list[GuardedProcess], settings: FlagSet) -> LocalWorker:
        return SrunWorker(processes, self._spec, settings, nodes=self._nodes, base=self._base)

    def _started(
        self, rank: int, settings: FlagSet, env: dict[str, str], log: Path
    ) -> GuardedProcess:
        client = slurm_client_environment(self._base)
        node = self._nodes[rank * len(self._nodes) // self._spec.under(settings).device.rank_count]
        srun = slurm_step_command(node, client, f"--job-name=rank-{rank}", *self._extra)
        return GuardedProcess(
            self.wrap(worker_command(), settings), client, log, through=srun, remote_env=env
        )

    def _jobs(self, settings: FlagSet) -> list[Message]:
        jobs = super()._jobs(settings)
        ranks_per_node = len(jobs) // len(self._nodes)
        for rank, job in enumerate(jobs):
            # The coordinator's address is known once its node has answered; it must be reached from
            # other nodes.
            job.update(local_rank=rank % ranks_per_node, coordinator=None, coordinator_bind=None)
        return jobs


class SrunWorker(LocalWorker):
    """All ranks of one trial on several nodes, a SLURM step each; `base` is the driver's own
    environment.
    """

    def __init__(
        self,
        steps: list[GuardedProcess],
        spec: StudySpec,
        settings: FlagSet,
        *,
        nodes: Sequence[str],
        base: Environment,
    ) -> None:
        super().__init__(steps, spec, settings)
        self._nodes = nodes
        self._base = base

    def wait_ready(self, jobs: list[Message], progress: Progress) -> None:
        """Waits for the guards, sends the coordinator's address, and waits until all ranks are
        compiled and warm.
        """
        progress("launch")
        hello = self._gather("hello", STEP_LIMIT_S)
        try:
            host = slurm_address(hello[0]["node"], self._base)
        except LaunchError as error:
            raise machine_failure(str(error), phase="launch") from error
        for job in jobs:
            job["coordinator"] = f"{host}:{hello[0]['port']}"
        self._phase = "start"
        super().wait_ready(jobs, progress)

    def _ended(self) -> WorkerFailed:
        """Classifies the end of a worker: a step may have been cancelled, or its node lost."""
        failed = super()._ended()
        ends = [(rank, step.end) for rank, step in enumerate(self._processes)]
        vanished = [rank for rank, end in ends if end is not None and end.get("stopped", True)]
        said = [line for step in self._processes for line in self._last_words(step, failed.failure)]
        if any(map(is_kernel_kill, said)):
            update = {
                "kind": FailureKind.OUT_OF_HOST_MEMORY,
                "message": next(filter(is_kernel_kill, said)),
            }
            return WorkerFailed(failed.failure.model_copy(update=update))
        if vanished and failed.failure.kind not in FOR_SURE_OF_SETTINGS:
            why = (
                f"the step of rank {vanished[0]} was ended from outside: "
                f"{' '.join(said) or 'srun does not say why'}"
            )
            failed = machine_failure(
                why, phase=failed.failure.phase, log=str(self._processes[vanished[0]].log)
            )
        return self._unless_lost(failed)

    def _failed(self, kind: FailureKind, message: str) -> WorkerFailed:
        if kind is FailureKind.HANG and self._phase == "launch":
            said = " ".join(line for step in self._processes for line in step.said_by_carrier())
            self.close()
            return self._unless_lost(
                machine_failure(f"the steps did not start: {message}; {said}", phase="launch")
            )
        return self._unless_lost(super()._failed(kind, message))

    def _last_words(self, step: GuardedProcess, failure: Failure) -> tuple[str, ...]:
        """Returns the output of ``srun`` for one step; it reports a kill by the kernel only at its
        end.
        """
        deadline = time.monotonic() + SRUN_LAST_WORDS_S
        while failure.signal == "SIGKILL" and step.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        return step.said_by_carrier()

    def _unless_lost(self, failed: WorkerFailed) -> WorkerFailed:
        """Returns the failure, or the loss of a node if that explains it."""
        if failed.failure.kind in FOR_SURE_OF_SETTINGS:
            return failed
        self.close()
        lost = lost_slurm_nodes(self._nodes, self._base)
        if not lost:
            return failed
        named = "; ".join(f"{node}: {why}" for node, why in lost.items())
        log, phase = failed.failure.log, failed.failure.phase
        return machine_failure(
            f"lost a node ({named})", kind=FailureKind.NODE_LOST, phase=phase, log=log
        )


def machine_failure(
    message: str, *, phase: str, kind: FailureKind = FailureKind.LAUNCH, log: str | None = None
) -> WorkerFailed:
    """Makes a failure of the machines, not of the settings."""
    failure = Failure(kind=kind, message=message[:1000], phase=phase, log=log)
    return WorkerFailed(failure, infrastructure=True)
