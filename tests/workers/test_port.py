"""A coordinator's port that was taken meanwhile is the machine's fault, tried again; no setting is blamed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.machine import environment
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.spec import parse_study
from autotune.workers import local
from autotune.workers.base import WorkerFailed
from autotune.workers.local import LocalLauncher


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        yield int(other.getsockname()[1])


@pytest.mark.slow
def test_a_taken_port_is_a_fault_of_the_machine(tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_free_port", lambda: taken)
    spec = parse_study(
        {
            "name": "ports",
            "workload": {"entry": "llama", "options": {"size": "tiny"}},
            "device": {"count": 2, "process_count": 2},
            "measure": {"start_limit_s": 120},
        }
    )
    launcher = LocalLauncher(spec, study_dir=str(tmp_path), base=environment.caller_environment())
    with pytest.raises(WorkerFailed) as caught:
        launcher.start(FlagSet(), tmp_path, progress=lambda phase: None)
    launcher.close()
    assert caught.value.failure.kind is FailureKind.LAUNCH
    assert caught.value.infrastructure
