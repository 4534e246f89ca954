"""The command `submit`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from autotune.cli import options
from autotune.cli.printing import print_exact, print_lines


def submit(
    study: options.Study,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes in all.")] = 1,
    time: Annotated[str, typer.Option(help="Longest wall time of the job: 8h, 90m, 08:00:00.")] = "1h",
    partition: Annotated[str | None, typer.Option(help="Partition; default: the cluster's.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs of each node.")] = None,
    array: Annotated[bool, typer.Option("--array", help="One job for each lane, which may start apart.")] = False,
    requeue: Annotated[bool, typer.Option("--requeue", help="Go on in a new job when the time is up.")] = False,
    grace: Annotated[str, typer.Option(help="How long before its end the job is told to stop.")] = "2m",
    exclusive: Annotated[bool, typer.Option(help="Share the nodes with no other job.")] = True,
    account: Annotated[str | None, typer.Option(help="Account that is charged.")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(metavar="ARG", help="One more option of sbatch.")] = None,
    srun: Annotated[list[str] | None, typer.Option(metavar="ARG", help="One more argument of every srun.")] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="One more line of bash before the driver: module load cuda."),
    ] = None,
    python: Annotated[str | None, typer.Option(help="Interpreter on the nodes; default: this one.")] = None,
    container_image: Annotated[str | None, typer.Option(help="Run everything in it.")] = None,
    container_mounts: Annotated[str | None, typer.Option(help="Its mounts: A:B,C:D.")] = None,
    container_runtime: Annotated[Literal["pyxis", "apptainer"], typer.Option(help="Who starts it.")] = "pyxis",
    container_python: Annotated[str, typer.Option(help="Its interpreter.")] = "python3",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the script; submit and write nothing.")] = False,
    run_dir: options.RunDir = None,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    storage: options.Storage = None,
    seed: options.Seed = None,
    effort: options.Effort = "standard",
    soak: options.Soak = True,
) -> None:
    """Runs a study as a SLURM job: a lane on each node, or on each group of `device.node_count` nodes."""
    from autotune import cluster
    from autotune.machine import driver_python
    from autotune.model import StudyFileError, load_study, parse_duration

    spec = load_study(study)
    if time_budget is not None:
        try:
            budget_s = parse_duration(time_budget)
        except ValueError as error:
            raise StudyFileError(f"--time-budget: {error}") from error
        spec = spec.model_copy(update={"search": spec.search.model_copy(update={"time_budget": budget_s})})
    path = run_dir or options.RUNS / spec.name
    typed = cluster.shared_options(trials=trials, time_budget=time_budget, seed=seed, effort=effort, soak=soak)
    time_s, grace_s = cluster.parse_time(time), cluster.parse_time(grace)
    # Not resolved: an environment's python is a link, and its place is what makes it that environment's.
    called = container_python if container_image else python or driver_python()
    program = cluster.Program(python=called, study=study.resolve(), run_dir=path.resolve(), options=typed)
    request = cluster.JobRequest(
        partition=partition, nodes=nodes, gpus_per_node=gpus_per_node, time_s=time_s,
        grace_s=grace_s, array=array, requeue=requeue, exclusive=exclusive, account=account,
        sbatch=tuple(sbatch or ()), srun=tuple(srun or ()), setup=tuple(setup or ()),
        container_image=container_image, container_mounts=container_mounts, container_runtime=container_runtime,
    )  # fmt: skip
    script = cluster.render_script(spec, request, program, with_storage=storage is not None)
    cost = cluster.estimate(spec, nodes=nodes, gpus_per_node=gpus_per_node, time_s=time_s, requeue=requeue)
    print_lines([*(f"warning: {text}" for text in cluster.warnings(spec, request, program)), cost], stderr=True)
    if dry_run:
        print_exact(script)
        return
    job = cluster.submit_script(request, program, script, storage=storage)
    print(f"job {job} is submitted; its script is {shorten_path(program.script)}\n\nnext:")
    print(f"  squeue -j {job}              # does it run yet, and if not, why")
    print(f"  autotune status {shorten_path(path)}   # how far it is, and the hours of GPUs used")
    print(f"  tail -f {shorten_path(path)}.slurm-{job}*.log")
    print(f"  scancel {job}                # what is done is kept: submit again, and it goes on")


def shorten_path(path: Path) -> str:
    """A path as a person would type it here."""
    return shlex.quote(os.path.relpath(path) if path.is_absolute() else str(path))
