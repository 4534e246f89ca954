"""What to tell a user who asked for a GPU that JAX does not find: what `autotune doctor` finds, where it was tried."""

from __future__ import annotations

from pathlib import Path

from autotune.machine import caller_environment
from autotune.model import StudySpec
from autotune.settings import gpu_findings
from autotune.study.probe import program_python


def why_no_gpu(spec: StudySpec) -> str:
    """What keeps JAX from the GPUs of this machine, one line each with the command that mends it."""
    found = gpu_findings(program_python(spec, Path.cwd(), note=None), caller_environment())
    lines = [f"    {f.problem}: {f.command}" for f in found] or ["    nothing that keeps JAX from a GPU"]
    return "\n".join(["  `autotune doctor` finds here:", *lines, '  or write device.platform = "cpu"'])
