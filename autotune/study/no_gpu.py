"""What to tell a user who asked for a GPU that JAX does not find: what `autotune doctor` finds, where it was tried."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from autotune.machine import caller_environment, driver_python
from autotune.model import StudyFileError, StudySpec
from autotune.settings import gpu_findings


def program_python(spec: StudySpec) -> str:
    """The interpreter whose packages the workload uses: the one that the study names, or its command is.

    Raises:
        StudyFileError: If the study names one that is not there.
    """
    if (named := spec.workload.python) is not None:
        if (found := shutil.which(named)) is None:
            raise StudyFileError(f"`workload.python` must be an interpreter that can be started but got {named!r}")
        return found
    first = spec.workload.command[0] if spec.workload.command else ""
    if re.fullmatch(r"python[\d.]*", Path(first).name) and (found := shutil.which(first)):
        return found
    return driver_python()


def why_no_gpu(spec: StudySpec) -> str:
    """What keeps JAX from the GPUs of this machine, one line each with the command that mends it."""
    found = gpu_findings(program_python(spec), caller_environment())
    lines = [f"    {f.problem}: {f.command}" for f in found] or ["    nothing that keeps JAX from a GPU"]
    return "\n".join(["  `autotune doctor` finds here:", *lines, '  or write device.platform = "cpu"'])
