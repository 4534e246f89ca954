"""A study as a SLURM job: the batch script, what the cluster says to it, and its submission.

The script is plain bash that a person can read, change and submit by hand. It calls one driver, which
places its lanes on the job's nodes (of an array or in containers: starts a Dask cluster for them), passes the
warning of the time limit on, and puts the job back into the queue if that was asked for.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

import jinja2

from autotune.cluster.fit import check_request
from autotune.cluster.job_request import JobRequest, Program, format_time
from autotune.machine import (
    ask_slurm,
    caller_environment,
    inside_slurm_job,
    slurm_client_environment,
    slurm_partitions,
)  # fmt: skip
from autotune.model import STOPPED, LaunchError, StudyFileError, StudySpec, close_matches, redact_text

MOST_REQUEUES = 100
STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Through which a job gets the URL of its storage: it may hold a password, and a script is a file."""


def render_script(spec: StudySpec, request: JobRequest, program: Program, *, with_storage: bool) -> str:
    """The batch script.

    Raises:
        StudyFileError: If the study does not fit the job, or a path, option or set-up line holds what a batch script
            cannot.
    """
    check_request(spec, request)
    _check_setup(request.setup)
    template = _templates().get_template("submit.sbatch.j2")
    return template.render(
        study=spec.name,
        nodes_per_trial=spec.device.node_count,
        request=request,
        program=program,
        dask=_dask_steps(spec, request, program) if request.is_dask else None,
        time=format_time(request.time_s),
        with_storage=with_storage,
        stopped=STOPPED,
        most_requeues=MOST_REQUEUES,
    )


def _check_setup(lines: Sequence[str]) -> None:
    """Refuses set-up lines that would break the script, or that it must not hold.

    Raises:
        StudyFileError: If they are no bash, or one has the shape of a secret.
    """
    text = "\n".join(lines)
    if secret := [line for line in lines if redact_text(line) != line]:
        raise StudyFileError(
            f"a set-up line must hold no secret, for the script is a file, but got {redact_text(secret[0])!r}; set it "
            "in the environment of your call instead, which the job inherits"
        )
    if any(not (c.isprintable() or c in "\n\t") for c in text):
        raise StudyFileError("a set-up line must be printable text but got a control character; write it without")
    if lines and (bash := shutil.which("bash")) is not None:
        done = subprocess.run([bash, "-n"], input=text + "\n", capture_output=True, text=True, check=False, timeout=30)
        if done.returncode != 0:
            raise StudyFileError(
                f"the set-up lines must be bash but it says: {done.stderr.strip()[:300]}; correct --setup"
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


def _dask_steps(spec: StudySpec, request: JobRequest, program: Program) -> dict[str, list[str]]:
    """What starts scheduler, driver, and a worker on each node of the job, called after its node."""
    with_gpus = spec.replay is None and spec.device.platform == "cuda"
    shared = ["--overlap", "--export=ALL", "--cpu-bind=none", "--mpi=none", *request.srun_arguments]
    once = ["srun", "--nodes=1", "--ntasks=1", *shared] if request.container_image is not None else []
    scheduler = request.inside(program.dask_command("scheduler", "--port", "0"), with_gpus=False)
    driver = request.inside(program.run_command("--scheduler-file", str(program.scheduler_file)), with_gpus=with_gpus)
    more = ["--resources", f"GPU={request.gpus_per_node}"] if with_gpus and request.gpus_per_node else []
    worker = request.inside(
        program.dask_command("worker", "--nthreads", "1", "--no-nanny", "--death-timeout", "60", *more),
        with_gpus=with_gpus,
    )
    nodes = 1 if request.array else request.nodes
    spread = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    survive = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0"]
    log = [f"--output={program.log('%j.%n')}", "--open-mode=append"]
    named = 'exec "$@" --name "${SLURMD_NODENAME:-node}"'
    return {
        "scheduler": [*once, *scheduler],
        "driver": [*once, *driver],
        "worker": ["srun", *spread, *survive, *log, *shared, "sh", "-c", named, "worker", *worker],
    }


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
        storage: URL of the Optuna storage to keep the study in; it goes through the environment.

    Raises:
        LaunchError: If SLURM refuses it, or would never start it; then no script is left behind.
    """
    env = _with_storage(caller_environment(), storage)
    _refuse_hopeless(request, env)
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
