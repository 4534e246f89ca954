"""What a user's program ran on is told by its own process, whatever started it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from tests.workers.conftest import PRINTED, PROGRAMS, Start, study

LAUNCHERS = {
    "bash": ["bash", "-c", f"cd {PROGRAMS}; export A=1; {sys.executable} train.py & wait"],
    "nested": ["bash", "-c", f"env A=1 bash -c 'exec {sys.executable} train.py'"],
}


@pytest.mark.parametrize("launcher", ["bash", pytest.param("nested", marks=pytest.mark.slow)])
def test_whatever_starts_a_program_its_own_process_tells(start: Start, launcher: str) -> None:
    report = start(study({"command": LAUNCHERS[launcher], "read": PRINTED})).report
    assert report.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert report.versions["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert report.device_kind == "cpu"
    assert report.packages is not None
    assert (Path(report.packages).expanduser() / "jaxlib").is_dir()
