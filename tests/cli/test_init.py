"""`init` writes study files that pass the checks of every study, and never over another file."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from autotune.model.spec import load_study
from autotune.programs.draft import checked, plan_unseen
from tests.console import autotune


def test_a_preset_is_written_for_the_devices_here(tmp_path: Path) -> None:
    done = autotune("init", "--entry", "llama", "--platform", "cpu", "--trials", "9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    spec = load_study(tmp_path / "llama.toml")
    assert (spec.workload.entry, spec.device.platform, spec.search.trials) == ("llama", "cpu", 9)
    assert "autotune run llama.toml" in done.stdout


def test_a_function_is_named_and_no_file_written_over(tmp_path: Path) -> None:
    own = ("init", "--entry", "mine:build", "--platform", "cpu", "-o", "own.toml")
    assert autotune(*own, cwd=tmp_path).returncode == 0
    assert load_study(tmp_path / "own.toml").workload.entry == "mine:build"
    (tmp_path / "own.toml").write_text("mine")
    assert autotune(*own, cwd=tmp_path).returncode == 2
    assert (tmp_path / "own.toml").read_text() == "mine"


def test_a_program_with_the_hook_is_not_run(tmp_path: Path) -> None:
    done = autotune("init", "--", "no-such-program", cwd=tmp_path)
    assert (done.returncode, "autotune tune --dry-run -- no-such-program" in done.stderr) == (2, True)
    done = autotune("init", "--hook", "--name", "b", "--", "no-such-program", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_study(tmp_path / "b.toml").workload.hook


@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_argument_comes_back_from_the_file_as_it_was(name: str) -> None:
    command = ["python", name]
    text = plan_unseen(
        command, name="x", platform="cpu", count=1, device="some\nCPU", trials=3, budget_s=90.5, said=f"x {name}"
    )
    spec = checked(text)
    assert spec.workload.command == tuple(command)
    assert spec.search.time_budget == 90.5
