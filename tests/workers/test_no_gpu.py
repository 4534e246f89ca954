"""A GPU is asked for and none is here: real processes say so, once, and the study ends with what the doctor says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.environment import caller_environment
from autotune.model.errors import LaunchError
from autotune.model.measurement import FailureKind
from autotune.settings.space import SearchSpace
from autotune.study.driver import run_study
from autotune.workers.base import WorkerFailed
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher
from harness.simulated import GivenSetup, given_run
from tests.runs import Diary
from tests.tables import toml_beside
from tests.workers.conftest import PROGRAMS, Start, command, study

pytestmark = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")

CUDA = {"device": {"platform": "cuda"}}
TEXTS = toml_beside(__file__, "programs.toml")


@pytest.mark.parametrize(
    "workload",
    [
        {"entry": "faulty:build"},
        pytest.param(command(program="hooked.py", hook=True), marks=pytest.mark.slow),
        {**command(), "command": [sys.executable, "-c", TEXTS["prints"]]},
    ],
)
def test_a_program_that_runs_on_the_cpu_instead_is_refused(start: Start, workload: dict[str, Any]) -> None:
    """On 2b61fbc: `workload_error: AssertionError: no message`."""
    with pytest.raises(WorkerFailed, match="no GPU") as error:
        start(study(workload, **CUDA))
    assert error.value.failure.kind is FailureKind.LAUNCH
    assert not error.value.infrastructure  # to try again does not bring one
    assert "entry" in workload or "nothing was" in str(error.value)


NAMES_CUDA = """raise RuntimeError("Unable to initialize backend 'cuda': no such plugin")"""


@pytest.mark.parametrize(
    ("program", "device", "words", "kind"),
    [
        (NAMES_CUDA, {}, "RuntimeError: Unable to", FailureKind.WORKLOAD_ERROR),
        pytest.param(TEXTS["asserts"], CUDA, "no GPU", FailureKind.LAUNCH, marks=pytest.mark.gate),
    ],
    ids=["names cuda in a study on the CPU", "asserts without a message"],
)
def test_what_a_command_lacks_is_understood(
    start: Start, program: str, device: dict[str, Any], words: str, kind: FailureKind
) -> None:
    with pytest.raises(WorkerFailed, match=words) as error:
        start(study({**command(), "command": [sys.executable, "-c", program]}, **device))
    assert error.value.failure.kind is kind


@pytest.mark.aot
def test_what_the_plugin_says_is_told(start: Start) -> None:
    with pytest.raises(WorkerFailed, match=r"no GPU.*load \w+"):
        start(study({"entry": "faulty:build"}, **CUDA))


def ended_by(folder: Path, kind: type[LocalLauncher], workload: dict[str, Any], why: str, **more: Any) -> str:
    """What a study says that ends since its reference does not start, which is not tried again."""
    spec, diary = study(workload, **more), Diary()
    launcher = kind(spec, study_dir=str(PROGRAMS), base=caller_environment())
    run = given_run(spec, folder, GivenSetup(given_space=SearchSpace(()), given_launcher=launcher), diary)
    with pytest.raises(LaunchError, match=why) as error:
        run_study(run)
    assert not any("tried again" in note for note in diary.notes)
    return str(error.value)


def test_the_study_ends_with_what_the_doctor_says(tmp_path: Path) -> None:
    why = "JAX finds no GPU though the study asks for one"
    said = ended_by(tmp_path / "run", LocalLauncher, {"entry": "faulty:build"}, why, **CUDA)
    assert "`autotune doctor` finds" in said
    assert "no GPU" in said or "every GPU" in said
    assert 'device.platform = "cpu"' in said


def test_a_program_that_is_not_installed_is_started_once_and_told_so(tmp_path: Path) -> None:
    workload = {"command": ["no-such-program"], "read": {"preset": "maxtext"}}
    assert "`workload.command`" in ended_by(tmp_path / "run", CommandLauncher, workload, "be started")
