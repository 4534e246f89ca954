"""A set alone under a profiler: what its instructions take, for the compiler to read."""

from __future__ import annotations

import contextlib
from pathlib import Path

from autotune.model import PROFILE, Artefact, FlagSet, ProfileRecord
from autotune.study.bench import Bench
from autotune.study.units import ProfileUnit
from autotune.workers import WorkerFailed

NO_GRAPHS = FlagSet({"xla_gpu_enable_command_buffer": ""})
"""Kernels that run inside a CUDA graph are one event to the profiler: JAX profiles without graphs, too. What is
scheduled stays the same, for graphs are made of a program that has its order."""

SAW_NOTHING = (
    "the profiler saw no instruction run; does another program hold CUPTI (Nsight Systems, DCGM's profiling metrics)?"
)


def profile_alone(bench: Bench, unit: ProfileUnit, folder: Path) -> ProfileRecord:
    """Profiles a set in a process of its own; that it cannot be profiled is a result."""
    base = ProfileRecord(settings=unit.settings, steps=unit.steps)
    try:
        with contextlib.closing(bench.start(unit.settings.merge(NO_GRAPHS), folder, alone=True)) as worker:
            bench.desk.phase(f"profiling {unit.steps} steps")
            content = worker.profile(unit.steps)
    except WorkerFailed as error:
        return base.model_copy(update={"failure": error.failure})
    if not content:
        return base.model_copy(update={"reason": SAW_NOTHING})
    try:
        return base.model_copy(update={"profile": Artefact.of(PROFILE, content)})
    except ValueError as error:
        return base.model_copy(update={"reason": f"the profile cannot be kept: {error}"})
