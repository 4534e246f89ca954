"""Processes that run a program under a flag set, and keep them in hand."""

from autotune.workers.base import (
    GuardedProcess,
    Launcher,
    Worker,
    WorkerFailed,
)
from autotune.workers.command import CommandLauncher
from autotune.workers.failures import (
    classify_failure,
    is_without_gpu,
)
from autotune.workers.local import (
    LocalLauncher,
    first_step,
)
from autotune.workers.programs import (
    NotKnown,
    ProgramWatch,
    SHOWN_BY_DUMP,
)
from autotune.workers.srun import (
    NODES_VARIABLE,
    SET_BY_NODE,
    SRUN_VARIABLE,
    SrunLauncher,
)
from autotune.workers.settings_check import check_options
from autotune.workers.probe import (
    Probe,
    describe_workload,
    run_probe,
)
