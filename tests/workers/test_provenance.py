"""What a user's program ran on is told by its own process, whatever started it."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from tests.workers.conftest import PRINTED, PROGRAMS, Start, study


def test_the_process_of_a_program_that_another_starts_tells(start: Start) -> None:
    launcher = ["bash", "-c", f"cd {PROGRAMS}; export A=1; {sys.executable} train.py & wait"]
    report = start(study({"command": launcher, "read": PRINTED})).report
    assert report.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert report.versions["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert report.device_kind == "cpu"
    assert report.packages is not None
    assert (Path(report.packages).expanduser() / "jaxlib").is_dir()
