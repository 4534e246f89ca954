"""Command `submit`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

from typer import Option

from autotune.cli import options
from autotune.cli.options import MaybeCount, MaybePath, MaybeText, MaybeTexts
from autotune.cli.printing import print_exact, print_lines
from autotune.model.errors import StudyFileError


def submit(
    study: options.Study,
    nodes: Annotated[int, Option(min=1, help="Nodes in all.")] = 1,
    time: Annotated[str, Option(help="Longest wall time of the job, such as 8h or 90m.")] = "1h",
    partition: Annotated[MaybeText, Option(help="Partition; default: the cluster's.")] = None,
    gpus_per_node: Annotated[MaybeCount, Option(min=1, help="GPUs of each node.")] = None,
    requeue: Annotated[
        bool, Option("--requeue", help="Continue in a new job when the time is up.")
    ] = False,
    grace: Annotated[str, Option(help="How long before its end the job is warned.")] = "2m",
    exclusive: Annotated[bool, Option(help="Share the nodes with no other job.")] = True,
    sbatch: Annotated[
        MaybeTexts,
        Option(metavar="ARG", help="One more option of sbatch, such as --account=NAME."),
    ] = None,
    srun: Annotated[
        MaybeTexts, Option(metavar="ARG", help="One more argument of every srun.")
    ] = None,
    setup: Annotated[
        MaybeTexts,
        Option(metavar="LINE", help="One more line of bash before the driver: module load cuda."),
    ] = None,
    python: Annotated[
        MaybeText, Option(help="Interpreter on the nodes; default: this one.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the script; submit and write nothing.")
    ] = False,
    winner: Annotated[
        MaybePath,
        Option(
            metavar="RUN",
            help="Prove the winner of a run again with this study, as `recheck` does.",
        ),
    ] = None,
    run_dir: options.RunDir = None,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    storage: options.Storage = None,
    tracker: options.Tracker = None,
) -> None:
    """Runs a study as a SLURM job.

    Each node is a lane, or each group of `device.node_count` nodes.
    """
    from autotune.cluster.submit import JobRequest, Program, estimate, render_script, submit_script
    from autotune.machine.environment import driver_python
    from autotune.model.spec import load_study
    from autotune.results.trackers import refuse_trackers
    from autotune.results.winner import AT_SCALE
    from autotune.study.start import study_with

    spec = study_with(load_study(study), trials=trials, time_budget=time_budget)
    path = run_dir or options.RUNS / spec.name
    if python is None:  # another one has other packages
        refuse_trackers(tracker or ())
    search = list[str]()
    if trials is not None:
        search += ["--trials", str(trials)]
    if time_budget is not None:
        search += ["--time-budget", time_budget]
    for name in tracker or ():
        search += ["--tracker", name]
    study_path = str(study.resolve())
    arguments = ["run", study_path]
    if winner is not None:
        if search:
            raise StudyFileError(
                "--winner searches nothing: leave out --trials, --time-budget and --tracker"
            )
        path = run_dir or winner.with_name(winner.name + AT_SCALE)
        arguments = ["recheck", str(winner.resolve()), "--study", study_path]
    directory = path.resolve()
    arguments += ["--run-dir", str(directory), *search]
    # Not resolved: an environment's python is a link, whose place decides the environment.
    interpreter = python or driver_python()
    program = Program(python=interpreter, arguments=tuple(arguments), run_dir=directory)
    request = JobRequest(
        partition=partition,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        requeue=requeue,
        exclusive=exclusive,
        time_s=options.seconds_of(time, "--time"),
        grace_s=options.seconds_of(grace, "--grace"),
        sbatch=tuple(sbatch or ()),
        srun=tuple(srun or ()),
        setup=tuple(setup or ()),
    )
    script = render_script(spec, request, program, with_storage=storage is not None)
    print_lines([estimate(request)], stderr=True)
    if dry_run:
        print_exact(script)
        return
    job = submit_script(program, script, storage=storage)
    run = shorten_path(path)
    place = shorten_path(program.script)
    print(f"job {job} is submitted; its script is {place}\n\nnext:")
    print(f"  squeue -j {job}              # does it run yet, and if not, why")
    print(f"  autotune status {run}   # how far it is, and the hours of GPUs used")
    print(f"  tail -f {run}.slurm-{job}*.log")
    print(f"  scancel {job}                # what is done is kept: submit again to continue")


def shorten_path(path: Path) -> str:
    """Formats a path relative to the current folder, quoted for a shell."""
    return shlex.quote(os.path.relpath(path) if path.is_absolute() else str(path))
