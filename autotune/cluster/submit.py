"""Submits a study as a SLURM job: checks the request, writes the batch script, and submits it.

The script starts one driver, which places its lanes on the job's nodes, passes on the warning of
the time limit, and requeues the job if that was requested.
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from autotune.machine.environment import caller_environment
from autotune.machine.slurm import ask_slurm
from autotune.model.errors import STOPPED, LaunchError, StudyFileError
from autotune.model.files import packaged_template
from autotune.model.redaction import redact_text
from autotune.model.spec import StudySpec
from autotune.model.units import format_seconds

Texts = tuple[str, ...]

MOST_REQUEUES = 100
# The URL of a job's storage may hold a password, so no script has it.
STORAGE_VARIABLE = "AUTOTUNE_STORAGE"


class JobRequest(NamedTuple):
    """Resources and options of a SLURM job."""

    partition: str | None
    nodes: int
    gpus_per_node: int | None
    time_s: float
    grace_s: float  # before its end, when the job is asked to stop
    requeue: bool  # a job that was stopped before its end
    exclusive: bool  # no other job's noise is in the measurements
    sbatch: Texts
    srun: Texts
    setup: Texts  # lines of bash before the driver; the first to fail ends the job


class Program(NamedTuple):
    """The driver's call on a node."""

    python: str
    arguments: Texts  # of autotune, its command first; paths are absolute
    run_dir: Path

    @property
    def command(self) -> list[str]:
        """The driver's command line."""
        return [self.python, "-m", "autotune", *self.arguments]

    @property
    def script(self) -> Path:
        """Path of the batch script: beside the run directory, which holds nothing but the run."""
        return self.run_dir.with_name(f"{self.run_dir.name}.sbatch")

    @property
    def log(self) -> str:
        """Pattern of the job's log file; SLURM fills in the job's number."""
        return f"{str(self.run_dir).replace('%', '%%')}.slurm-%j.log"


def check_request(spec: StudySpec, request: JobRequest) -> None:
    """Raises StudyFileError if the study cannot run in the job, or its set-up holds a secret."""
    device = spec.device
    if request.nodes % device.node_count:
        raise StudyFileError(
            f"--nodes must be a multiple of the study's `device.node_count = {device.node_count}` "
            f"but got {request.nodes}; nodes that no trial can use would only wait"
        )
    gpus = (request.gpus_per_node or 0) * device.node_count
    if device.platform == "cuda" and gpus < (device.count or device.node_count):
        raise StudyFileError(
            f"--gpus-per-node must give each trial its GPUs but a trial of {device.node_count} "
            f"nodes has {gpus} and the study asks for {device.count or 'at least one on each node'}"
        )
    if request.grace_s >= request.time_s:
        raise StudyFileError(
            f"--grace must be shorter than --time but got {request.grace_s:.0f} s of "
            f"{request.time_s:.0f} s"
        )
    budget_s = spec.search.time_budget
    usable_s = request.time_s - request.grace_s
    if budget_s is not None and budget_s > usable_s and not request.requeue:
        least_min = math.ceil((budget_s + request.grace_s) / 60)
        raise StudyFileError(
            f"the time budget must fit into --time less --grace, {format_seconds(usable_s)}, but "
            f"got {format_seconds(budget_s)}: the job would end before the proof, for which the "
            f"study keeps time back; ask for --time {least_min}m, lower --time-budget, or let it "
            "go on in the next job with --requeue"
        )
    for line in request.setup:
        redacted = redact_text(line)
        if redacted != line:
            raise StudyFileError(
                f"a set-up line must hold no secret, for the script is a file, but got {redacted!r}"
                "; set it in the environment of your call instead, which the job inherits"
            )


def estimate(request: JobRequest) -> str:
    """Formats the most that the job costs: GPU-hours, or node-hours if it requests no GPU."""
    hours = request.nodes * (request.gpus_per_node or 1) * request.time_s / 3600
    unit = "GPU-hours" if request.gpus_per_node else "node-hours"
    return f"at most {hours:.1f} {unit} a job"


def render_script(
    spec: StudySpec, request: JobRequest, program: Program, *, with_storage: bool
) -> str:
    """Renders the batch script; StudyFileError if the study or an option does not fit into it."""
    check_request(spec, request)
    filters = {"shell": shlex.join, "directive": _directive}
    # ${#children[@]} is bash
    return packaged_template("submit.sbatch.j2", filters, comment_start_string="{##").render(
        study=spec.name,
        nodes_per_trial=spec.device.node_count,
        request=request,
        program=program,
        minutes=math.ceil(request.time_s / 60),
        with_storage=with_storage,
        stopped=STOPPED,
        most_requeues=MOST_REQUEUES,
    )


def _directive(option: str) -> str:
    """Quotes one option as sbatch reads it from a script."""
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./\[\]-]+", option):
        return option
    if any(c in '"\\' or not c.isprintable() for c in option):
        raise StudyFileError(
            "an option of sbatch must not hold quotes, backslashes or control characters but "
            f"got {option!r}; choose another --run-dir or option"
        )
    name, equals, value = option.partition("=")
    return f'{name}{equals}"{value}"' if equals else f'"{option}"'


def submit_script(program: Program, script: str, *, storage: str | None) -> str:
    """Writes and submits the script; returns the job's number.

    The URL of the Optuna `storage` goes into the job's environment. LaunchError if SLURM refuses
    the job; no script is left behind then.
    """
    env = caller_environment()
    if storage is not None:
        env[STORAGE_VARIABLE] = storage
    # Nothing is written on a machine without SLURM.
    ask_slurm(["sbatch", "--version"], env)
    program.script.parent.mkdir(parents=True, exist_ok=True)
    program.script.write_text(script, encoding="utf-8")
    try:
        job = ask_slurm(["sbatch", "--parsable", str(program.script)], env)
    except LaunchError:
        program.script.unlink()
        raise
    return job.strip().partition(";")[0]
