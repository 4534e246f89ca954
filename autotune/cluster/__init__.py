"""Where a study runs: lanes of this machine, of a SLURM job or of a Dask cluster; and jobs for SLURM."""

from importlib import import_module
from typing import Any

from autotune.cluster.engine import (
    ANSWERS, JOINED, LEFT, Engine, Message, Place, Processes, Told, lanes_here, lanes_of_groups, lanes_on_nodes,
)  # fmt: skip
from autotune.cluster.submit import (
    JobRequest, Program, estimate, idle_gpus, parse_time, render_script, submit_script,
)  # fmt: skip


def open_dask(study: Message, **options: Any) -> Engine:
    """The workers of a Dask cluster; see `dask_engine.DaskEngine`. No other study needs Dask to be installed."""
    engine: Engine = import_module("autotune.cluster.dask_engine").DaskEngine(study, **options)
    return engine
