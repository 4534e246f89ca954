"""Programs that print as people's programs do, started as people start them: a first look reads their steps."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from autotune.model.errors import LaunchError
from autotune.programs.draft import SHORTEST_RUN_S, SOAK_S, plan_of
from autotune.programs.look import ProbeResult, probe_program
from autotune.programs.probe import ProbeRequest
from tests.runs import there
from tests.tables import toml_beside

PRINTERS = toml_beside(__file__, "printers.toml")


def look(folder: Path, *command: str, **rules: object) -> ProbeResult:
    request = ProbeRequest(command=command, cwd=folder, platform="cpu", rules=rules, limit_s=60.0)
    return probe_program(request, note=lambda text: None)


@pytest.mark.parametrize("kind", ["tqdm", pytest.param("plain", marks=pytest.mark.gate)])
def test_steps_are_found_however_they_are_printed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTERS[kind])
    found = look(tmp_path, sys.executable, "train.py")
    assert 0.01 < found.steps.step_s < 0.2, found
    assert len(found.steps.at_s) >= 25
    assert len(found.steps.example) < 120, "no bar as long as a terminal"
    assert found.steps.example.isprintable(), "colours and movements of the cursor are not shown to people"


@pytest.mark.gate
@pytest.mark.skipif(shutil.which("script") is None, reason="this machine has no script(1)")
def test_a_bar_that_is_drawn_on_a_terminal_only_is_read_under_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "train.py").write_text(PRINTERS["rich"])
    found = look(tmp_path, "script", "-qec", f"{sys.executable} train.py", "/dev/null")
    assert 0.01 < found.steps.step_s < 0.2, found
    assert found.rules["preset"] == "rich"


@pytest.mark.gate
def test_where_not_each_step_has_a_line_a_run_is_as_long_as_it_is_said_to_be(tmp_path: Path) -> None:
    """A bar of Keras is drawn every 50 ms: so many lines as steps fill a run would have taken 7 times that."""
    (tmp_path / "train.py").write_text(PRINTERS["tenth"])
    found = look(tmp_path, sys.executable, "train.py")
    assert found.steps.step_s == pytest.approx(0.005)
    assert 0.05 <= found.steps.line_s < 0.12
    plan = plan_of(found, name="every-tenth", trials=4, budget_s=None, command_line="tune")
    assert plan.spec.measure.run_steps * found.steps.line_s == pytest.approx(plan.run_s - found.steps.start_s)
    assert plan.run_s - found.steps.start_s < 1.2 * SHORTEST_RUN_S
    assert plan.spec.confirm.soak == SOAK_S


def test_of_one_that_prints_nothing_it_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTERS["silent"])
    with pytest.raises(LaunchError, match=r"(?s)printed nothing.*(--step-file|hook)"):
        look(tmp_path, sys.executable, "train.py")


STARTS = {
    "bash run.sh": ("bash", "run.sh"),
    "uv run": ("uv", "run", "--no-project", "--python", sys.executable, "train.py"),
}


@pytest.mark.parametrize("kind", STARTS)
def test_steps_and_interpreter_are_found_however_it_is_started(kind: str, tmp_path: Path) -> None:
    command = STARTS[kind]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} on this machine")
    (tmp_path / "train.py").write_text("import jaxlib.xla_client\n" + PRINTERS["plain"])
    (tmp_path / "run.sh").write_text(f"cd {tmp_path} && {sys.executable} train.py\n")
    found = look(tmp_path, *command)
    assert found.steps.step_s == pytest.approx(0.021, abs=0.01)
    assert Path(there(found.probe.python)).samefile(sys.executable)
    assert found.probe.jaxlib is not None
