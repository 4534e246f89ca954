"""From a study, of a formula or real, to a recheck, by the real commands: proven, exported, kept, and found to hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.simulated_machine import write_study
from tests.console import autotune, autotune_process

SLOW_BASELINE = Path(__file__).with_name("slow_baseline.toml").read_text(encoding="utf-8")


def started(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints, run as a user runs it."""
    done = autotune_process(*arguments, cwd=folder, timeout_s=800, module="harness.simulated_machine")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def called(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command that starts no process prints, called in this one."""
    done = autotune(*arguments, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


RUN = "runs/slow-baseline"


FORMULA = "\n[simulation]\neffects = { 'xla_backend_optimization_level=2' = 0.4 }\n"


BY_FORMULA, REAL = pytest.param(FORMULA, marks=pytest.mark.gate), pytest.param("", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[BY_FORMULA, REAL], ids=["formula", "real"])
def proven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study whose steps come from a formula, or are real."""
    folder = tmp_path_factory.mktemp("chain")
    write_study(folder / "study.toml", SLOW_BASELINE + request.param)
    (folder / "conclusion.json").write_text(started(folder, "run", "study.toml", "--json"))
    return folder


@pytest.mark.parametrize("proven", [BY_FORMULA], indirect=True, ids=["formula"])
def test_a_winner_that_was_proven_elsewhere_is_executed_by_force_alone(proven: Path) -> None:
    called(proven, "export", RUN, "--format", "env", "-o", "winner.env")
    assert "proven with simulated," in called(proven, "verify", "winner.env", code=1)
    command = ("winner.env", "--", "sh", "-c", 'printf %s "$XLA_FLAGS"')
    assert started(proven, "exec", *command, code=2) == ""
    assert started(proven, "exec", "--force", *command) == "--xla_backend_optimization_level=2"


@pytest.mark.timeout(1500)
def test_a_winner_is_found_to_hold_and_takes_its_older_proof_s_place(proven: Path) -> None:
    kept = called(proven, "library", "add", RUN).strip()
    again = json.loads(started(proven, "recheck", RUN, "--json"))
    assert again["outcome"] == "winner"
    assert "xla_backend_optimization_level=2 still holds" in again["sentence"]
    # The recheck is a proof of its own: exported and kept in the older one's place.
    assert called(proven, "library", "add", again["run"]).strip() == kept
    assert "just this" in called(proven, "best")
    called(proven, "report", again["run"])
