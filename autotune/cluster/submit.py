"""A study as a SLURM job: the batch script, what the cluster says to it, and its submission.

The script is plain bash that a person can read, change and submit by hand. It calls one driver, which
places its lanes on the job's nodes (of an array or in containers: a driver and workers that join it), passes the
warning of the time limit on, and puts the job back into the queue if that was asked for.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2

from autotune.cluster.certificates import make_certificates, tls_folder
from autotune.machine import (
    ask_slurm,
    caller_environment,
    inside_slurm_job,
    slurm_client_environment,
    slurm_partitions,
)  # fmt: skip
from autotune.model import STOPPED, LaunchError, StudyFileError, StudySpec, close_matches, parse_duration

MOST_REQUEUES = 100
LONGEST_GRACE_S = 65_535
STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Through which a job gets the URL of its storage: it may hold a password, and a script is a file."""

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
        container_image: For pyxis: what driver and workers run in.
        container_mounts: For pyxis: its mounts.
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
    container_image: str | None = None
    container_mounts: str | None = None

    @property
    def is_pool(self) -> bool:
        """Whether lanes join a pool, instead of being steps that the driver starts.

        Jobs of an array start apart; and SLURM's commands, with which a driver starts steps, are not in a container.
        """
        return self.array or self.container_image is not None

    @property
    def srun_arguments(self) -> list[str]:
        """More arguments for every srun, those for containers included."""
        container = {"--container-image": self.container_image, "--container-mounts": self.container_mounts}
        return [*(f"{name}={value}" for name, value in container.items() if value), *self.srun]


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

    @property
    def join_command(self) -> list[str]:
        """A worker's command, but for its name: it finds the driver by the folder with the pool's certificate."""
        return [self.python, "-m", "autotune", "worker", "--join", str(tls_folder(self.run_dir))]

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


def check_request(spec: StudySpec, request: JobRequest) -> int:
    """How many drivers the job has: one for each group of nodes that a trial spans.

    Raises:
        StudyFileError: If the nodes do not divide into such groups, or their GPUs do not suffice.
    """
    device = spec.device
    if request.nodes % device.node_count:
        raise StudyFileError(
            f"--nodes must be a multiple of the study's `device.node_count = {device.node_count}` but got "
            f"{request.nodes}; nodes that no trial can use would only wait"
        )
    if spec.replay is None and device.platform == "cuda":
        gpus = (request.gpus_per_node or 0) * device.node_count
        if gpus < (device.count or device.node_count):
            raise StudyFileError(
                f"--gpus-per-node must give each trial its GPUs but a trial of {device.node_count} nodes has {gpus} "
                f"and the study asks for {device.count or 'at least one on each node'}"
            )
    if not 1 <= request.grace_s <= LONGEST_GRACE_S or request.grace_s >= request.time_s:
        raise StudyFileError(
            f"--grace must be shorter than --time and at most {LONGEST_GRACE_S} s but got {request.grace_s:.0f} s of "
            f"{request.time_s:.0f} s"
        )
    return request.nodes // device.node_count


def render_script(spec: StudySpec, request: JobRequest, program: Program, *, with_storage: bool) -> str:
    """The batch script.

    Raises:
        StudyFileError: If a path or option holds what a batch script cannot.
    """
    drivers = check_request(spec, request)
    template = _templates().get_template("submit.sbatch.j2")
    return template.render(
        study=spec.name,
        nodes_per_trial=spec.device.node_count,
        request=request,
        program=program,
        drivers=drivers,
        pool=_pool_steps(spec, request, program) if request.is_pool else None,
        time=format_time(request.time_s),
        with_storage=with_storage,
        stopped=STOPPED,
        most_requeues=MOST_REQUEUES,
    )


def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune", "data"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # ${#children[@]} is bash
    )
    environment.filters |= {"shell": shlex.join, "directive": _directive}
    return environment


def _directive(option: str) -> str:
    """One option as sbatch reads it from a script."""
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]-]+", option):
        return option
    if any(c in '"\\' or not c.isprintable() for c in option):
        raise StudyFileError(
            f"an option of sbatch must not hold quotes, backslashes or control characters but got {option!r}; "
            "choose another --run-dir or option"
        )
    name, equals, value = option.partition("=")
    return f'{name}{equals}"{value}"' if equals else f'"{option}"'


