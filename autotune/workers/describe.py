"""What a workload tells of itself without running: it is built in a child process, on devices of the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from autotune.machine import caller_environment, child_environment, driver_python, let_import_packages
from autotune.model import Failure, FailureKind, FlagSet, StudySpec
from autotune.workers.base import WorkerFailed
from autotune.workers.guarded import GuardedProcess

BUILD_LIMIT_S = 300.0
STOP_PATIENCE_S = 5.0
LOG_BYTES = 100_000
_SIZES: TypeAdapter[dict[str, int]] = TypeAdapter(dict[str, Annotated[int, Field(ge=0)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFigures:
    """What a built workload tells.

    Attributes:
        mesh: Axes of its mesh with their sizes, if it says so.
        layer_bytes: Bytes of ``weights`` and ``gradients`` of one layer, if it says so.
    """

    mesh: Mapping[str, int]
    layer_bytes: Mapping[str, int]


def describe_workload(spec: StudySpec, *, study_dir: Path, device_count: int) -> WorkloadFigures:
    """Figures of a study's workload, as a worker would report them.

    No GPU is touched: sizes are those of the arrays, whatever they lie on.

    Args:
        spec: A study of an `entry`.
        study_dir: Folder of the study file, where the user's own modules are found.
        device_count: Devices that the workload is built for; so many virtual ones are made.

    Raises:
        WorkerFailed: If it cannot be built here.
    """
    env = child_environment(caller_environment(), spec.baseline, platform_name="cpu", virtual_devices=device_count)
    let_import_packages(env)
    env["CUDA_VISIBLE_DEVICES"] = ""
    job = {
        "type": "job",
        "entry": spec.workload.entry,
        "options": spec.under(FlagSet()).workload.options,
        "paths": [str(study_dir)],
        "device_count": device_count,
    }
    with tempfile.TemporaryDirectory(prefix="autotune-describe-") as folder:
        command = [driver_python(), "-m", "autotune.child.describe"]
        process = GuardedProcess(command, env, Path(folder) / "build.log", LOG_BYTES)
        try:
            process.send(job)
            answer = process.first(("figures", "error"), BUILD_LIMIT_S)
        finally:
            process.close(STOP_PATIENCE_S)
    if answer is None:
        raise _failure(f"it was not built within {BUILD_LIMIT_S:g} s, or its process {process.describe_end()}")
    if answer["type"] == "error":
        raise _failure(f"{answer['error_type']}: {answer['message']}")
    try:
        return WorkloadFigures(**{n: _SIZES.validate_python(answer.get(n) or {}) for n in ("mesh", "layer_bytes")})
    except ValidationError as error:
        raise _failure(f"its mesh and layer_bytes must hold whole numbers but {error.errors()[0]['msg']}") from error


def _failure(said: str) -> WorkerFailed:
    return WorkerFailed(Failure(kind=FailureKind.WORKLOAD_ERROR, message=said, phase="build"))
