"""What is asked of a SLURM cluster, and how a driver is called there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.model import StudyFileError, parse_duration

Runtime = Literal["pyxis", "apptainer"]

_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What is asked of the cluster.

    Attributes:
        nodes: Nodes in all, over the whole array if it is one.
        gpus_per_node: GPUs of each node; None asks for none.
        time_s: Longest wall time, seconds.
        grace_s: How long before its end the job is told to stop.
        array: One job for each lane, which may start at different times, instead of one for all.
        requeue: Put a job that was stopped before its end back into the queue.
        exclusive: Share the nodes with nobody: another job's noise would be in every measurement.
        sbatch: More options for sbatch, as they are.
        srun: More arguments for every srun.
        setup: Lines of bash that come before the driver, ``module load cuda``; the first that fails ends the job.
        container_image: What driver and workers run in.
        container_mounts: Its mounts, ``A:B,C:D``: folder of the node, folder in the container.
        container_runtime: Who starts the container: SLURM by its plug-in pyxis, or the program apptainer.
    """

    partition: str | None
    nodes: int
    gpus_per_node: int | None
    time_s: float
    grace_s: float
    array: bool = False
    requeue: bool = False
    exclusive: bool = True
    account: str | None = None
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    container_image: str | None = None
    container_mounts: str | None = None
    container_runtime: Runtime = "pyxis"

    @property
    def is_dask(self) -> bool:
        """Whether lanes are workers of a Dask cluster, instead of being steps that the driver starts.

        Jobs of an array start apart; and SLURM's commands, with which a driver starts steps, are not in a container.
        """
        return self.array or self.container_image is not None

    @property
    def srun_arguments(self) -> list[str]:
        """More arguments for every srun, those by which pyxis starts containers included."""
        if self.container_runtime != "pyxis":
            return list(self.srun)
        container = {"--container-image": self.container_image, "--container-mounts": self.container_mounts}
        return [*(f"{name}={value}" for name, value in container.items() if value), *self.srun]

    def inside(self, command: Sequence[str], *, with_gpus: bool) -> list[str]:
        """A command as it runs in the container; as it is where SLURM sees to that, or where there is none."""
        if self.container_image is None or self.container_runtime == "pyxis":
            return list(command)
        gpus = ["--nv"] if with_gpus else []
        mounts = [f"--bind={self.container_mounts}"] if self.container_mounts else []
        return ["apptainer", "exec", *gpus, *mounts, self.container_image, *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How a driver is called on a node.

    Attributes:
        python: The interpreter, as it is called there.
        study: The study file, absolute.
        run_dir: The run directory, absolute.
        options: Options of `run`.
    """

    python: str
    study: Path
    run_dir: Path
    options: tuple[str, ...] = ()

    def run_command(self, *more: str) -> list[str]:
        """The driver's command."""
        run = [self.python, "-m", "autotune", "run", str(self.study), "--run-dir", str(self.run_dir)]
        return [*run, *self.options, *more]

    def dask_command(self, what: str, *more: str) -> list[str]:
        """The command of a part of the Dask cluster, whose parts find each other by its scheduler's file."""
        file = ["--scheduler-file", str(self.scheduler_file)]
        return [self.python, "-m", "dask", what, *file, "--protocol", "tls", "--no-dashboard", *more]

    @property
    def scheduler_file(self) -> Path:
        """Where the scheduler of a Dask cluster says its address: beside the run directory."""
        return self.run_dir.with_name(f"{self.run_dir.name}.scheduler.json")

    @property
    def tls(self) -> Path:
        """Where the certificate of a Dask cluster lies: beside the run directory, which may be shown around."""
        return self.run_dir.with_name(f"{self.run_dir.name}.tls")

    @property
    def script(self) -> Path:
        """Where the batch script lies: beside the run directory, which holds nothing but the run."""
        return self.run_dir.with_name(f"{self.run_dir.name}.sbatch")

    def log(self, pattern: str) -> str:
        """A log file beside the run directory, as SLURM takes it: it fills in the job's number and the like."""
        return f"{str(self.run_dir).replace('%', '%%')}.slurm-{pattern}.log"


def parse_time(text: str) -> float:
    """Seconds in ``8h``, ``90m``, or SLURM's own ``HH:MM:SS`` and ``D-HH[:MM[:SS]]``.

    Raises:
        StudyFileError: If it is none of them; a plain number says no unit, and SLURM's is not everybody's.
    """
    found = _SLURM_TIME.fullmatch(text.strip())
    try:
        if found is None:
            return parse_duration(text)
        days, *fields = found.groups()
        if days is None and fields[2] is None:
            raise ValueError("no unit")
        hours, minutes, seconds = (int(f or 0) for f in fields)
        total = int(days or 0) * 86_400.0 + hours * 3600 + minutes * 60 + seconds
        if total <= 0:
            raise ValueError("nothing")
        return total
    except ValueError as error:
        raise StudyFileError(
            f"a time limit must look like 8h, 90m, 08:00:00 or 1-12:00:00 but got {text!r}; say its unit"
        ) from error


def format_time(seconds: float) -> str:
    """Seconds in SLURM's ``D-HH:MM:SS``, rounded up to whole ones."""
    whole = int(-(-seconds // 1))
    days, rest = divmod(whole, 86_400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def shared_options(
    *, trials: int | None, time_budget: str | None, seed: int | None, effort: str, soak: bool
) -> tuple[str, ...]:
    """The options of `run`, as they are typed; the storage goes through the environment."""
    more = effort if effort != "standard" else None
    named = {"--trials": trials, "--time-budget": time_budget, "--seed": seed, "--effort": more}
    typed = [str(x) for name, value in named.items() if value is not None for x in (name, value)]
    return (*typed, *(() if soak else ("--no-soak",)))
