"""What a process that is started here would run its steps on: libraries, driver, firmware, clocks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.machine.environment import driver_python, let_import_packages
from autotune.model import GpuState

_ANSWER_LIMIT_S = 120.0  # libraries of gigabytes, perhaps on a network disk


@dataclass(frozen=True, slots=True, kw_only=True)
class RanOn:
    """What a process tells of itself; see `autotune.child.gpus`.

    Attributes:
        versions: Of cublas, cudnn, nccl and driver, as far as they are there.
        gpus: Its GPUs; empty where NVML does not answer.
    """

    versions: Mapping[str, str]
    gpus: tuple[GpuState, ...]


def would_run_on(environment: Mapping[str, str], count: int | None = None) -> RanOn:
    """Asks a process of its own, which loads the libraries that JAX would, and starts nothing on a GPU.

    Args:
        environment: In which the workload would be started.
        count: How many of the visible GPUs it uses; None is all.
    """
    env = dict(environment)
    let_import_packages(env)
    command = [driver_python(), "-m", "autotune.child.gpus", json.dumps({"count": count})]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_ANSWER_LIMIT_S, check=True)
        told = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return RanOn(versions={}, gpus=())
    return RanOn(versions=told["versions"], gpus=tuple(GpuState.model_validate(g) for g in told["gpus"]))
