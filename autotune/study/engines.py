"""Chooses the engine of a study: this process, groups of devices, nodes of a job, Dask workers."""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.cluster.engine import (
    Engine,
    Message,
    Place,
    Processes,
    lanes_here,
    lanes_of_groups,
    lanes_on_nodes,
)
from autotune.machine.devices import parse_devices, restrict_devices
from autotune.machine.environment import caller_environment
from autotune.machine.slurm import has_slurm, slurm_hosts
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.files import Texts
from autotune.model.options import shell_words
from autotune.model.plugins import CLASS_PATH, load_class
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec
from autotune.study import preflight
from autotune.study.run import MakeEngine, StudyRun
from autotune.workers.srun import SRUN_VARIABLE

HIGHEST_STEP = 0xFFFFFFF0  # first of SLURM's own steps, of scripts and interactive shells

_ADDRESS = re.compile(r"(\w+://)?[^\s/]+:\d+(/\S*)?")


def parse_groups(text: str | None) -> tuple[Texts, ...]:
    """Parses groups of devices, ``0-3,4-7``; StudyFileError if it is malformed."""
    if text is None:
        return ()
    parse_devices(text)  # refuses a device in two lanes
    return tuple(map(parse_devices, text.split(",")))


def choose_engine(
    spec: StudySpec, groups: Sequence[Sequence[str]], *, scheduler: str | None = None
) -> MakeEngine | None:
    """Chooses the engine by command line and SLURM job; None is this process alone."""
    if scheduler is not None:
        if groups:
            raise StudyFileError(
                "lanes must be named in one way but got --scheduler and --devices; leave one out"
            )
        if CLASS_PATH.fullmatch(scheduler):
            kind = load_class(scheduler, Engine, str(Path.cwd()), key="--scheduler")
            return lambda run: _engine(run, kind)
        _refuse_for_dask(spec, scheduler)
        return lambda run: _on_dask(run, scheduler)
    if groups:
        if spec.device.node_count > 1:
            raise StudyFileError(
                "--devices names lanes of this machine but a trial of this study spans "
                f"{spec.device.node_count} nodes; leave it out, and the nodes of the SLURM job "
                "are the lanes"
            )
        if len(groups) > 1:
            places = lanes_here(groups, socket.gethostname())
            return lambda run: _processes(run, places, "lanes of this machine")
        restrict_devices(spec.device.platform, groups[0])
        return None
    nodes = _nodes_of_job()
    if len(nodes) >= 2 * spec.device.node_count:
        return lambda run: _on_nodes(run, nodes)
    return None


def study_message(spec: StudySpec, *, study_dir: str, run: Path | None) -> Message:
    """Builds the first message to a lane; `run` is None if the lane cannot read the directory."""
    make_launcher = preflight.make_launcher  # a lane uses the same as its driver
    return {
        "type": "study",
        "study": spec.model_dump(mode="json", context=WITH_SECRETS),
        "study_dir": study_dir,
        "run": str(run) if run else None,
        "devices": [],
        "launcher": f"{make_launcher.__module__}:{make_launcher.__qualname__}",
    }


def _nodes_of_job() -> Texts:
    """Lists the nodes of the SLURM job here; none in a step, whose nodes the caller chose."""
    environment = caller_environment()
    step = environment.get("SLURM_STEP_ID", "")
    in_step = step.isdigit() and int(step) < HIGHEST_STEP
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    if in_step or not nodes or "SLURM_JOB_ID" not in environment or not has_slurm():
        return ()
    return slurm_hosts(nodes, environment)


def _refuse_for_dask(spec: StudySpec, scheduler: str) -> None:
    # The file may be about to be written.
    is_file = scheduler.endswith(".json") and Path(scheduler).parent.is_dir()
    if not is_file and not _ADDRESS.fullmatch(scheduler):
        raise StudyFileError(
            "--scheduler must be an address like tcp://HOST:8786, MODULE:CLASS, or the .json file "
            "that `dask scheduler --scheduler-file` writes into a folder that is there, but got "
            f"{scheduler!r}"
        )
    if spec.device.node_count > 1:
        raise StudyFileError(
            "a lane of a Dask cluster is one worker but a trial of this study spans "
            f"{spec.device.node_count} nodes; several nodes are SLURM's: `autotune submit`, or "
            "`autotune run` inside `salloc`"
        )
    if importlib.util.find_spec("distributed") is None:
        raise LaunchError(
            "--scheduler needs Dask but it is not installed here; run `pip install -e '.[dask]'` "
            "in autotune's folder, in the environment of the scheduler and of all workers, too"
        )


def _on_dask(run: StudyRun, scheduler: str) -> Engine:
    """Makes a lane of each worker of the cluster; workers need not see the run directory."""
    # No other study needs Dask to be installed.
    from autotune.cluster.dask_engine import DaskEngine

    study = study_message(run.spec, study_dir=run.store.study_dir, run=None)
    engine = DaskEngine(study, scheduler, holds_gpus=run.spec.device.platform == "cuda")
    run.view.note(f"lanes are {engine.words}")
    return engine


def _on_nodes(run: StudyRun, nodes: Sequence[str]) -> Engine:
    device = run.spec.device
    size = device.node_count
    extra = shell_words(caller_environment().get(SRUN_VARIABLE), SRUN_VARIABLE)
    if size == 1:
        places = lanes_on_nodes(nodes, devices=device.count, extra=extra)
        return _processes(run, places, "nodes of this job")
    groups = [nodes[i : i + size] for i in range(0, len(nodes) - size + 1, size)]
    places = lanes_of_groups(groups, devices=device.count)
    return _processes(run, places, f"groups of {size} nodes of this job")


def _processes(run: StudyRun, places: Sequence[Place], kind: str) -> Engine:
    return _engine(run, Processes, places=places, words=f"{len(places)} {kind}")


def _engine(run: StudyRun, kind: Callable[..., Engine], **lanes: Any) -> Engine:
    """Makes an engine whose lanes see the run directory."""
    study = study_message(run.spec, study_dir=run.store.study_dir, run=run.store.path)
    engine = kind(study, run.store.path, **lanes)
    run.view.note(f"this study has {engine.words}")
    return engine
