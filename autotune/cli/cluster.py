"""The command `submit`, and what `run` does inside a job of several nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autotune.model import StudySpec

HIGHEST_STEP = 0xFFFFFFF0
"""Step numbers from here on are SLURM's own: the batch script, an interactive shell."""


def submit(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in all.")] = 1,
    time: Annotated[str, typer.Option(help="Longest wall time of the job: 8h, 90m, 08:00:00.")] = "1h",
    partition: Annotated[str | None, typer.Option(help="Partition; default: the cluster's.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs of each node.")] = None,
    array: Annotated[bool, typer.Option("--array", help="One job for each worker, which may start apart.")] = False,
    requeue: Annotated[bool, typer.Option("--requeue", help="Go on in a new job when the time is up.")] = False,
    grace: Annotated[str, typer.Option(help="How long before its end the job is told to stop.")] = "2m",
    exclusive: Annotated[bool, typer.Option(help="Share the nodes with no other job.")] = True,
    account: Annotated[str | None, typer.Option(help="Account that is charged.")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(metavar="ARG", help="One more option of sbatch.")] = None,
    srun: Annotated[list[str] | None, typer.Option(metavar="ARG", help="One more argument of every srun.")] = None,
    container_image: Annotated[str | None, typer.Option(help="Run the workers in it (pyxis).")] = None,
    container_mounts: Annotated[str | None, typer.Option(help="Its mounts (pyxis).")] = None,
    container_python: Annotated[str, typer.Option(help="Its interpreter.")] = "python3",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the script; submit and write nothing.")] = False,
    run_dir: Annotated[Path | None, typer.Option(help="Run directory, on a disk that all nodes share.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials in all, over all workers.")] = None,
    time_budget: Annotated[str | None, typer.Option(help="Wall time for the whole study.")] = None,
    storage: Annotated[
        str | None, typer.Option(envvar="AUTOTUNE_STORAGE", help="Optuna storage that mirrors the study.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of proposals, data and order.")] = None,
    effort: Annotated[str | None, typer.Option(help="How much measuring: quick, standard or full.")] = None,
    soak: Annotated[bool, typer.Option(help="Run a winner for a while before it counts as proven.")] = True,
    k8s: Annotated[bool, typer.Option("--k8s", help="A Kubernetes Job instead; shown with --dry-run only.")] = False,
    image: Annotated[str | None, typer.Option(help="With --k8s: the image that the pods run.")] = None,
    claim: Annotated[str, typer.Option(help="With --k8s: the volume claim that all pods share.")] = "autotune",
    mount: Annotated[str, typer.Option(help="With --k8s: where the volume is mounted.")] = "/shared",
) -> None:
    """Runs a study as a SLURM job: a worker on each node, or trials over several nodes (`device.node_count`)."""
    from autotune.cluster import STORAGE_VARIABLE, JobRequest, Program, check_cluster, parse_time, render_script
    from autotune.cluster import submit_job as submit_script
    from autotune.machine import caller_environment, driver_python
    from autotune.model import StudyFileError, load_study

    spec = load_study(study)
    path = run_dir or Path("runs") / spec.name
    options = shared_options(trials=trials, time_budget=time_budget, seed=seed, effort=effort, soak=soak)
    if k8s:
        from autotune.cluster import PodRequest, manifests, to_yaml

        if image is None or not dry_run:
            raise StudyFileError(
                "a Kubernetes Job needs --image IMAGE and is shown, not submitted: call this with --dry-run, look at "
                "it, and apply it with `kubectl apply -f -`"
            )
        pods = PodRequest(
            image=image, python=container_python, nodes=nodes, gpus_per_node=gpus_per_node, time_s=parse_time(time),
            grace_s=parse_time(grace), claim=claim, mount=mount, run_dir=path.as_posix().lstrip("/"),
            options=options, with_storage=storage is not None,
        )  # fmt: skip
        sys.stdout.write(to_yaml(manifests(spec, study.read_text(encoding="utf-8"), pods)))
        return
    program = Program(
        # Not resolved: an environment's python is a link, and its place is what makes it that environment's.
        python=container_python if container_image else driver_python(),
        study=study.resolve(),
        run_dir=path.resolve(),
        options=options,
    )
    request = JobRequest(
        partition=partition, nodes=nodes, gpus_per_node=gpus_per_node, time_s=parse_time(time),
        grace_s=parse_time(grace), array=array, requeue=requeue, exclusive=exclusive, account=account,
        sbatch=tuple(sbatch or ()), srun=tuple(srun or ()),
        container_image=container_image, container_mounts=container_mounts,
    )  # fmt: skip
    script = render_script(spec, request, program, with_storage=storage is not None)
    if dry_run:
        sys.stdout.write(script)
        return
    own = caller_environment()
    check_cluster(request, own)
    job = submit_script(program, script, own if storage is None else {**own, STORAGE_VARIABLE: storage})
    print(f"job {job} is submitted; its script is {_short(program.script)}\n\nnext:")
    for line in (
        f"squeue -j {job}              # does it run yet, and if not, why",
        f"autotune status {_short(path)}",
        f"tail -f {_short(path)}.slurm-{job}*.log",
        f"scancel {job}                # what is done is kept: submit again, and it goes on",
    ):
        print(f"  {line}")


def _short(path: Path) -> str:
    """A path as a person would type it here."""
    import shlex

    return shlex.quote(os.path.relpath(path) if path.is_absolute() else str(path))


def shared_options(
    *, trials: int | None, time_budget: str | None, seed: int | None, effort: str | None, soak: bool
) -> tuple[str, ...]:
    """The options that `run` and `worker` share, as they are typed; the storage goes through the environment."""
    named = {"--trials": trials, "--time-budget": time_budget, "--seed": seed, "--effort": effort}
    typed = [str(x) for name, value in named.items() if value is not None for x in (name, value)]
    return (*typed, *(() if soak else ("--no-soak",)))


def fan_out(spec: StudySpec, study: Path, run_dir: Path, options: tuple[str, ...], *, storage: str | None) -> None:
    """Becomes a worker on each node of the SLURM job in which `run` was called; returns where that is not the case.

    Not for a trial that spans several nodes, which one driver starts, nor for a driver that is itself one of a job's
    steps: whoever started that has decided where it runs.
    """
    from autotune.cluster import STORAGE_VARIABLE, Program, worker_step
    from autotune.machine import caller_environment, driver_python, inside_slurm_job, slurm_client_environment

    own = caller_environment()
    count, step = own.get("SLURM_JOB_NUM_NODES", ""), own.get("SLURM_STEP_ID", "")
    in_step = step.isdigit() and int(step) < HIGHEST_STEP
    if spec.device.node_count > 1 or not count.isdigit() or int(count) < 2 or in_step or not inside_slurm_job():
        return
    program = Program(python=driver_python(), study=study.resolve(), run_dir=run_dir.resolve(), options=options)
    command = worker_step(int(count), ["--label"], program)
    print(f"this job has {count} nodes: one worker on each; `autotune status {_short(run_dir)}` shows them", flush=True)
    env = slurm_client_environment(own)
    os.execvpe(command[0], command, env if storage is None else {**env, STORAGE_VARIABLE: storage})
