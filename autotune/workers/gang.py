"""Trials that span several machines of a pool: each rank behind a guard on its machine, carried there by the engine.

What ``srun`` is to the nodes of a SLURM job, a command that the engine names is to the members of a gang; the talk
with a rank is the same as with a local one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.model import FailureKind, FlagSet, LaunchError, StudySpec
from autotune.workers.base import Progress, WorkerFailed
from autotune.workers.local import KILL_PATIENCE_S, LocalLauncher, LocalWorker, log_name, worker_command
from autotune.workers.srun import FOR_SURE_OF_SETTINGS, SET_BY_NODE, STEP_LIMIT_S, StepProcess, of_machine

GANG_VARIABLE = "AUTOTUNE_GANG"
"""How a lane learns of the machines of its gang: a list of `Member` in JSON, the order that of the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One machine of a gang.

    Attributes:
        host: Where the others reach it.
        through: What carries a guard there, as ``srun ...`` does.
    """

    host: str
    through: Sequence[str]


class GangLauncher(LocalLauncher):
    """Starts the ranks of a study's `entry` on the machines of a gang.

    Args:
        spec: The study.
        study_dir: Folder of the study file, the same on all machines.
        base: The caller's environment, which names the gang.

    Raises:
        LaunchError: If the gang is not of the study's size, or the study has no `entry`.
    """

    def __init__(self, spec: StudySpec, *, study_dir: str, base: Mapping[str, str]) -> None:
        own = {n: v for n, v in base.items() if n != GANG_VARIABLE and n not in SET_BY_NODE}
        super().__init__(spec, study_dir=study_dir, base=own)
        self._members = [Member(**m) for m in json.loads(base[GANG_VARIABLE])]
        wanted = spec.device.node_count
        if len(self._members) != wanted:
            raise LaunchError(
                f"a study with `device.node_count = {wanted}` needs gangs of as many workers but got one of "
                f"{len(self._members)}; this is a fault of autotune's: report it"
            )
        if spec.workload.command is not None:
            raise LaunchError(
                "a trial of several nodes must be an `entry`, whose ranks are started here, but the study has a "
                '`command`; give the program as `entry = "module:function"`, or take `device.node_count = 1`'
            )

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> LocalWorker:
        """Starts all ranks and waits until they are ready; see `base.Launcher`."""
        environment = self._worker_environment(settings)
        worker = GangWorker(self._ranks(settings, folder), self._spec, settings, self._members[0].host, environment)
        return self._begin(worker, self._jobs(settings, folder), progress)

    def _ranks_each(self, settings: FlagSet) -> int:
        return self._spec.under(settings).device.rank_count // len(self._members)

    def _ranks(self, settings: FlagSet, folder: Path) -> list[StepProcess]:
        each = self._ranks_each(settings)
        started: list[StepProcess] = []
        try:
            for rank in range(each * len(self._members)):
                through = self._members[rank // each].through
                log, limit = folder / log_name(rank), self._spec.measure.log_bytes
                started.append(StepProcess(worker_command(), self._base, log, limit, through=through))
        except BaseException:
            for process in started:
                process.close(KILL_PATIENCE_S)
            raise
        return started

    def _jobs(self, settings: FlagSet, folder: Path) -> list[dict[str, Any]]:
        jobs = super()._jobs(settings, folder)
        each = self._ranks_each(settings)
        for rank, job in enumerate(jobs):  # where they meet is known once the first has answered
            job.update(local_rank=rank % each, coordinator=None, coordinator_bind=None)
        return jobs


class GangWorker(LocalWorker):
    """All ranks of one trial on the machines of a gang.

    Args:
        ranks: One process for each.
        spec: The study.
        settings: Under which the processes were started.
        host: Where the first rank's machine is reached.
        env: The whole environment of each rank, but for what its machine sets.
    """

    def __init__(
        self,
        ranks: list[StepProcess],
        spec: StudySpec,
        settings: FlagSet,
        host: str,
        env: Mapping[str, str],
    ) -> None:
        super().__init__([*ranks], spec, settings)
        self._ranks = ranks
        self._host = host
        self._env = env

    def wait_ready(self, jobs: list[dict[str, Any]], progress: Progress) -> None:
        """Waits for the guards, tells the ranks where they meet, and waits until all are compiled and warm."""
        progress("launch")
        for rank in self._ranks:
            rank.send({"environment": self._env, "keep": SET_BY_NODE})
        hello = self._gather("hello", STEP_LIMIT_S, None)
        for job in jobs:
            job["coordinator"] = f"{self._host}:{hello[0]['port']}"
        self._phase = "start"
        super().wait_ready(jobs, progress)

    def _ended(self, errors: dict[int, dict[str, Any]]) -> WorkerFailed:
        """What it means that a rank has ended: its machine may be gone, then its peers' complaints say nothing."""
        failed = super()._ended(errors)
        vanished = [number for number, rank in enumerate(self._ranks) if rank.has_vanished or rank.is_stopped]
        if not vanished or failed.failure.kind in FOR_SURE_OF_SETTINGS:
            return failed
        said = " ".join(self._ranks[vanished[0]].said_by_carrier())
        return of_machine(
            f"lost the machine of rank {vanished[0]}: {said or 'nothing is known of it'}",
            kind=FailureKind.NODE_LOST,
            phase=failed.failure.phase,
            log=str(self._ranks[vanished[0]].log),
        )
