"""Wraps SLURM's commands (https://slurm.schedmd.com/srun.html) as functions with time limits."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Sequence

from autotune.machine.environment import Environment
from autotune.model.errors import LaunchError

ANSWER_LIMIT_S = 60.0  # of the controller: a busy one takes seconds
TRIAL_STEP_LIMIT_S = 20.0  # a node that is alive starts an empty step in this time

_JOB_IS_OVER = re.compile(r"already complet|Invalid job id|expired", re.IGNORECASE)
_OURS = re.compile(
    r"(?!SLURM_(CONF|CONF_SERVER|JOB_ID|JOBID|JWT|WORKING_CLUSTER|CLUSTERS?|CLUSTER_NAME"
    r"|DEBUG_FLAGS)\Z)(SLURM|SLURMD|SRUN|PMI|PMIX)_.*"
)


class SlurmError(LaunchError):
    """SLURM refuses a command or does not answer."""


def has_slurm() -> bool:
    """Returns whether SLURM's commands are installed on this machine."""
    return all(map(shutil.which, ("srun", "sbatch")))


def slurm_client_environment(base: Environment) -> Environment:
    """Removes the SLURM variables of the caller's own task: ``srun`` would read them as options."""
    return {n: v for n, v in base.items() if not _OURS.fullmatch(n)}


def _run(
    command: Sequence[str], env: Environment, limit_s: float, *, start_new_session: bool = False
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=limit_s,
        start_new_session=start_new_session,
    )


def ask_slurm(command: Sequence[str], env: Environment) -> str:
    """Runs a command of SLURM for its output; SlurmError if it is missing, fails or hangs."""
    try:
        process = _run(command, slurm_client_environment(env), ANSWER_LIMIT_S)
    except OSError as error:
        raise SlurmError(
            f"SLURM's command {command[0]} must be on this machine but cannot be started: "
            f"{error.strerror}; call autotune on a machine of the cluster (a login node)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(
            f"SLURM must answer within {ANSWER_LIMIT_S:.0f} s but `{command[0]}` did not; see with "
            "`scontrol ping` whether its controller is down, then try again"
        ) from error
    if process.returncode != 0:
        message = " ".join(process.stderr.split()) or f"exit status {process.returncode}"
        raise SlurmError(f"SLURM refuses `{command[0]}`: {message}")
    return process.stdout


def slurm_hosts(node_list: str, env: Environment) -> tuple[str, ...]:
    """Expands a node list of SLURM such as ``gpu[01-04]``; SlurmError if SLURM cannot expand it."""
    return tuple(ask_slurm(["scontrol", "show", "hostnames", node_list], env).split())


def slurm_address(node: str, env: Environment) -> str:
    """Returns the address of a node, else its name; SlurmError without such a node or answer."""
    description = ask_slurm(["scontrol", "--oneliner", "show", "node", node], env)
    address = re.search(r"\bNodeAddr=(\S+)", description)
    return address[1] if address else node


def lost_slurm_nodes(nodes: Sequence[str], env: Environment) -> dict[str, str]:
    """Returns the nodes of this job that start no empty step any more, each with the reason.

    SLURM itself needs minutes to see that a node is silent. A step refused because the job is over
    says nothing about its node.
    """
    lost = {}
    client = slurm_client_environment(env)
    for node in nodes:
        command = slurm_step_command(node, client, "true")
        try:
            step = _run(command, client, TRIAL_STEP_LIMIT_S, start_new_session=True)
        except subprocess.TimeoutExpired:
            lost[node] = f"it started no step within {TRIAL_STEP_LIMIT_S:.0f} s"
            continue
        if step.returncode != 0 and not _JOB_IS_OVER.search(step.stderr):
            lines = step.stderr.strip().splitlines() or ["it starts no step"]
            lost[node] = lines[-1][:300]
    return lost


def end_slurm_step(step: str, env: Environment) -> None:
    """Kills one step of this job whose ``srun`` is gone; a finished step is no error."""
    job = env.get("SLURM_JOB_ID", "")
    with contextlib.suppress(SlurmError):
        ask_slurm(["scancel", "--signal=KILL", f"{job}.{step}"], env)


def slurm_step_command(node: str, env: Environment, *extra: str) -> list[str]:
    """Returns the ``srun`` command of one process on a node of this job, beside other steps."""
    place = [f"--jobid={env.get('SLURM_JOB_ID', '')}", "--nodes=1", "--ntasks=1"]
    manner = ["--overlap", "--export=ALL", "--cpu-bind=none", "--mpi=none"]
    return ["srun", *place, f"--nodelist={node}", *manner, *extra]