def _pool_steps(spec: StudySpec, request: JobRequest, program: Program) -> tuple[list[str], list[str]]:
    """What starts the driver of a pool, and a worker on each node of the job, called after its node."""
    driver = program.run_command("--listen", "tls://0.0.0.0:0")
    nodes = spec.device.node_count if request.array else request.nodes
    shared = ["--overlap", "--export=ALL", "--cpu-bind=none", "--mpi=none", *request.srun_arguments]
    if request.container_image is not None:
        driver = ["srun", "--nodes=1", "--ntasks=1", *shared, *driver]
    spread = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    survive = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    log = [f"--output={program.log('%j.%n')}", "--open-mode=append"]
    named = 'exec "$@" --name "${SLURMD_NODENAME:-node}"'
    return driver, ["srun", *spread, *survive, *log, *shared, "sh", "-c", named, "worker", *program.join_command]


def shared_options(
    *, trials: int | None, time_budget: str | None, seed: int | None, effort: str, soak: bool
) -> tuple[str, ...]:
    """The options of `run`, as they are typed; the storage goes through the environment."""
    more = effort if effort != "standard" else None
    named = {"--trials": trials, "--time-budget": time_budget, "--seed": seed, "--effort": more}
    typed = [str(x) for name, value in named.items() if value is not None for x in (name, value)]
    return (*typed, *(() if soak else ("--no-soak",)))


# ---------------------------------------------------------------------- the cluster


def _refuse_hopeless(request: JobRequest, env: Mapping[str, str]) -> None:
    """Refuses what this cluster accepts but would never start.

    Raises:
        LaunchError: If SLURM is not here, does not answer, or has no such partition, nodes or time.
    """
    if not inside_slurm_job():
        raise LaunchError(
            "a job must be submitted where SLURM is but there is no sbatch on this machine; call this on a login node, "
            "or show the script with --dry-run"
        )
    partitions = slurm_partitions(env)
    if request.partition is None:
        return
    found = partitions.get(request.partition)
    if found is None:
        raise LaunchError(
            f"--partition must be one of {', '.join(sorted(partitions)) or 'none'} but got {request.partition!r}"
            f"{close_matches(request.partition, partitions)}"
        )
    if request.nodes > found.node_count and not request.array:
        raise LaunchError(
            f"--nodes must be at most {found.node_count}, all nodes of partition {request.partition}, but got "
            f"{request.nodes}; SLURM would take the job and never start it"
        )
    if found.limit_s is not None and request.time_s > found.limit_s:
        raise LaunchError(
            f"--time must be at most {format_time(found.limit_s)}, the limit of partition {request.partition}, but got "
            f"{format_time(request.time_s)}; with --requeue a study goes on over several jobs"
        )


def submit_script(request: JobRequest, program: Program, script: str, *, storage: str | None) -> str:
    """Writes the script and submits it; gives the job's number.

    Args:
        request: What is asked of the cluster.
        program: Says where the script lies.
        script: See `render_script`.
        storage: URL of an Optuna storage that mirrors the study; it goes through the environment.

    Raises:
        LaunchError: If SLURM refuses it, or would never start it; then no script is left behind.
    """
    env = _with_storage(caller_environment(), storage)
    _refuse_hopeless(request, env)
    if request.is_pool:  # workers may come before the driver
        make_certificates(tls_folder(program.run_dir))
    program.script.parent.mkdir(parents=True, exist_ok=True)
    program.script.write_text(script, encoding="utf-8")
    try:
        # The caller's own job, if it is inside one, must not shape the new one.
        said = ask_slurm(["sbatch", "--parsable", str(program.script)], slurm_client_environment(env))
    except LaunchError:
        program.script.unlink()
        raise
    return said.strip().partition(";")[0]


def _with_storage(env: Mapping[str, str], storage: str | None) -> dict[str, str]:
    return {**env, **({} if storage is None else {STORAGE_VARIABLE: storage})}
